"""The workflows for GitHub and GitLab: YAML that calls what is there, with what was chosen."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner

from envbuild.cli.verbs import cli
from envbuild.container.verify_image import as_junit

CHOSEN = ["--profile", "exact", "--fetch-image", "localhost/a", "--python", "/opt/a b/python3", "--glibc", "2.36"]


def made(system: str, *words: str) -> str:
    return CliRunner().invoke(cli, ["image", "workflow", system, "torch-smoke", *words]).output


def lines(system: str, text: str) -> list[str]:
    """The commands that a runner is told."""
    (job,) = (yaml.safe_load(text)["jobs"] if system == "github" else yaml.safe_load(text)).values()
    if system == "gitlab":
        return [*job["before_script"], *job["script"]]
    return [line for step in job["steps"] for line in step.get("run", "").splitlines()]


@pytest.mark.parametrize("system", ["github", "gitlab"])
def test_it_calls_verbs_with_options_that_exist_and_fails_on_drift(system: str) -> None:
    text = made(system, *CHOSEN, "--install", "./my wheel.whl", "--gpu-runner", "h200")
    told = lines(system, text)
    assert "python -m pip install './my wheel.whl'" in told
    calls = re.findall(
        r"(?:^|then )envbuild ((?:lock|image) [^;>$\n]*)", "\n".join(told).replace('"$IMAGE"', "IMAGE"), re.M
    )
    words = [shlex.split(call) for call in calls]
    assert sorted({tuple(each[:2]) for each in words}) == [
        ("image", "dockerfile"), ("image", "verify"), ("lock", "check"), ("lock", "export"),
    ]  # fmt: skip
    compared = [each for each in words if "--check" in each]
    assert compared == [["image", "dockerfile", "torch-smoke", *CHOSEN, "-o", "containers/torch-smoke", "--check"]]
    for call in words:
        command: click.Command | None = cli
        context = click.Context(cli)
        for word in call[:2]:
            assert isinstance(command, click.Group)
            command = command.get_command(context, word)
        assert command is not None
        # Raises where an option is unknown or its value is none that it takes.
        command.make_context(call[1], call[2:])


@pytest.mark.parametrize(
    ("system", "schema"),
    [("github", ["vendor.github-workflows"]), ("gitlab", ["vendor.gitlab-ci", "--data-transform=gitlab-ci"])],
)
def test_it_is_valid_for_the_schema_of_its_system(system: str, schema: list[str], tmp_path: Path) -> None:
    path = tmp_path / "workflow.yml"
    # In this process, which imports JSON Schema once; see tests/support/schemas.py.
    from check_jsonschema import main as check_jsonschema

    check = [str(path), "--builtin-schema", *schema]
    text = made(system, *CHOSEN, "--gpu-runner", "h200")
    path.write_text(text)
    done = CliRunner().invoke(check_jsonschema, check)
    assert done.exit_code == 0, done.output
    path.write_text(text.replace("runs-on:", "runs_on:").replace("script:", "scripts:"))
    done = CliRunner().invoke(check_jsonschema, check)
    assert done.exit_code == 1 and "Schema validation errors" in done.output


def test_actionlint_has_nothing_to_say(tmp_path: Path) -> None:
    path, config = tmp_path / "workflow.yml", tmp_path / "actionlint.yaml"
    config.write_text("self-hosted-runner:\n  labels: [h200]\n")
    program = str(Path(sys.executable).parent / "actionlint")
    path.write_text(made("github", *CHOSEN, "--gpu-runner", "h200"))
    done = subprocess.run([program, "-config-file", config, path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    # An action whose runtime GitHub has removed is one of the things that it knows.
    path.write_text(path.read_text().replace("actions/checkout@v6", "actions/checkout@v4"))
    done = subprocess.run([program, "-config-file", config, path], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "node20" in done.stdout


def test_the_job_with_gpus_is_there_only_with_a_runner_for_it() -> None:
    def rows(system: str, *words: str) -> list[Any]:
        text = yaml.safe_load(made(system, *words))
        job = text["jobs"]["image"]["strategy"] if system == "github" else next(iter(text.values()))["parallel"]
        return list(job["matrix"]["include"] if system == "github" else job["matrix"])

    for system in ("github", "gitlab"):
        assert len(rows(system)) == 1
        _, gpu = rows(system, "--gpu-runner", "h200")
        assert "h200" in gpu.values() and "--gpus" in gpu.values()


def test_junit_of_an_image_is_xml_whatever_its_checks_say() -> None:
    check = {"name": "files", "status": "failed", "says": "a\x00b \x1b[31m", "details": {"output": "c\x08\ufffe"}}
    [case] = ET.fromstring(as_junit("team/image:1", {"stack": "s\x01", "checks": [check]}))
    failure = case.find("failure")
    assert failure is not None
    assert (failure.get("message"), failure.text) == ("a\\x00b \\x1b[31m", "c\\x08\\ufffe")


def test_junit_has_a_case_for_each_check_with_what_it_says() -> None:
    checks = [
        {"name": "stamp", "status": "passed", "says": "it is there"},
        {"name": "files", "status": "failed", "says": 'a.py is "changed" <& gone>'},
    ]
    smoke = {"checks": [{"name": "smoke/machine/gemm", "status": "skipped", "says": "no GPU"}]}
    suite = ET.fromstring(as_junit("team/image:1", {"stack": "s", "checks": checks, "smoke": smoke}))
    assert [suite.get(key) for key in ("name", "tests", "failures", "skipped")] == ["team/image:1", "3", "1", "1"]
    told = [(case.get("name"), [(each.tag, each.get("message")) for each in case]) for case in suite]
    assert told == [
        ("stamp", []),
        ("files", [("failure", 'a.py is "changed" <& gone>')]),
        ("smoke/machine/gemm", [("skipped", "no GPU")]),
    ]


def test_junit_that_cannot_be_written_is_said_and_no_mistake_of_envbuild(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envbuild.container.builders.find_builder", lambda _: None)
    found = {"ok": True, "stack": "s", "image": "i", "checks": [], "drift": []}
    monkeypatch.setattr("envbuild.container.verify_image.verify_image", lambda *_, **__: found)
    asked = ["image", "verify", "i", "--junit", str(tmp_path / "none" / "junit.xml")]
    done = CliRunner().invoke(cli, asked, standalone_mode=False)
    assert getattr(done.exception, "code", done.exception) == "output-unwritable"
