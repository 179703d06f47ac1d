"""The rules; `order.py` has them in the order in which they are asked; each gives decisions with an id and a reason.

In: facts, a variant, what is known of GPUs, drivers and packages. Out: decisions. Pure: never reads, writes or asks.
Beside the order: rules of conda packages (`conda.py`); what is known of Apex's commits (`apex.py`), which is no rule.
"""
