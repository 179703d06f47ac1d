"""Strategies for facts that are generated from the model itself: every field, plausible values among absurd ones."""

from __future__ import annotations

import types
import typing
from typing import Any

from hypothesis import strategies as st
from pydantic import BaseModel

from envbuild.model.facts import NodeFacts

_VERSIONS = ["", "x", "3", "3.11.2", "3.12", "11.6", "12.8.1", "470.82.01 (GA)", "99999999999999999999.1", "-1", "٣.١"]
# Texts that make a rule look closer, by the name of the field that holds them.
_LIKELY: dict[str, list[str]] = {
    "version": _VERSIONS,
    "cuda_ceiling": _VERSIONS,
    "compute_capability": ["9.0", "8.6", "7.0", "12.0", "9", "99.9", "x", ""],
    "name": ["NVIDIA H200", "Tesla V100-SXM2-16GB", "NVIDIA GeForce RTX 4090", "eth0", ""],
    "path": ["/usr/bin/python3", "/usr/bin/gcc", "/usr/local/cuda/bin/nvcc", "gcc-12", "/", ""],
    "arch": ["x86_64", "aarch64", "arm64", ""],
    "kind": ["glibc", "musl", "slurm", "infiniband", ""],
    "implementation": ["cpython", "pypy", ""],
    "visible_devices": ["", "0", "0,1", "-1", "none", "GPU-1,,", "MIG-1"],
    "packages": ["torch", "numpy", "setuptools"],
}
_TEXT = st.text(max_size=8)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | _TEXT,
    lambda below: st.lists(below, max_size=2) | st.dictionaries(_TEXT, below, max_size=2),
    max_leaves=3,
)


def any_facts() -> st.SearchStrategy[NodeFacts]:
    """Facts that the model accepts, whatever they say."""
    return _model(NodeFacts).map(NodeFacts.model_validate)


def _model(kind: type[BaseModel]) -> st.SearchStrategy[dict[str, Any]]:
    fields = {name: _value(field.annotation, name) for name, field in kind.model_fields.items()}
    needed = {name: field for name, field in fields.items() if kind.model_fields[name].is_required()}
    return st.fixed_dictionaries(needed, optional={name: field for name, field in fields.items() if name not in needed})


def _value(annotation: Any, name: str) -> st.SearchStrategy[Any]:
    if annotation is Any:
        return _JSON
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        return _plain(annotation, name)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (types.UnionType, typing.Union):
        return st.one_of(*(_value(part, name) for part in arguments))
    if origin is tuple:
        return st.lists(_value(arguments[0], name), max_size=3)
    if origin is dict:
        return st.dictionaries(_plain(str, name), _value(arguments[1], "version"), max_size=2)
    raise TypeError(f"no strategy for {annotation}")


def _plain(kind: type, name: str) -> st.SearchStrategy[Any]:
    if kind is type(None):
        return st.none()
    if issubclass(kind, BaseModel):
        return _model(kind)
    if kind is bool:
        return st.booleans()
    if kind is int:
        return st.integers(-1, 10**15)
    if kind is float:
        return st.floats(allow_nan=True, allow_infinity=True)
    if kind is str:
        return st.sampled_from(_LIKELY[name]) | _TEXT if name in _LIKELY else _TEXT
    raise TypeError(f"no strategy for {kind}")
