"""Readers, one a format: the text of a file comes in, statements go out. Nothing is executed, no other file opened."""
