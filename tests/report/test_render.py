"""Reports: complete, self-contained, and harmless whatever the evidence says."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from envbuild.catalog.loader import list_stacks, load_stack
from envbuild.model.evidence import Evidence
from envbuild.report.claimed import metric
from envbuild.report.publish import published
from envbuild.report.recheck.opened import open_report
from envbuild.report.render import render_html, render_json, render_markdown, write_report
from envbuild.report.tables import figure
from envbuild.report.verdict import make_verdict
from envbuild.report.view import View, run_words
from tests.report.samples import DIGEST, ROOT, checks, evidence, facts, fleet, gpu_checks, node, resolution, shown
from tests.support.fails import fails
from tests.support.page import Page

ERROR = {
    "code": "wheel-hash-mismatch",
    "what": "numpy has another hash",
    "why": "aa, not bb",
    "hint": "check",
    "exit": 5,
}
HOSTILE = (
    "</td><script>alert(1)</script><img src=x onerror=y> \x1b]0;owned\x07 \u202egnp.exe\u2069 "
    "[click](javascript:x) ![x](y) | cell `code` **bold** ~~no~~ @everyone\n# heading {{ 7*7 }}"
)


def failing_fleet() -> Evidence:
    good = [node(f"gpu{index:02}", 8) for index in range(1, 63)]
    missed = node("gpu63", 8, status="failed", exit=6, checks=checks(floor=200000.0))
    bare = {"environment": None, "root": None, "checks": [], "packages": {}, "files": None, "bytes": None}
    broken = node("gpu64", status="failed", exit=5, error=ERROR, facts=None, resolution=None, **bare)
    return evidence(*good, missed, broken, exit=8)


def hostile() -> Evidence:
    check = {
        "name": HOSTILE,
        "status": "failed",
        "says": HOSTILE,
        "details": {"failures": [HOSTILE, HOSTILE], "output": "```\n" + HOSTILE, HOSTILE: [HOSTILE]},
        "metrics": [{"name": HOSTILE, "unit": HOSTILE, "n": 1, "median": 1.0, "least": 1.0, "greatest": 1.0}],
    }
    error = dict.fromkeys(("code", "what", "why", "hint"), HOSTILE) | {"exit": 1}
    steps = [{"name": HOSTILE, "status": HOSTILE, "began": 0.9, "seconds": 0.6, "parts": {}}]
    found = [*gpu_checks(), check]
    bad = node(HOSTILE, status="failed", exit=1, error=error, checks=found, packages={HOSTILE: HOSTILE}, steps=steps)
    texts = dict.fromkeys(("stack", "profile", "target", "envbuild"), HOSTILE)
    return evidence(bad, exit=1, warnings=[HOSTILE], deviations=[HOSTILE], tools={HOSTILE: HOSTILE}, **texts)


def test_three_files_are_written_and_read_back_and_have_no_secret(tmp_path: Path) -> None:
    run = evidence(warnings=["cloning https://ada:hunter2-canary@example.org/x failed"])
    paths = write_report(run, tmp_path / "report")
    names = {"json": "evidence.json", "html": "report.html", "md": "report.md"}
    assert {form: path.name for form, path in paths.items()} == names
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == sorted(names.values())
    kept = run.warnings[0].replace("ada:hunter2-canary", "***")
    assert open_report(paths["json"]).evidence == run.model_copy(update={"warnings": (kept,)})
    for path in paths.values():
        assert "hunter2-canary" not in path.read_text()
    with fails("output-unwritable"):
        write_report(run, paths["json"] / "below")


@pytest.mark.parametrize("render", [render_html, render_markdown])
def test_a_report_says_everything_that_a_reviewer_asks(render: object) -> None:
    text = render(evidence())  # type: ignore[operator]
    words = Page(text).words if render is render_html else text.replace("\\", "")
    for fact in (
        "torch-smoke (exact) is provisioned on 1 node; 3 checks passed.",
        f"{ROOT} (measured)",
        DIGEST,
        ROOT,
        "2.13.0+cpu",
        "3.11.2",
        "debian 12, glibc 2.36",
        "driver-too-old",
        "550.54.15 (CUDA 12.4)",
        "450.80.02",
        "CUDA compatibility guide, table 2",
        "torch-flavour-missing",
        "instead: torch 1.12.1+cu116",
        "training_tokens_per_second",
        "115,472",
        "92,708",
        "not asked for",
        "the document names CUDA 11.6",
        "the compiler is newer",
        "networkx",
        "a8b78674" * 5,
        "833b89ad" * 5,
        "envbuild provision --target local",
        "envbuild verify --target local",
        "31.2 s",
        "ansible-core 2.21.5",
    ):
        assert fact in words, fact


@pytest.mark.parametrize(
    ("verb", "command", "says"),
    [
        ("provision", ["--stack", "./my.yaml", "--prefix=/big disk", "--check-rebuild"],
         "./my.yaml --prefix '/big disk'"),
        ("provision", ["-s", "m.yaml", "-t", "./t.yaml", "--profile", "ported"],
         "m.yaml --target ./t.yaml --profile ported"),
        ("provision", ["--host", "gpu[01-04]", "--jobs", "4", "--host", "gpu07"], "--host 'gpu[01-04]' --host gpu07"),
        ("bench", ["./my.yaml", "-t", "lab"], "./my.yaml --target lab"),
        ("bench", ["-t", "lab", "own"], "own --target lab"),
    ],
)  # fmt: skip
def test_the_command_that_verifies_names_stack_and_place_as_they_were_given(
    verb: str, command: list[str], says: str
) -> None:
    run = evidence(verb=verb, stack="own", command=("envbuild", verb, *command))
    assert f"\nenvbuild verify {says}\n" in render_markdown(run)


def test_the_command_of_a_published_bench_names_its_nodes_and_gpus() -> None:
    launched = {"launch": {"model": "125m", "nodes": 2, "gpus_per_node": 8}}
    trained = [{"name": "bench", "status": "passed", "says": "x", "details": launched}]
    given, verify = run_words(evidence(node(checks=trained), verb="bench", command=()))
    assert given[-4:] == ["--nodes", "2", "--gpus-per-node", "8"] and "--nodes" not in verify
    own = run_words(evidence(node(), stack="theirs", command=()))[0]
    assert own[:3] == ["envbuild", "provision", "./theirs.yaml"], "the file that a kit has"


def test_compilers_are_told_once_and_what_a_brief_probe_did_not_look_for_is_not_said_to_be_missing() -> None:
    found = [{"path": f"{place}/gcc", "version": "12.2.0"} for place in ("/usr/bin", "/bin")]
    asked = node(facts={**facts("localhost"), "compilers": found, "pythons": []})
    text = render_markdown(evidence(asked))
    assert "| nvcc | none |" in text
    assert "| Compilers | gcc 12.2.0 |" in text
    asked["facts"].update(compilers=[], brief=True)
    text = render_markdown(evidence(asked))
    assert not any(f"| {name} |" in text for name in ("nvcc", "Compilers", "Pythons", "Scheduler"))
    assert "| GPUs | none visible |" in text


def test_the_page_needs_nothing_from_outside_and_runs_nothing() -> None:
    for run in (evidence(), failing_fleet(), hostile(), fleet()):
        page = Page(render_html(run))
        scripts = [attributes for tag, attributes in page.tags if tag == "script"]
        assert scripts == [{"type": "application/json", "id": "evidence"}]
        assert not {tag for tag, _ in page.tags} & {"link", "img", "iframe", "object", "form", "base"}
        for _, attributes in page.tags:
            assert not {"src", "action", "srcset"} & attributes.keys()
            assert (attributes.get("href") or "#").startswith("#"), "links stay on the page"
            assert not any(name.startswith("on") for name in attributes)
    assert "url(" not in render_html(evidence())
    assert "@import" not in render_html(evidence())


def test_the_page_is_accessible_in_structure() -> None:
    page = Page(render_html(failing_fleet()))
    assert [tag for tag, _ in page.tags].count("h1") == 1
    assert dict(page.tags)["html"]["lang"] == "en"
    assert all(attributes.get("scope") == "col" for tag, attributes in page.tags if tag == "th")
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))


def test_hostile_text_is_shown_and_does_nothing() -> None:
    html, markdown, plain = render_html(hostile()), render_markdown(hostile()), render_json(hostile())
    for text in (html, markdown, plain):
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069]", text)
        assert "49" not in text.split("# heading", 1)[1][:8]
    assert "alert(1)" in Page(html).words
    assert json.loads(plain)["warnings"] == [HOSTILE], "the JSON keeps the exact text, in ASCII"


def test_hostile_markdown_parses_to_no_html_link_or_heading_of_its_own() -> None:
    for run in (hostile(), failing_fleet()):
        tokens = MarkdownIt("gfm-like", {"html": True, "linkify": False}).parse(render_markdown(run))
        inline = [child for token in tokens for child in token.children or []]
        kinds = {token.type for token in [*tokens, *inline]}
        assert not kinds & {"html_block", "html_inline", "link_open", "image", "s_open"}
        assert sum(token.type == "heading_open" and token.tag == "h1" for token in tokens) == 1
        rows = [token for token in tokens if token.type == "tr_open"]
        cells = [token for token in tokens if token.type in ("td_open", "th_open")]
        assert len(cells) / len(rows) > 2


def test_many_nodes_with_equal_facts_are_one_class_and_the_bad_ones_come_first() -> None:
    view = View(failing_fleet())
    assert [len(group.nodes) for group in View(failing_fleet()).classes] == [63], (
        "of a node that did not answer nothing is known"
    )
    assert [each.node for each in view.nodes_by_need[:2]] == ["gpu63", "gpu64"]
    assert sum(len(build.nodes) for build in view.builds) == 63
    assert [(each.nodes[0], len(each.nodes)) for each in view.outcomes] == [("gpu63", 1), ("gpu64", 1), ("gpu01", 62)]
    assert "gpu[01-62]" in shown(render_html(failing_fleet()))


def test_nodes_that_differ_in_free_room_alone_are_one_section_and_who_has_nothing_is_none() -> None:
    def room(free: str) -> dict[str, Any]:
        decision = {"rule": "disk-space", "verdict": "allow", "what": "there is room", "compared": [free, "60 MB"]}
        return {**resolution("gpu01"), "decisions": [decision], "candidates": []}

    away = {"code": "node-unreachable", "what": "gpu03 cannot be reached", "exit": 3}
    nothing: dict[str, Any] = dict.fromkeys(("facts", "resolution", "environment", "variant_digest", "root"))
    run = evidence(
        node("gpu01", resolution=room("63 GB")),
        node("gpu02", resolution=room("62 GB")),
        node("gpu03", status="unreachable", exit=3, error=away, checks=[], packages={}, sources=[], **nothing),
        exit=8,
    )
    assert [build.nodes for build in View(run).builds] == [("gpu01", "gpu02")]
    assert View(run).verdict.sentence == ("torch-smoke (exact) is not ready on 1 of 3 nodes: gpu03 cannot be reached.")
    assert "63 GB" in render_html(run)


UNREAD = {"name": "files", "status": "not-run", "says": "contents not read", "level": "not-checked"}
UNREAD["details"] = {"read_at": "2026-03-01T10:00:00Z", "differed": 0}  # type: ignore[assignment]
ONLY: dict[str, Any] = {**UNREAD, "name": "smoke/only", "status": "skipped", "details": {"only": ["training"]}}
ONLY["says"] = "the rest of the smoke test, as only training was asked for"
NO_GPU = {"name": "smoke/cuda", "status": "skipped", "says": "no GPU: nothing ran on CUDA", "level": "not-checked"}

STAMP = {"name": "stamp", "status": "passed", "says": "the stamp is that of the lock", "level": "stamped"}
LOG: dict[str, Any] = {"name": "bench", "status": "skipped", "level": "not-checked", "details": {"values": [50.5]}}
LOG["says"] = "nothing ran here, a log was read; not comparable: the GPU that it ran on is not known"
LOG["comparison"] = {
    "measured": 50.5, "unit": "TFLOP/s per GPU", "gpus": 1, "claim": 47.53, "claim_gpus": 1,
    "verdict": "not-comparable", "claim_gpu": "V100-SXM2-16GB", "percent": 106.2,
    "why": "not comparable: the GPU that it ran on is not known",
}  # fmt: skip


REST = "Not checked: the rest of the smoke test, as only training was asked for."
BELOW = "smoke/training: training_tokens_per_second is 115,472 token/s, below its floor 200,000."
TRAINED, ELSE = (
    node("n1", checks=[checks()[2], ONLY]),
    {**ONLY, "details": {"only": ["machine/gemm", "machine/copies"]}},
)
CRASHED = {"name": "bench", "status": "failed", "says": "run 1: crashed"}
# What `torch-smoke (exact)` stands for in each is %.
VERDICTS: dict[str, list[tuple[Evidence, str]]] = {
    "good": [
        (
            evidence(verb="verify"),
            "% on 1 node matches its stamp for this lock: every file that the root covers was read.",
        ),
        (evidence(verb="smoke"), "% passes its smoke test on 1 node."),
        (evidence(node(checks=[checks()[2], ONLY]), verb="smoke"), f"% passes training on 1 node. {REST}"),
        (
            evidence(TRAINED, node("n2", checks=[checks()[1], ELSE]), node("n3"), verb="smoke"),
            "% passes training on 1 node, passes machine/gemm, machine/copies on 1 node, "
            f"passes its smoke test on 1 node. {REST}",
        ),
        (
            evidence(node("n1", checks=[]), node("n2", checks=[STAMP], root_level="stamped"), verb="verify"),
            "% on 2 nodes: the stamp is that of the lock.",
        ),
        (
            evidence(node(status="unchanged", checks=[UNREAD])),
            "% was already in place on 1 node, by its stamp; contents not read; last read on 2026-03-01T10:00:00Z.",
        ),
        (evidence(node(checks=[])), "% is provisioned on 1 node; no check ran."),
        (
            evidence(node(checks=[NO_GPU]), node("gpu02", status="unchanged", checks=[UNREAD])),
            "% is provisioned on 2 nodes; no check ran; contents not read on 1 of 2 nodes. "
            "Not checked: no GPU: nothing ran on CUDA.",
        ),
    ],
    "partial": [
        (
            evidence(node(checks=[UNREAD]), node("gpu02", checks=[{**UNREAD, "details": {}}]), verb="verify"),
            "contents not read: % on 2 nodes has the stamp of its lock and the stamped packages.",
        ),
        (
            evidence(node(checks=[UNREAD]), verb="verify"),
            "contents not read; last read on 2026-03-01T10:00:00Z: % on 1 node has the stamp of its lock "
            "and the stamped packages.",
        ),
        (evidence(node(checks=[ONLY]), verb="smoke"), f"% ran no check of training on 1 node. {REST}"),
        (
            evidence(TRAINED, node("n2", checks=[ONLY]), verb="smoke"),
            f"% passes training on 1 node, ran no check of training on 1 node. {REST}",
        ),
        (
            evidence(node("n1"), node("n2", checks=[]), verb="smoke"),
            "% passes its smoke test on 1 node, ran no check on 1 node.",
        ),
        (
            evidence(node(checks=[LOG]), verb="bench"),
            "% did not run here; its log says 50.5 TFLOP/s per GPU, "
            "not comparable: the GPU that it ran on is not known.",
        ),
        (failing_fleet(), f"% is not ready on 2 of 64 nodes: gpu63: {BELOW}"),
    ],
    "bad": [
        (
            evidence(node(status="failed", exit=5, error=ERROR), exit=5),
            "% is not ready on localhost: numpy has another hash.",
        ),
        (evidence(node(checks=checks(floor=200000.0)), exit=6), f"% fails 1 check: {BELOW}"),
        (evidence(node(checks=checks(floor=200000.0)), exit=0), f"% fails 1 check: {BELOW}"),
        (
            evidence(node(status="failed", exit=1, checks=[CRASHED]), exit=1, verb="bench"),
            "% failed its own run on localhost: bench: run 1: crashed.",
        ),
        (evidence(exit=130), "% ended with exit code 130, interrupted."),
    ],
}


@pytest.mark.parametrize(("run", "sentence", "tone"), [(*row, tone) for tone in VERDICTS for row in VERDICTS[tone]])
def test_d31_the_verdict_is_as_sure_as_what_was_done(run: Evidence, sentence: str, tone: str) -> None:
    verdict = make_verdict(run)
    assert (verdict.sentence, verdict.tone) == (sentence.replace("%", "torch-smoke (exact)"), tone)


def test_nodes_with_different_floors_are_compared_each_with_its_own() -> None:
    def gemm(median: float, floor: float) -> list[dict[str, Any]]:
        rate = {"name": "gemm_cuda_bf16_tflops", "unit": "TFLOP/s", "n": 3, "median": median, "floor": floor}
        metrics = [rate | {"least": median, "greatest": median}]
        return [{"name": "smoke/machine/gemm", "status": "passed", "says": "ok", "metrics": metrics}]

    run = evidence(
        *(node(name, checks=gemm(*row)) for name, row in {"n1": (650.0, 600.0), "n2": (120.0, 100.0)}.items())
    )
    told = {(it.nodes, it.measured, it.floor, it.percent, it.verdict) for it in View(run).claims}
    assert told == {("n1", "650", "600", "108 %", "floor held"), ("n2", "120", "100", "120 %", "floor held")}
    [drawn] = [picture for picture in View(run).pictures if picture.id == "measured"]
    assert "120 to 650 TFLOP/s, floor 100 to 600" in str(drawn.shapes)


@pytest.mark.parametrize("stack", list_stacks())
def test_what_a_shipped_stack_measures_is_told_in_words(stack: str) -> None:
    reference = load_stack(stack).stack.reference
    if reference is not None and reference.bench is not None:
        name = metric(reference.bench, [1.0]).name
        assert figure(name) != name


def test_a_figure_below_its_floor_never_reads_as_the_floor() -> None:
    def told(median: float, floor: float) -> tuple[str, str, str, str]:
        rate = {"name": "rate", "unit": "TFLOP/s", "n": 1, "median": median, "floor": floor}
        check = {"name": "smoke/machine/gemm", "status": "failed", "says": "", "metrics": [rate]}
        check["metrics"][0] |= {"least": median, "greatest": median}
        run = evidence(node(checks=[check], status="failed", exit=6), exit=6)
        [it] = View(run).claims
        [drawn] = [picture for picture in View(run).pictures if picture.id == "measured"]
        assert drawn.table.rows[0][2] == it.measured and drawn.table.rows[0][5] == f"{it.floor} ✗"
        assert f"| {it.measured} | TFLOP/s |" in render_markdown(run)
        assert f"{it.floor} ✗" in render_markdown(run)
        return it.measured, it.floor, it.percent, it.verdict

    assert told(599.9996, 600.04) == ("600.00", "600.04", "99.99 %", "below the floor")
    assert told(119463.7, 119464.0) == ("119,463.7", "119,464", "99.9997 %", "below the floor")
    assert told(500.0, 600.0) == ("500", "600", "83 %", "below the floor")


@pytest.mark.parametrize(
    ("checks", "tone", "says"),
    [
        ([{"name": "stamp"}], "amber", "no smoke test and no benchmark ran"),
        ([{"name": "smoke/sound"}, {"name": "smoke/step"}], "green", "2 passed by running the environment"),
        ([{"name": "stamp"}, {"name": "smoke/sound"}], "amber", "none of the code's commands ran"),
        ([{"name": "smoke/sound", "details": {"open": {"x": "a.py:1"}}}], "amber", "Missing: 1 module that its code"),
        ([{"name": "smoke/sound", "details": {"code_changed": 2}}], "amber", ".; The smoke test did not run again"),
        (
            [{"name": "smoke/sound"}, {"name": "tested", "details": {"failed_at": "2026-03-02", "failed": "no x"}}],
            "amber",
            "Failed in the smoke test of 2026-03-02: no x.",
        ),
        ([{"name": "smoke/sound", "status": "failed"}], "red", "0 checks passed, 1 failed"),
    ],
)
def test_functional_is_what_ran_whole(checks: list[dict[str, Any]], tone: str, says: str) -> None:
    found = [{"status": "passed", "says": "well", **check} for check in checks]
    run = evidence(node(checks=found))
    badge = View(run).badges[1]
    assert (badge.name, badge.tone, says in "; ".join(badge.says)) == ("Functional", tone, True), badge.says
    assert View(published(run)).badges[1].tone == tone, "a published report hides no doubt"
    if tone == "green":
        badge = View(evidence(node(checks=found), node(name="gpu02", checks=found[:1]))).badges[1]
        assert (badge.tone, badge.says[-1]) == ("amber", "none of the code's commands ran on 1 of 2 nodes")


def test_a_log_that_was_read_is_no_run_in_badges_gaps_and_claims() -> None:
    told = View(evidence(node(checks=[LOG], facts=None), verb="bench"))
    [functional] = [badge for badge in told.badges if badge.name == "Functional"]
    assert (functional.tone, functional.says) == ("amber", ("nothing ran here: a log was read",))
    assert ("bench", LOG["says"]) in {(gap.what, gap.why) for gap in told.gaps}
    [claim] = [claim for claim in told.claims if claim.name == "bench"]
    [here] = View(evidence(node(checks=[{**LOG, "level": "measured"}]), verb="bench")).claims
    assert "; here no GPU; claimed on 1 × V100" in here.says, "the node was asked"
    assert (claim.gpu_hours, "; in the log 1 × GPU not known; claimed on 1 × V100" in claim.says) == ("–", True)
    for page in (render_html(told.evidence), render_markdown(told.evidence)):
        assert "not comparable: the GPU that it ran on is not known; in the log" in page
        assert "not comparable: not comparable" not in page


@pytest.mark.parametrize(
    ("ratio", "word", "tone", "level", "lower"),
    [
        (1.49, "reproduced", "green", "1 reproduced", True),
        (8.42, "above the claim", "amber", "1 above its claim", True),
        (8.42, "above the claim", "amber", "1 above its claim", False),
    ],
)
def test_a_figure_far_above_its_claim_is_not_called_reproduced(
    ratio: float, word: str, tone: str, level: str, lower: bool
) -> None:
    measured = 100 / ratio if lower else 100 * ratio
    told = {"measured": measured, "unit": "x", "gpus": 8, "gpu": "A", "claim": 100.0, "claim_gpus": 8, "claim_gpu": "A"}
    rate = {"name": "x", "unit": "x", "n": 1, "lower_is_better": lower}
    rate |= dict.fromkeys(("median", "least", "greatest"), measured)
    check = {"name": "bench", "status": "passed", "says": "", "metrics": [rate]}
    check["comparison"] = told | {"verdict": "reproduced", "why": "as evidence has it"}
    run = evidence(node(checks=[check]), verb="bench")
    found = View(run)
    assert (found.claims[0].verdict, found.claims[0].tone) == (word, tone)
    assert found.level.endswith(f"1 claim: {level}.")
    [badge] = [badge for badge in found.badges if badge.name == "Reproduced"]
    assert (badge.tone, "1 claim far above" in str(badge.says)) == (tone, tone == "amber")
    assert make_verdict(run).tone == ("good" if tone == "green" else "partial")


@pytest.mark.parametrize("render", [render_html, render_markdown])
def test_d33_a_report_says_what_a_root_covers_and_what_it_leaves_out(render: Any) -> None:
    helper = {
        "name": "lm",
        "commit": "a" * 40,
        "tree": "b" * 40,
        "install": "path",
        "generated": ["megatron/data/*.so"],
        "compiled": ["megatron/data/fast.so"],
    }
    text = render(evidence(node(sources=[helper])))
    words = Page(text).words if render is render_html else text.replace("\\", "")
    assert "the interpreter's full version (3.11.2): another version gives another root" in words
    assert "src/lm/megatron/data/*.so (1 compiled module among them compared with this stamp alone)" in words
    assert "Root covers" in render(evidence())
    assert "Root covers" not in render(evidence(node(root=None)))


def test_a_run_that_chose_nothing_names_the_variant_of_its_stamp() -> None:
    run = evidence(node(resolution=None), verb="smoke", variants=[{"id": "cp312-system", "digest": DIGEST}])
    view = View(run)
    assert dict(view.summary)["Variant"] == dict(view.builds[0].identity)["Variant"] == "cp312-system"


@pytest.mark.parametrize(
    ("names", "what", "groups"),
    [
        (("1", "2"), "nvcc ended with status {}", 2),
        (("n1", "n2"), "{}: no space left", 1),
        (("n1", "n2"), "log:\n{}: no space left", 1),
        (("n1", "n2"), "open{} is not there", 2),
    ],
)
def test_errors_are_one_where_only_the_name_of_the_node_differs(names: tuple[str, str], what: str, groups: int) -> None:
    errors = [{"code": "build-failed", "what": what.format(name), "exit": 4} for name in names]
    nodes = [node(name, status="failed", exit=4, error=error) for name, error in zip(names, errors, strict=True)]
    assert len(View(evidence(*nodes)).errors) == groups


def test_a_failed_report_says_what_to_do_before_anything_else_and_whether_it_is_signed() -> None:
    """The remedy stands below the headline; a figure without claim or floor is no row under Claims."""
    error = {"code": "drift", "what": "1 file differs", "hint": "`envbuild provision --repair` builds it again"}
    page = render_html(evidence(node(status="failed", exit=1, error=error, checks=checks())))
    head = page[: page.index("</header>")]
    assert "What to do:</strong> <code>envbuild provision --repair</code> builds it again" in head
    assert "<dt>Signature</dt><dd>none</dd>" in head
    assert 'id="claims"' not in page


def test_the_markdown_has_the_findings_about_the_document_too() -> None:
    row = "| `hydra-unpinned` | wrong | hydra has a release that breaks it | pins |"
    assert row in render_markdown(fleet())
    assert "gets wrong" not in render_markdown(evidence())
