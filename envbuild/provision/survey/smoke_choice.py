"""What a command line chooses of the smoke test: `--only` and `--full`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envbuild.errors import EnvbuildError
from envbuild.node.smoke import only as names
from envbuild.provision.run.context import Settings
from envbuild.provision.run.findings import Prepared

FULL = "full"
_FULL_DEADLINE = 300.0


def chosen(prepared: Prepared, settings: Settings) -> Prepared:
    """The same with no joint test where none is asked for. Raises EnvbuildError `smoke-unknown` (exit 2)."""
    only = settings.only
    items = dict.fromkeys(item.name for variant in prepared.lock.variants for item in variant.smoke)
    there = [*items, FULL, *(["nodes"] if "machine" in items else [])]
    if wrong := names.unknown(only, there):
        raise EnvbuildError(
            "smoke-unknown",
            f"the smoke test of {prepared.stack.name} has no {wrong[0]!r}",
            why="--only names an item of its smoke list, or one check of it",
            hint=f"known: {', '.join(names.known(there))}{', extensions/CHECK' if 'extensions' in items else ''}",
        )
    if names.chosen(only, "nodes"):
        return prepared
    return prepared._replace(target=prepared.target.model_copy(update={"smoke_nodes": 0}))


def as_asked(prepared: Prepared, settings: Settings, args: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `smoke` with what was chosen, how many GPUs there are to be, what they and links can give."""
    from envbuild.provision.survey.ask import rules

    named = rules().named_gpus().items()
    full = {"name": FULL, "deadline": _FULL_DEADLINE}  # the item that no stack lists
    return {
        **args,
        "items": [*args["items"], *([full] if settings.full or FULL in settings.only else [])],
        "only": list(settings.only),
        "gpus": prepared.target.expects.gpus_per_node or 0,
        "peaks": {name: gpu.dense_tflops for name, gpu in named if gpu.dense_tflops and gpu.note.firm},
        "links": {name: gpu.nvlink / 2 for name, gpu in named if gpu.nvlink},
    }
