"""Images: the stages of a build inside one, and images that this node loads and runs.

In: a recipe's requests, or an image's id. Out: a stage's files, or an image that was tested on this node.
Never imports `shared`: a stage asks for a verb by its name, as a run does.
"""
