"""Drafts a stack from a setup page or a checkout, by rules and facts alone.

In: files of strangers. Out: statements with their places, a draft, findings, and the text of a stack file. Runs and
imports nothing of its input, and writes no credentials. Begin at `draft.py`.
"""
