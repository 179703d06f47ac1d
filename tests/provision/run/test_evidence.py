"""Answers of nodes become evidence: how sure it is, and an error for what failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from envbuild.model.evidence import NodeEvidence
from envbuild.model.lock import Variant
from envbuild.model.plan import NodePlan, Resolution
from envbuild.provision.run.conclude import write_evidence
from envbuild.provision.run.context import Settings, Work
from envbuild.provision.run.evidence import coded, inspected_node, node_evidence
from envbuild.provision.run.run_dir import RunDir
from envbuild.report.terminal import summary_lines
from envbuild.resolve.artifacts import built
from tests.lock.build import SHA
from tests.provision.survey.test_up_to_date import prepared
from tests.resolve.builders import node_facts

UNREAD = {"name": "files", "status": "not-run", "level": "not-checked", "says": "contents not read"}


def failed(name: str, says: str = "no", **more: Any) -> NodeEvidence:
    checks = [
        {"name": "smoke/sound", "status": "passed", "says": "fine"},
        {"name": name, "status": "failed", "says": says},
    ]
    return NodeEvidence.from_plain({"node": "gpu1", "status": "failed", "exit": 1, "checks": checks, **more})


def error_of(node: NodeEvidence, *command: str, several: bool = False) -> dict[str, Any]:
    """The error of a node whose command failed."""
    error = coded(node, ("envbuild", *command), verb=command[0], several=several).error
    assert error is not None
    return error


@pytest.mark.parametrize(
    ("node", "code", "hint"),
    [
        (failed("smoke/training"), "smoke-failed", "again: envbuild smoke --stack x --only training --host gpu1"),
        (
            failed("smoke/training", exit=6),
            "below-floor",
            "again: envbuild smoke --stack x --only training --host gpu1",
        ),
        (failed("files", drift_count=2), "drift", "--repair"),
        (failed("link"), "check-failed", "--repair"),
        (failed("bench"), "check-failed", "again: envbuild smoke --stack x --host gpu1"),
        (failed("trial 1"), "check-failed", "again: envbuild smoke --stack x --host gpu1"),
    ],
)
def test_a_failed_check_has_a_code_and_the_next_command(node: NodeEvidence, code: str, hint: str) -> None:
    error = error_of(node, "smoke", "--stack", "x", several=True)
    assert (error["code"], error["what"], error["exit"]) == (code, f"gpu1: {node.checks[1].name}: no", node.exit)
    assert hint in error["hint"]


@pytest.mark.parametrize(
    ("check", "given", "repeats"),
    [
        ("smoke/machine/gemm", (), "--only machine/gemm"),
        ("smoke/nodes/all-reduce", (), "--only nodes/all-reduce"),
        ("smoke/training", ("--only", "machine", "--only=training"), "--only training"),
    ],
)
def test_a_failed_smoke_test_names_the_command_that_repeats_only_that_check(
    check: str, given: tuple[str, ...], repeats: str
) -> None:
    assert error_of(failed(check), "smoke", *given)["hint"] == f"again: envbuild smoke {repeats}"


def test_a_smoke_test_of_provision_is_repeated_by_provision_as_what_failed_is_not_in_use() -> None:
    assert error_of(failed("smoke/sound"), "provision")["hint"] == "again: envbuild provision"


_NO_FILE = "ImportError: {}: cannot open shared object file: No such file or directory"


@pytest.mark.parametrize(
    ("says", "first"),
    [
        (
            _NO_FILE.format("libstdc++.so.6"),
            "install libstdc++.so.6 on that node (Debian, Ubuntu: package libstdc++6; Red Hat, Fedora: libstdc++); ",
        ),
        (_NO_FILE.format("libown-2.so"), "install libown-2.so on that node; "),
        (
            "ModuleNotFoundError: No module named 'wcwidth'",
            "add what brings wcwidth to `packages:` of ./own.yaml, then `envbuild lock create ./own.yaml` and "
            "`envbuild provision ./own.yaml`; ",
        ),
    ],
)
def test_a_library_or_module_that_is_missing_is_named_as_what_to_install_first(says: str, first: str) -> None:
    says = f"import torch: {says}"
    error = error_of(failed("smoke/sound", says), "provision", "./own.yaml")
    assert error["hint"] == f"{first}again: envbuild provision ./own.yaml"


def test_of_a_run_that_failed_its_log_is_named_before_the_command_that_fails_again() -> None:
    checks = [{"name": "bench", "status": "failed", "says": "no", "details": {"log": "logs/bench-1.log"}}]
    error = error_of(failed("bench", checks=checks), "bench", "x")
    assert error["hint"] == "read logs/bench-1.log in the folder of the run; again: envbuild bench x"


def test_d89_files_beside_those_of_a_source_are_to_be_declared_and_not_built_again() -> None:
    drift = [{"path": "src/nano/config/mine.py", "kind": "extra"}]
    hint = error_of(failed("files", drift=drift, drift_count=1), "verify")["hint"]
    assert hint.startswith("declare what runs write: `generated:` or `outputs:` of the source")
    assert "builds it again" not in hint
    drift += [{"path": "src/nano/model.py", "kind": "changed"}]
    assert "builds it again" in error_of(failed("files", drift=drift, drift_count=2), "verify")["hint"]


def test_a_drifted_environment_is_repaired_where_it_was_verified() -> None:
    command = ("verify", "--prefix", "/my disk/p", "--stack=./my.yaml", "--quick", "-t", "lab")
    error = error_of(failed("files", drift_count=2), *command)
    place = "./my.yaml --prefix '/my disk/p' --target lab"
    assert (
        error["hint"]
        == f"`envbuild provision {place} --repair` builds it again; `envbuild verify {place}` names every file"
    )


def test_an_error_that_is_there_stays() -> None:
    node = failed("smoke/sound", error={"code": "lease-lost", "what": "w", "exit": 75})
    assert coded(node, ("envbuild",), verb="smoke", several=False) is node


def test_d31_a_root_is_as_sure_as_the_surest_answer() -> None:
    stamped = {"ok": True, "result": {"root": "a" * 64, "level": "stamped", "checks": [UNREAD]}}
    found = inspected_node("gpu1", {"verify": stamped}, {})
    assert (found.root_level, found.checks[0].level) == ("stamped", "not-checked")
    measured = {"ok": True, "result": {"root": "a" * 64, "level": "measured"}}
    found = inspected_node("gpu1", {"verify": stamped, "activate": measured}, {})
    assert (found.root_level, found.checks[0].status, found.checks[0].level) == ("measured", "passed", "measured")


def conda_node(**told: Any) -> NodeEvidence:
    result = {"packages": {"numpy": "1.26.4", "six": "1.17"}, "record_checked": 3, "conda": told}
    resolution = Resolution(
        node="n", stack="s", profile="p", variant_id="v", variant_digest=SHA, interpreter=None, decisions=(),
        candidates=(),
    )  # fmt: skip
    plan = NodePlan(node="n", environment="/e", variant_digest=SHA, python=None, steps=(), resolution=resolution)
    return node_evidence(plan, node_facts("cpu-laptop"), {"install": {"ok": True, "result": result}})


def test_conda_s_pins_stand_in_one_table_with_those_of_wheels() -> None:
    node = conda_node(packages={"numpy": "1.26.4 py311_0", "libfoo": "2.0 h1_3"})
    assert node.packages == {"numpy": "1.26.4 py311_0 (conda)", "six": "1.17", "libfoo": "2.0 h1_3 (conda)"}


def test_scripts_that_did_not_run_and_files_of_two_packages_are_said() -> None:
    node = conda_node(packages={}, link_scripts_skipped=["font-ttf"], clobbered=["lib/a", "lib/b"],
                      activation={"CC": "/e/bin/gcc", "CFLAGS": "-O2"})  # fmt: skip
    said = {check.name: (check.status, check.says) for check in node.checks}
    assert said["activation"][1].startswith("CC, CFLAGS set by")
    assert said["post-link"][0] == "skipped"
    assert "font-ttf" in said["post-link"][1]
    assert said["clobbered"] == ("passed", "2 files of two conda packages, with equal contents")
    assert {check.name for check in conda_node(packages={}).checks} == {"record"}


def test_the_archives_of_conda_are_among_the_files_of_a_variant() -> None:
    row = {"name": "python", "version": "3.11.9", "build": "h0_0", "channel": "forge", "subdir": "linux-64"}
    archive = {**row, "file": "python-3.11.9-h0_0.conda", "sha256": SHA}
    variant = Variant.from_plain(
        {"id": "v", "digest": SHA, "python": "3.11", "engine": "conda", "conda": {"packages": [archive]}}
    )
    (made,) = built({SHA: variant}, [conda_node(packages={})])
    (file,) = made.packages
    assert (file.kind, file.index, file.subdir, file.build, file.file) == (
        "conda", "forge", "linux-64", "h0_0", "python-3.11.9-h0_0.conda",
    )  # fmt: skip


@pytest.mark.parametrize("verb", ["smoke", "provision"])
def test_a_gpu_of_a_node_that_is_slow_or_that_others_use_is_a_warning_of_the_run(tmp_path: Path, verb: str) -> None:
    told = "GPU 3 is slow: 252 TFLOP/s, 34 % of the others' 742"
    used = "GPU 3 is in use by other processes: pid 7 (python, 1,808 MiB); figures may be lower than what it can do"
    check = {"name": "smoke/machine/gemm", "status": "passed", "says": "right"}
    check["details"] = {"slow_gpus": [told], "gpus_in_use": [used]}
    training = {"name": "smoke/training", "status": "passed", "says": "right", "details": {"gpus_in_use": [used]}}
    node = NodeEvidence.from_plain({"node": "gpu1", "status": "ok", "exit": 0, "checks": [check, training]})
    run = RunDir.create(tmp_path / "runs")
    with run.open_journal() as journal:
        work = Work(Settings(tmp_path / "runs"), run, journal, prepared=prepared(prefix=str(tmp_path / "p")))
        evidence = write_evidence(work, verb, [node], warnings=("another",))
    assert (evidence.exit, evidence.warnings) == (0, ("another", f"gpu1: {used}", f"gpu1: {told}"))
    lines = [line for line, _ in summary_lines(evidence)]
    shown = [line for line in lines if line.startswith("  warning: gpu1")]
    assert shown == [f"  warning: gpu1: {used}", f"  warning: gpu1: {told}"]
    assert told in (run.path / "report.md").read_text()


NO_INT = "import indexed: AttributeError: module 'numpy' has no attribute 'int'."


@pytest.mark.parametrize(
    ("says", "edit"),
    [
        (NO_INT, "write numpy<1.24, or `patches: [numpy-aliases]` for the source that does so into the stack file"),
        ("ModuleNotFoundError: No module named 'pkg_resources'", "write setuptools<82 into the stack file"),
        ("ModuleNotFoundError: No module named 'torch._six'", "`patches: [megatron-torch-six]`"),
    ],
)
@pytest.mark.parametrize("of_node", [False, True])
def test_d94_a_failure_that_a_rule_knows_names_the_edit_before_the_command(says: str, edit: str, of_node: bool) -> None:
    error = {"code": "build-failed", "what": "src cannot be built", "why": says, "hint": "again", "exit": 1}
    node = failed("smoke/sound", says, **({"error": error} if of_node else {}))
    first, last = error_of(node, "provision")["hint"].split("; again")
    assert edit in first and "`envbuild lock create`" in first and "again" not in first, last
