"""Bytes in and out: the program `ssh` for nodes, one download function for files.

In: a connection or an address, and what to send. Out: what came back, or a coded error that names the host.
Never imports rooms that know stacks, locks or plans.
"""
