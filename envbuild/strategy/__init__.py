"""Which parallel degrees and microbatches are worth a trial: memory first, then time. Pure.

In: a row of a model table, GPUs, and what trials have said so far. Out: cases in order of promise. Never runs anything.
"""
