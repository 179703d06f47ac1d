"""Tasks for hand use with fab; a folder of its own, because fab puts it on Python's path.

In: a target. Out: what its nodes answered. Never decides: it calls what the verbs call.
"""
