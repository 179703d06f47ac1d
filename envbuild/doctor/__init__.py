"""What is wrong, before anything is built: this controller, one node, the hosts of a target.

In: a target and facts of probes. Out: findings, each with the next step. Changes nothing.
"""
