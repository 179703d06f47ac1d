"""Programs that run with the environment's interpreter during a smoke test.

In: one JSON request as an argument. Out: events, one JSON line each.
Never import anything of envbuild but each other.
"""
