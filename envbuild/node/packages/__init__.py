"""Locked packages: pip's configuration, indexes, uv, wheel files, and what is installed.

In: a variant's packages with their hashes. Out: installed distributions, or a coded error.
Never imports `env`, `shared` or `smoke`.
"""
