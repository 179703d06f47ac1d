"""The rules; `order.py` has them in the order in which they are asked; each gives decisions with an id and a reason.

In: facts, a variant, what is known of GPUs, drivers and packages. Out: decisions. Pure.
Never imports rooms that read or write.
"""
