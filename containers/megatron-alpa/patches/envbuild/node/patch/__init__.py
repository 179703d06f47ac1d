"""Our edits of pinned sources, placed by syntax; this package also runs by itself inside an environment.

In: a folder and the specs of patches. Out: what was changed, as diffs. All or nothing is written.
Never imports anything of node/ but `protocol` and `redact`: both go with it.
"""
