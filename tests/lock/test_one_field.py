"""A stack file and its lock that disagree in any one field are caught, whichever of the two was changed.

The tables below have a row for every field of the models; a field that somebody adds later fails until it has one.
"""

from __future__ import annotations

import copy
import json
import types
import typing
from functools import cache
from typing import Any

import pytest
from pydantic import BaseModel

from envbuild.catalog.loader import manifest_digest
from envbuild.lock.agreement import LockFinding
from envbuild.lock.check import check_lock
from envbuild.lock.files import field_digests
from envbuild.model.lock import Lock, LockedSource, Variant
from envbuild.model.stack import Profile, Stack
from tests.lock.build import SHA, package

A, B = "1" * 40, "2" * 40
IMAGE = f"registry.example.org/a:1@sha256:{SHA}"
Where = tuple[str | int, ...]

STEP: dict[str, Any] = {
    "source": "k",
    "script": "train.py",
    "launcher": "mpi",
    "arguments": ["--a"],
    "environment": {"X": "1"},
    "files": {"ds.json": {"a": 1}},
    "data": "gpt2",
    "log": "megatron",
    "steps": 3,
}
# Every field of every model is said once.
RICH: dict[str, Any] = {
    "python": ["3.11", "3.12"],
    "interpreters": ["present", "standalone"],
    "bases": [
        {"kind": "none"},
        {"kind": "system", "provides": ["numpy>=1"]},
        {"kind": "prefix", "prefix": "/opt/p", "provides": ["numpy"]},
        {"kind": "module", "module": "conda/1", "provides": ["numpy"]},
        {"kind": "image", "image": IMAGE, "provides": ["numpy"]},
    ],
    "torch": {"version": "2.1.0", "flavours": ["cpu"]},
    "conda": {
        "channels": [{"name": "forge", "url": "https://conda.example.org/forge"}],
        "packages": ["gcc 9.*"],
        "provides": {"delta": "py-delta"},
        "virtual": [{"__glibc": "2.28"}],
        "link_scripts": ["gcc"],
        "only": True,
        "allow_defaults": True,
    },
    "as_of": "2024-01-01",
    "packages": ["alpha>=1"],
    "constraints": ["beta<2"],
    "sources": [
        {
            "name": "a",
            "git": "https://git.example.org/a",
            "commit": A,
            "tree": A,
            "ref": "main",
            "contains": [A],
            "submodules": False,
            "install": "editable",
            "path": "lib",
            "build": {
                "kind": "wheel",
                "flags": ["x"],
                "extensions": ["a_c"],
                "environment": {"X": "1"},
                "memory_per_job": 2.0,
                "cxx11_abi": 0,
            },
            "patches": ["p"],
            "generated": ["v.py"],
            "outputs": ["out"],
        },
        {
            "name": "k",
            "git": "https://git.example.org/k",
            "commit": A,
            "install": "path",
            "build": {
                "kind": "kernels",
                "modules": [
                    {
                        "name": "m",
                        "sources": ["m.cu"],
                        "include_dirs": ["i"],
                        "cxx_flags": ["-O2"],
                        "nvcc_flags": ["-O2"],
                        "torch": False,
                    }
                ],
            },
        },
        {"name": "w", "path": "./", "install": "path"},
    ],
    "system_packages": [{"name": "make", "why": "builds"}],
    "imports": ["alpha"],
    "environment": {"A": "1", "F": {"path": "/f", "if": "exists"}},
    "smoke": [{"name": "sound", "deadline": 60.0, "floors": {"x": 1.0}}, {"name": "step", "step": STEP}],
    "training": {"precision": "bf16", "gpus": 8, "zero_stage": 1, "pipeline": True, "peak_tflops": 989.0},
    "deviations": ["one"],
    "runs": "benchmark",
}
_BUILD: Where = ("sources", 0, "build")
_STEP: Where = ("smoke", 1, "step")
_KERNEL: Where = ("sources", 1, "build", "modules", 0)
# (model, field): where it is in RICH, and another value.
STACK_FIELDS: dict[tuple[str, str], tuple[Where, Any]] = {
    ("Profile", "python"): (("python",), ["3.11"]),
    ("Profile", "interpreters"): (("interpreters",), ["standalone"]),
    ("Profile", "bases"): (("bases",), [{"kind": "none"}]),
    ("Profile", "torch"): (("torch",), None),
    ("Profile", "conda"): (("conda",), None),
    ("CondaSpec", "channels"): (("conda", "channels"), [{"name": "other"}]),
    ("CondaSpec", "packages"): (("conda", "packages"), ["gcc 10.*"]),
    ("CondaSpec", "provides"): (("conda", "provides"), {}),
    ("CondaSpec", "virtual"): (("conda", "virtual"), []),
    ("CondaSpec", "link_scripts"): (("conda", "link_scripts"), []),
    ("CondaSpec", "only"): (("conda", "only"), False),
    ("CondaSpec", "allow_defaults"): (("conda", "allow_defaults"), False),
    ("CondaChannel", "name"): (("conda", "channels", 0, "name"), "other"),
    ("CondaChannel", "url"): (("conda", "channels", 0, "url"), None),
    ("Profile", "as_of"): (("as_of",), "2024-01-02"),
    ("Profile", "packages"): (("packages",), ["alpha>=1", "gamma"]),
    ("Profile", "constraints"): (("constraints",), ["beta<3"]),
    ("Profile", "sources"): (
        ("sources",),
        [{"name": "k", "git": "https://x.example.org", "commit": A, "install": "path"}],
    ),
    ("Profile", "system_packages"): (("system_packages",), []),
    ("Profile", "imports"): (("imports",), ["beta"]),
    ("Profile", "environment"): (("environment", "A"), "2"),
    ("Profile", "smoke"): (("smoke",), []),
    ("Profile", "training"): (("training",), None),
    ("Profile", "deviations"): (("deviations",), ["one", "two"]),
    ("Profile", "runs"): (("runs",), "first-step"),
    ("Base", "kind"): (("bases", 1, "kind"), "image"),
    ("Base", "provides"): (("bases", 1, "provides"), ["numpy>=2"]),
    ("Base", "accepts"): (("bases", 1, "accepts"), ["alpha>=1"]),
    ("Base", "prefix"): (("bases", 2, "prefix"), "/opt/q"),
    ("Base", "module"): (("bases", 3, "module"), "conda/2"),
    ("Base", "image"): (("bases", 4, "image"), "registry.example.org/a:2"),
    ("TorchSpec", "version"): (("torch", "version"), "2.1.1"),
    ("TorchSpec", "flavours"): (("torch", "flavours"), ["cu121"]),
    ("Source", "name"): (("sources", 0, "name"), "b"),
    ("Source", "git"): (("sources", 0, "git"), "https://git.example.org/b"),
    ("Source", "commit"): (("sources", 0, "commit"), B),
    ("Source", "tree"): (("sources", 0, "tree"), B),
    ("Source", "ref"): (("sources", 0, "ref"), "next"),
    ("Source", "contains"): (("sources", 0, "contains"), [B]),
    ("Source", "submodules"): (("sources", 0, "submodules"), True),
    ("Source", "install"): (("sources", 0, "install"), "path"),
    ("Source", "path"): (("sources", 0, "path"), "src"),
    ("Source", "build"): (_BUILD, None),
    ("Source", "patches"): (("sources", 0, "patches"), ["q"]),
    ("Source", "generated"): (("sources", 0, "generated"), []),
    ("Source", "outputs"): (("sources", 0, "outputs"), []),
    ("WorkingTree", "name"): (("sources", 2, "name"), "v"),
    ("WorkingTree", "path"): (("sources", 2, "path"), "../"),
    ("WorkingTree", "install"): (("sources", 2, "install"), "editable"),
    ("Build", "kind"): ((*_BUILD, "kind"), "inplace"),
    ("Build", "flags"): ((*_BUILD, "flags"), ["y"]),
    ("Build", "extensions"): ((*_BUILD, "extensions"), ["b_c"]),
    ("Build", "requires"): ((*_BUILD, "requires"), ["regex"]),
    ("Build", "environment"): ((*_BUILD, "environment", "X"), "2"),
    ("Build", "memory_per_job"): ((*_BUILD, "memory_per_job"), 3.0),
    ("Build", "cxx11_abi"): ((*_BUILD, "cxx11_abi"), 1),
    ("Build", "modules"): (("sources", 1, "build", "modules"), [{"name": "n", "sources": ["m.cu"]}]),
    ("KernelModule", "name"): ((*_KERNEL, "name"), "n"),
    ("KernelModule", "sources"): ((*_KERNEL, "sources"), ["n.cu"]),
    ("KernelModule", "include_dirs"): ((*_KERNEL, "include_dirs"), []),
    ("KernelModule", "cxx_flags"): ((*_KERNEL, "cxx_flags"), ["-O3"]),
    ("KernelModule", "nvcc_flags"): ((*_KERNEL, "nvcc_flags"), ["-O3"]),
    ("KernelModule", "torch"): ((*_KERNEL, "torch"), None),
    ("SystemPackage", "name"): (("system_packages", 0, "name"), "g++"),
    ("SystemPackage", "why"): (("system_packages", 0, "why"), "links"),
    ("EnvPath", "path"): (("environment", "F", "path"), "/g"),
    ("EnvPath", "if_"): (("environment", "F"), "/f"),
    ("SmokeItem", "name"): (("smoke", 0, "name"), "machine"),
    ("SmokeItem", "deadline"): (("smoke", 0, "deadline"), 61.0),
    ("SmokeItem", "floors"): (("smoke", 0, "floors"), {"x": 2.0}),
    ("SmokeItem", "step"): (("smoke", 1, "step"), {**STEP, "steps": 4}),
    ("Step", "source"): ((*_STEP, "source"), "a"),
    ("Step", "script"): ((*_STEP, "script"), "other.py"),
    ("Step", "launcher"): ((*_STEP, "launcher"), "torchrun"),
    ("Step", "arguments"): ((*_STEP, "arguments"), []),
    ("Step", "environment"): ((*_STEP, "environment", "X"), "2"),
    ("Step", "files"): ((*_STEP, "files"), {}),
    ("Step", "data"): ((*_STEP, "data"), None),
    ("Step", "log"): ((*_STEP, "log"), "deepspeed"),
    ("Step", "steps"): ((*_STEP, "steps"), 4),
    ("Training", "precision"): (("training", "precision"), "fp16"),
    ("Training", "gpus"): (("training", "gpus"), 4),
    ("Training", "zero_stage"): (("training", "zero_stage"), 0),
    ("Training", "pipeline"): (("training", "pipeline"), False),
    ("Training", "peak_tflops"): (("training", "peak_tflops"), 312.0),
}


def models_below(kind: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """A model and all that its fields hold, by name."""
    found: dict[str, type[BaseModel]] = {}

    def visit(annotation: Any) -> None:
        if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
            if issubclass(annotation, BaseModel) and annotation.__name__ not in found:
                found[annotation.__name__] = annotation
                for field in annotation.model_fields.values():
                    visit(field.annotation)
            return
        for part in typing.get_args(annotation):
            visit(part)

    visit(kind)
    return found


def fields_of(*kinds: type[BaseModel]) -> set[tuple[str, str]]:
    return {(kind.__name__, field) for kind in kinds for field in kind.model_fields}


def stack_of(profile: dict[str, Any]) -> Stack:
    return _stack(json.dumps(profile))


@cache
def _stack(profile: str) -> Stack:
    return Stack.from_plain({"name": "demo", "summary": "s", "profiles": {"exact": json.loads(profile)}})


def changed(profile: dict[str, Any], where: Where, value: Any) -> dict[str, Any]:
    out = copy.deepcopy(profile)
    holder: Any = out
    for key in where[:-1]:
        holder = holder[key]
    holder[where[-1]] = value
    if where == ("bases", 1, "kind"):
        holder["image"] = IMAGE
    return out


def test_every_field_of_a_profile_has_a_row() -> None:
    assert set(STACK_FIELDS) == fields_of(*models_below(Profile).values())


@pytest.mark.parametrize("row", STACK_FIELDS, ids=".".join)
def test_a_stack_that_was_changed_in_one_field_is_caught_and_the_field_named(row: tuple[str, str]) -> None:
    where, value = STACK_FIELDS[row]
    before, after = stack_of(RICH), stack_of(changed(RICH, where, value))
    made = honest_lock(before)
    said = "has changed since the lock was made"
    assert not [finding for finding in check_lock(made, before, online=False) if said in finding.says]
    named = [finding.subject for finding in check_lock(made, after, online=False) if said in finding.says]
    assert named == [where[0]]


def honest_lock(stack: Stack) -> Lock:
    """A lock with the digests of a stack, its contents being of no matter."""
    draft = Variant(id="v", digest=SHA, python="3.11")
    variant = draft.model_copy(update={"digest": draft.compute_digest("demo", "exact")})
    fields = field_digests(stack.profiles["exact"])
    digest = manifest_digest(stack, "exact")
    return Lock(stack="demo", profile="exact", manifest_digest=digest, manifest_fields=fields, variants=(variant,))


# --- the lock was changed ------------------------------------------------------------------------------------------

PLAIN: dict[str, Any] = {
    "python": ["3.11"],
    "bases": [{"kind": "image", "image": IMAGE, "provides": ["numpy"]}],
    "torch": {"version": "2.1.0", "flavours": ["cpu"]},
    "as_of": "2024-01-01",
    "packages": ["alpha>=1,<2"],
    "constraints": ["beta<2"],
    "sources": [{**RICH["sources"][0], "patches": []}],
    "imports": ["alpha"],
    "environment": {"A": "1"},
    "smoke": [{"name": "sound"}],
    "training": {"gpus": 8},
}
_SAID = {
    "digest": "of the contents; see below",
    "provided": "read from the base, not said in the stack",
    "uses": "what a scan of the tree found",
    "data": "what `data --real` fetched: digests that nobody says beforehand",
    "needs": "what the tree says of its build",
    "unpacked": "how large the tree is",
    "patch_pins": "of the catalog's patches; `patch-changed`",
    "patched_tree": "what the patches make of the tree; the node compares it",
    "engine": "the conda part belongs to it",
    "conda": "tests/lock/test_conda.py",
    "version": "there is one",
    "created_with": "tells which tools made it",
    "manifest_fields": "names the field, where the digest already tells that there is one",
}
# (model, field): another value, and the finding's subject.
LOCK_FIELDS: dict[tuple[str, str], tuple[Any, str]] = {
    ("Lock", "stack"): ("other", "stack"),
    ("Lock", "profile"): ("ported", "stack"),
    ("Lock", "manifest_digest"): ("0" * 64, "manifest_digest"),
    ("Lock", "as_of"): ("2024-01-02", "as_of"),
    ("Lock", "variants"): ((), "variants"),
    ("Variant", "id"): ("cp311-other", "variants"),
    ("Variant", "platform"): ("linux_aarch64", "platform"),
    ("Variant", "python"): ("3.12", "python"),
    ("Variant", "torch"): ("2.1.1", "torch"),
    ("Variant", "flavour"): ("cu121", "flavour"),
    ("Variant", "base"): ({"kind": "none"}, "base"),
    ("Variant", "image"): (None, "bases"),
    ("Variant", "arch_list"): (("8.0",), "arch_list"),
    ("Variant", "interpreter"): ({"kind": "standalone", "name": "x", "sha256": SHA}, "interpreters"),
    ("Variant", "packages"): ((), "packages"),
    ("Variant", "sources"): ((), "sources"),
    ("Variant", "trees"): ([{"name": "w"}], "trees"),
    ("Variant", "imports"): ((), "imports"),
    ("Variant", "environment"): ({"A": "2"}, "environment"),
    ("Variant", "smoke"): ((), "smoke"),
    ("Variant", "training"): ({"gpus": 4}, "training"),
    ("LockedSource", "name"): ("b", "sources"),
    ("LockedSource", "git"): ("https://git.example.org/b", "sources.a.git"),
    ("LockedSource", "commit"): (B, "sources.a.commit"),
    ("LockedSource", "tree"): (B, "sources.a.tree"),
    ("LockedSource", "ref"): ("next", "sources.a.ref"),
    ("LockedSource", "submodules"): (
        [{"path": "s", "git": "https://git.example.org/s", "commit": A, "tree": A}],
        "sources.a.submodules",
    ),
    ("LockedSource", "install"): ("path", "sources.a.install"),
    ("LockedSource", "path"): ("src", "sources.a.path"),
    ("LockedSource", "build"): (None, "sources.a.build"),
    ("LockedSource", "patches"): (["p"], "sources.a.patches"),
    ("LockedSource", "generated"): ([], "sources.a.generated"),
    ("LockedSource", "outputs"): ([], "sources.a.outputs"),
    ("LockedPackage", "name"): ("gamma", "packages"),
    ("LockedPackage", "version"): ("2.0", "packages"),
    ("LockedImage", "name"): ("registry.example.org/a:2", "bases"),
    ("LockedImage", "digest"): ("0" * 64, "bases"),
}


def plain_lock() -> dict[str, Any]:
    """A lock that agrees with PLAIN in everything, as plain data."""
    stack = stack_of(PLAIN)
    source = {key: value for key, value in PLAIN["sources"][0].items() if key not in ("contains", "submodules")}
    variant = {
        "id": "cp311-linux_x86_64-cpu-image",
        "python": "3.11",
        "torch": "2.1.0",
        "flavour": "cpu",
        "base": PLAIN["bases"][0],
        "image": {"name": IMAGE, "digest": SHA},
        "packages": [
            package("alpha").to_json_dict(),
            {**package("torch", "2.1.0").to_json_dict(), "index": "pytorch-cpu"},
        ],
        "sources": [source],
        "imports": ["alpha"],
        "environment": {"A": "1"},
        "smoke": [stack.profiles["exact"].smoke[0].to_json_dict()],
        "training": PLAIN["training"],
    }
    return {
        "stack": "demo",
        "profile": "exact",
        "manifest_digest": manifest_digest(stack, "exact"),
        "manifest_fields": field_digests(stack.profiles["exact"]),
        "as_of": "2024-01-01",
        "variants": [variant],
    }


def signed(data: dict[str, Any]) -> Lock:
    """The lock with digests that hold, as whoever edits one on purpose would leave it."""
    variants = []
    for plain in data["variants"]:
        draft = Variant.from_plain({"digest": SHA, **plain})
        variants.append({**plain, "digest": draft.compute_digest(data["stack"], data["profile"])})
    if not variants:
        other = Variant(id="other", digest=SHA, python="3.11")
        variants = [{**other.to_json_dict(), "digest": other.compute_digest(data["stack"], data["profile"])}]
    return Lock.from_plain({**data, "variants": variants})


def findings_of(data: dict[str, Any]) -> list[LockFinding]:
    return check_lock(signed(data), stack_of(PLAIN), online=False)


def edited(row: tuple[str, str]) -> dict[str, Any]:
    data = plain_lock()
    model, field = row
    holder: dict[str, Any] = {
        "Lock": data,
        "Variant": data["variants"][0],
        "LockedSource": data["variants"][0]["sources"][0],
        "LockedPackage": data["variants"][0]["packages"][0],
        "LockedImage": data["variants"][0]["image"],
    }[model]
    holder[field] = LOCK_FIELDS[row][0]
    return data


def test_the_lock_agrees_with_its_stack() -> None:
    assert findings_of(plain_lock()) == []


def test_every_field_of_a_lock_that_the_stack_says_has_a_row() -> None:
    without = {(kind, field) for kind, field in fields_of(Lock, Variant, LockedSource) - set(LOCK_FIELDS)}
    assert {field for _kind, field in without} <= set(_SAID)


@pytest.mark.parametrize("row", LOCK_FIELDS, ids=".".join)
def test_a_lock_that_was_changed_in_one_field_is_caught_though_its_digests_hold(row: tuple[str, str]) -> None:
    problems = [finding.subject for finding in findings_of(edited(row)) if finding.kind == "problem"]
    assert LOCK_FIELDS[row][1] in problems


CONTENTS = [
    row
    for row in LOCK_FIELDS
    if row[0] != "Lock"
    and row not in {("Variant", "id"), ("Variant", "smoke"), ("Variant", "training"), ("LockedSource", "ref")}
]


@pytest.mark.parametrize("row", CONTENTS, ids=".".join)
def test_a_lock_that_was_edited_by_hand_is_no_lock(row: tuple[str, str]) -> None:
    data = edited(row)
    right = signed(plain_lock()).variants[0].digest
    forged = {**data, "variants": [{**data["variants"][0], "digest": right}]}
    with pytest.raises(ValueError, match="digest does not match"):
        Lock.from_plain(forged)
