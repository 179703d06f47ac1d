"""What a smoke test did not look at though a reader would take it for granted: checks that say so."""

from typing import Any, Dict, List

from envbuild.node.smoke.check import Spec


def gaps(spec: Spec, items: List[Dict[str, Any]], checks: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """Check JSON (`skipped`, level `not-checked`) for each; `checks` are those that were made, `items` what was asked.

    Known only where torch was imported: `smoke/sound` reports for which CUDA it is built.
    """
    sound = {}  # type: Dict[str, Any]
    sound.update(*(check["details"] for check in checks if check["name"] == "smoke/sound"))
    found = []
    if "torch" in sound and {str(item["name"]) for item in items} == {"sound"}:
        found.append(_gap("smoke/training", "nothing was computed, torch was imported only (smoke: sound alone)"))
    if sound.get("torch_cuda") and not spec.cuda:
        says = "no usable GPU here: nothing ran on CUDA, though torch is built for CUDA %s" % sound["torch_cuda"]
        found.append(_gap("smoke/cuda", says))
    return found


def _gap(name: str, says: str) -> Dict[str, Any]:
    told = {"name": name, "status": "skipped", "says": says, "level": "not-checked"}  # type: Dict[str, Any]
    return dict(told, seconds=0.0, metrics=[], details={})
