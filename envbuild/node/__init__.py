"""The node program: standard library only, Python 3.6 syntax, imports nothing outside this package."""
