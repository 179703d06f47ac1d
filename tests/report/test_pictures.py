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
from tests.report.samples import DIGEST, evidence, facts, fleet, gpu_checks, node
from tests.report.samples import steps as taken
from tests.report.test_render import HOSTILE, Page, failing_fleet


def test_no_data_no_picture() -> None:
    assert [each.id for each in pictures(evidence())] == ["measured"]
    assert pictures(evidence(node(checks=[]))) == ()
    assert {each.id for each in pictures(fleet())} == {
        "timeline", "measured", "gpus-bf16", "sizes-gemm-cuda-bf16", "sizes-all-reduce", "peers", "loss-smoke-training",
        "steps-smoke-training", "disk",
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


def test_the_key_of_the_steps_names_the_colour_of_one_that_failed_and_none_that_is_not_drawn() -> None:
    toolchain, install, *_ = taken()
    given = evidence(node(status="failed", steps=[toolchain, install | {"status": "failed"}]))
    (shown,) = (each for each in pictures(given) if each.id == "timeline")
    assert shown.keys == (("k1", "toolchain"), ("failed", "failed"))


def test_figures_by_size_stand_beside_the_floor_in_one_scale_and_in_no_other_picture() -> None:
    found = {each.id: each for each in pictures(fleet(1))}
    products, sums = found["sizes-gemm-cuda-bf16"], found["sizes-all-reduce"]
    assert [row[1] for row in products.table.rows] == ["1024 × 1024", "2048 × 2048", "4096 × 4096", "8192 × 8192"]
    assert [row[5] for row in products.table.rows] == ["–", "–", "–", "600 ✓"]
    assert products.says == "275.6 TFLOP/s at 1024 × 1024, at most 689, medians of nodes. The floor is held."
    assert [row[1] for row in sums.table.rows] == ["1 MiB", "64 MiB", "512 MiB", "8 GiB"]
    dots = [shape.x for shape in sums.shapes if shape.shape == "dot"]
    assert dots == sorted(dots)
    assert dots[0] < 6 < 90 < dots[-1]
    assert "1024" not in str(found["measured"].table) + str([claim.name for claim in claims(fleet(1))])


def test_links_that_nobody_measured_are_named_as_not_checked() -> None:
    without = evidence(node("gpu1", 8), node("cpu1"))
    assert [gap.nodes for gap in sections(without).gaps if gap.what == "links"] == [("gpu1",)]
    assert "links" not in {gap.what for gap in sections(fleet()).gaps}


def test_one_size_alone_is_no_picture_and_a_size_that_nobody_told_is_none() -> None:
    sizes = gpu_checks()[1]
    alone = {**sizes, "metrics": sizes["metrics"][-1:]}
    untold = {**sizes, "details": {"size": "8192"}, "metrics": sizes["metrics"][-2:]}
    for check in (alone, untold):
        assert not [each.id for each in pictures(evidence(node(checks=[check]))) if each.id.startswith("sizes")]


def test_the_slowest_pair_of_gpus_is_told_and_its_node_stands_first() -> None:
    [peers] = [each for each in pictures(fleet()) if each.id == "peers"]
    assert "The slowest goes from GPU 1 to GPU 6 of gpu03, 56.0 % of the median." in peers.says
    assert peers.table.headers[:3] == ("Node", "From", "to GPU 0")
    assert peers.table.rows[1][:2] == ("gpu03", "GPU 1")
    assert (peers.table.rows[1][3], peers.table.rows[1][8]) == ("–", "210.5")
    [worst] = [
        shape for shape in peers.shapes if shape.shape == "bar" and shape.says.startswith("gpu03, GPU 1 to GPU 6")
    ]
    assert worst.kind == "h9"


def test_the_median_of_two_gpus_and_of_two_pairs_is_between_them() -> None:
    details = {"gpu0_bf16_tflops": 300.0, "gpu1_bf16_tflops": 700.0, "peer_gbps": [[None, 300.0], [700.0, None]]}
    run = evidence(node(checks=[{"name": "smoke/machine/gemm", "status": "passed", "says": "", "details": details}]))
    says = {each.id: each.says for each in pictures(run)}
    assert "median 500. The slowest is GPU 0 of localhost, 60.0 % of the median." in says["gpus-bf16"]
    assert "median 500. The slowest goes from GPU 0 to GPU 1 of localhost, 60.0 % of the median." in says["peers"]


@pytest.mark.parametrize(
    "told",
    [
        None,
        "x",
        [[None]],
        [[None, 1.0]],
        [[None, "1"], [1.0, None]],
        [[1.0, 1.0], [1.0, None]],
        [[None, 0], [1.0, None]],
    ],
)
def test_what_is_no_matrix_of_rates_is_no_heat_map(told: Any) -> None:
    check = {"name": "smoke/machine/copies", "status": "passed", "says": "", "details": {"peer_gbps": told}}
    assert "peers" not in {each.id for each in pictures(evidence(node(checks=[check])))}


def test_claims_and_floors_stand_beside_what_was_measured() -> None:
    first, gemm = claims(fleet())[:2]
    assert (first.claimed, first.measured, first.percent, first.tone) == ("147", "128.4", "87.3 %", "amber")
    assert first.gpu_hours == "0.689"
    assert (gemm.name, gemm.floor, gemm.tone) == ("gemm_cuda_bf16_tflops", "600", "green")
    [missed] = [each for each in claims(failing_fleet()) if each.tone == "red"]
    assert missed.says.startswith("1 of 1 node below the floor"), "the others have none"
    assert "on gpu63" in missed.says
    assert sections(failing_fleet()).badges[0].tone == "amber", "no package has a hash there"


HASHED = {"version": "1", "index": "pypi"}


@pytest.mark.parametrize(
    ("rows", "sources", "tone", "says"),
    [
        ({"a": "ab" * 32, "b": "cd" * 32}, [], "green", "2 of 2 packages by sha256"),
        ({"a": "ab" * 32}, [], "amber", "1 of 2 packages by sha256"),
        ({"a": "ab" * 32, "b": "unrecorded"}, [], "amber", "1 of 2 packages by sha256"),
        ({"a": "ab" * 32}, [{"name": "b", "commit": "1", "tree": "2"}], "green", "1 of 1 package by sha256"),
        ({"a": "ab" * 32}, [{"name": "fork", "commit": "1", "tree": "2", "build": {"wheel": "w/b-1-py3-none-any.whl"}}],
         "green", "1 of 1 package by sha256"),
    ],
)  # fmt: skip
def test_the_badge_of_an_artifact_needs_a_hash_of_each_package_that_is_not_built_of_a_source(
    rows: dict[str, str], sources: list[dict[str, Any]], tone: str, says: str
) -> None:
    files = [{**HASHED, "name": name, "file": f"{name}.whl", "sha256": sha256} for name, sha256 in rows.items()]
    run = evidence(
        node(packages={"a": "1", "b": "1"}, sources=sources),
        variants=[{"id": "v", "digest": DIGEST, "packages": files}],
    )
    badge = sections(run).badges[0]
    assert (badge.tone, badge.says[0]) == (tone, says)


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


def test_what_an_image_has_of_its_base_is_said_to_be_unread() -> None:
    image = {"runtime": "podman", "id": "a" * 64, "name": "x"}
    told = sections(evidence(node(image=image, base_packages={"numpy": "1.22.2"}))).gaps
    (why,) = [gap.why for gap in told if gap.what == "image"]
    assert why.endswith(
        "what else the image has of its base was not read, but for 1 Python package by name and version"
    )
    assert "image" not in {gap.what for gap in sections(evidence(node())).gaps}


def test_packages_without_a_locked_file_are_those_of_nodes_whose_facts_were_read() -> None:
    told = [
        next(gap.why for gap in sections(evidence(node(facts=read), verb=verb)).gaps if gap.what == "pins")
        for verb, read in (("provision", facts("localhost")), ("verify", None))
    ]
    assert told[0].startswith("6 packages without a locked file (built here, or of the base): ")
    assert told[1] == "6 packages not compared with the files of the lock: which of them fit was not asked"


def test_a_benchmark_that_ran_is_not_told_to_be_run() -> None:
    compared = {"measured": 5456.1, "unit": "ms", "gpus": 1, "verdict": "no-claim", "why": "no figure is published"}
    ran = {"name": "bench", "status": "passed", "says": "no figure is published", "comparison": compared}
    told = {
        (verb, len(checks)): next(
            gap.why for gap in sections(evidence(node(checks=checks), verb=verb)).gaps if gap.what == "claims"
        )
        for verb, checks in (("provision", []), ("bench", [ran]), ("bench", []))
    }
    plain = "no figure of the document was measured"
    assert told == {
        ("provision", 0): f"{plain}; `envbuild bench` does it",
        ("bench", 1): f"{plain}: it has none for what ran",
        ("bench", 0): plain,
    }


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
