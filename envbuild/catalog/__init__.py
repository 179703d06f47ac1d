"""Shipped knowledge (stacks, targets, compatibility data) and its loader."""
