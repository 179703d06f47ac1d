"""Figures, claims and sources of a report are compared with what it carries."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import pytest

from envbuild.catalog.loader import load_stack, lock_path
from envbuild.lock.files import parse_lock
from envbuild.model.evidence import Evidence
from envbuild.report.claimed import compare, in_words, metric, named
from envbuild.report.publish import published
from envbuild.report.recheck.contents import Attached, check_contents
from envbuild.report.recheck.figures import check_figures
from envbuild.report.recheck.opened import Finding
from envbuild.resolve.compat_read import load_compat
from tests.launch.support import place, started
from tests.report import samples

Data = dict[str, Any]
A100 = "NVIDIA A100-SXM4-80GB"


@pytest.mark.parametrize(("last", "good"), [(0.1, True), (0.3, False)])
def test_the_last_loss_is_that_of_the_curve_and_no_median_of_its_end(last: float, good: bool) -> None:
    details = {"losses": [4.0, 0.5, 0.4, 0.3, 0.2, 0.1], "loss_first": 4.0, "loss_last": last}
    trained = {"name": "smoke/training", "status": "passed", "says": "", "details": details}
    found = check_figures(samples.evidence(samples.node(checks=[trained])))
    assert ("report-figure-differs" not in {each.code for each in found}) == good


def ran(rate: float, stack: str = "opt-175b") -> Data:
    """A check as `bench` makes it, of three figures around `rate` on 8 A100."""
    reference = load_stack(stack).stack.reference
    assert reference is not None and reference.bench is not None
    launch = started(stack, place(gpus=8), model_size="125m")
    compat, values = load_compat(), [rate - 1000, rate, rate + 1000]
    found = compare(
        reference, reference.bench, launch, statistics.median(values), named(A100, 8, compat), compat.peaks()
    )
    below = found.verdict == "below"
    details = {"launch": launch.to_json_dict(), "values": values} | ({"only_floors": True} if below else {})
    made = metric(reference.bench, values).to_json_dict()
    return {
        "name": "bench", "status": "failed" if below else "passed", "says": in_words(found), "metrics": [made],
        "comparison": found.to_json_dict(), "details": details,
    }  # fmt: skip


def claims(run: Evidence) -> list[Finding]:
    return [each for each in check_figures(run) if each.topic == "claims"]


def findings(check: Data, **more: Any) -> list[Finding]:
    node = samples.node(checks=[check], facts=samples.facts("localhost", 8))
    return claims(samples.evidence(node, **{"stack": "opt-175b", "verb": "bench"} | more))


def codes(check: Data, **more: Any) -> set[str]:
    return {each.code for each in findings(check, **more) if each.kind == "problem"}


def said(check: Data, **more: Any) -> str:
    return " ".join(each.says for each in findings(check, **more))


def test_what_a_run_tells_of_its_claim_holds_reproduced_and_below() -> None:
    for rate, verdict in ((196_000.0, "reproduced"), (100_000.0, "below")):
        assert ran(rate)["comparison"]["verdict"] == verdict
        assert [each.kind for each in findings(ran(rate))] == ["checked", "not-checked"]


def test_of_a_log_that_was_read_the_check_is_skipped() -> None:
    read = ran(196_000.0) | {"status": "skipped", "level": "not-checked"}
    assert codes(read) == set()
    assert "reproduced and failed" in said(read | {"status": "failed"})


# What is changed of a run below its claim that is called passed, and what is said of it.
PASSED: dict[str, tuple[Callable[[Data], object], str]] = {
    "nothing but the status": (lambda c: None, "below its claim and passed"),
    "another verdict": (lambda c: c["comparison"].update(verdict="reproduced"), "verdict is below, not reproduced"),
    "another unit": (lambda c: c["comparison"].update(unit="words/min"), "unit is words/s, not words/min"),
    "another share of the peak": (lambda c: c["comparison"].update(share=99.0), "share is None, not 99.0"),
    "no values": (lambda c: c["details"].pop("values"), "1 figure of 0 values"),
    "values that are none": (lambda c: c["details"].update(values=[0.0]), "1 figure of 1 value"),
    "no figure": (lambda c: c.update(metrics=[]), "0 figures of 3 values"),
    "no comparison": (lambda c: c.update(comparison=None), "it passed, and has no comparison"),
}


@pytest.mark.parametrize(("change", "says"), PASSED.values(), ids=PASSED)
def test_a_run_below_its_claim_that_is_called_passed_is_rejected(change: Callable[[Data], object], says: str) -> None:
    check = ran(100_000.0)
    check["status"] = "passed"
    del check["details"]["only_floors"]
    change(check)
    assert codes(check) == {"report-claim-differs"}
    assert says in said(check)


@pytest.mark.parametrize(
    ("forged", "says"),
    [
        ({"claim": 199_000.0}, "percent is 98.5, not 98.0"),
        ({"percent": 100.0}, "percent is 98.0, not 100.0"),
        ({"measured": 210_000.0, "percent": 105.0}, "measured is 196000.0, not 210000.0"),
    ],
)
def test_a_comparison_has_to_be_the_one_that_its_values_give(forged: Data, says: str) -> None:
    check = ran(196_000.0)
    check["comparison"] |= forged
    assert codes(check) == {"report-claim-differs"}
    assert says in said(check)


def test_a_failed_run_without_a_figure_is_compared_with_nothing() -> None:
    check = {"name": "bench", "status": "failed", "says": "run 1: it ended with exit code 1"}
    assert findings(check) == []


def test_what_is_left_of_a_launch_that_was_published_is_enough() -> None:
    check = ran(196_000.0)
    check["details"]["launch"]["commands"][0]["directory"] = "/home/ada/run"
    run = published(
        samples.evidence(samples.node(checks=[check], facts=samples.facts("n", 8)), stack="opt-175b", verb="bench")
    )
    assert "/home/ada" not in str(run) and "commands" not in run.nodes[0].checks[0].details["launch"]
    assert [each.kind for each in claims(run)] == ["checked", "not-checked"]


Sources = list[dict[str, Any]]


def compared(change: Callable[[Sources], object]) -> dict[str, list[str]]:
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


def test_sources_that_are_all_there_hold_and_where_none_is_told_none_was_compared() -> None:
    assert compared(lambda sources: None) == {
        "checked": [": 3 sources compared: commit, tree and patches are those of the lock"]
    }
    assert compared(list.clear) == {"not-checked": [": localhost: the report names none, and the lock has some"]}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda sources: sources[0]["patches"].pop(), "report-patch-differs: localhost: megatron-lm: "),
        (lambda sources: sources.pop(), "report-source-differs: localhost: "),
    ],
)
def test_a_source_or_patch_that_is_left_out_is_told(change: Callable[[Sources], object], says: str) -> None:
    [found] = compared(change)["problem"]
    assert found.startswith(says) and found.endswith(" of the lock left out")


def test_where_no_list_of_files_is_there_none_is_spoken_of_as_there() -> None:
    found = check_contents(samples.evidence(), Attached())
    root = [each.says for each in found if each.topic == "root"]
    assert root == [
        "for 1 node, the report has no list of files to compute it from",
        "whether the files on the disk give this root: run `envbuild verify` on the node",
    ]
