"""The workflow for GitHub: YAML that calls what is there, with what was chosen."""

from __future__ import annotations

import shlex

import click
import yaml
from click.testing import CliRunner

from envbuild.cli.verbs import cli


def test_it_calls_verbs_with_options_that_exist() -> None:
    chosen = ["--profile", "exact", "--fetch-image", "localhost/a b", "--glibc", "2.36"]
    done = CliRunner().invoke(cli, ["image", "workflow", "torch-smoke", *chosen, "--install", "./my wheel.whl"])
    data = yaml.safe_load(done.output)
    job = data["jobs"]["image"]
    assert job["env"]["IMAGE"] == "localhost/envbuild/torch-smoke:exact-2115e766577b"
    runs = [step["run"] for step in job["steps"] if "run" in step]
    assert "python -m pip install './my wheel.whl'\n" in runs[0]
    calls = [
        shlex.split(line.partition("envbuild ")[2].partition(" >")[0])
        for text in runs[1:]
        for line in text.splitlines()
    ]
    assert [call[1] for call in calls] == ["dockerfile", "build", "verify"]
    assert calls[1][2:-2] == ["torch-smoke", *chosen]
    for call in calls:
        command: click.Command | None = cli
        context = click.Context(cli)
        for word in call[:2]:
            assert isinstance(command, click.Group)
            command = command.get_command(context, word)
        assert command is not None
        command.make_parser(context).parse_args(call[2:])  # raises where an option is unknown
