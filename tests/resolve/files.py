"""A golden decision as the files of a user: a stack, its lock, a target and the facts of a node.

A row's `request` says what the rules about torch are asked; what it cannot say stands in `profile`, `target` and
`variant`, parts of those very files; `beside` is another variant of the lock.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from envbuild.catalog.loader import load_stack, manifest_digest
from envbuild.lock.record import write_lock
from envbuild.model.lock import Lock
from tests.resolve.builders import make_lock, node_facts, package, source, torch_package

# What the smoke test is asked to reach on the tensor cores.
FLOOR = "gemm_cuda_bf16_tflops"


def write_files(row: Mapping[str, Any], folder: Path) -> tuple[Path, Path, Path]:
    """Stack (with its lock beside it), target and facts of a row of the golden files."""
    asked = row.get("request", {})
    stack, target, facts = folder / "my.yaml", folder / "target.yaml", folder / "facts.json"
    profile = {**_profile(asked), **row.get("profile", {})}
    stack.write_text(yaml.safe_dump({"name": "my", "summary": "s", "profiles": {"exact": profile}}))
    target.write_text(yaml.safe_dump({**_target(asked), **row.get("target", {})}))
    facts.write_text(_facts(row).model_dump_json())
    write_lock(folder / "my.lock.toml", _lock(asked, profile, row.get("variant", {}), stack, row.get("beside")))
    return stack, target, facts


def _python(asked: Mapping[str, Any]) -> str:
    return str(asked.get("python") or "3.11")


def _training(asked: Mapping[str, Any]) -> dict[str, Any]:
    return {key: asked[key] for key in ("precision", "gpus", "zero_stage", "pipeline", "peak_tflops") if key in asked}


def _profile(asked: Mapping[str, Any]) -> dict[str, Any]:
    profile: dict[str, Any] = {"python": [_python(asked)]}
    if _training(asked):
        profile["training"] = _training(asked)
    if "image" in asked:
        image = f"nvcr.io/nvidia/pytorch:{asked['image']}-py3"
        profile["bases"] = [{"kind": "image", "image": image, "provides": ["torch"]}]
    if asked.get("arch_list"):
        profile["environment"] = {"TORCH_CUDA_ARCH_LIST": asked["arch_list"]}
    return profile


def _target(asked: Mapping[str, Any]) -> dict[str, Any]:
    target: dict[str, Any] = {"name": "t", "prefix": "/data/envbuild", "environment": dict(asked.get("variables", {}))}
    if "floor_tflops" in asked:
        target["floors"] = {FLOOR: asked["floor_tflops"]}
    if "expected_gpu" in asked:
        target["expects"] = {"gpu": asked["expected_gpu"]}
    if asked.get("exclusive"):
        target["scheduler"] = {"kind": "slurm", "exclusive": True}
    if "image" in asked:
        target["engine"] = "container"
    return target


def _facts(row: Mapping[str, Any]) -> Any:
    asked, changes = row.get("request", {}), dict(row.get("facts", {}))
    changes["arch"] = asked.get("machine", "x86_64")
    facts = node_facts(row["node"], **changes)
    version = f"{_python(asked)}.1"
    python = {"path": "/usr/bin/python", "version": version, "openssl": asked.get("packages", {}).get("openssl")}
    return facts.model_validate({**json.loads(facts.model_dump_json()), "pythons": [python], **changes.get("more", {})})


def _lock(
    asked: Mapping[str, Any],
    profile: Mapping[str, Any],
    more: Mapping[str, Any],
    stack: Path,
    beside: Mapping[str, Any] | None,
) -> Lock:
    variant: dict[str, Any] = {
        "id": "only",
        "python": _python(asked),
        "platform": f"linux_{asked.get('machine', 'x86_64')}",
        "packages": list(_packages(asked)),
        "sources": list(_sources(asked)),
        "environment": profile.get("environment", {}),
        "training": profile.get("training"),
    }
    if "torch" in asked:
        variant |= {"torch": asked["torch"], "flavour": asked.get("flavour")}
    if "bases" in profile:
        variant["base"] = profile["bases"][0]
    others = [] if beside is None else [{**variant, **more, "id": "beside", **beside}]
    lock = make_lock({**variant, **more}, *others, stack="my")
    loaded = load_stack(str(stack)).stack
    return lock.model_copy(update={"manifest_digest": manifest_digest(loaded, "exact")})


def _packages(asked: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    sdists = {trait.removesuffix("-from-source") for trait in asked.get("traits", ()) if trait.endswith("-from-source")}
    for name, version in asked.get("packages", {}).items():
        if name != "openssl":
            file = {"file": f"{name}-{version}.tar.gz"} if name in sdists else {}
            yield package(name, str(version), **file)
    for name, abi in asked.get("abis", {}).items():
        tag = "TRUE" if abi else "FALSE"
        yield package(name, "2.7.4", file=f"{name.replace('-', '_')}-2.7.4+cxx11abi{tag}-py3-none-any.whl")
    if "torch" in asked:
        index, flavour = asked.get("index", "pytorch-x"), asked.get("flavour")
        version = asked["torch"] + (f"+{flavour}" if flavour and index != "pypi" else "")
        tag = "cp" + _python(asked).replace(".", "")
        file = f"torch-{version}-{tag}-{tag}-linux_{asked.get('machine', 'x86_64')}.whl"
        yield torch_package(version, _python(asked), index="pypi" if flavour is None else index, file=file)


def _sources(asked: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """What is compiled, built, patched or found by the scan, each under its name."""
    uses = {name: dict[str, str]() for name in (*asked.get("compiled", ()), *asked.get("built", ()))}
    for key in ("commits", "flags", "patches", "build_variables"):
        uses |= {name: {} for name in asked.get(key, {})}
    mended: dict[str, list[str]] = {}
    for trait in asked.get("traits", ()):
        if not trait.endswith("-from-source"):
            uses.setdefault("scanned", {})[trait] = "setup.py:1"
    for trait, place in asked.get("uses", {}).items():
        name, _, patch = place.partition(" patched by ")
        name, _, file = name.partition("/")
        uses.setdefault(name, {})[trait] = file or "x.py:1"
        mended[name] = [patch] if patch else []
    for name, found in uses.items():
        compiled = name in asked.get("compiled", ())
        flags = asked.get("flags", {}).get(name) or (["cuda_ext"] if compiled else [])
        build: dict[str, Any] | None = {"flags": flags} if flags or name in asked.get("built", ()) else None
        if name in asked.get("build_variables", {}):
            build = {**(build or {}), "environment": asked["build_variables"][name]}
        patches = [*asked.get("patches", {}).get(name, ()), *mended.get(name, [])]
        commit = asked.get("commits", {}).get(name, "1" * 40)
        yield source(name, commit=commit, build=build, patches=patches, uses=found)
