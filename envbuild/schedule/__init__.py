"""Jobs of a scheduler: render, submit, poll, cancel, logs; `slurm.py` and `pbs.py` have the same small interface.

In: a Job. Out: scripts and states. Knows nothing of stacks or locks.
"""
