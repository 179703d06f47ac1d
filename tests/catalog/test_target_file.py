"""`init`: a first target file from answers or from recorded facts, which loads and says what was said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from envbuild.catalog import target_file
from envbuild.catalog.loader import load_target
from envbuild.catalog.node_facts import list_facts, load_facts
from envbuild.cli.init_cmd import init as command
from envbuild.errors import EnvbuildError
from envbuild.resolve.rules.node import unexpected


def init(folder: Path, *words: str, answers: tuple[str, ...] = ()) -> Result:
    said = "".join(f"{each}\n" for each in answers)
    return CliRunner().invoke(command, [str(folder / "lab.yaml"), *words], input=said)


@pytest.mark.parametrize(
    ("answers", "wanted"),
    [
        (("local", "", "", ""), {"extends": "local", "prefix": "{data}/envbuild"}),
        (
            ("ssh", "opt-175b", "gpu[01-04], n7", "me", "/p/{user}", "NVIDIA A100", "8"),
            {"stack": "opt-175b", "hosts": ["gpu[01-04]", "n7"], "connection": {"kind": "ssh", "user": "me"},
             "prefix": "/p/{user}", "expects": {"gpu": "A100", "gpus_per_node": 8}},
        ),
        (
            ("slurm", "", "gpu", "login1", "", "proj", "", ""),
            {"hosts": {"slurm": "gpu"}, "connection": {"kind": "job", "login": {"host": "login1"}},
             "scheduler": {"kind": "slurm", "account": "proj", "exclusive": True}, "prefix": "{home}/envbuild"},
        ),
        (
            ("pbs", "", "debug", "", "proj", "", ""),
            {"hosts": {"pbs": "nodefile"}, "connection": {"kind": "job"},
             "scheduler": {"kind": "pbs", "queue": "debug", "account": "proj", "exclusive": True}},
        ),
    ],
)  # fmt: skip
def test_answers_become_a_commented_file_that_loads(
    tmp_path: Path, answers: tuple[str, ...], wanted: dict[str, Any]
) -> None:
    done = init(tmp_path, answers=answers)
    assert done.exit_code == 0, (done.output, done.exception)
    text = (tmp_path / "lab.yaml").read_text()
    assert text.count("\n#") >= 4 and max(map(len, text.splitlines())) <= 80
    made = load_target(str(tmp_path / "lab.yaml")).target.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    for key, value in wanted.items():
        found = made.get(key)
        assert value.items() <= found.items() if isinstance(found, dict) else found == value, key


@pytest.mark.parametrize("name", list_facts())
def test_facts_become_a_file_that_their_nodes_do_not_differ_from(tmp_path: Path, name: str) -> None:
    done = init(tmp_path, "--facts", name)
    assert done.exit_code == 0, (done.output, done.exception)
    made = load_target(str(tmp_path / "lab.yaml"), template=True).target
    nodes = load_facts(name)
    assert [unexpected(node, made) for node in nodes.values()] == [() for _ in nodes]
    assert made.expects.gpus_per_node == len(next(iter(nodes.values())).gpus)
    assert ("still a template" in done.output) == (made.connection.kind == "job")


def test_facts_of_this_machine_become_a_target_that_is_here() -> None:
    node = next(iter(load_facts("pods-rtx4090").values()))
    assert target_file.of_facts({"localhost": node}).kind == "local"
    assert target_file.of_facts({"gpu01": node}).kind == "ssh"


def test_facts_name_the_prefix_for_every_user() -> None:
    (node,) = load_facts("azure-nd96").values()
    disk = node.prefix.model_copy(update={"path": f"/scratch/{node.user}/envbuild"})
    said = target_file.of_facts({"a": node.model_copy(update={"prefix": disk})})
    assert (said.kind, said.prefix, said.driver) == ("slurm", "/scratch/{user}/envbuild", ">=510")


def test_a_file_that_is_there_and_answers_that_make_no_target_leave_nothing_changed(tmp_path: Path) -> None:
    bad = init(tmp_path, answers=("ssh", "", "a", "", "relative/prefix", ""))
    assert isinstance(bad.exception, EnvbuildError) and bad.exception.code == "manifest-invalid"
    unknown = init(tmp_path, answers=("local", "opt-176b", "", ""))
    assert isinstance(unknown.exception, EnvbuildError) and unknown.exception.code == "stack-unknown"
    short = init(tmp_path, answers=("ssh",))
    assert short.exit_code == 2 and "--facts" in short.output
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "lab.yaml").write_text("mine\n")
    there = init(tmp_path, answers=("local", "", "", ""))
    assert isinstance(there.exception, EnvbuildError) and there.exception.code == "output-unwritable"
    assert (tmp_path / "lab.yaml").read_text() == "mine\n"
