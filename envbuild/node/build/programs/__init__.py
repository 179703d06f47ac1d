"""Programs that run with the environment's interpreter during a build; each stands alone.

In: arguments and a JSON request. Out: files and an exit code.
Never import envbuild.
"""
