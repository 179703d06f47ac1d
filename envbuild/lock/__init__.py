"""Locks: created, read, written, checked and compared; `readers/` reads what they are made from.

In: a stack's profile. Out: names, versions and hashes. Never imports `plan` or `provision`.
"""
