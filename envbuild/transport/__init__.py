"""Bytes in and out: the program `ssh` for nodes, one download function for files.

In: a connection or an address, and bytes. Out: the answer, or a coded error that names the host. Knows nothing of
stacks, locks or plans.
"""
