"""What of a smoke test is run, all of it or what `smoke --only ITEM` and `ITEM/CHECK` name, and what was left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from envbuild.node.protocol import Json

if TYPE_CHECKING:
    from envbuild.node.smoke.check import Spec

# The others of `extensions` are known to the environment alone.
_CHECKS = {
    "sound": ("closure",),
    "machine": ("gemm", "copies", "all-reduce"),
    "extensions": ("imports",),
    "nodes": ("all-reduce",),
}


def known(items: Iterable[str]) -> list[str]:
    """Every name that can be given for a smoke list, and of which a whole test of it has a check."""
    names = []
    for item in items:
        names.append(item)
        names.extend(f"{item}/{check}" for check in _CHECKS.get(item, ()))
    return names


def unknown(only: Sequence[str], items: Sequence[str]) -> list[str]:
    """The names that a smoke list does not have."""
    good = known(items)
    free = tuple(f"{item}/" for item in items if item == "extensions")
    return [name for name in only if name not in good and not name.startswith(free or ("\0",))]


def chosen(only: Sequence[str], name: str) -> bool:
    """Whether an item, or a check as `ITEM/CHECK`, is run; without names everything is."""
    return not only or any((name + "/").startswith(one + "/") or one.startswith(name + "/") for one in only)


def gaps(spec: Spec, items: list[Json], checks: list[Json]) -> list[Json]:
    """Check JSON (`skipped`, level `not-checked`) for what a reader would take for granted and was not looked at.

    `checks` are those that were made, `items` what was asked. What `smoke/sound` says of torch, for which CUDA it is
    built, is known only where it was imported.
    """
    names = {str(item["name"]) for item in items}
    sound: Json = {}
    sound.update(*(check["details"] for check in checks if check["name"] == "smoke/sound"))
    rows = []
    if spec.only:
        says = f"the rest of the smoke test, as only {', '.join(spec.only)} was asked for"
        rows.append(dict(_gap("smoke/only", says), details={"only": list(spec.only)}))
    elif "torch" in sound and names == {"sound"}:
        rows.append(_gap("smoke/training", "nothing was computed, torch was imported only (smoke: sound alone)"))
    floors = [floor for check in checks for floor in sorted(check["details"].get("floors_not_checked", {}).items())]
    if floors:
        says = "; ".join("%s was not measured: %s" % floor for floor in floors)
        rows.append(_gap("smoke/floors", f"floors that nothing was compared with: {says}"))
    without_gpu = {
        "step": "the stack's own training script was not run",
        "cuda": f"nothing ran on CUDA, though torch is built for CUDA {sound.get('torch_cuda')}",
    }
    asked = names | {"cuda"} if sound.get("torch_cuda") else names
    for name, says in without_gpu.items() if not spec.cuda else ():
        if name in asked:
            rows.append(_gap(f"smoke/{name}", f"no usable GPU here: {says}"))
    return rows


def _gap(name: str, says: str) -> Json:
    gap: Json = {"name": name, "status": "skipped", "says": says, "level": "not-checked"}
    return dict(gap, seconds=0.0, metrics=[], details={})
