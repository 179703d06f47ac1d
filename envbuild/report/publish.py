"""Evidence for everybody to see: the fields that its schema marks as public, and nothing else.

A node has a label (`node-1`, by its place in the evidence) instead of its name. A text that the schema demands and does
not mark reads `not published`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from pydantic import BaseModel

from envbuild.model.common import LEFT_OUT
from envbuild.model.evidence import Evidence
from envbuild.redact import redact_data


def published(evidence: Evidence) -> Evidence:
    """The public part of the evidence. Of what is published already it is the same."""
    kept = tuple(item for item in evidence.attachments if item.is_public)
    labels = {node.node: f"node-{number}" for number, node in enumerate(evidence.nodes, 1)}
    public = public_fields(evidence.model_copy(update={"attachments": kept}), labels)
    return Evidence.from_plain(redact_data(public))


def public_fields(model: BaseModel, labels: Mapping[str, str]) -> dict[str, Any]:
    """The marked fields of a model as plain data; `labels`: of each node, by its name."""
    plain = dict[str, Any]()
    for name, field in type(model).model_fields.items():
        extra = field.json_schema_extra
        mark = extra.get("public") if isinstance(extra, dict) else None
        if mark is not None:
            plain[name] = _public(getattr(model, name), mark, labels)
        elif field.is_required():
            plain[name] = LEFT_OUT
    return {name: value for name, value in plain.items() if value is not None}


def _public(value: Any, mark: Any, labels: Mapping[str, str]) -> Any:
    if isinstance(value, BaseModel):
        return public_fields(value, labels)
    if isinstance(value, list | tuple):
        return [_public(item, mark, labels) for item in value]
    if mark == "node":
        return None if value is None else labels.get(value, LEFT_OUT)
    if isinstance(mark, list):
        return _keys(value, mark)
    return value


def _keys(value: Any, keys: Iterable[str]) -> Any:
    """The listed keys of free-form data."""
    if isinstance(value, list | tuple):
        return [_keys(item, keys) for item in value]
    if not isinstance(value, dict):
        return None
    kept = dict[str, Any]()
    for key, item in value.items():
        below = [rest for first, _, rest in (each.partition(".") for each in keys) if fnmatchcase(key, first)]
        if "" in below:
            kept[key] = item
        elif below:
            kept[key] = _keys(item, below)
    return kept
