"""JSON Schema, imported late: it compiles the grammars of internet addresses, which takes a second."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator


def schema_validator(text: str) -> Draft202012Validator:
    """The validator of a schema's text."""
    import jsonschema

    return jsonschema.Draft202012Validator(json.loads(text))
