"""Two reports side by side. In: two Evidence. Out: what changed and what got worse, as text, page and data.

Never asks a node: a report says all there is.
"""
