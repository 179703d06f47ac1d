"""A stack file and its lock that disagree in any one field are caught, whichever of the two was changed.

`rich.yaml` says every field of a profile, and the table below has a row for every field of a lock; a field that
somebody adds later fails until it is there.
"""

from __future__ import annotations

import contextlib
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ValidationError

from envbuild.catalog.loader import manifest_digest
from envbuild.catalog.yaml_load import load_yaml
from envbuild.lock.check import check_lock
from envbuild.lock.files import field_digests
from envbuild.model.lock import Lock, LockedSource, Variant
from envbuild.model.stack import Profile, Stack
from tests.lock.build import SHA, lock, package, variant
from tests.support.plain import REMOVED, at, changed, models_below

A, B = "1" * 40, "2" * 40
IMAGE = f"registry.example.org/a:1@sha256:{SHA}"
Where = tuple[str | int, ...]
RICH: dict[str, Any] = load_yaml(Path(__file__).with_name("rich.yaml"))


def said(value: Any, plain: Any, where: Where = ()) -> Iterator[tuple[tuple[str, str], Where]]:
    """(model, field) and its place of every field that plain data say."""
    if isinstance(value, BaseModel):
        for name, field in type(value).model_fields.items():
            key = field.alias or name
            if key in plain:
                yield (type(value).__name__, name), (*where, key)
                yield from said(getattr(value, name), plain[key], (*where, key))
    elif isinstance(value, dict | tuple):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from said(one, plain[key], (*where, key))


def literals(annotation: Any) -> Iterator[Any]:
    """The values that an annotation lists."""
    if typing.get_origin(annotation) is Literal:
        yield from typing.get_args(annotation)
    else:
        yield from (value for part in typing.get_args(annotation) for value in literals(part))


def others(value: Any) -> Iterator[Any]:
    """Other values than this one, of which a field may take some."""
    if isinstance(value, str):
        yield from (value.replace("1", "2"), f"{value}x", "a", "step {step} loss {loss}")
    elif isinstance(value, int | float):
        yield from (not value,) if isinstance(value, bool) else (value + 1, value - 1)
    elif isinstance(value, list):
        yield from (value[1:], *([one, *value[1:]] for one in others(value[0])))
    elif isinstance(value, dict):
        yield from ({**value, key: one} for key, part in value.items() for one in others(part))


def fields_of(*kinds: type[BaseModel]) -> set[tuple[str, str]]:
    return {(kind.__name__, field) for kind in kinds for field in kind.model_fields}


def stack_of(profile: dict[str, Any]) -> Stack:
    return Stack.from_plain({"name": "demo", "summary": "s", "profiles": {"exact": profile}})


SAID: dict[tuple[str, str], Where] = {}
for _row, _where in said(Profile.from_plain(RICH), RICH):
    SAID.setdefault(_row, _where)


def test_every_field_of_a_profile_is_said() -> None:
    assert set(SAID) == fields_of(*models_below(Profile).values())


def changes(row: tuple[str, str]) -> Iterator[Stack]:
    """The stack with another value of a field, for each that the model takes."""
    model, field = row
    listed = literals(models_below(Profile)[model].model_fields[field].annotation)
    made_of = [changed(RICH, SAID[row], other) for other in (*listed, *others(at(RICH, SAID[row])), REMOVED)]
    if row == ("EnvPath", "if_"):  # it has one value, and goes with the long form
        made_of = [changed(RICH, SAID[row][:-1], "/f")]
    for profile in made_of:
        with contextlib.suppress(ValidationError):
            made = stack_of(profile)
            if made != stack_of(RICH):
                yield made


@pytest.mark.parametrize("row", SAID, ids=".".join)
def test_a_stack_that_was_changed_in_one_field_is_caught_and_the_field_named(row: tuple[str, str]) -> None:
    before = stack_of(RICH)
    made = honest_lock(before)
    words = "has changed since the lock was made"
    assert not [finding for finding in check_lock(made, before, online=False) if words in finding.says]
    findings = check_lock(made, next(changes(row)), online=False)
    assert [finding.subject for finding in findings if words in finding.says] == [SAID[row][0]]


def honest_lock(stack: Stack) -> Lock:
    """A lock with the digests of a stack, its contents being of no matter."""
    fields = field_digests(stack.profiles["exact"])
    return lock(variant(), manifest_digest=manifest_digest(stack, "exact"), manifest_fields=fields)


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
    contents = {
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
        "variants": [contents],
    }


def signed(data: dict[str, Any]) -> Lock:
    """The lock with digests that hold, as whoever edits one on purpose would leave it."""
    variants = []
    for plain in data["variants"] or [variant("other").to_json_dict()]:
        draft = Variant.from_plain({"digest": SHA, **plain})
        variants.append({**plain, "digest": draft.compute_digest(data["stack"], data["profile"])})
    return Lock.from_plain({**data, "variants": variants})


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


def test_every_field_of_a_lock_that_the_stack_says_has_a_row() -> None:
    without = {(kind, field) for kind, field in fields_of(Lock, Variant, LockedSource) - set(LOCK_FIELDS)}
    assert {field for _kind, field in without} <= set(_SAID)


# What no digest of a variant covers.
OUTSIDE = {("Variant", "id"), ("Variant", "smoke"), ("Variant", "training"), ("LockedSource", "ref")}


@pytest.mark.parametrize("row", LOCK_FIELDS, ids=".".join)
def test_a_lock_that_was_changed_in_one_field_is_caught_though_its_digests_hold(row: tuple[str, str]) -> None:
    stack, right, data = stack_of(PLAIN), signed(plain_lock()), edited(row)
    assert check_lock(right, stack, online=False) == []
    findings = check_lock(signed(data), stack, online=False)
    assert LOCK_FIELDS[row][1] in [finding.subject for finding in findings if finding.kind == "problem"]
    if row[0] == "Lock" or row in OUTSIDE:
        return
    # One that was edited by hand, without a new digest, is no lock.
    forged = {**data, "variants": [{**data["variants"][0], "digest": right.variants[0].digest}]}
    with pytest.raises(ValueError, match="digest does not match"):
        Lock.from_plain(forged)
