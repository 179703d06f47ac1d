"""Environments in one file each: packed, handed from node to node, unpacked, published in a shared folder.

In: a stamped environment or a pack. Out: the other one. Here too are the verbs that may take a pack or serve one:
`install` (`provide.py`; where no pack fits it builds through `env.install`), `ensure`, `verify` and `envs`.
Never imports `smoke` or `image`.
"""
