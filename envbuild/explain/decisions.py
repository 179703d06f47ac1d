"""The decisions that `explain` shows: recorded facts of nodes against the lock of the explained profile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from envbuild.errors import EnvbuildError
from envbuild.model.facts import NodeFacts

if TYPE_CHECKING:
    from envbuild.catalog.loader import LoadedStack
    from envbuild.model.resolution import Resolution
    from envbuild.model.target import Target
    from envbuild.resolve.compat import Compat

_LARGEST = 64_000_000


def read_facts(file: Path) -> tuple[NodeFacts, ...]:
    """Facts from a JSON file: of one node, a list of nodes, or what `probe --json` prints (a mapping under `facts`).

    Raises EnvbuildError `facts-unreadable`, exit 2.
    """
    try:
        if file.stat().st_size > _LARGEST:
            raise _unreadable(file, f"larger than {_LARGEST} bytes")
        data = json.loads(file.read_text(encoding="utf-8"))
        return tuple(NodeFacts.from_plain(node) for node in _nodes(data))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise _unreadable(file, str(error)) from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise _unreadable(file, f"{place}: {first['msg']}") from error


def decide(
    loaded: LoadedStack, profile: str, facts: tuple[NodeFacts, ...], target: Target, compat: Compat
) -> tuple[tuple[Resolution, ...], str]:
    """One resolution a node, and why there is none when the profile has no lock yet."""
    from envbuild.catalog.loader import lock_path
    from envbuild.lock.files import read_lock
    from envbuild.resolve.engine import resolve_fleet

    path = lock_path(loaded, profile)
    if not path.is_file():
        return (), f"the profile {profile} has no lock yet ({path.name})"
    found = resolve_fleet({node.node: node for node in facts}, read_lock(path), target, compat)
    return tuple(found.values()), ""


def _nodes(data: Any) -> list[Any]:
    if isinstance(data, dict) and isinstance(data.get("facts"), dict):
        return list(data["facts"].values())
    return data if isinstance(data, list) else [data]


def _unreadable(file: Path, why: str) -> EnvbuildError:
    return EnvbuildError(
        "facts-unreadable",
        f"cannot use the facts in {file}",
        why=why,
        hint="`envbuild probe --json` prints facts",
    )
