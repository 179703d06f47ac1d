"""What is wrong, before anything is built: this controller, one node, the hosts of a target.

In: a target and what probes read. Out: findings, each with what to do next. It changes nothing.
"""
