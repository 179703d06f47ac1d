"""What a smoke test did not look at though a reader would take it for granted: checks that say so."""

from __future__ import annotations

from envbuild.node.protocol import Json
from envbuild.node.smoke.check import Spec


def gaps(spec: Spec, items: list[Json], checks: list[Json]) -> list[Json]:
    """Check JSON (`skipped`, level `not-checked`) for each; `checks` are those that were made, `items` what was asked.

    What `smoke/sound` says of torch, for which CUDA it is built, is known only where it was imported.
    """
    names = {str(item["name"]) for item in items}
    sound: Json = {}
    sound.update(*(check["details"] for check in checks if check["name"] == "smoke/sound"))
    found = []
    if spec.only:
        says = f"the rest of the smoke test, as only {', '.join(spec.only)} was asked for"
        found.append(dict(_gap("smoke/only", says), details={"only": list(spec.only)}))
    elif "torch" in sound and names == {"sound"}:
        found.append(_gap("smoke/training", "nothing was computed, torch was imported only (smoke: sound alone)"))
    floors = [each for check in checks for each in sorted(check["details"].get("floors_not_checked", {}).items())]
    if floors:
        says = "; ".join("%s was not measured: %s" % each for each in floors)
        found.append(_gap("smoke/floors", f"floors that nothing was compared with: {says}"))
    if "step" in names and not spec.cuda:
        says = "no usable GPU here: the stack's own training script was not run"
        found.append(_gap("smoke/step", says))
    if "full" in names and not spec.cuda:
        found.append(_gap("smoke/full", "no usable GPU here: torch.compile and the larger model were not run"))
    if sound.get("torch_cuda") and not spec.cuda:
        says = f"no usable GPU here: nothing ran on CUDA, though torch is built for CUDA {sound['torch_cuda']}"
        found.append(_gap("smoke/cuda", says))
    return found


def _gap(name: str, says: str) -> Json:
    told: Json = {"name": name, "status": "skipped", "says": says, "level": "not-checked"}
    return dict(told, seconds=0.0, metrics=[], details={})
