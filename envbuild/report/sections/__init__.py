"""What a reviewer asks first, as rows: claims, evidence for badges, pins, and what nobody looked at.

In: Evidence. Out: words, never markup.
"""
