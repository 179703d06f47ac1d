"""Places in plain data, such data with one value changed, and the models that read them."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

Place = tuple[Any, ...]
# A value that is taken away.
REMOVED = object()


def places(data: Any, above: Place = ()) -> Iterator[Place]:
    """Every place, the whole first; those of leaves have nothing below."""
    yield above
    for key in data if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ():
        yield from places(data[key], (*above, key))


def at(data: Any, place: Place) -> Any:
    """What is at a place."""
    for key in place:
        data = data[key]
    return data


def changed(data: Any, place: Place, value: Any) -> Any:
    """The data with another value at one place; what is not on the way to it is shared."""
    if not place:
        return value
    key, *rest = place
    if not rest and value is REMOVED:
        return {name: below for name, below in data.items() if name != key}
    below = changed(data[key], tuple(rest), value)
    if isinstance(data, list):
        return [below if index == key else old for index, old in enumerate(data)]
    return {**data, key: below}


def models_below(kind: Any, found: dict[str, type[BaseModel]] | None = None) -> dict[str, type[BaseModel]]:
    """Every model in a type and in what its fields hold, by its name."""
    found = {} if found is None else found
    if isinstance(kind, type) and issubclass(kind, BaseModel) and kind.__name__ not in found:
        found[kind.__name__] = kind
        for field in kind.model_fields.values():
            models_below(field.annotation, found)
    for each in typing.get_args(kind):
        models_below(each, found)
    return found
