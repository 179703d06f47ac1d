"""The node program: standard library only, Python 3.8 (the probe: 3.6), sent to nodes as one zip file.

In: one JSON request on stdin. Out: one JSON response on stdout. Never imports anything outside this package.
"""
