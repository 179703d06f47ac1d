"""The planner. Pure: it reads nothing and asks nothing. Imports nothing of `provision`, `transport` or `cli`.

In: resolutions, a lock, a target and the facts of nodes. Out: the steps of every node, and their cost.
"""
