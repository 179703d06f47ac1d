"""Turns a failed validation into one coded error: dotted field, line and column, the value, the nearest known key."""

from __future__ import annotations

import contextlib
import json
import re
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from envbuild.catalog.yaml_load import YamlDocument, parse_yaml, read_yaml
from envbuild.errors import EnvbuildError
from envbuild.model.common import MUST_BE, StrictModel, refusal_of
from envbuild.node.redact import redact_text
from envbuild.text import did_you_mean, nearest

SHOWN = 20
_LONGEST_VALUE = 60
_YAML_1_1 = {"yes": "true", "on": "true", "no": "false", "off": "false"}
_PROBLEM_FIELDS = ("field", "says", "file", "line_number", "column", "hint")
# What people write for nothing, where YAML has `null`.
_NOTHING = ("none", "null", "nil", "no", "~")
_MISSING = object()
Step = str | int
Model = TypeVar("Model", bound=StrictModel)


def validated(model: type[Model], data: Any, *documents: YamlDocument) -> Model:
    """Plain `data` as a model. Raises what `manifest_error` makes of a mistake."""
    try:
        return model.from_plain(data)
    except ValidationError as error:
        raise manifest_error(error, model, data, documents) from None


def read_model(model: type[Model], path: Path) -> Model:
    """A YAML file of one model. Raises EnvbuildError `manifest-*` (exit 2)."""
    document = read_yaml(path)
    return validated(model, document.data, document)


def manifest_error(
    error: ValidationError, model: type[StrictModel], data: Any, documents: Sequence[YamlDocument]
) -> EnvbuildError:
    """The `manifest-invalid` error for plain `data` that `model` refused.

    `documents` are the files the data came from, the most specific first; what none of them holds was given on the
    command line. The first mistake with a hint, else the first, is the sentence; of it the cause has place and value.
    Of several mistakes each has its hint beside it.
    """
    # A hint validates all of the data again: only what is shown gets one.
    problems = [
        _problem(item, model, data, documents, hinted=at < SHOWN) for at, item in enumerate(_distinct(error, data))
    ]
    first = next((problem for problem in problems if problem["hint"]), problems[0])
    problems = [first, *(problem for problem in problems if problem is not first)]
    more = len(problems) - SHOWN
    alone = len(problems) == 1
    lines = [first["at"] + first["beside"] * (not alone), *(problem["line"] for problem in problems[1:SHOWN])]
    lines += [f"and {more} more"] if more > 0 else []
    return EnvbuildError(
        "manifest-invalid",
        first["told"],
        why="\n     ".join(lines),
        hint=first["hint"] if alone else "",
        details={"problems": [{key: problem[key] for key in _PROBLEM_FIELDS} for problem in problems]},
    )


def _distinct(error: ValidationError, data: Any) -> list[Any]:
    """One problem per place: a union reports every alternative it tried."""
    seen: set[tuple[Step, ...]] = set()
    out = []
    for item in error.errors(include_url=False, include_context=True):
        place = _real_path(item["loc"], item["type"], data)
        if place not in seen:
            seen.add(place)
            out.append(item)
    return out


def _real_path(loc: tuple[Step, ...], kind: str, data: Any) -> tuple[Step, ...]:
    """The part of a location that exists in the data, plus the key that is missing."""
    path: list[Step] = []
    current = data
    for step in loc:
        following = _step(current, step)
        if following is _MISSING:
            if kind == "missing" and step == loc[-1]:
                path.append(step)
            # Names of union members and validators stand between real steps; skip them.
            continue
        path.append(step)
        current = following
    return tuple(path)


def _step(current: Any, step: Step) -> Any:
    if isinstance(current, dict):
        return current.get(step, _MISSING)
    if isinstance(current, list) and isinstance(step, int) and step < len(current):
        return current[step]
    return _MISSING


def _problem(
    item: Any, model: type[StrictModel], data: Any, documents: Sequence[YamlDocument], *, hinted: bool
) -> dict[str, Any]:
    kind = item["type"]
    path = _real_path(item["loc"], kind, data)
    field = _dotted(path)
    # Of a contradiction, what the user's own file says of it.
    about = [(*path, key) for key in refusal_of(item).at if documents and documents[0].holds((*path, key))]
    wanted = about[0] if about else path[:-1] if kind == "missing" else path
    place = next(((document.name, *document.locate(wanted)) for document in documents if document.holds(wanted)), None)
    file, line, column = place or (None, None, None)
    value = item.get("input")
    says = _says(item, kind)
    has_value = kind not in ("missing", "extra_forbidden") and not isinstance(value, dict | list)
    shown = f": {show_value(value)}" if has_value else ""
    where = f"{file}:{line}:{column}" if place else "given on the command line"
    hint = _hint(item, says, path, model, data, documents) if hinted else ""
    beside = f" ({hint})" if hint else ""
    # What a check of ours says is a sentence of its own; what a type says begins with "must".
    is_sentence = kind == "value_error" and not says.startswith(("must ", "has "))
    message = f"{field}{':' if is_sentence else ''} {says}" if field else says
    return {
        "field": field,
        "says": says,
        "told": message,
        "file": file,
        "line_number": line,
        "column": column,
        "hint": hint,
        "at": where + shown,
        "beside": beside,
        "line": f"{where}: {message}{shown}{beside}",
    }


def _dotted(path: tuple[Step, ...]) -> str:
    field = ""
    for step in path:
        if isinstance(step, int):
            field += f"[{step}]"
        else:
            # A key is a stranger's text as well.
            name = step if step.isidentifier() or step.replace("-", "_").isidentifier() else show_value(step)
            field += f".{name}" if field else name
    return field


def _hint(
    item: Any, says: str, path: tuple[Step, ...], model: type[StrictModel], data: Any, documents: Sequence[YamlDocument]
) -> str:
    """What to write, which the model does not refuse there; empty where nobody can know."""
    kind, value, refusal = item["type"], item.get("input"), refusal_of(item)
    key = str([*path, *refusal.at[:1]][-1]) if path or refusal.at else ""
    if refusal.instead:
        return _line(path, key, redact_text(refusal.instead), data)
    if meant := model.hints.get(f"{_dotted(path)}: {value}".lower()):
        return f"write {meant}"
    if kind == "extra_forbidden" or says == "must be a mapping":
        known = model.hints.get(_dotted(path)) or model.hints.get(key.replace("-", "_"))
        meant = known or (_placed(model, path, data, documents) if kind == "extra_forbidden" else "")
        if meant:
            return f"write {meant}"
    if kind == "missing" and (meant := model.meant(key, "", data)):
        return f"write {meant}"
    if kind == "extra_forbidden":
        return did_you_mean(key, _keys_at(model, path[:-1]))
    if says != MUST_BE["bool_type"] and (meant := _emptied(model, path, value, data, documents)):
        return meant
    if kind == "string_type" and isinstance(value, int | float) and says == MUST_BE[kind]:
        number = " (without them 3.10 is the number 3.1)" if isinstance(value, float) else ""
        return f"put {_dotted(path)} in quotes{number}"
    if kind == "tuple_type" or says == "must be a mapping":
        candidates = (_lists if kind == "tuple_type" else _mappings)(model, path, data, value)
        meant = next((_flow(one) for one in candidates if _passes(model, path, data, one)), "")
        keys = _keys_at(model, path)
        meant = meant or (f"{{KEY: VALUE}}, KEY being {' or '.join(keys)}" if keys and kind != "tuple_type" else "")
        return f"write {key}: {meant}" if meant else ""
    if plain := _matching(item, path) if kind == "string_pattern_mismatch" else _plain(says, str(value)):
        return f"write {plain}" if value == key else _line(path, key, plain, data)
    if kind == "literal_error":
        expected = str(item.get("ctx", {}).get("expected", "")).replace(" or ", ",").split(",")
        near = nearest(str(value), [part.strip(" '") for part in expected if part.strip(" '")])
        return f"did you mean `{near}`?" if near else ""
    return ""


def _line(path: tuple[Step, ...], key: str, value: str, data: Any) -> str:
    """What to write, `value` being YAML: the key with it, or the whole list in which it replaces one element."""
    if not path or not isinstance(at := path[-1], int):
        return f"write {key}: {value}"
    listed = _value_at(data, path[:-1])
    with contextlib.suppress(EnvbuildError):
        meant = parse_yaml(value.encode(), "").data
        whole = _flow([*listed[:at], *(meant if isinstance(meant, list) else [meant]), *listed[at + 1 :]])
        if len(whole) <= 2 * _LONGEST_VALUE:
            return f"write {path[-2]}: {whole}"
    return f"write {value}"


def _emptied(
    model: type[StrictModel], path: tuple[Step, ...], value: Any, data: Any, documents: Sequence[YamlDocument]
) -> str:
    """What to write where a text such as `none` stands for nothing; empty where it does not, or nothing is refused."""
    if not isinstance(value, str) or value.lower() not in _NOTHING or not path or isinstance(path[-1], int):
        return ""
    inherited = any(document.holds(path) for document in documents[1:])
    if _passes(model, path, data, _MISSING if inherited else None):
        return f"write {path[-1]}: null"
    return f"leave {path[-1]} out" if _passes(model, path, data, _MISSING) else ""


def _passes(model: type[StrictModel], path: tuple[Step, ...], data: Any, value: Any) -> bool:
    """Whether the model does not refuse `value` (`_MISSING`: no such key) in that place of plain `data`."""
    if not path:
        return False
    changed = _with(data, path, value)
    try:
        model.from_plain(changed)
    except ValidationError as error:
        for item in error.errors(include_url=False):
            place = (*_real_path(item["loc"], item["type"], changed), *refusal_of(item).at[:1])
            if place and place[: len(path)] == path[: len(place)]:
                return False
    return True


def _with(data: Any, path: tuple[Step, ...], value: Any) -> Any:
    """A copy of plain data that has `value` (`_MISSING`: no such key) in that place."""
    if not path:
        return value
    step, *rest = path
    changed: Any = copy(data) if isinstance(data, list if isinstance(step, int) else dict) else {}
    changed[step] = _with(_step(changed, step), tuple(rest), value)
    if changed[step] is _MISSING:
        del changed[step]
    return changed


def _lists(model: type[StrictModel], path: tuple[Step, ...], data: Any, value: Any) -> Iterator[Any]:
    """The lists that one value in its place may stand for: what the model means, its words, itself."""
    if not isinstance(value, str | int | float):
        return
    text = str(value)
    yield from _meant(model, path, data, text)
    if len(words := re.split(r",?\s+", text.strip())) > 1:
        yield words
    yield [text]
    yield re.split(r"\s*,\s*", text.strip())


def _mappings(model: type[StrictModel], path: tuple[Step, ...], data: Any, value: Any) -> Iterator[Any]:
    """The mappings of one key that a value in its place may stand for: the first key, or any if all have lists."""
    if isinstance(value, str):
        yield from _meant(model, path, data, value)
    for part in _models_at(model, path):
        keys = [field.alias or name for name, field in part.model_fields.items()]
        lists = all(typing.get_origin(field.annotation) is tuple for field in part.model_fields.values())
        if isinstance(value, str) or (isinstance(value, list) and lists):
            yield from ({key: value} for key in (keys if lists else keys[:1]))


def _meant(model: type[StrictModel], path: tuple[Step, ...], data: Any, text: str) -> Iterator[Any]:
    """What the model's own `meant` says, as plain data."""
    with contextlib.suppress(EnvbuildError):
        if says := model.meant(str(path[-1]), _flow(text).strip('"'), data):
            yield parse_yaml(says.encode(), "").data


def _matching(item: Any, path: tuple[Step, ...]) -> str:
    """The list, or the name in lower case without blanks, that a text stands for; empty where it is neither."""
    value = str(item["input"])
    if isinstance(path[-1], int) and re.search(r"\w[:,]\s*\w", value):
        return f"[{', '.join(re.split(r'[:,] *', _bare(value)))}]"
    name = "-".join(value.lower().split())
    return redact_text(name) if re.fullmatch(item["ctx"]["pattern"], name) else ""


def _plain(says: str, text: str) -> str:
    """The number or truth value that a text in its place stands for; empty where it is none."""
    number = text if says == MUST_BE["int_type"] and re.fullmatch("[0-9]+", text) else ""
    return _YAML_1_1.get(text.lower(), "") if says == MUST_BE["bool_type"] else number


def _says(item: Any, kind: str) -> str:
    if kind == "string_pattern_mismatch":
        return f"must match {item.get('ctx', {}).get('pattern', '')}"
    if kind == "value_error":
        return str(item["msg"]).removeprefix("Value error, ")
    if kind == "literal_error":
        return "must be " + str(item["msg"]).removeprefix("Input should be ")
    return MUST_BE.get(kind, str(item["msg"]).replace("Input should", "must", 1))


def show_value(value: Any) -> str:
    """A value for a message: redacted, escaped to one line of ASCII, short."""
    text = json.dumps(redact_text(value)) if isinstance(value, str) else redact_text(json.dumps(value, default=str))
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 4]}...{text[-1]}"


def _bare(value: Any) -> str:
    """The same without quotes."""
    return show_value(value).strip('"')


def _flow(value: Any) -> str:
    """Plain data as one line of YAML; a text is without quotes where YAML reads it so."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_flow(key)}: {_flow(part)}' for key, part in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_flow, value))}]"
    if not isinstance(value, str):
        return json.dumps(value)
    with contextlib.suppress(EnvbuildError):
        if parse_yaml(f"[{_bare(value)}]".encode(), "").data == [value]:
            return _bare(value)
    return show_value(value)


def _keys_at(model: type[BaseModel], path: tuple[Step, ...]) -> list[str]:
    """The keys that a model knows at a data path (the union of the alternatives there)."""
    return [field.alias or name for m in _models_at(model, path) for name, field in m.model_fields.items()]


def _models_at(model: type[BaseModel], path: tuple[Step, ...]) -> list[type[StrictModel]]:
    annotations: list[Any] = [model]
    for step in path:
        annotations = [inner for annotation in annotations for inner in _descend(annotation, step)]
    return [m for annotation in annotations for m in _alternatives(annotation) if _is_model(m)]


def _placed(model: type[StrictModel], path: tuple[Step, ...], data: Any, documents: Sequence[YamlDocument]) -> str:
    """Where an unknown key belongs that a part around its own has, or a part in one of these; empty where none has it.

    A part that has the key already, in the same file, does not lack it. Its value must fit there; a key at the top
    of the file can be misplaced and have a wrong value.
    """
    key, value, rest = path[-1], _value_at(data, path), _with(data, path, _MISSING)
    own = next((document.data for document in documents if document.holds(path)), data)
    shown = _flow(value)
    inside = f"{key}: {shown if len(shown) <= _LONGEST_VALUE else '…'}"

    def lacks(above: tuple[Step, ...]) -> bool:
        return key in _keys_at(model, above) and key not in (_value_at(own, above) or ())

    def takes(above: tuple[Step, ...]) -> bool:
        return lacks(above) and _passes(model, (*above, key), rest, value)

    for end in range(len(path) - 1, -1, -1):
        above = path[:end]
        if takes(above):
            whole = f"{path[end - 1]}: {{{inside}}}" if end and isinstance(path[end - 1], str) else inside
            return f"`{whole}`, beside `{path[end]}`"
        for name in _keys_at(model, above):
            if takes((*above, name)):
                return f"`{name}: {{{inside}}}`"
    name = next((name for name in _keys_at(model, ()) if len(path) == 1 and lacks((name,))), "")
    if not name:
        return ""
    candidates = (*_lists(model, (name, key), rest, value), *_mappings(model, (name, key), rest, value))
    meant = next((_flow(one) for one in candidates if _passes(model, (name, key), rest, one)), "")
    return f"`{name}: {{{key}: {meant if 0 < len(meant) <= _LONGEST_VALUE else '…'}}}`"


def _value_at(data: Any, path: tuple[Step, ...]) -> Any:
    """What plain data has there; None where it has nothing."""
    for step in path:
        data = _step(data, step)
    return None if data is _MISSING else data


def _descend(annotation: Any, step: Step) -> list[Any]:
    out: list[Any] = []
    for option in _alternatives(annotation):
        if _is_model(option):
            out += [f.annotation for name, f in option.model_fields.items() if (f.alias or name) == step]
            continue
        arguments = typing.get_args(option)
        if arguments:
            out.append(arguments[-1] if typing.get_origin(option) is dict else arguments[0])
    return out


def _alternatives(annotation: Any) -> list[Any]:
    """The members of a union, without `Annotated`."""
    origin = typing.get_origin(annotation)
    unwrap: Callable[[Any], list[Any]] = _alternatives
    if origin is typing.Annotated:
        return unwrap(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        return [one for argument in typing.get_args(annotation) for one in unwrap(argument)]
    return [annotation]


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
