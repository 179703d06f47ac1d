"""Strict pydantic models of all values.

Import the module that you need. In: plain data. Out: validated values. No input or output.
"""
