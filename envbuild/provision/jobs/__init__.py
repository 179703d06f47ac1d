"""Nodes that are reached through jobs of Slurm or PBS.

In: a plan. Out: what each node of a job answered.
Never imports Ansible's modules but through `ansible/`.
"""
