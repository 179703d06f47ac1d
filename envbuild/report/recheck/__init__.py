"""A report checked again by a reader who trusts nobody: each statement against its source.

In: a report on a disk. Out: what was checked, what was not, and what does not hold. Asks no node and no network, runs
nothing of the report, and believes no sentence in it.
"""
