"""Which parallel degrees and microbatches are worth a trial: memory first, then time. Pure.

In: a row of a model table, GPUs, and results of trials. Out: cases, the most promising first.
"""
