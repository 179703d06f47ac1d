"""Sources in the report: what was patched and decided, how a wheel came, what proves it; whatever a node says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuild.report import view
from envbuild.report.render import render_html, render_markdown
from envbuild.report.sources import DIFF_LINES, comparable, source_views, summary
from envbuild.report.terminal import summary_lines
from tests.report import samples


def nodes(*sources: dict[str, Any]) -> Any:
    """Evidence with one node for each source given."""
    made = [samples.node(f"n{index:02d}", sources=[source]) for index, source in enumerate(sources)]
    return samples.evidence(*made)


def test_every_form_says_what_was_patched_and_built() -> None:
    evidence = nodes(samples.built_source())
    page, text = render_html(evidence), render_markdown(evidence)
    for said in ("apex-cuda-check", "1 hit", "nvcc 12.4, torch CUDA 12.1: same major, passed over", "cuobjdump"):
        assert said in page
        assert said in text
    assert '<span class="del">-    check_cuda(CUDA_HOME)</span>' in page
    assert "```diff\n--- a/setup.py" in text
    assert "cd" * 32 in page
    assert "ab" * 32 in text
    assert '<li><code>apex_C</code><span class="version">no device code</span></li>' in page
    terminal = [line for line, _ in summary_lines(evidence)]
    assert "  apex            built in 83 s with 16 jobs, 6 extensions, sm_90" in terminal


def test_a_wheel_from_the_store_and_an_unpatched_tree_are_told_apart() -> None:
    stored = samples.built_source(**{"from": "store"})
    plain = {"name": "megatron-lm", "commit": "1" * 40, "tree": "2" * 40, "install": "path", "patches": ["only-named"]}
    evidence = samples.evidence(samples.node(sources=[stored, plain]))
    assert summary(evidence) == [("apex", "from the wheel store: 6 extensions, sm_90")]
    first, second = source_views(evidence.nodes, "provision")
    assert (first.made, second.made) == ("from the wheel store: 6 extensions, sm_90", "")
    assert (second.patches, second.rows) == ((), ())
    assert render_html(evidence).count('<section class="panel">') == 1


def test_what_a_past_run_built_is_not_told_as_work_of_this_one() -> None:
    source, stored = samples.built_source(), samples.built_source(**{"from": "store"})
    kept = samples.node("n01", status="unchanged", sources=[source])
    assert summary(samples.evidence(kept)) == [("apex", "built earlier, 6 extensions, sm_90")]
    assert "built in" not in render_markdown(samples.evidence(kept))
    for verb in ("smoke", "bench", "verify"):
        looked = samples.evidence(samples.node("n01", sources=[source]), verb=verb)
        assert summary(looked) == [("apex", "built earlier, 6 extensions, sm_90")]
        assert "built in" not in render_markdown(looked)
    others = [samples.node("n02", sources=[source]), samples.node("n03", status="unchanged", sources=[stored])]
    assert summary(samples.evidence(kept, *others)) == [
        (
            "apex",
            "built on n02 in 83 s with 16 jobs, 6 extensions, sm_90; built earlier on n01; "
            "from the wheel store on 1 node",
        )
    ]


def test_d107_one_builder_and_its_fleet_are_one_group() -> None:
    stored = samples.built_source(**{"from": "store", "seconds": 80.0, "network": "on: no unshare"})
    stored["patches"] = [{key: value for key, value in stored["patches"][0].items() if key != "diff"}]
    evidence = nodes(stored, samples.built_source(), stored, stored)
    builds = view.View(evidence).builds
    assert len(builds) == 1
    assert builds[0].sources[0].made == (
        "built on n01 in 83 s with 16 jobs, 6 extensions, sm_90; from the wheel store on 3 nodes"
    )
    assert builds[0].sources[0].patches[0].diff == samples.DIFF
    other = samples.built_source(sha256="00" * 32)
    assert len(view.View(nodes(stored, other)).builds) == 2


@pytest.mark.parametrize(
    ("build", "row", "says"),
    [
        ({"rebuild": {"equal": False, "different": []}}, "Second build", "different in the order or dates"),
        ({"network": "on: unshare is not allowed"}, "Network", "on: unshare is not allowed"),
        ({"retried": True}, "Memory", "it ran out once; envbuild halved the jobs and continued"),
        ({"imports": {"imported": ["a", "b"], "libraries": ["c"], "unchecked": {"d": "no libcuda.so.1"}}}, "Imports",
         "2 extensions imported in the environment; only loaded: c; not checked: d (no libcuda.so.1)"),
        ({"canonical": False}, "Build path", "not the canonical one, so another build may differ"),
        ({"route": "pep517"}, "Route", "PEP 517"),
        ({"arch": {"wanted": ["9.0"], "found": {}, "how": "not checked: no cuobjdump"}}, "Proof",
         "not checked: no cuobjdump"),
        ({"arch": {"wanted": ["8.6"], "found": {"a": ["sm_80"]}, "how": "cuobjdump",
                   "notes": ["a: 8.6 is served by sm_80"]}}, "Proof", "read by cuobjdump; a: 8.6 is served by sm_80"),
        ({"arch": {"wanted": [], "found": {}, "how": "cuobjdump"}}, "Wanted GPUs", "none demanded"),
        ({"extensions": [], "arch": {"wanted": ["9.0"], "found": {}, "how": "cuobjdump"}}, "Proof",
         "not needed: it compiles nothing"),
        ({"seconds": 605.4, "jobs": 1}, "How", "built in 10 min 5 s with 1 job, 6 extensions, sm_90"),
        ({"wheel": "/store/ab/apex-0.1.whl"}, "Wheel", "apex-0.1.whl"),
    ],
)  # fmt: skip
def test_rows_of_a_build(build: dict[str, Any], row: str, says: str) -> None:
    rows = dict(source_views(nodes(samples.built_source(**build)).nodes, "provision")[0].rows)
    assert rows[row] == says


def test_who_asked_for_a_second_build_reads_its_outcome_at_once() -> None:
    for rebuild, says in (
        (None, ""),
        ({"equal": True, "different": []}, "equal, byte by byte"),
        ({"equal": False, "different": ["a.so", "b.so"]}, "different in 2 members: a.so, b.so"),
    ):
        evidence = nodes(samples.built_source(rebuild=rebuild))
        ((_, line),) = summary(evidence)
        assert line == "built in 83 s with 16 jobs, 6 extensions, sm_90" + (says and f"; built again: {says}")
        rows = dict(source_views(evidence.nodes, "provision")[0].rows)
        assert rows.get("Second build", "") == says
        assert not {"Memory", "ccache", "Imports", "Build path"} & set(rows), "nobody asked for them"


def test_a_diff_can_neither_act_in_html_nor_leave_its_block_and_a_long_one_is_cut() -> None:
    source = samples.built_source()
    source["patches"][0]["diff"] = "+<script>alert(1)</script>\n+```\n+# heading \x1b[31m\n+</details>\n"
    source["patches"][0]["notes"] = ["<img src=x>"]
    page, text = render_html(nodes(source)), render_markdown(nodes(source))
    assert "<script>" not in page
    assert "<img" not in page
    assert "\x1b" not in page + text
    assert "````diff\n+<script>" in text
    source["patches"][0]["diff"] = "+line\n" * (DIFF_LINES + 7)
    patch = source_views(nodes(source).nodes, "provision")[0].patches[0]
    assert (len(patch.lines), patch.more) == (DIFF_LINES, 7)
    assert "7 more lines in evidence.json" in render_html(nodes(source))


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
_PATCH = st.dictionaries(st.sampled_from(["name", "digest", "hits", "notes", "files", "diff"]), _JSON)
_BUILD = st.dictionaries(
    st.sampled_from(
        ["from", "seconds", "jobs", "extensions", "arch", "rebuild", "wheel", "imports", "store", "retried"]
    ),
    _JSON
    | st.dictionaries(
        st.sampled_from(["found", "wanted", "how", "equal", "different", "notes", "imported", "unchecked"]), _JSON
    ),
)
_SOURCE = st.fixed_dictionaries(
    {}, optional={"name": _JSON, "patches": st.lists(_PATCH | _JSON), "build": _BUILD | _JSON}
)


@settings(max_examples=20, deadline=None)  # the first one compiles the templates
@given(st.lists(_SOURCE, max_size=3))
def test_whatever_a_node_tells_is_rendered(sources: list[dict[str, Any]]) -> None:
    evidence = samples.evidence(samples.node(sources=sources))
    assert render_html(evidence)
    assert render_markdown(evidence)
    assert summary_lines(evidence)
    assert len(comparable(sources)) == len(sources)
