"""A setup page or a checkout as a drafted stack, by rules and facts alone.

In: files of strangers. Out: statements with their places, a draft, findings, and the text of a stack file. Nothing of
what is read is executed or imported here, and nothing of it is written with credentials. Begin at `draft.py`.
"""
