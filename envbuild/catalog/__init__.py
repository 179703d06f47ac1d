"""What ships as data: stacks, targets, patches, indexes, compatibility tables; and the one safe YAML loader.

In: names and paths. Out: models, each value with its witness. Never imports `resolve`, `lock` or `provision`.
"""
