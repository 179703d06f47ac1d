"""Sources become wheels: patched, built under one path and one job budget, checked, normalized.

In: pinned trees and an environment. Out: wheels, and what is known of each.
Never imports `env`, `shared`, `smoke` or `image`.
"""
