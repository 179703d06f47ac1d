"""What fits: facts x variants x compatibility data -> Resolution, with a reason for every decision. Pure.

In: what nodes said and what a lock offers. Out: one variant a node, or why none. Never asks a node or writes;
`compat_read.py` alone reads, the catalog's data.
"""
