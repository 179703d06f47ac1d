"""What a user may set: typed, with the stack's defaults said aloud, and the nearest name for a wrong one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from envbuild.errors import EnvbuildError
from envbuild.model.launch import Default
from envbuild.model.reference import ModelSize, Reference
from envbuild.text import did_you_mean

Count = Annotated[int, Field(ge=1, le=2**31 - 1)]


class Parameters(BaseModel):
    """Base of the parameters of a recipe. Fields are read from text by their alias, the name that users write.

    A field that may be None is computed by the recipe when nobody gives it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names that users write, in the order of the class."""
        return tuple(field.alias or name for name, field in cls.model_fields.items())


P = TypeVar("P", bound=Parameters)


def read(kind: type[P], given: Mapping[str, str], defaults: Mapping[str, str]) -> tuple[P, tuple[Default, ...]]:
    """The parameters, and the defaults that were taken because nobody gave a value.

    Raises EnvbuildError `launch-parameter` for an unknown name or a value of the wrong kind.
    """
    known = kind.names()
    taken = {name: defaults[name] for name in known if name in defaults and name not in given}
    for name in given:
        if name not in known:
            raise EnvbuildError(
                "launch-parameter", f"there is no parameter {name[:80]!r}", hint=did_you_mean(name, known)
            )
    try:
        parameters = kind.model_validate_strings({**taken, **given})
    except ValidationError as error:
        first = error.errors()[0]
        where = str(first["loc"][0]) if first["loc"] else "parameters"
        raise EnvbuildError(
            "launch-parameter",
            f"{where} has no value"
            if first["type"] == "missing"
            else f"{where}={first['input']!s:.80} is not possible",
            why=str(first["msg"]),
            hint=_described(kind, where),
        ) from error
    return parameters, tuple(
        Default(name=name, value=value, why=_described(kind, name)) for name, value in taken.items()
    )


def _described(kind: type[Parameters], name: str) -> str:
    fields = {field.alias or own: field for own, field in kind.model_fields.items()}
    return (fields[name].description or "") if name in fields else ""


def model_row(reference: Reference, name: str, key: str) -> ModelSize:
    """The row of the model table. Raises EnvbuildError `launch-parameter` with the nearest name."""
    for row in reference.models:
        if row.name == name:
            return row
    raise EnvbuildError(
        "launch-parameter",
        f"{key}={name[:80]!r} is not in the model table of this stack",
        hint=did_you_mean(name, [row.name for row in reference.models]),
    )


def require(fits: bool, what: str, *, why: str = "", hint: str = "") -> None:
    """Refuse what does not fit (exit code 7) with `launch-does-not-fit`."""
    if not fits:
        raise EnvbuildError("launch-does-not-fit", what, why=why, hint=hint)


def require_shape(model: ModelSize, gpus: int, tensor: int, pipeline: int, others: int = 1) -> int:
    """Data-parallel degree of a run. Refuses degrees that do not divide the GPUs, the heads or the layers."""
    product = tensor * pipeline * others
    degrees = f"tensor {tensor} x pipeline {pipeline}" + (f" x sequence {others}" if others > 1 else "")
    require(
        gpus % product == 0,
        f"{degrees} does not divide {gpus} GPUs",
        hint=f"degrees whose product divides {gpus}",
    )
    usable = [n for n in range(1, gpus + 1) if gpus % n == 0 and model.heads % n == 0]
    require(
        model.heads % tensor == 0,
        f"tensor parallel {tensor} does not divide the {model.heads} attention heads of {model.name}",
        hint=f"on {gpus} GPUs one of {', '.join(map(str, usable))}",
    )
    require(
        model.layers % pipeline == 0,
        f"pipeline parallel {pipeline} does not divide the {model.layers} layers of {model.name}",
        hint="a number of stages that divides the layers",
    )
    return gpus // product
