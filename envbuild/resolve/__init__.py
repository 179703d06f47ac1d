"""What fits: facts x variants x compatibility data -> Resolution, with a reason for every decision. Pure.

In: facts of nodes, and a lock. Out: one variant for each node, or why none. Only `compat_read.py` reads files, the
catalog's data.
"""
