"""Short tests inside an environment, on one node and over several.

In: the items that a stack asks for. Out: checks with metrics. Changes nothing.
Never imports `build.wheel`, `packs` or `image`.
"""
