"""The life of one run: its directory, journal, context and evidence.

In: what a verb was asked. Out: a run directory that says how it began and how it ended.
Never imports `fleet`, `jobs` or `images`.
"""
