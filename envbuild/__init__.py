"""Provision and verify reproducible GPU training environments."""

__version__ = "0.1.0"
# Where it is published; OWNER stands for an account that is not known yet.
REPOSITORY = "https://github.com/OWNER/envbuild"
