"""Jobs of a scheduler: render, submit, poll, cancel, logs. `slurm.py` and `pbs.py` have the same small interface."""
