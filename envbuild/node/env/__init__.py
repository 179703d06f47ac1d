"""One environment: made, hashed, stamped, switched to, verified, removed.

In: a locked variant and a prefix. Out: an environment with a stamp, or the one that was there before.
Never imports `smoke` or `image`.
"""
