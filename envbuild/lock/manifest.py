"""Digests of each field of a stack's profile, so that a lock can name the field in which it disagrees."""

from __future__ import annotations

import hashlib

from envbuild.model.lock import canonical_json
from envbuild.model.stack import Profile


def field_digests(profile: Profile) -> dict[str, str]:
    """Field name to sha256 (hex) over its canonical JSON; a field equal to its default is left out, at any depth."""
    data = profile.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return {name: hashlib.sha256(canonical_json(value)).hexdigest() for name, value in sorted(data.items())}
