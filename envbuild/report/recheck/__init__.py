"""A report checked again by a reader who trusts nobody: each statement against what it is made from.

In: a report as it lies on a disk. Out: what was checked, what was not, and what does not hold. Asks no node and no
network, runs nothing of the report, and believes no sentence in it.
"""
