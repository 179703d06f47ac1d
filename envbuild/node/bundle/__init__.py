"""Bundles: one file or folder with everything that an installation needs, each file by its sha256.

In: a bundle that the controller made or somebody carried here, trusted in nothing. Out: its files in a folder, each
one checked. The reader of tar files here also serves kits. Never imports `wheels`, `build` or `env`.
"""
