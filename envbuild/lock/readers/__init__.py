"""Readers of what a lock is made from: git trees, indexes, wheels, and requirements of builds.

In: values of a stack file. Out: versions, files and hashes. Never writes a lock.
"""
