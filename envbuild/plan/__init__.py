"""The planner. In: resolutions, a lock, a target and the facts of nodes. Out: the steps of every node, and their cost.

Pure: nothing is read and nothing is asked. It imports nothing of `provision`, `transport` or `cli`.
"""
