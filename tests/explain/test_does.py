"""What a finding says that envbuild does is what envbuild does: each `does` is bound to that, as data (`does.yaml`)."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

import envbuild
from envbuild.catalog.loader import list_stacks, load_stack, lock_path
from envbuild.catalog.patches import load_patches
from envbuild.cli.verbs import cli
from envbuild.launch import alcf
from envbuild.lock.files import read_lock
from envbuild.model.finding import Finding
from envbuild.model.lock import Variant
from tests.resolve.builders import compat
from tests.resolve.test_reachable import REACHED

FINDINGS = [(loaded.stack, finding) for loaded in map(load_stack, list_stacks()) for finding in loaded.stack.findings]
BOUND: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("does.yaml").read_text())
TESTS = Path(__file__).parents[1]
RULES = {rule for rule, _verdict in REACHED}


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def values(data: Any, path: list[str]) -> Iterator[Any]:
    """What lies at a path; a list of named things is asked by name, and `*` is everything that has the rest."""
    if not path:
        yield data
        return
    items = {item.get("name"): item for item in data} if isinstance(data, list) else data
    every = path[0] == "*"
    there = [item for item in items.values() if _has(item, path[1:])] if every else [items.get(path[0])]
    for item in there:
        yield from values(item, path[1:]) if item is not None else [None]


def _has(item: Any, path: list[str]) -> bool:
    return not path or any(value is not None for value in values(item, path[:-1]))


def is_at(data: Any, path: str, wanted: Any) -> bool:
    """Whether all places of a path have a value: as it is, its beginning, or as an item, `KEY=VALUE` of one."""
    found = list(values(data, path.split("/")))
    return bool(found) and all(_holds(each, wanted) for each in found)


def _holds(found: Any, wanted: Any) -> bool:
    if isinstance(found, dict):
        key, _, value = str(wanted).partition("=")
        return (key in found and (not value or _holds(found[key], value))) or found.get("name") == wanted
    if isinstance(found, list):
        return any(_holds(item, wanted) for item in found)
    return found == wanted or (isinstance(wanted, str) and str(found).startswith(wanted))


@cache
def variants(stack: str, profile: str) -> tuple[Variant, ...]:
    return read_lock(lock_path(load_stack(stack), profile)).variants


def is_locked(variant: Variant, wanted: str) -> bool:
    if found := re.fullmatch(r"(\S+) with (\d) submodules", wanted):
        return any(len(each.submodules) == int(found[2]) for each in variant.sources if each.name == found[1])
    name, version, index = re.fullmatch(r"(\S+)==(\S+?)(?: of (\S+))?", wanted).groups()  # type: ignore[union-attr]
    have = [each for each in variant.packages if each.name == name]
    return any(each.version == version and index in (None, each.index) for each in have)


def is_command(words: str) -> bool:
    *names, option = words.split()
    command: click.Command = cli
    for name in names:
        found = command.get_command(click.Context(command), name) if isinstance(command, click.Group) else None
        if found is None:
            return False
        command = found
    return any(option in each.opts for each in command.params)


@cache
def functions(path: str) -> set[str]:
    return {node.name for node in ast.walk(ast.parse((TESTS / path).read_text())) if isinstance(node, ast.FunctionDef)}


def missing(stack: str, plain: Any, identity: str, bound: dict[str, Any]) -> list[str]:
    """What of a finding's bindings is not so."""
    rows = [(path, each) for path, value in bound.get("stack", {}).items() for each in listed(value)]
    out = [f"{path}: {value}" for path, value in rows if not is_at(plain, path, value)]
    for path, value in bound.get("lacks", {}).items():
        out += [f"{path} has {value}" for each in values(plain, path.split("/")) if _holds(each, value)]
    for profile, wanted in bound.get("lock", {}).items():
        out += [f"{v.id}: {text}" for v in variants(stack, profile) for text in wanted if not is_locked(v, text)]
    out += [f"rule {name}" for name in bound.get("rules", ()) if name not in RULES]
    builds = {f"{version}+{cuda}" for version, release in compat().torch.items() for cuda in release.builds}
    out += [f"torch {build}" for build in bound.get("torch", ()) if build not in builds]
    out += [f"command {words}" for words in bound.get("commands", ()) if not is_command(words)]
    for place in bound.get("tests", ()):
        path, _, name = place.partition("::")
        out += [place] if not (TESTS / path).is_file() or name not in functions(path) else []
    if "named" in bound and identity not in (Path(envbuild.__file__).parent / bound["named"]).read_text():
        out.append(f"{bound['named']} does not name it")
    return out


def test_d81_every_finding_is_bound_to_what_does_it_and_nothing_else_is() -> None:
    assert [finding.id for _, finding in FINDINGS] == list(BOUND)
    kinds = {"stack", "lacks", "lock", "rules", "commands", "tests", "named", "says", "torch"}
    assert [identity for identity, bound in BOUND.items() if not bound or not bound.keys() <= kinds] == []


@pytest.mark.parametrize(("stack", "finding"), FINDINGS, ids=lambda each: getattr(each, "id", ""))
def test_d81_what_a_finding_says_is_done_is_done(stack: Any, finding: Finding) -> None:
    plain, bound = stack.to_json_dict(), BOUND[finding.id]
    assert missing(stack.name, plain, finding.id, bound) == []
    # What is bound, and no more, is what holds it up.
    for path in bound.get("stack", {}):
        bare = copy.deepcopy(plain)
        *above, last = path.split("/")
        for place in values(bare, above):
            for each in [place] if isinstance(place, dict) else place:
                each.pop(last, None) if isinstance(each, dict) and last in each else each.clear()
        assert missing(stack.name, bare, finding.id, bound) != [], path


def test_d81_each_name_in_what_a_finding_says_is_among_what_it_is_bound_to() -> None:
    """Commits, patches, rules, profiles and versions."""
    for stack, finding in FINDINGS:
        bound, text = str(BOUND[finding.id]).replace(" ", "").replace("==", " "), finding.does
        words = {*re.findall(r"\b(?=[0-9a-f]*\d)[0-9a-f]{8}\b", text)}
        words |= {*re.findall(r"\b\d+\.\d+\.\d+(?:\+cu\d+)?\b", text)}
        words |= {word for word in re.findall(r"[A-Za-z0-9_.]+(?:-[A-Za-z0-9_.]+)+", text) if word in KNOWN}
        words |= {name for name in re.findall(r"`([^`]+)`", text) if name in stack.profiles}
        assert {word for word in words if word not in bound} == set(), finding.id


KNOWN = {*RULES, *load_patches(), *(name for stack, _ in FINDINGS for name in stack.profiles)}


def test_d81_the_guides_own_length_is_masked_and_w9_what_is_called_wrong_has_a_check() -> None:
    findings = {each.id: each for _, each in FINDINGS}
    assert alcf._MASKED == 4096 and "SEQ_LEN=4096" in findings["alcf-no-mask"].does
    assert [each.id for each in findings.values() if each.severity == "wrong" and each.unverified] == []
