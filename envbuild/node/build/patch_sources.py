"""Patches of an install: that they are those of the lock, what they make of the CUDA here, and how they are applied."""

from __future__ import annotations

import re

from envbuild.node import proc
from envbuild.node.build import patch
from envbuild.node.protocol import Json, NodeError, log, plural
from envbuild.node.read_text import first

# What torch says of its version, read without importing it; nothing where it is not there.
_TORCH = """
import importlib.util, os
spec = importlib.util.find_spec("torch")
path = os.path.join(os.path.dirname(spec.origin), "version.py") if spec and spec.origin else ""
print(open(path, encoding="utf-8").read() if os.path.exists(path) else "")
"""
_CUDA = re.compile(r"^cuda\b[^=\n]*= *(None|(?P<quote>['\"])[0-9.]+(?P=quote))", re.MULTILINE)


def specs_of(source: Json, given: Json) -> list[Json]:
    """The patch specs of a locked source from `args.patches`, once they are what the lock pins.

    Raises NodeError `request-invalid` (exit 2) where they are not those that the lock names, `patch-changed` (exit 5)
    where one does something else than when it was locked.
    """
    names = list(source.get("patches") or [])
    specs = list(given.get(source["name"]) or [])
    if len(specs) != len(names):
        raise NodeError(
            "request-invalid",
            f"source {source['name']} has {len(names)} patches, and the request brings {len(specs)}",
        )
    for number, pin in enumerate(source.get("patch_pins") or []):
        spec = specs[number]
        digest = patch.digest(spec)
        if digest != pin["digest"]:
            raise NodeError(
                "patch-changed",
                f"the patch {spec['name']} is not the one that was locked for {source['name']}",
                why=f"it has digest {digest:.12}, the lock says {pin['digest']:.12}",
                hint="find out why it differs; then `envbuild lock create STACK` locks the patch as it is now; "
                "or use the envbuild that made the lock",
                details={"patch": spec["name"], "digest": digest, "locked": pin["digest"]},
            )
        specs[number] = dict(spec, hits=[pin["least"], pin["most"]])
    return specs


def facts_of(python: str, env: dict[str, str], nvcc: str | None) -> Json:
    """What patches want to know: `torch_cuda` of the torch that is installed (absent without torch), and `nvcc`."""
    done = proc.run([python, "-I", "-c", _TORCH], timeout=120.0, env=env)
    cuda = first(_CUDA, done.out)
    facts: Json = {"nvcc": nvcc}
    if cuda:
        facts["torch_cuda"] = None if cuda == "None" else cuda.strip("'\"")
    return facts


def apply(
    folder: str, specs: list[Json], facts: Json | None = None, pin: Json | None = None, check: bool = False
) -> list[Json]:
    """As `patch.apply`, with `notes` in each result: what `facts` (of `facts_of`) say about a patch here.

    Raises NodeError with the code of a PatchError, and `patch-refused` (exit 7) where a patch could not help.
    """
    notes = [_judge(spec["name"], facts or {}) for spec in specs]
    try:
        results = patch.apply(folder, specs, check, pin)
    except patch.PatchError as error:
        raise NodeError(error.code, error.what, error.why, error.hint) from None
    for number, result in enumerate(results):
        result["notes"] = notes[number]
        done = "already applied" if result["already"] else "would be applied" if check else "applied"
        log("; ".join([f"patch {result['name']} {done}, {plural(result['hits'], 'hit')}", *result["notes"]]))
    return results


def of_source(source: Json, folder: str, links: dict[str, str], specs: list[Json], facts: Json) -> list[Json]:
    """Apply the patches of a locked source to its fresh tree; `links` of `git_source.fetch`. Raises as `apply`."""
    log(f"patching {source['name']}: {', '.join(spec['name'] for spec in specs)}")
    pin = {"before": source["tree"], "after": source.get("patched_tree"), "links": links}
    pin["outputs"] = source.get("outputs") or []
    try:
        return apply(folder, specs, facts, pin if pin["after"] else None)
    except NodeError as error:
        what, details = f"source {source['name']}: {error.what}", {"source": source["name"]}
        raise NodeError(error.code, what, error.why, error.hint, details=details) from None


def _judge(name: str, facts: Json) -> list[str]:
    """What the facts say about a patch here. Raises NodeError `patch-refused`."""
    if name != "apex-cuda-check" or "torch_cuda" not in facts:
        return []
    torch, nvcc = facts["torch_cuda"], facts.get("nvcc")
    if not torch:
        return ["torch has no CUDA: the check stays in force"]
    if not nvcc:
        return ["nvcc's version is not known here: decided when it is built"]
    if str(nvcc).split(".")[0] != str(torch).split(".")[0]:
        raise NodeError(
            "patch-refused",
            "envbuild does not skip Apex's CUDA check across major versions",
            why=f"nvcc is {nvcc}, torch was built with CUDA {torch}",
            hint=f"use an nvcc of CUDA {str(torch).split('.')[0]}.x",
        )
    same = str(nvcc).split(".")[:2] == str(torch).split(".")[:2]
    return [
        "nvcc %s, torch CUDA %s: %s" % (nvcc, torch, "equal, the check runs" if same else "same major, passed over")
    ]


def for_stamp(sources: list[Json]) -> list[Json]:
    """What a stamp says of sources: everything but the diffs, which a run's report has."""
    out = []
    for source in sources:
        kept = [{key: value for key, value in row.items() if key != "diff"} for row in source.get("patches") or []]
        out.append(dict(source, patches=kept) if kept else source)
    return out
