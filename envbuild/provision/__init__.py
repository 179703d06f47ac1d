"""Plan -> nodes: look, plan, carry out, verify, report, along the route of a target (`routes.py`).

In: what was asked and agreed. Out: evidence. Never decides what fits: `resolve` and `plan` have done that.
"""
