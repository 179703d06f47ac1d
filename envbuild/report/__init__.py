"""Evidence for people and programs: terminal, HTML, Markdown, JSON, and its schema.

In: one Evidence. Out: text, and the files of a report, signed or published on request. Never changes a verdict.
"""
