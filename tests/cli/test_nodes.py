"""What `plan --json`, `provision --batch` and `doctor` say of nodes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from envbuild import resources
from envbuild.cli.doctor_cmd import doctor
from envbuild.cli.explain_cmd import explain
from envbuild.cli.provision_cmd import plan
from envbuild.cli.run import run
from tests.support.programs import executable


def test_d103_equal_nodes_are_one_entry_with_all_names(tmp_path: Path) -> None:
    facts = json.loads((resources.catalog() / "facts/h200.json").read_text())
    names = [f"n{number:03}" for number in range(1, 65)]
    fleet = {name: {**facts, "node": name, "hostname": name} for name in names}
    fleet["n007"] = {**fleet["n007"], "driver": {**facts["driver"], "version": "999.1"}}
    (tmp_path / "facts.json").write_text(json.dumps(fleet))
    (tmp_path / "t.yaml").write_text(
        "name: t\nprefix: /data/envbuild\nhosts: ['n[001-064]']\nconnection: {kind: ssh}\n"
    )
    args = ["torch-smoke", "-t", str(tmp_path / "t.yaml"), "--facts", str(tmp_path / "facts.json"), "--json"]
    done = CliRunner().invoke(plan, args)
    shown = json.loads(done.stdout)["plan"]["nodes"]
    assert sorted(len(entry["nodes"]) for entry in shown) == [1, 63]
    assert {entry["node"] for entry in shown} == {"n001", "n007"}
    assert len(done.stdout) < 1_000_000


def test_d103_what_facts_say_of_another_prefix_and_of_other_hosts_does_not_count(tmp_path: Path) -> None:
    plain = json.loads((resources.catalog() / "facts/h200.json").read_text())
    full = {**plain, "node": "gpu2", "prefix": {**plain["prefix"], "path": "/a/envbuild", "writable": False}}
    (tmp_path / "facts.json").write_text(json.dumps(full))
    (tmp_path / "t.yaml").write_text("name: t\nprefix: /b/{user}\nhosts: ['gpu[01-02]']\nconnection: {kind: ssh}\n")
    args = ["torch-smoke", "-t", str(tmp_path / "t.yaml"), "--facts", str(tmp_path / "facts.json")]
    done, explained = CliRunner().invoke(plan, args), CliRunner().invoke(explain, args)
    assert (done.exit_code, explained.exit_code) == (0, 0), done.output
    for output in (done.stdout, explained.stderr):
        assert "the facts of gpu2 describe another folder, /a/envbuild: environments, tools, " in output
        assert "the target t has no host gpu2: it has gpu[01-02]" in output
    assert "refused" not in explained.stdout
    refused = CliRunner().invoke(plan, [*args, "--prefix", "/a/envbuild"])
    (tmp_path / "t.yaml").write_text((tmp_path / "t.yaml").read_text().replace("kind: ssh", "kind: ssh, user: bob"))
    assert " and permissions of /b/bob were not checked" in CliRunner().invoke(plan, args).stdout
    assert "error[prefix-usable]" in refused.output and "the facts of" not in refused.output
    both = [full, {**full, "node": "gpu1"}]
    (tmp_path / "facts.json").write_text(json.dumps(both))
    refused = CliRunner().invoke(plan, [*args, "--prefix", "/a/envbuild"])
    assert "\n  gpu[1-2]: error[prefix-usable]: " in refused.output and refused.output.count("    hint: ") == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--target ./cluster.yaml --batch 25%", "error[option-does-not-fit]: --batch "),
        ("--target ./cluster.yaml --max-fail 1", "error[option-does-not-fit]: --max-fail "),
        ("--target local --batch 0", "error[share-invalid]: invalid value for --batch: 0\n"),
        ("--target local --max-fail half", "error[share-invalid]: invalid value for --max-fail: half\n"),
    ],
)
def test_a_number_of_nodes_that_is_none_and_one_for_a_job_are_refused_before_a_node_is_asked(
    words: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cluster.yaml").write_text(
        "name: cluster\nextends: slurm\nstack: torch-smoke\nhosts: {slurm: gpu}\n"
        "connection: {kind: job, login: {host: login1.invalid}}\nscheduler: {nodes: 4}\nprefix: /shared/envbuild\n"
    )
    assert run(["provision", *words.split()]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("echo 'Failed to initialize NVML: Driver/library version mismatch'; echo 'NVML library version: 570'; exit 18",
         ("are not those of the kernel module", "570", "reboot the node", "apt-mark hold")),
        ('case "$1" in --query*) echo "0, A100, GPU-0, 40960, 00000000:3B:00.0, 580.126.09, 8.0, Disabled, 0";; esac;'
         "echo 'Unable to determine the device handle for GPU0000:BA:00.0: Unknown Error'; exit 15",
         ("GPU 0000:BA:00.0 is lost", "gpu-reset -i 0000:BA:00.0", "1 × A100")),
    ],
)  # fmt: skip
def test_d58_doctor_of_this_machine_names_a_broken_driver_and_a_lost_gpu(
    script: str, says: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executable(tmp_path / "nvidia-smi", f"#!/bin/sh\n{script}\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    shown = " ".join(CliRunner().invoke(doctor, []).output.split())
    line = shown[shown.index("warning gpus") :]
    assert all(words in line for words in says), line


def test_doctor_of_this_machine_judges_a_prefix_as_that_of_a_node(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for prefix, level, says in (
        (tmp_path / "file" / "below", "missing", f"{tmp_path}/file is not a folder"),
        (Path("/no-such-mount/below"), "warning", "there is no /no-such-mount"),
    ):
        done = CliRunner().invoke(doctor, ["--prefix", str(prefix), "--json"])
        (line,) = [line for line in json.loads(done.stdout)["checks"] if line["name"] == "prefix"]
        assert line["level"] == level and line["found"].endswith(says), line
        assert level == "warning" or not json.loads(done.stdout)["ok"]
