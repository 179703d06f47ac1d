"""The commands that start a stack's own run, as data and as shell text; one recipe a stack. Pure.

In: parameters and a place. Out: command lines.
"""
