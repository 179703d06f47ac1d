"""Pictures: drawn only from what the evidence holds, and each has its words and its numbers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from envbuild.model.evidence import Evidence
from envbuild.report.pictures.every import pictures
from envbuild.report.render import render_html
from envbuild.report.sections.claims import claims
from envbuild.report.sections.every import sections
from envbuild.report.sections.pins import pins
from envbuild.report.timeline import steps
from tests.report.samples import evidence, fleet, gpu_checks, node
from tests.report.samples import steps as taken
from tests.report.test_render import HOSTILE, Page, failing_fleet


def test_no_data_no_picture() -> None:
    assert [each.id for each in pictures(evidence())] == ["measured"]
    assert pictures(evidence(node(checks=[]))) == ()
    assert {each.id for each in pictures(fleet())} == {
        "timeline", "measured", "gpus-bf16", "loss-smoke-training", "steps-smoke-training", "disk"
    }  # fmt: skip


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


def test_a_picture_tells_the_slowest_gpu_and_a_missed_floor() -> None:
    says = {each.id: each.says for each in pictures(fleet())}
    assert "The slowest is GPU 5 of gpu04, 87.2 % of the median" in says["gpus-bf16"]
    assert "The curve is the same on all 8 nodes" in says["loss-smoke-training"]
    assert "floor missed, first on gpu63" in {e.id: e.says for e in pictures(failing_fleet())}["measured"].replace(
        "s m", " m"
    )


def test_claims_and_floors_stand_beside_what_was_measured() -> None:
    first, gemm = claims(fleet())[:2]
    assert (first.claimed, first.measured, first.percent, first.tone) == ("147", "128.4", "87.3 %", "amber")
    assert first.gpu_hours == "0.689"
    assert (gemm.name, gemm.floor, gemm.tone) == ("gemm_cuda_bf16_tflops", "600", "green")
    [missed] = [each for each in claims(failing_fleet()) if each.tone == "red"]
    assert missed.says.startswith("1 of 63 nodes below the floor")
    assert "on gpu63" in missed.says
    assert sections(failing_fleet()).badges[0].tone == "amber", "no package has a hash there"


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
    found = {(gap.what, gap.nodes) for gap in sections(evidence(node(root_level="stamped"))).gaps}
    assert ("contents", ("localhost",)) in found
    assert ("verify/deep", ("localhost",)) in found
    assert ("claims", ("localhost",)) in found


def test_hostile_names_in_pictures_are_shown_and_do_nothing() -> None:
    run = evidence(node(HOSTILE, checks=gpu_checks(), steps=[{**taken()[0], "name": HOSTILE, "status": HOSTILE}]))
    page = Page(render_html(run))
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert "img" not in {tag for tag, _ in page.tags}
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)


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


def test_one_style_sheet_is_on_every_page_and_no_colour_is_left_undefined() -> None:
    from envbuild.report.render import style

    sheet = style()
    assert sheet in render_html(evidence())
    assert set(re.findall(r"var\((--[a-z0-9-]+)", sheet)) <= set(re.findall(r"(--[a-z0-9-]+):", sheet))
    templates = Path(__file__).parents[2] / "envbuild" / "report" / "templates"
    assert "<style>\n{{ style }}</style>" in (templates / "report.html.j2").read_text()
