"""Explains a stack: findings with their checks, decisions, and its document with notes beside it.

In: a stack and perhaps facts. Out: text and data. Never changes a lock or a node.
"""
