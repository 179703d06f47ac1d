"""First contact with a node that may have no Python, and the tools that it gets.

In: a host and a request. Out: the node program's answer.
Never imports `survey`, `fleet`, `jobs` or `images`.
"""
