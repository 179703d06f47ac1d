"""Sources and their patches as a report tells them, against the lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from envbuild.catalog.loader import load_stack, lock_path
from envbuild.lock.files import parse_lock
from envbuild.report.recheck.contents import Attached, check_contents
from tests.report import samples

Sources = list[dict[str, Any]]


def findings(change: Callable[[Sources], object]) -> dict[str, list[str]]:
    """What is said of the sources of a node that has all of them, once changed; by kind."""
    lock = parse_lock(lock_path(load_stack("megatron-alpa"), "ported").read_text(), "lock")
    variant = lock.variants[0]
    sources = [
        {key: getattr(each, key) for key in ("name", "git", "commit", "tree", "install")}
        | {"patches": [{"name": pin.name, "digest": pin.digest, "hits": pin.least} for pin in each.patch_pins]}
        for each in variant.sources
    ]
    change(sources)
    node = samples.node(variant_digest=variant.digest, sources=sources, resolution=None)
    run = samples.evidence(node, stack="megatron-alpa", profile="ported")
    found = check_contents(run, Attached(variants={variant.digest: variant}))
    of_sources = [each for each in found if each.topic == "sources"]
    return {
        each.kind: [f"{one.code}: {one.says}" for one in of_sources if one.kind == each.kind] for each in of_sources
    }


def test_sources_that_are_all_there_hold() -> None:
    assert findings(lambda sources: None) == {
        "checked": [": 3 sources compared: commit, tree and patches are those of the lock"]
    }


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda sources: sources[0]["patches"].pop(), "report-patch-differs: localhost: megatron-lm: "),
        (lambda sources: sources[0].pop("patches"), "report-patch-differs: localhost: megatron-lm: "),
        (lambda sources: sources.pop(), "report-source-differs: localhost: "),
    ],
)
def test_a_source_or_patch_that_is_left_out_is_told(change: Callable[[Sources], object], says: str) -> None:
    [found] = findings(change)["problem"]
    assert found.startswith(says) and found.endswith(" of the lock left out")


def test_where_no_list_of_files_is_there_none_is_spoken_of_as_there() -> None:
    found = check_contents(samples.evidence(), Attached())
    root = [each.says for each in found if each.topic == "root"]
    assert root == [
        "for 1 node, the report has no list of files to compute it from",
        "whether the files on the disk give this root: run `envbuild verify` on the node",
    ]


def test_where_no_source_is_told_none_was_compared() -> None:
    assert findings(list.clear) == {"not-checked": [": localhost: the report names none, and the lock has some"]}
