"""The nouns: strict pydantic models; import the module you need, nothing is re-exported here.

In: plain data. Out: values that cannot be wrong in shape. Never reads, writes or asks.
"""
