"""A stand-in: there, and nothing in it."""
