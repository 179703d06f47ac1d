"""A lock or a plan as other tools read it: requirements, pylock, one bash script. In: locks and plans. Out: text.

Addresses appear here only, on request. It imports nothing of `provision` or `cli`.
"""
