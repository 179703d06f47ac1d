"""Locks: create, read, write, check, diff, export."""
