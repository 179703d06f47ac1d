"""`engine: container`: one image, built or pulled, and every node runs that one.

In: a recipe and the nodes. Out: what each node said of the image.
Never installs an environment on a node.
"""
