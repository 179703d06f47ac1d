"""Environments in one file each: packed, handed from node to node, unpacked, published in a shared folder.

In: a stamped environment or a pack. Out: the other one.
Never imports `smoke` or `image`.
"""
