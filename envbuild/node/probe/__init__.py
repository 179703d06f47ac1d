"""The facts of this node: what is there, never what should be.

In: nothing but the machine. Out: JSON in the shape of `model/facts.py`. Writes nothing.
Never imports `build`, `shared`, `smoke` or `image`.
"""
