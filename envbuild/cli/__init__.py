"""The command line, one file a group of verbs.

In: arguments. Out: text or JSON, and the exit code. Parses, calls, prints; never decides.
"""
