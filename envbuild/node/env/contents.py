"""The files of an environment: hashed in one pass, and compared with what their packages say of them."""

from envbuild.node import merkle
from envbuild.node.conda import meta
from envbuild.node.packages import installed
from envbuild.node.protocol import Json


def scan(
    prefix: str, environment: str, told: Json, known: "dict[str, merkle.Entry] | None" = None
) -> "dict[str, merkle.Entry]":
    """Every covered path of an environment; `told` names its interpreter and its sources (stamp or install notes).

    `known`: see `merkle.scan`. Raises OSError.
    """
    places = merkle.Places(environment, prefix, told.get("interpreter") or "", meta.replaced(environment))
    return merkle.scan(environment, places, merkle.generated_globs(told["sources"]), known)


def check(
    environment: str, entries: "dict[str, merkle.Entry]", known: "dict[str, str] | None" = None
) -> "tuple[int, list[Json]]":
    """Every file of a wheel against its RECORD, every file of a conda package against its archive's own list.

    Returns as `installed.check`, with its `known`.
    """
    checked, wrong = meta.check(environment, entries)
    of_wheels, others = installed.check(environment, entries, known, meta.distributions(environment))
    return checked + of_wheels, wrong + others
