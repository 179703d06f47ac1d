"""The closing summary: the verdict first, nothing of it cut, and no text that acts on a terminal or a page."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.report.publish import published
from envbuild.report.render import (
    codes,
    markdown_block,
    markdown_code,
    markdown_sentence,
    render_html,
    render_markdown,
)
from envbuild.report.terminal import drift_lines, summary_lines
from envbuild.report.verdict import make_verdict
from envbuild.text import visible
from tests.report.samples import evidence, node
from tests.report.test_render import failing_fleet, hostile

WIDE = evidence(node("東京" * 40), warnings=["警告" * 60] * 30, deviations=["d" * 300] * 30)


def test_every_warning_and_deviation_is_whole_and_the_report_is_the_last_line() -> None:
    for run in (evidence(), failing_fleet(), hostile(), WIDE):
        lines = summary_lines(run, "/runs/r1/report.html")
        assert all(text.isprintable() for text, _ in lines)
        assert lines[-1][0] == "  report  /runs/r1/report.html"
    texts = [text for text, _ in summary_lines(WIDE)]
    assert texts.count(f"  warning: {'警告' * 60}") == 30 == texts.count(f"  deviation: {'d' * 300}")
    assert any("東京" * 40 in text for text in texts)


def test_the_verdict_comes_first_and_what_failed_is_listed_before_what_was_not_begun_and_what_passed() -> None:
    texts = [text for text, _ in summary_lines(failing_fleet())]
    assert texts[0].startswith("! torch-smoke (exact) is not ready on 2 of 64 nodes")
    order = [next(i for i, text in enumerate(texts) if part in text) for part in ("✗ gpu63", "✗ gpu64", "✓ gpu[01-62]")]
    assert order == sorted(order)
    assert any(text.startswith("  ✗ smoke/training") for text in texts)
    left = {"code": "not-begun", "what": "gpu01: not started, because too many nodes failed", "exit": 75}
    broken = {"code": "disk-full", "what": "gpu02: no room", "exit": 75}
    run = evidence(
        node("gpu01", status="not-begun", exit=75, error=left, root=None, checks=[]),
        node("gpu02", status="failed", exit=75, error=broken, root=None, checks=[]),
        node("gpu03"),
        exit=8,
    )
    shown = "\n".join(text for text, _ in summary_lines(run))
    assert "not ready on 2 of 3 nodes: gpu02: no room" in shown.replace("\n  ", " ")
    assert shown.index("✗ gpu02") < shown.index("○ gpu01") < shown.index("✓ gpu03")


def test_checks_of_several_nodes_are_told_once_and_a_failed_one_with_its_node() -> None:
    stamp = {"name": "stamp", "status": "passed", "says": "stamp is there"}
    files = {"name": "files", "status": "failed", "says": "1 of 33 files differ"}
    bad = node("gpu2", status="failed", exit=1, checks=[stamp, files])
    run = evidence(node("gpu1", checks=[stamp]), bad, node("gpu3", checks=[stamp, {**stamp, "name": "gemm"}]), exit=8)
    texts = [" ".join(text.split()) for text, _ in summary_lines(run)]
    assert "✗ gpu2 failed files: 1 of 33 files differ" in texts
    rows = [text for text in texts if text[0:1] in "✓✗" and text[1:].split()[:1] in (["files"], ["stamp"], ["gemm"])]
    assert rows == [
        "✗ files gpu2: 1 of 33 files differ", "✓ stamp 3 nodes: stamp is there", "✓ gemm stamp is there"
    ]  # fmt: skip


def test_checks_that_passed_are_counted_after_what_was_not_checked_unless_all_are_asked_for() -> None:
    found = [{"name": f"smoke/check-{number}", "status": "passed", "says": "fine"} for number in range(20)]
    found.append({"name": "smoke/gpu", "status": "skipped", "says": "no GPU is here"})
    told = [f"gpu1: GPU {number} is slow" for number in range(3)]
    run = evidence(node("gpu1", checks=found), warnings=told, deviations=[f"edit {number}" for number in range(9)])
    texts = [text for text, _ in summary_lines(run, "/runs/r1/report.html")]
    first = texts.index("  warning: gpu1: GPU 0 is slow")
    assert texts[first : first + 4] == [*(f"  warning: {text}" for text in told), ""]
    assert [text.split()[1] for text in texts[first + 4 : first + 6]] == ["smoke/gpu", "smoke/check-0"]
    assert "; 3 warnings" in texts[1]
    assert "    14 more checks passed; `-v` shows all" in texts
    every = [text for text, _ in summary_lines(run, verbose=True)]
    assert sum("smoke/check-" in text for text in every) == 20


def test_drifted_files_are_named_whole_and_the_rest_is_counted() -> None:
    long = "lib/" + "x" * 100 + ".py"
    drifted = evidence({**node("gpu1"), "drift": [{"path": long, "kind": "changed"}], "drift_count": 25})
    texts = [text for text, _ in drift_lines(drifted)]
    assert texts == ["", "  25 drifted files on gpu1", f"    changed    {long}", "    and 24 more"]
    assert any(long in text for text, _ in summary_lines(drifted))
    assert drift_lines(evidence()) == []


def test_why_the_first_node_failed_what_to_do_and_d05_its_log_stand_below_it() -> None:
    log = "/scratch/somebody/envbuild/logs/" + "x" * 90 + ".log"
    error = {
        "code": "extension-broken",
        "what": "source thing: the extension thing._fast was built and cannot be imported",
        "why": "thing._fast: ImportError: undefined\n  symbol: nowhere\n" + "and so on " * 100,
        "hint": "it was built against other libraries than those of the environment",
        "exit": 4,
        "details": {"log": log},
    }
    failed = evidence(
        *(node(f"n{index}", status="failed", exit=4, error=error, checks=[]) for index in range(3)), exit=4
    )
    lines = [line for line, _ in summary_lines(failed, "/runs/report.html")]
    at = lines.index("    error[extension-broken]")
    assert lines[at - 1].startswith("  ✗ n[0-2] ")
    assert lines[at + 1].startswith("    why: thing._fast: ImportError: undefined symbol: nowhere")
    assert sum("hint: it was built against other libraries" in line for line in lines) == 1
    assert f"    why: thing._fast: ImportError: undefined symbol: nowhere {'and so on ' * 100}".rstrip() in lines
    assert f"  log     {log}" in lines and lines[-1] == "  report  /runs/report.html"
    assert log in render_html(failed) and log in render_markdown(failed)


def test_what_is_there_can_be_used_and_looked_at_by_lines_that_are_copied() -> None:
    lines = [line for line, _ in summary_lines(evidence(), "/runs/report.html")]
    assert lines[-3:] == [
        "  use     . /shared/envbuild/current/torch-smoke/.envbuild/activate.sh",
        "  next    envbuild verify --target local",
        "  report  /runs/report.html",
    ]
    failed = [line for line, _ in summary_lines(evidence(node(status="failed", exit=1), exit=1))]
    assert not [line for line in failed if line.startswith(("  use", "  next"))]


@pytest.mark.parametrize(
    ("says", "following"),
    [
        ("no x", "envbuild smoke ./own.yaml"),
        (
            "import x: ImportError: libGL.so.1: cannot open shared object file: No such file",
            "install libGL.so.1 on that node; envbuild smoke ./own.yaml",
        ),
        (
            "import x: ModuleNotFoundError: No module named 'x'",
            "add what brings x to `packages:` of ./own.yaml, then `envbuild lock create ./own.yaml` and "
            "`envbuild provision ./own.yaml`",
        ),
    ],
)
def test_after_a_smoke_test_that_failed_the_cure_of_its_failure_comes_next(says: str, following: str) -> None:
    before = {"name": "tested", "status": "passed", "says": "s", "details": {"failed_at": "2026-03-02", "failed": says}}

    def lines(*checks: object) -> list[str]:
        run = evidence(node(status="unchanged", checks=checks), stack="own", command=("envbuild", "up", "."))
        return [line for line, _ in summary_lines(run)]

    assert f"  next    {following}" in lines(before)
    built = {"name": "working-tree", "status": "passed", "says": "s", "details": {"code_changed": 1, "rebuild": True}}
    known = following if says != "no x" else "envbuild provision ./own.yaml --repair"
    assert f"  next    {known}" in lines(before, built), "code that is compiled is built before its test"


def test_of_the_output_of_a_build_the_line_that_says_why_stands_in_the_summary_and_the_whole_at_the_end() -> None:
    output = "\n".join(f"cc -c part{number}.c {'x' * 100}" for number in range(40))
    error = {"code": "build-failed", "what": "w", "why": f"a.c:1: error: no\n…\n{output}", "hint": "mend it", "exit": 4}
    failed = evidence(node("gpu1", status="failed", exit=4, error=error, checks=[]), exit=4)
    lines = [line for line, _ in summary_lines(failed)]
    at = lines.index("    error[build-failed]")
    assert lines[at + 1 : at + 3] == ["    why: a.c:1: error: no", "    hint: mend it"]
    assert lines[-40:] == [f"    {line}" for line in output.splitlines()]
    assert any("lines from gpu1" in line for line in lines[at + 3 :])
    assert "a.c:1: error: no</p><pre>cc -c part0.c" in render_html(failed)
    alone = evidence(node("gpu1", status="failed", exit=4, error={**error, "why": output}, checks=[]), exit=4)
    assert [line for line, _ in summary_lines(alone)][-41] == "  the last 40 lines from gpu1"


def test_d34_the_figure_of_a_check_is_the_one_that_its_floor_is_about() -> None:
    def metric(name: str, median: float, **more: float) -> dict[str, object]:
        return {"name": name, "unit": "TFLOP/s", "n": 9, "median": median, "least": 1.0, "greatest": 999.0, **more}

    def line(*metrics: dict[str, object]) -> str:
        check = {"name": "smoke/machine/gemm", "status": "passed", "says": "right", "metrics": list(metrics)}
        return next(text for text, _ in summary_lines(evidence(node(checks=[check]))) if "machine/gemm" in text)

    bf16, fp32 = ("gemm_cuda_bf16_tflops", 772.0), ("gemm_cuda_float32_tflops", 51.0)
    assert "772 TFLOP/s gemm_cuda_bf16_tflops" in line(metric(*bf16, floor=600.0), metric(*fp32))
    assert "772 TFLOP/s" in line(metric(*fp32), metric(*bf16)), "the node program tells what training uses last"
    assert "51 TFLOP/s; right" in line(metric(*fp32))


def test_a_check_that_passed_with_a_deviation_has_no_tick_and_what_a_package_can_bring_is_to_be_added() -> None:
    details = {"deviation": "imports-open", "open": {"own.gone": "a.py:1", "x": "a.py:2"}}
    check = {"details": details, "name": "smoke/sound/closure", "says": "s", "status": "passed"}
    run = evidence(node(checks=[check]), stack="own", command=("envbuild", "up", "."))
    first, *lines = (text for text, _ in summary_lines(run))
    assert first.startswith("! ") and "Missing: 2 modules that its code imports" in first
    assert any(text.startswith("  ! smoke/sound/closure") for text in lines)
    assert "! passed" in render_markdown(run)
    assert "Missing: 2 modules that its code imports" in make_verdict(published(run)).sentence
    (following,) = [line for line in lines if line.startswith("  next")]
    assert following.startswith("  next    add what brings x to `packages:` of ./own.yaml")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2Jgone", "\\x1b[2Jgone"),
        ("a\u200bb\ufeffc", "a\\u200bb\\ufeffc"),
        ("a\U000e0041b", "a\\U000e0041b"),
        ("two\nlines\tand tab", "two lines and tab"),
        ("Zürich 8192×8192 东京 ✓", "Zürich 8192×8192 东京 ✓"),
        ("Permission denied (publickey).\r\r\nagain\r", "Permission denied (publickey). again"),  # of ssh
        ("over\rwritten", "over\\x0dwritten"),
    ],
)
def test_hidden_characters_are_written_out(text: str, shown: str) -> None:
    assert visible(text) == shown


@given(st.text())
def test_nothing_hidden_is_left(text: str) -> None:
    assert not any(unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp") for char in visible(text))


def test_only_code_between_backticks_is_markup_in_a_sentence() -> None:
    assert codes("rm `a*` *b* <") == "rm <code>a*</code> *b* &lt;"
    assert codes("one ` tick <") == "one ` tick &lt;"
    assert markdown_sentence("`rm *` or *b* <") == "`rm *` or \\*b\\* &lt;"
    assert markdown_sentence("one ` tick") == "one \\` tick"


@given(st.text(alphabet="`|ab\n <"))
def test_a_code_span_and_a_block_cannot_be_left(text: str) -> None:
    span = markdown_code(text)
    if span != "–":
        fence = span[: len(span) - len(span.lstrip("`"))]
        inside = span[len(fence) : -len(fence)]
        assert span.endswith(fence)
        assert fence not in inside
        assert "\n" not in span
        assert "|" not in inside.replace("\\|", "")
    block = markdown_block(text)
    fence = block.split("text\n", 1)[0]
    assert fence not in block[len(fence) : -len(fence)]
