"""Filling the words of a command with values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from pydantic import JsonValue

from envbuild.model.launch import Words

Value = str | int | float | bool | None
Values = Mapping[str, Value]

_NAME = re.compile(r"\{([a-z0-9_]+)\}")


def fill(words: Iterable[str | Words], values: Values) -> tuple[str, ...]:
    """The words with every `{name}` replaced; a group whose `when` has no value, or a false one, is left out.

    Raises KeyError for a name that has no value: a mistake of the stack's file.
    """
    out: list[str] = []
    for word in words:
        if isinstance(word, Words):
            if values[word.when]:
                out += [_filled(text, values) for text in word.words]
        else:
            out.append(_filled(word, values))
    return tuple(out)


def fill_config(config: JsonValue, values: Values) -> JsonValue:
    """A configuration with its values filled in; a text that is one `{name}` becomes the value itself, not a text."""
    if isinstance(config, dict):
        return {key: fill_config(value, values) for key, value in config.items()}
    if isinstance(config, list):
        return [fill_config(value, values) for value in config]
    if not isinstance(config, str):
        return config
    whole = _NAME.fullmatch(config)
    return values[whole.group(1)] if whole else _filled(config, values)


def _filled(text: str, values: Values) -> str:
    def value(match: re.Match[str]) -> str:
        found = values[match.group(1)]
        if found is None:
            raise KeyError(match.group(1))
        return str(found)

    return _NAME.sub(value, text)
