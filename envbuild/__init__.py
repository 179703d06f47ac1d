"""Provision and verify reproducible GPU training environments."""

__version__ = "0.1.0"
