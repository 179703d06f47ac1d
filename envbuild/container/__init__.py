"""Images: a recipe and its Dockerfile, pure; builders, registries and checks at the edges.

In: a variant and a target. Out: an image, or the files that make one. Of `provision` it
imports `contact` alone.
"""
