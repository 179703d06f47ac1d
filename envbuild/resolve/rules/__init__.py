"""The rules; `engine.py` has their order. Each returns decisions with an id and a reason. Pure.

In: facts, a variant, compat data. Out: decisions. Outside the order: rules of conda packages (`conda.py`).
"""
