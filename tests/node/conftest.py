"""A node for every room of these tests."""

from tests.node.env_support import node

__all__ = ["node"]
