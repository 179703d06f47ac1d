"""Bundles on this machine: fetches their files and writes them as one file or folder.

In: variants of a lock. Out: a bundle (`node/bundle` has its format and reads it). Never imports `provision`,
`container` or `cli`.
"""
