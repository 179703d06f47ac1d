"""Short tests inside an environment, on one node and over several.

In: the items that a stack asks for. Out: checks with metrics. Changes nothing in an environment; one that a run has
just built is given up where a check fails, and the one before it is back.
Never imports `build.wheel`, `shared` or `image`.
"""
