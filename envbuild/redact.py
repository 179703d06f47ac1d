"""The one redactor; it lies in the node program, because nodes write logs and answers too."""

from envbuild.node.redact import MASK, learn, looks_secret, redact_data, redact_text, redactor

__all__ = ["MASK", "learn", "looks_secret", "redact_data", "redact_text", "redactor"]
