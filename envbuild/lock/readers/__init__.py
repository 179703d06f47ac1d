"""Readers of what a lock is made from: git trees, indexes, wheels, and what builds require.

In: a manifest's words. Out: versions, files and hashes as they are there.
Never writes a lock.
"""
