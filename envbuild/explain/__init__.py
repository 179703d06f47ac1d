"""What a stack is about: findings with their checks, decisions, and its document with notes beside it.

In: a stack and, where given, facts. Out: text and data. Never changes a lock or a node.
"""
