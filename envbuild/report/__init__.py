"""Evidence as people and programs read it: terminal, HTML, Markdown, JSON, and its schema.

In: one Evidence. Out: text, and the files of a report, signed and published where asked.
Never asks a node and never changes a verdict.
"""
