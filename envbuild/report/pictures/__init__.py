"""Pictures of a run: geometry made from evidence, and the table behind each. No data, no picture.

In: Evidence. Out: `Picture`s, which a template writes as SVG. Never reads anything else, so a page can be made again.
"""
