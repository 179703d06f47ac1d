"""Facts, locks and targets in short form, for tests."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from envbuild import resources
from envbuild.catalog.yaml_load import load_yaml
from envbuild.model.facts import NodeFacts
from envbuild.model.lock import Lock, Variant
from envbuild.model.plan import Resolution
from envbuild.model.target import Target
from envbuild.resolve.compat import Compat
from envbuild.resolve.compat_read import compat_from_plain, read_plain
from envbuild.resolve.engine import RULES, Resolver

HERE = Path(__file__).parent
GB = 10**9


@cache
def plain_compat() -> dict[str, Any]:
    """The shipped compat data as plain data, one key a file."""
    return read_plain(resources.catalog() / "compat")


@cache
def compat() -> Compat:
    return compat_from_plain(plain_compat())


@cache
def node_rows() -> dict[str, Any]:
    return dict(load_yaml(HERE / "nodes.yaml"))


def _at(text: str, default: str) -> tuple[str, str]:
    version, _, path = text.partition(" at ")
    return version, path or default


def node_facts(name: str, **overrides: Any) -> NodeFacts:
    """The named node of nodes.yaml with some of its short fields replaced (`more` holds NodeFacts fields)."""
    row = {**node_rows()[name], **overrides}
    gpus: list[dict[str, Any]] = []
    for part in filter(None, (p.strip() for p in row.get("gpus", "").split(","))):
        count, _, rest = part.partition(" x ")
        gpu_name, _, capability = rest.partition(" @ ")
        for _ in range(int(count)):
            gpus.append({"index": len(gpus), "name": gpu_name, "compute_capability": capability or None})
    for gpu in gpus:
        gpu["mig_enabled"] = None if row.get("mig") is None else bool(row["mig"])
    if gpus:
        gpus[0]["mig"] = [f"1g.10gb MIG-{number}" for number in range(row.get("mig") or 0)]
    libc = {"kind": "musl", "version": row["musl"]} if "musl" in row else {"kind": "glibc", "version": row["glibc"]}
    os_id, _, os_version = row["os"].partition(" ")
    pythons = [_at(text, f"/usr/bin/python{text}") for text in row["pythons"]]
    return NodeFacts.model_validate(
        {
            "protocol": 1,
            "node": name,
            "hostname": name,
            "user": "u",
            "home": "/home/u",
            "probed_at": "2026-11-20T00:00:00Z",
            "os": {"id": os_id, "version": os_version, "kernel": "5.15", "arch": row.get("arch", "x86_64")},
            "libc": libc,
            "pythons": [{"version": v, "path": p} for v, p in pythons],
            "compilers": [{"version": v, "path": p} for v, p in (_at(t, "/usr/bin/gcc") for t in row.get("gcc", ()))],
            "nvcc": [
                {"version": v, "path": p}
                for v, p in (_at(t, f"/usr/local/cuda-{t}/bin/nvcc") for t in row.get("nvcc", ()))
            ],
            "driver": {"version": row.get("driver"), "cuda_ceiling": row.get("ceiling"), "problem": row.get("problem")},
            "gpus": gpus,
            "gpus_physical": row.get("physical"),
            "visible_devices": row.get("visible"),
            "prefix": {
                "path": "/data/envbuild",
                "free_bytes": 500 * GB,
                "free_inodes": 10**7,
                "total_inodes": 10**8,
                "writable": True,
            },
            **row.get("more", {}),
        }
    )


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def package(name: str, version: str, *, index: str = "pypi", size: int | None = 1000, **file: Any) -> dict[str, Any]:
    """A package with one file, `py3-none-any` unless `file` says another name."""
    named = file.pop("file", f"{name.replace('-', '_')}-{version}-py3-none-any.whl")
    row: dict[str, Any] = {"file": named, "sha256": digest(named), **file}
    if size is not None:
        row["size"] = size
    return {"name": name, "version": version, "index": index, "files": [row]}


def torch_package(
    version: str, python: str, *, index: str = "pypi", size: int = 900_000_000, **file: Any
) -> dict[str, Any]:
    tag = "cp" + python.replace(".", "")
    return package(
        "torch", version, index=index, size=size, **{"file": f"torch-{version}-{tag}-{tag}-linux_x86_64.whl", **file}
    )


def source(name: str = "lib", **more: Any) -> dict[str, Any]:
    """A pinned source."""
    return {"name": name, "git": f"https://git.example.org/{name}", "commit": "1" * 40, "tree": "2" * 40, **more}


def torch_row(torch: str, python: str, *, index: str = "", flavour: str = "", **more: Any) -> dict[str, Any]:
    """A variant with torch: `2.1.0+cu118` of the index of its flavour, or PyPI's, which is of `flavour`."""
    version, _, local = torch.partition("+")
    own = torch_package(torch, python, index=index or (f"pytorch-{local}" if local else "pypi"))
    row = {"id": "v", "python": python, "torch": version, "flavour": flavour or local or None, "packages": [own]}
    return {**row, **more}


def make_variant(stack: str, profile: str, **fields: Any) -> Variant:
    """A variant whose digest is right."""
    draft = Variant.from_plain({"digest": "0" * 64, **fields})
    return draft.model_copy(update={"digest": draft.compute_digest(stack, profile)})


def make_lock(*variants: dict[str, Any], stack: str = "demo", profile: str = "exact") -> Lock:
    made = tuple(make_variant(stack, profile, **fields) for fields in variants)
    return Lock(stack=stack, profile=profile, manifest_digest="a" * 64, variants=made)


def torch_lock(pythons: tuple[str, ...] = ("3.11", "3.12", "3.13")) -> Lock:
    """As the default stack: cpu from its own index, CUDA from the normal one, and the torch that is there."""
    rows: list[dict[str, Any]] = []
    for python in pythons:
        small = package("numpy", "2.3.1", size=16_000_000)
        cpu = torch_package("2.13.0+cpu", python, index="pytorch-cpu", size=190_000_000)
        cuda = torch_package("2.13.0", python, size=900_000_000)
        common = {"python": python, "torch": "2.13.0"}
        rows.append({"id": f"cpu-py{python}", "flavour": "cpu", "packages": [cpu, small], **common})
        rows.append({"id": f"cu130-py{python}", "flavour": "cu130", "packages": [cuda, small], **common})
        base = {"kind": "system", "provides": ["torch>=2.0"], "accepts": ["numpy>=2"]}
        rows.append({"id": f"system-py{python}", "python": python, "base": base, "packages": [small]})
    return make_lock(*rows, stack="torch-smoke")


def target(**fields: Any) -> Target:
    return Target.from_plain({"name": "local", "prefix": "/data/envbuild", **fields})


def resolve(facts: NodeFacts, *given: Any, **asked: Any) -> Resolution:
    """The resolution of one node; the rest as `Resolver` takes it."""
    return Resolver(*given, **asked).resolve(facts)


def resolve_fleet(facts: Mapping[str, NodeFacts], *given: Any, **asked: Any) -> dict[str, Resolution]:
    """The resolutions of many nodes."""
    return Resolver(*given, **asked).fleet(facts)


def rule_ids() -> tuple[str, ...]:
    """Every rule id: those of the functions and those of the rows in packages.yaml."""
    return (*RULES, *(row.id for row in compat().package_rules))
