"""`stack`, `target` and `config` on the command line: results on stdout, coded errors on stderr."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envbuild.catalog.loader import list_stacks, list_targets, load_target
from envbuild.cli.entry import main
from envbuild.errors import ExitCode


@pytest.fixture(autouse=True)
def fresh_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ENVBUILD_SYSTEM_CONFIG", str(tmp_path / "none.toml"))
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "NO_COLOR", "ENVBUILD_TARGET", "ENVBUILD_STACK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == code
    document = json.loads(capsys.readouterr().out)
    assert isinstance(document, dict)
    return document


def test_stack_show_by_name_by_default_and_by_path(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    shown = as_json(capsys, "stack", "show", "torch-smoke")
    assert shown["stack"]["profiles"]["exact"]["torch"]["version"] == "2.13.0"
    assert as_json(capsys, "stack", "show") == shown
    (tmp_path / "my.yaml").write_text("name: mine\nsummary: s\nprofiles: {exact: {python: ['3.11']}}\n")
    mine = as_json(capsys, "stack", "show", "./my.yaml")
    assert (mine["shipped"], mine["locks"]["exact"]["exists"]) == (False, False)
    assert main(["stack", "show", "my.yaml"]) == 0
    assert "my.lock.toml (not there yet)" in capsys.readouterr().out


@pytest.mark.parametrize("name", list_stacks())
def test_every_shipped_stack_can_be_shown(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert main(["stack", "show", name]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{name}: ")
    assert out.count("\n  needs ") == out.count("\nprofile ")
    needs = "nvcc of CUDA 13; Python 3.12 or 3.11; no MPI of the site (MPICH of a wheel, for one node); built on one"
    assert (needs in out) == (name == "megatron-deepspeed-alcf")
    values = "NCCL_SOCKET_IFNAME=eth0, NCCL_TOPO_FILE=/opt/microsoft/ndv4-topo.xml (if it exists), "
    assert (values in out) == (name == "opt-175b")


def test_stack_check_names_every_refusal(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("name: mine\nsumary: s\n")
    assert main(["stack", "check", "torch-smoke", "opt-175b", "megatron-alpa", "bad.yaml"]) == 2
    out, err = capsys.readouterr()
    assert out.splitlines() == ["torch-smoke: ok", "opt-175b: ok", "megatron-alpa: ok", "bad.yaml: refused"]
    assert "error[manifest-invalid]" in err
    assert "bad.yaml:2:1" in err
    document = as_json(capsys, "stack", "check", "bad.yaml", code=2)
    assert document["stacks"][0]["error"]["code"] == "manifest-invalid"
    assert main(["stack", "show", "bad.yaml"]) == 2
    out, err = capsys.readouterr()
    assert (out, "Traceback" in err) == ("", False)


TEMPLATES = ("aws-p3-16xlarge", "pbs", "pods-rtx4090", "polaris", "slurm", "slurm-pyxis", "ssh")
TEMPLATE = "a valid template: write a target that extends it, then check that"


def test_target_check_names_every_refusal_and_looks_for_the_stack_too(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    begin = "name: mine\nextends: ssh\nhosts: [a]\n"
    for name, line in (("good", "stack: torch-smoke"), ("gone", "stack: ./none.yaml"), ("root", "prefix: /"),
                       ("part", "stack: torch-smoke\nprofile: Exact "),
                       ("home", "prefix: /home/me\nexpects: {gpu: A100}")):  # fmt: skip
        (tmp_path / f"{name}.yaml").write_text(f"{begin}{line}\n")
    assert (
        main(["target", "check", *list_targets(), "good.yaml", "gone.yaml", "root.yaml", "part.yaml", "home.yaml"]) == 2
    )
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        *(f"{name}: {TEMPLATE if name in TEMPLATES else 'ok'}" for name in list_targets()),
        "good.yaml: ok", "gone.yaml: refused", "root.yaml: refused", "part.yaml: refused",
        "home.yaml: valid, with 2 warnings",
    ]  # fmt: skip
    assert all(word in err for word in ("error[stack-unknown]", "error[manifest-invalid]", "error[profile-unknown]"))
    assert "hint: did you mean `exact`?\n" in err and "warning: home.yaml: expects.gpu: A100 fits" in err
    (row,) = as_json(capsys, "target", "check", "home.yaml")["targets"]
    assert [text.split()[0] for text in row["warnings"]] == ["`prefix:", "expects.gpu:"]


def test_lists_fit_a_narrow_terminal_and_are_whole_in_a_pipe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for verb, names in (("stack", list_stacks()), ("target", list_targets())):
        assert [row["name"] for row in as_json(capsys, verb, "list")[f"{verb}s"]] == list(names)
        monkeypatch.setenv("COLUMNS", "60")
        assert main([verb, "list"]) == 0
        narrow = capsys.readouterr().out
        assert max(map(len, narrow.splitlines())) <= 60
        monkeypatch.delenv("COLUMNS")
        assert main([verb, "list"]) == 0
        assert capsys.readouterr().out.split() == narrow.split() and set(names) <= set(narrow.replace(":", "").split())


def test_target_list_and_show(capsys: pytest.CaptureFixture[str]) -> None:
    rows = as_json(capsys, "target", "list")["targets"]
    assert {row["name"]: row["template"] for row in rows}["ssh"] is True
    assert as_json(capsys, "target", "show")["target"]["name"] == "local"
    assert as_json(capsys, "target", "show", "ssh")["template"] is True
    assert main(["target", "show", "local"]) == 0
    assert "prefix: '{data}/envbuild'" in capsys.readouterr().out
    assert main(["target", "show", "lcal"]) == 2


@pytest.mark.parametrize("name", list_targets())
def test_a_target_is_shown_as_a_file_that_says_the_same(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    assert main(["target", "show", name]) == 0
    (tmp_path / "shown.yaml").write_text(capsys.readouterr().out)
    shown = load_target(str(tmp_path / "shown.yaml"), template=True).target
    assert shown == load_target(name, template=True).target.model_copy(update={"extends": None})
    assert (shown.name, bool(shown.summary)) == (name, True)


def test_config_show_says_where_values_come_from_and_a_broken_file_exits_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "envbuild.toml").write_text("wait = '5s'\n")
    monkeypatch.setenv("ENVBUILD_PREFIX", "/opt/e")
    settings = as_json(capsys, "config", "show")["settings"]
    assert settings["wait"] == {"value": "5s", "origin": str(tmp_path / "envbuild.toml")}
    assert settings["prefix"] == {"value": "/opt/e", "origin": "ENVBUILD_PREFIX"}
    for words, shown in ((["--origin"], True), ([], False)):
        assert main(["config", "show", *words]) == 0
        assert ("/opt/e  (ENVBUILD_PREFIX)" in capsys.readouterr().out) is shown
    (tmp_path / "envbuild.toml").write_text("prefx = '/x'\n")
    assert main(["config", "show"]) == 2
    assert "did you mean `prefix`?" in capsys.readouterr().err


@pytest.mark.parametrize(("noun", "other", "text"), [
    ("stack", "target", "name: x\nextends: ssh\nhosts: [gpu01]\n"),
    ("target", "stack", "name: mine\nsummary: s\nprofiles: {exact: {python: ['3.11']}}\n"),
])  # fmt: skip
def test_a_file_of_the_other_kind_is_named_with_the_command_for_it(
    noun: str, other: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "my.yaml"
    path.write_text(text)
    assert main([noun, "show", str(path)]) == ExitCode.USAGE
    err = capsys.readouterr().err
    assert f"is a {other} file, not a {noun} file" in err
    typed = f"--target {path}" if other == "target" else str(path)
    assert f"hint: commands take it as `{typed}`; `envbuild {other} check {path}` looks for mistakes" in err
