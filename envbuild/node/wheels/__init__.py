"""The wheel store: wheels built from source, by build key, and their way between nodes.

In: a build key and a builder. Out: a wheel that is right for this node.
Never imports `env`, `shared` or `smoke`.
"""
