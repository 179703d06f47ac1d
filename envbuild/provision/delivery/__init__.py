"""Files that this machine fetches for nodes which cannot.

In: a variant. Out: an archive that a play unpacks.
Never imports `fleet`, `jobs` or `images`.
"""
