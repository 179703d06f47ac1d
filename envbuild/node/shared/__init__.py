"""Nodes with a disk each and a folder that they share: it says what every node gets, from which bundle.

In: a request of `install` and `activate`, or a folder. Out: an environment on this node, or what the folder says.
Here too is the verb that looks at such a folder or at a prefix: `verify`. Never imports `smoke` or `image`.
"""
