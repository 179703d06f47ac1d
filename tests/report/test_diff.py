"""Two reports side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envbuild.cli.report_cmd import report
from envbuild.errors import ExitCode
from envbuild.model.evidence import Evidence
from envbuild.report import diff
from envbuild.report.diff import compare, exit_code
from envbuild.report.publish import published
from tests.report.samples import ROOT, checks, evidence, facts, node
from tests.report.test_render import hostile
from tests.support.files import write_file


def faster(factor: float, **more: Any) -> dict[str, Any]:
    found = checks()
    for metric in found[2]["metrics"]:
        metric.update(more | {key: metric[key] * factor for key in ("median", "least", "greatest")})
    return node(checks=found)


TIME = {"unit": "ms", "lower_is_better": True}


@pytest.mark.parametrize(
    ("more", "factor", "kind", "code"),
    [
        ({}, 0.75, "slipped", 6), ({}, 0.9, None, 0), ({}, 1.2, "changed", 0), (TIME, 1.3, "slipped", 6),
    ],
)  # fmt: skip
def test_a_figure_slips_where_it_leaves_its_spread_for_the_worse(
    more: dict[str, Any], factor: float, kind: str | None, code: int
) -> None:
    changes = compare(evidence(faster(1.0, **more)), evidence(faster(factor, **more)))
    assert [change.kind for change in changes] == ([kind] if kind else [])
    assert exit_code(changes) == code


def test_a_new_driver_and_package_are_told_once_for_all_nodes_and_are_no_failure() -> None:
    old = evidence(*(node(f"gpu{index}", 8) for index in range(1, 5)))
    changed = {**facts("x", 8), "driver": {"version": "570.1", "cuda_ceiling": "12.8"}}
    new = evidence(*(node(f"gpu{i}", 8, facts=changed, packages={"torch": "2.14.0+cpu"}) for i in range(1, 5)))
    changes = compare(old, new)
    [driver] = [change for change in changes if change.what == "NVIDIA driver"]
    assert (driver.before, driver.after) == ("550.54.15, up to CUDA 12.4", "570.1, up to CUDA 12.8")
    assert driver.nodes == ("gpu1", "gpu2", "gpu3", "gpu4")
    assert ("package", "numpy", "–") in {(change.topic, change.what, change.after) for change in changes}
    assert exit_code(changes) == ExitCode.OK


def image(letter: str) -> dict[str, Any]:
    return node(image={"runtime": "docker", "id": letter * 64, "name": "x:1", "digest": f"sha256:{letter * 64}"})


def sourced(letter: str) -> dict[str, Any]:
    return node(sources=[{"name": "app", "commit": letter * 40}])


def claimed(verdict: str) -> dict[str, Any]:
    told = {"measured": 100.0, "unit": "x", "gpus": 8, "claim": 100.0, "verdict": verdict, "why": verdict}
    return node(checks=[{"name": "bench", "status": "passed", "says": "", "comparison": told}])


@pytest.mark.parametrize(
    ("before", "after", "topic", "what", "was", "now"),
    [
        (image("a"), image("b"), "image", "id", "a" * 12, "b" * 12),
        (sourced("a"), sourced("b"), "source", "app", "a" * 12, "b" * 12),
        (image("a"), image("b"), "image", "digest", f"sha256:{'a' * 12}", f"sha256:{'b' * 12}"),
        (
            node(base_packages={"torch": "2.1"}),
            node(base_packages={"torch": "2.9"}),
            "package of the base",
            "torch",
            "2.1",
            "2.9",
        ),
        (node(), node(variant_digest="ab" * 32), "contents", "variant", "3f1c9a0b72d4", "abababababab"),
        (claimed("reproduced"), claimed("not-comparable"), "claim", "bench", "reproduced", "not comparable"),
    ],
)
def test_another_image_base_variant_or_verdict_is_told(
    before: dict[str, Any], after: dict[str, Any], topic: str, what: str, was: str, now: str
) -> None:
    changes = compare(evidence(before), evidence(after))
    assert ("changed", topic, what, was, now) in {(it.kind, it.topic, it.what, it.before, it.after) for it in changes}
    assert exit_code(changes) == ExitCode.OK


def test_a_check_that_fails_and_did_not_run_before_is_worse_on_a_node_that_had_failed_too() -> None:
    error = {"code": "x", "what": "y", "exit": 1}
    broken = [{**checks()[0], "status": "failed"}]
    new = {"name": "smoke/nodes/all-reduce", "status": "failed", "says": "wrong sum"}
    before, after = (
        evidence(node(status="failed", exit=1, error=error, checks=found), exit=1) for found in (broken, [*broken, new])
    )
    [change] = compare(before, after)
    assert (change.kind, change.what, change.before, change.after) == (
        "worse", new["name"], "–", "failed: wrong sum"
    )  # fmt: skip
    assert exit_code([change]) == ExitCode.CHECK_FAILED
    assert compare(after, before) == []


def test_another_root_of_another_python_is_no_failure() -> None:
    def on(python: str, root: str) -> dict[str, Any]:
        stamp = {"name": "stamp", "status": "passed", "says": "x", "details": {"python": python}}
        return node(root=root * 64, checks=[stamp])

    before = evidence(on("3.11.7", "a"))
    changes = compare(before, evidence(on("3.11.2", "b")))
    assert {(change.kind, change.what) for change in changes} == {("changed", "Merkle root"), ("changed", "Python")}
    assert [change.kind for change in compare(before, evidence(on("3.11.7", "b")))] == ["worse"]


def test_other_contents_of_the_same_lock_and_a_check_that_fails_now_are_worse() -> None:
    broken = [{**check, "status": "failed"} for check in checks()[:1]]
    failed = evidence(node(root="ab" * 32, checks=broken, exit=1, status="failed"), exit=1)
    changes = compare(evidence(), failed)
    assert {(change.kind, change.topic) for change in changes} == {
        ("worse", "node"),
        ("worse", "contents"),
        ("worse", "check"),
    }
    assert exit_code(changes) == ExitCode.CHECK_FAILED
    assert compare(failed, failed) == []
    [(text, style)] = diff.lines(failed, failed, [])
    assert "is not ready on localhost" in text and text.startswith("✗")
    assert (style, diff.lines(evidence(), evidence(), [])[0][0][0]) == ("bold red", "✓")


def bench(factor: float, **launch: Any) -> Any:
    metric = {"name": "tflops", "unit": "x", "n": 3, "median": 2 * factor, "least": factor, "greatest": 3 * factor}
    details = {"launch": {"model": "760M", "nodes": 1, "gpus_per_node": 2, "degrees": {"tensor": 1}} | launch}
    check = {"name": "bench", "status": "passed", "says": "", "metrics": [metric], "details": details}
    return evidence(node(checks=[check]), verb="bench")


def test_what_was_launched_otherwise_is_told_and_its_figure_has_not_slipped() -> None:
    changes = compare(bench(9), bench(1, model="1.3B", degrees={"tensor": 2}))
    assert {(change.what, change.before, change.after) for change in changes if change.topic == "launch"} == {
        ("model", "760M", "1.3B"),
        ("tensor", "1", "2"),
    }
    assert {change.kind for change in changes} == {"changed"}


@pytest.mark.parametrize(
    ("after", "says"),
    [
        (
            node(),
            f": Merkle roots are equal ({ROOT[:12]}, measured in both runs), the environment is the same, file by file;"
            " no difference",
        ),
        (node(root_level="stamped"), f": Merkle roots are equal ({ROOT[:12]}, from a stamp in at least one run); "),
        (node(root="a" * 64), ": Merkle roots differ on 1 of 1 node; 1 thing got worse"),
        (node(root=None), ": no Merkle roots to compare; no difference"),
    ],
)
def test_the_first_line_says_whether_the_roots_are_equal(after: dict[str, Any], says: str) -> None:
    before, run = evidence(), evidence(after)
    assert says in diff.lines(before, run, compare(before, run))[0][0]


@pytest.mark.parametrize(("last", "says"), [(1.0, "equal at every step"), (2.0, "→ 4 to 2 in 2 steps")])
def test_the_loss_of_a_training_is_compared_and_is_no_failure(last: float, says: str) -> None:
    def trained(loss: float) -> Evidence:
        check = {"name": "smoke/training", "status": "passed", "says": "", "details": {"losses": [4.0, loss]}}
        return evidence(node(checks=[check]))

    before, after = trained(1.0), trained(last)
    changes = compare(before, after)
    [(title, _), (line, _)] = diff.lines(before, after, changes)
    assert title.startswith("✓") and says in line and "loss smoke/training" in line
    assert exit_code(changes) == ExitCode.OK


def test_what_one_run_did_not_look_at_is_no_difference() -> None:
    """A brief probe starts no other program, and a stamp's answer reads no file."""
    unread = {"name": "files", "status": "not-run", "level": "not-checked", "says": "contents not read"}
    read = {"name": "files", "status": "passed", "level": "measured", "says": "every file hashed"}
    brief = {**facts("localhost"), "brief": True, "compilers": [], "pythons": [], "cpus": 8}
    looked, idle = evidence(node(checks=[read])), evidence(node(facts=brief, checks=[unread]))
    for before, after, cpus in ((looked, idle, "8 CPUs"), (idle, looked, "96 CPUs")):
        [change] = compare(before, after)
        assert (change.what, change.after.partition(",")[0]) == ("CPU and memory", cpus)


def test_what_publishing_leaves_out_is_no_difference_and_another_site_and_a_new_warning_are() -> None:
    own = evidence(node("a1"), target="lab", warnings=["busy"])
    assert compare(published(own), own) == compare(own, published(own)) == []
    two = evidence(node("a1"), node("a2"), target="lab")
    assert [(it.what, it.before, it.after) for it in compare(published(two), own)] == [("how many", "2", "1")]
    changes = compare(evidence(node("a1", 8)), evidence(node("b1"), target="other"))
    assert {"which", "target", "GPUs"} <= {change.what for change in changes}
    [change] = compare(evidence(warnings=["old"]), evidence(warnings=["old", "busy"]))
    assert (change.kind, change.what, change.after) == ("changed", "warning", "busy")
    assert compare(own, evidence(node("a1"), target="lab", warnings=[])) == []


def test_the_text_is_harmless() -> None:
    run = hostile()
    text = "\n".join(line for line, _ in diff.lines(evidence(), run, compare(evidence(), run)))
    assert "\x1b" not in text
    assert "\u202e" not in text


@pytest.mark.parametrize(
    ("after", "more", "said"),
    [
        (node(status="unchanged", root_level="stamped", checks=[]), {}, True),
        (node(status="unchanged", root_level="stamped", checks=checks()), {}, False),
        (node(status="unchanged", root_level="measured", checks=[]), {"verb": "verify"}, False),
        (node(status="ok", root_level="stamped", checks=[]), {}, False),
    ],
    ids=["a stamp was read", "it computed", "files were read", "it built"],
)
def test_the_command_says_what_changed_and_that_the_newest_run_is_no_one_to_compare_with(
    after: dict[str, Any], more: dict[str, Any], said: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("ENVBUILD_RUNS", str(tmp_path / "runs"))
    run = evidence(after, **more)
    for place, each in (("kit", evidence()), (f"runs/{run.run}", run), ("slow", evidence(faster(0.5)))):
        write_file(tmp_path / place / "evidence.json", json.dumps(each.to_json_dict()))
    words = [str(tmp_path / "kit"), str(tmp_path / "slow")]
    assert report.commands["diff"].main(args=words, standalone_mode=False) == ExitCode.BELOW_FLOOR
    alike, line = "  = 1 figure: the median is between", "↓ figure training_tokens_per_second"
    out = capsys.readouterr().out
    assert "file by file; 1 median worse than all values before" in out and line in out and alike in out
    says = "the newest run changed nothing and measured nothing; `envbuild run list` has the others"
    for named, warned in (("last", said), (run.run, False)):
        report.commands["diff"].main(args=[str(tmp_path / "kit"), named], standalone_mode=False)
        assert (says in capsys.readouterr().err.replace("\n", " ")) == warned
