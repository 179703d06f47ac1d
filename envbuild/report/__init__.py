"""Evidence -> HTML, Markdown, JSON."""
