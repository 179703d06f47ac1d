"""What a run keeps as evidence: checks with their codes, lists of files, one for each measured root."""

from __future__ import annotations

import base64
import gzip
import json
import random
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from envbuild.model import evidence
from envbuild.model.evidence import NodeEvidence
from envbuild.model.lock import Variant
from envbuild.model.plan import NodePlan, Resolution
from envbuild.model.target import Target
from envbuild.provision.contact.first_contact import ContactResult
from envbuild.provision.run import conclude
from envbuild.provision.run.conclude import FileLists, write_evidence
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
    ("check", "command", "repeats"),
    [
        ("smoke/machine/gemm", ("smoke",), "smoke --only machine/gemm"),
        ("smoke/nodes/all-reduce", ("smoke",), "smoke --only nodes/all-reduce"),
        ("smoke/training", ("smoke", "--only", "machine", "--only=training"), "smoke --only training"),
        ("smoke/sound", ("provision",), "provision"),  # what failed is not in use
    ],
)
def test_a_failed_smoke_test_names_the_command_that_repeats_only_that_check(
    check: str, command: tuple[str, ...], repeats: str
) -> None:
    assert error_of(failed(check), *command)["hint"] == f"again: envbuild {repeats}"
    error = {"code": "lease-lost", "what": "w", "exit": 75}
    assert error_of(failed(check, error=error), *command) == error, "an error that is there stays"


_NO_FILE = "ImportError: {}: cannot open shared object file: No such file or directory"


@pytest.mark.parametrize(
    ("says", "hint"),
    [
        (
            _NO_FILE.format("libstdc++.so.6"),
            "install libstdc++.so.6 on that node (Debian, Ubuntu: package libstdc++6; Red Hat, Fedora: libstdc++); "
            "again: envbuild up .",
        ),
        (_NO_FILE.format("libown-2.so"), "install libown-2.so on that node; again: envbuild up ."),
        (
            "ModuleNotFoundError: No module named 'wcwidth'",
            "add what brings wcwidth to `packages:` of ./own.yaml, then `envbuild lock create ./own.yaml` and "
            "`envbuild provision ./own.yaml`",
        ),
    ],
)
def test_a_library_or_module_that_is_missing_has_one_cure(says: str, hint: str) -> None:
    node = coded(
        failed("smoke/sound", f"import torch: {says}"),
        ("envbuild", "up", "."),
        verb="provision",
        several=False,
        stack="own",
    )
    assert node.error is not None and node.error["hint"] == hint


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


def many_files(count: int) -> dict[str, list[Any]]:
    """Rows as a torch environment has them: deep paths, and digests that nothing compresses."""
    chance = random.Random(7)
    names = ("nn/functional", "include/ATen/ops", "distributed/_tensor", "testing/_internal", "ao/quantization")
    return {
        f"lib/python3.11/site-packages/torch/{names[n % 5]}/module_{n // 7}_{n}.{'h' if n % 3 else 'py'}": [
            "file", chance.randbytes(32).hex(), chance.randrange(200_000), n % 50 == 0,
        ]
        for n in range(count)
    }  # fmt: skip


def test_a_list_of_15000_files_leaves_room_for_the_rest_of_a_run_of_one_megabyte_and_comes_back_whole() -> None:
    files = many_files(15_000)
    packed = evidence.pack(files)
    assert len(packed) < 640_000
    assert evidence.unpack(packed) == files
    assert evidence.pack(dict(reversed(files.items()))) == packed


NO_LISTS = {
    "empty": b"",
    "not compressed": b"{}",
    "truncated": evidence.pack(many_files(20))[:-9],
    "something behind it": evidence.pack(many_files(2)) + b"more",
    "no columns": gzip.compress(b"[1]"),
    "columns of two lengths": gzip.compress(b'[["a", "b"], ["file"]]'),
    "paths that are numbers": gzip.compress(json.dumps([[1], ["file"], ["0" * 64], [1], [0]]).encode()),
    "too few columns": gzip.compress(b'[["a"], ["file"]]'),
    "larger than the limit": gzip.compress(b" " * (evidence.LIMIT + 1), 1),
    "deeply nested": gzip.compress(b"[" * 200_000),
    "a tag that is a list": gzip.compress(json.dumps({"a": [["file"], "0" * 64, 1, 0]}).encode()),
    "a short digest": gzip.compress(json.dumps({"a": ["file", "0" * 63, 1, 0]}).encode()),
}


@pytest.mark.parametrize("data", NO_LISTS.values(), ids=NO_LISTS)
def test_what_is_no_list_of_files_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        evidence.unpack(data)


A, B = many_files(5), many_files(6)


RUN = RunDir(Path("r"))


def node(name: str, root: str | None, level: str = "measured") -> NodeEvidence:
    told = {"node": name, "status": "ok", "exit": 0, "root": root, "root_level": level, "environment": "/p/envs/e"}
    return NodeEvidence.from_plain(told)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of nodes that were asked; `b...` have the files B, `liar` some that are not of its root."""
    names: list[str] = []

    def contact(requests: Iterable[str], *_: Any, **__: Any) -> dict[str, ContactResult]:
        requests = list(requests)
        names.extend(requests)
        packed = {
            name: base64.b64encode(zlib.compress(json.dumps(B if name.startswith("b") else A).encode())).decode()
            for name in requests
        }
        return {
            name: ContactResult(name, {}, {"ok": True, "result": {"root": "", "files": text}}, 0)
            for name, text in packed.items()
        }

    monkeypatch.setattr(conclude, "contact", contact)
    return names


def target(kind: str = "ssh") -> Target:
    more = {"scheduler": {"kind": "slurm"}, "hosts": {"slurm": "p"}} if kind == "job" else {}
    return Target.from_plain({"name": "t", "hosts": ["a1"], "prefix": "/p", "connection": {"kind": kind}, **more})


def test_one_node_is_asked_for_each_measured_root_and_nobody_twice(asked: list[str]) -> None:
    roots = evidence.root(A), evidence.root(B)
    nodes = [node("a1", roots[0]), node("a2", roots[0]), node("b1", roots[1]), node("a3", roots[0], "stamped")]
    lists = FileLists(target(), RUN)
    assert lists(nodes[:1]) == {"a1": A}
    assert lists.by_root(nodes) == {roots[0]: A, roots[1]: B}
    assert asked == ["a1", "b1"]
    # A list that does not give the root is not kept.
    assert FileLists(target(), RUN).by_root([node("liar", roots[1]), node("a1", "0" * 64, "stamped")]) == {}
    assert asked[2:] == ["liar"]


def test_of_nodes_of_a_job_the_login_host_is_asked_which_sees_their_prefix(
    asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    login = target("ssh").model_copy(update={"hosts": ("login1",)})
    monkeypatch.setattr(conclude, "as_login", lambda _: login)
    nodes = [node("n1", evidence.root(A)), node("n2", evidence.root(A))]
    assert FileLists(target("job"), RUN).by_root(nodes) == {evidence.root(A): A}
    assert asked == ["login1"]
