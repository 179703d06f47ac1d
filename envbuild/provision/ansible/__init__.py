"""Ansible: configuration, inventory, and one play at a time. Nobody else imports ansible-runner.

In: the steps of each node. Out: their answers, by node and verb.
Never decides what a node needs.
"""
