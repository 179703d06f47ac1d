"""Pictures: drawn only from what the evidence holds, and each has its words and its numbers."""

from __future__ import annotations

import re
from typing import Any

import pytest

from envbuild.model.evidence import Evidence
from envbuild.report.pictures import pictures
from envbuild.report.render import render_html, style
from envbuild.report.sections import claims, pins
from envbuild.report.tables import figure, steps, tables
from envbuild.report.view import View
from tests.report.samples import DIGEST, evidence, facts, fleet, node
from tests.report.test_render import failing_fleet
from tests.support.page import Page


def test_no_data_no_picture() -> None:
    assert [each.id for each in pictures(evidence())] == ["measured"]
    assert pictures(evidence(node(checks=[]))) == ()
    assert [each.id for each in pictures(fleet())] == ["measured", "gpus-bf16", "loss-smoke-training"]
    assert tables(evidence(node(checks=[]), phases={})) == ()


@pytest.mark.parametrize("run", [evidence(), fleet(), fleet(64), failing_fleet()])
def test_every_picture_has_words_and_numbers_and_stays_in_its_frame(run: Evidence) -> None:
    page = Page(render_html(run))
    drawn = [attributes for tag, attributes in page.tags if tag == "svg" and attributes.get("role") == "img"]
    assert len(drawn) == len(pictures(run)) > 0
    for each in pictures(run):
        assert any((attributes["aria-label"] or "").endswith(each.says) for attributes in drawn)
        assert each.table.rows
        assert all(len(row) == len(each.table.headers) for row in each.table.rows)
        for shape in each.shapes:
            assert 0 <= shape.y <= each.height
            assert 0 <= getattr(shape, "x", 0) <= 100
            if shape.shape == "bar":
                assert shape.x + shape.width <= 100.5


def test_the_words_of_a_figure_are_drawn_whole() -> None:
    for run in (evidence(), fleet()):
        drawn = {each.text for each in pictures(run)[0].shapes if each.shape == "label"}
        assert {figure(row[1]) for row in pictures(run)[0].table.rows if not re.search("_[0-9]+_", row[1])} <= drawn


def test_a_picture_tells_the_slowest_gpu_and_a_missed_floor() -> None:
    says = {each.id: each.says for each in pictures(fleet())}
    assert "The slowest is GPU 5 of gpu04, 87.2 % of the median" in says["gpus-bf16"]
    details = {"gpu0_bf16_tflops": 300.0, "gpu1_bf16_tflops": 700.0}
    two = evidence(node(checks=[{"name": "smoke/machine/gemm", "status": "passed", "says": "", "details": details}]))
    (drawn,) = (each for each in pictures(two) if each.id == "gpus-bf16")
    assert "median 500. The slowest is GPU 0 of localhost, 60.0 % of the median." in drawn.says
    assert "The curve is the same on all 8 nodes" in says["loss-smoke-training"]
    assert "floor missed, first on gpu63" in {e.id: e.says for e in pictures(failing_fleet())}["measured"].replace(
        "s m", " m"
    )


def test_every_size_is_in_the_table_behind_the_picture_and_only_the_largest_is_drawn() -> None:
    (measured,) = (each for each in pictures(fleet(1)) if each.id == "measured")
    told = [row[1] for row in measured.table.rows if row[1].startswith("gemm")]
    sizes = [f"gemm_cuda_bf16_{size}_tflops" for size in (1024, 2048, 4096)]
    assert told == [*sizes, "gemm_cuda_bf16_tflops"]
    assert "1024" not in str(measured.shapes) + str([claim.name for claim in claims(fleet(1))])


def test_phases_steps_trainings_copies_and_disks_are_tables() -> None:
    rows = {each.title: each.rows for each in tables(fleet(1))}
    assert list(rows) == ["Phases of the run", "Steps on the nodes", "Steps of a training", "Copies between GPUs, GB/s",
                          "Disk"]  # fmt: skip
    assert ("gpu01", "install", "changed", "1.60 s", "31.20 s") in rows["Steps on the nodes"]
    assert ("", "· fetch", "", "", "12.40 s") in rows["Steps on the nodes"]
    assert rows["Steps of a training"] == (("gpu01", "smoke/training", "60", "0.31 s", "0.023 s", "0.026 s"),)
    assert rows["Disk"][0] == ("gpu01", "ext4", "747.0 MiB", "12,042", "960.0 GiB", "1,024.0 GiB")
    (copies,) = (each for each in tables(fleet()) if each.title.startswith("Copies"))
    assert copies.headers[:3] == ("Node", "From", "to GPU 0")
    assert copies.rows[1][:2] == ("gpu03", "GPU 1"), "the slowest pair first"
    assert (copies.rows[1][3], copies.rows[1][8]) == ("–", "210.5")


@pytest.mark.parametrize(
    "told",
    ["x", [[None]], [[None, 1.0]], [[None, "1"], [1.0, None]], [[1.0, 1.0], [1.0, None]], [[None, 0], [1.0, None]]],
)
def test_what_is_no_matrix_of_rates_is_no_table(told: Any) -> None:
    check = {"name": "smoke/machine/copies", "status": "passed", "says": "", "details": {"peer_gbps": told}}
    assert "Copies between GPUs, GB/s" not in {each.title for each in tables(evidence(node(checks=[check])))}


def test_claims_and_floors_stand_beside_what_was_measured() -> None:
    first, gemm = claims(fleet())[:2]
    assert (first.claimed, first.measured, first.percent, first.tone) == ("147", "128.4", "87.3 %", "amber")
    assert first.gpu_hours == "0.689"
    assert (gemm.name, gemm.floor, gemm.tone) == ("gemm_cuda_bf16_tflops", "600", "green")
    [missed] = [each for each in claims(failing_fleet()) if each.tone == "red"]
    assert missed.says.startswith("1 of 1 node below the floor"), "the others have none"
    assert "on gpu63" in missed.says
    assert View(failing_fleet()).badges[0].tone == "amber", "no package has a hash there"


HASHED = {"version": "1", "index": "pypi"}


@pytest.mark.parametrize(
    ("rows", "sources", "says"),
    [
        ({"a": "ab" * 32, "b": "cd" * 32}, [], "2 packages by sha256"),
        ({"a": "ab" * 32, "b": "unrecorded"}, [], "1 of 2 packages by sha256"),
        ({"a": "ab" * 32}, [{"name": "b", "commit": "1", "tree": "2"}], "1 package by sha256"),
        ({"a": "ab" * 32}, [{"name": "fork", "commit": "1", "tree": "2", "build": {"wheel": "w/b-1-py3-none-any.whl"}}],
         "1 package by sha256"),
    ],
)  # fmt: skip
def test_w7_the_badge_of_an_artifact_counts_hashes_and_is_not_green_without_a_doi(
    rows: dict[str, str], sources: list[dict[str, Any]], says: str
) -> None:
    files = [{**HASHED, "name": name, "file": f"{name}.whl", "sha256": sha256} for name, sha256 in rows.items()]
    run = evidence(
        node(packages={"a": "1", "b": "1"}, sources=sources),
        variants=[{"id": "v", "digest": DIGEST, "packages": files}],
    )
    badge = View(run).badges[0]
    assert (badge.tone, badge.says[0], badge.says[-1]) == ("amber", says, "no DOI of an archive")


@pytest.mark.parametrize(("lower", "worst"), [(False, "the lowest of 2 nodes, on a; the highest is 130"),
                                              (True, "the highest of 2 nodes, on b; the lowest is 100")])  # fmt: skip
def test_the_worst_node_is_the_slowest_where_lower_is_better(lower: bool, worst: str) -> None:
    def told(value: float) -> list[dict[str, Any]]:
        figure = {"name": "time", "unit": "ms", "n": 1, "lower_is_better": lower}
        metric = figure | dict.fromkeys(("median", "least", "greatest"), value)
        return [{"name": "bench", "status": "passed", "says": "", "metrics": [metric]}]

    [found] = claims(evidence(node("a", checks=told(100.0)), node("b", checks=told(130.0))))
    assert (found.measured, found.says) == ("130" if lower else "100", worst)


def test_a_package_that_is_not_as_locked_is_the_first_pin_and_unfolded() -> None:
    first = pins(fleet())[0]
    assert (first.name, first.wanted, first.observed, first.nodes, first.same) == (
        "numpy", "2.4.1", "2.4.0", ("gpu03",), False
    )  # fmt: skip
    words = Page(render_html(fleet())).words
    assert words.index("✗ 2.4.0") < words.index("with hashes")


def test_what_was_not_checked_has_a_section_of_its_own() -> None:
    found = {(gap.what, gap.nodes) for gap in View(evidence(node(root_level="stamped"), node("gpu1", 8))).gaps}
    assert {("contents", ("localhost",)), ("links", ("gpu1",))} <= found
    assert {("verify/deep", ("localhost", "gpu1")), ("claims", ("localhost", "gpu1"))} <= found
    assert "links" not in {gap.what for gap in View(fleet()).gaps}


RAN = {"name": "bench", "status": "passed", "says": "no figure is published", "comparison": {
    "measured": 5456.1, "unit": "ms", "gpus": 1, "verdict": "no-claim", "why": "no figure is published",
}}  # fmt: skip
ON_IMAGE = {"image": {"runtime": "podman", "id": "a" * 64, "name": "x"}, "base_packages": {"numpy": "1.22.2"}}
UNMEASURED = "no figure of a document was measured"
# A run, and what is said of something that was not checked in it.
GAPS: list[tuple[Evidence, str, str]] = [
    (evidence(node(**ON_IMAGE)), "image", "was not read, but for 1 Python package by name and version"),
    (evidence(node(facts=facts("a"))), "pins", "6 packages without a locked file (built here, or of the base): "),
    (evidence(node(facts=None), verb="verify"), "pins", "6 packages not compared by hash: this run did not ask which"),
    (evidence(stack="opt-175b"), "claims", f"{UNMEASURED}; `envbuild bench` does it, if the stack has a document"),
    (evidence(node(checks=[RAN]), verb="bench", stack="opt-175b"), "claims", "measured: it has none for what ran"),
    (evidence(node(checks=[]), verb="bench", stack="opt-175b"), "claims", UNMEASURED),
]


@pytest.mark.parametrize(("run", "what", "says"), GAPS)
def test_a_gap_says_why_nothing_was_checked_and_what_does_it(run: Evidence, what: str, says: str) -> None:
    (why,) = [gap.why for gap in View(run).gaps if gap.what == what]
    assert says in why
    assert ("envbuild bench" in why) == ("envbuild bench" in says)
    assert "image" not in {gap.what for gap in View(evidence()).gaps}


def test_a_stack_without_a_document_has_no_figure_to_reproduce() -> None:
    says = "the stack has no document, so there is no figure to reproduce"
    for stack, told in (("torch-smoke", True), ("opt-175b", False), ("mine", False)):
        view = View(evidence(stack=stack))
        badge = next(badge for badge in view.badges if badge.name == "Reproduced")
        assert (says in badge.says, says in [gap.why for gap in view.gaps]) == (told, told), stack


def test_steps_come_from_a_journal_in_order_also_where_one_did_not_end() -> None:
    def event(second: int, kind: str, **data: object) -> dict[str, object]:
        return {"t": f"2026-03-02T10:00:{second:02}Z", "kind": kind, "node": "a", "data": data}

    events = [
        event(0, "run-started"),
        event(1, "step-started", step="install"),
        event(9, "step-finished", step="install", status="changed", seconds=7.5, parts={"fetch": 2.0}),
        event(10, "step-started", step="smoke"),
    ]
    found = steps(events)["a"]
    assert [(each.name, each.status, each.began, each.seconds) for each in found] == [
        ("install", "changed", 1.0, 7.5),
        ("smoke", "started", 10.0, None),
    ]
    assert found[0].parts == {"fetch": 2.0}


def test_no_colour_of_the_style_sheet_is_left_undefined() -> None:
    sheet = style()
    assert sheet in render_html(evidence())
    assert set(re.findall(r"var\((--[a-z0-9-]+)", sheet)) <= set(re.findall(r"(--[a-z0-9-]+):", sheet))
