"""Conda packages as what an environment stands on: archives brought and checked, installed by rattler, told apart.

In: locked packages and where their archives lie. Out: a prefix with its interpreter, and what `conda-meta` says of it.
It never runs what an archive holds, but for the scripts that the stack lists, and writes nowhere else.
"""
