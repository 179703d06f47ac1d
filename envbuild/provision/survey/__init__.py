"""Before anything changes: stack, target and lock agreed, nodes asked, variants decided, a plan made.

In: options. Out: facts, resolutions and a plan.
Never changes an environment.
"""
