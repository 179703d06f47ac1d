"""New cases of the kinds of fault that others found (D63 to D77), against what reads pages, checkouts and answers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

import envbuild
from envbuild import resources
from envbuild.catalog.yaml_load import parse_yaml
from envbuild.cli.verbs import cli
from envbuild.errors import EnvbuildError
from envbuild.hostlist import expand_hosts
from envbuild.init.read import read
from envbuild.init.readers.requirement import wheel
from envbuild.init.statement import quoted
from envbuild.model.facts import NodeFacts
from envbuild.node import trust
from envbuild.node.git_source import tree_state
from envbuild.regular_file import parse_toml
from envbuild.report.evidence_file import parse, read_evidence
from envbuild.resolve import health
from envbuild.resolve.artifacts import Platform, flavour_cuda, numbers, rank
from envbuild.schedule.slurm import parse_job, parse_sacct


def drafted(tmp_path: Path, files: dict[str, str]) -> str:
    """The draft of a folder with these files."""
    for name, text in files.items():
        path = tmp_path / "input" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    out = tmp_path / "draft.yaml"
    done = CliRunner().invoke(cli, ["init", "--from", str(tmp_path / "input"), "--offline", "--yes", str(out)])
    assert done.exit_code == 0 or done.return_value == 0, done.output
    return out.read_text()


def git(folder: Path, *words: str) -> str:
    """What git prints."""
    names = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    return subprocess.run(["git", *names, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


def committed(folder: Path) -> Path:
    """A repository with one commit, and a canary that its configuration may let out."""
    folder.mkdir()
    (folder / "requirements.txt").write_text("numpy\n")
    (folder / ".gitattributes").write_text("*.txt filter=a=b\n")
    git(folder, "init", "-q", "--initial-branch=main")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "x")
    return folder


def filters(folder: Path, canary: Path) -> None:
    """A program for what git compares, under a name that `-c NAME=VALUE` cannot have."""
    for verb in ("clean", "smudge", "process"):
        git(folder, "config", f"filter.a=b.{verb}", f"touch {canary}; cat")
    git(folder, "config", "filter.a=b.required", "true")
    os.utime(folder / "requirements.txt", (1, 1))


def lost_commit(folder: Path, canary: Path) -> None:
    """A commit that is not there, and a program that brings it."""
    commit = git(folder, "rev-parse", "HEAD").strip()
    settings = {
        "core.repositoryformatversion": "1", "extensions.partialClone": "origin", "remote.origin.promisor": "true",
        "remote.origin.url": str(folder), "remote.origin.uploadpack": f"touch {canary}; git-upload-pack",
    }  # fmt: skip
    for key, value in settings.items():
        git(folder, "config", key, value)
    (folder / ".git/objects" / commit[:2] / commit[2:]).unlink()


def watcher(folder: Path, canary: Path) -> None:
    """Hooks, and the program that watches files."""
    git(folder, "config", "core.fsmonitor", f"touch {canary}; false")
    for name in ("post-index-change", "reference-transaction"):
        hook = folder / ".git/hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\ntouch {canary}\n")
        hook.chmod(0o755)


@pytest.mark.parametrize("arm", [filters, lost_commit, watcher])
def test_d63_nothing_that_a_checkout_configures_is_run_to_look_at_it(
    tmp_path: Path, arm: Callable[[Path, Path], None]
) -> None:
    canary = tmp_path / "canary"
    folder = committed(tmp_path / "input")
    arm(folder, canary)
    canary.unlink(missing_ok=True)  # git itself, while it was armed
    tree_state(str(folder))
    assert "numpy" in drafted(tmp_path, {})
    assert not canary.exists()


@pytest.mark.parametrize("names", ["target", "prefix"])
@pytest.mark.parametrize(
    "words",
    [
        ("data", "megatronapp"),
        ("launch", "megatronapp", "--run", "--gpus-per-node", "4"),
        ("env", "run", "megatronapp", "--", "true"),
        ("env", "activate", "megatronapp"),
        ("bench", "megatronapp", "--gpus-per-node", "4"),
    ],
)
def test_d63_an_environment_that_came_with_the_folder_runs_for_nobody_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: str, words: tuple[str, ...]
) -> None:
    there = tmp_path / "pre/current/megatronapp"
    for name in (".envbuild/activate.sh", "bin/python3"):
        (there / name).parent.mkdir(parents=True)
        (there / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/canary\n")
        (there / name).chmod(0o755)
    (tmp_path / ".git").mkdir()
    (tmp_path / "evil.yaml").write_text(f"name: evil\nextends: local\nprefix: {tmp_path}/pre\n")
    said = {"target": 'target = "./evil.yaml"', "prefix": f'prefix = "{tmp_path}/pre"'}
    (tmp_path / "envbuild.toml").write_text(said[names])
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli, words, standalone_mode=False)
    assert getattr(done.exception, "code", None) == "target-untrusted", done.output
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize(
    "files",
    [
        {"a\nevil: [1]\n#.py": "import other_mod\n"},
        {"b\nevil: 1\n#/c.py": "import torch_npu\ntry:\n import tqdm\nexcept: 0"},
        {"pyproject.toml": "[project]\nname='a'\nrequires-python='>=3.8\"], evil: [1'"},
        {"Dockerfile": "FROM a\nARG B=1\nONBUILD RUN pip install x\nENV NCCL_DEBUG=\"a'\\n evil: b\"\n"},
        {"setup.sh": 'export NCCL_DEBUG="a\nevil: 2"\nexport A="x\\nevil: 1"\n'},
        {"requirements/a.txt": "git+https://h.org/b/b@v#egg=x},{evil: y\n-e git+https://h.org/a/c@z, evil: y"},
    ],
)  # fmt: skip
def test_d66_no_text_of_an_input_becomes_a_key_of_the_draft(tmp_path: Path, files: dict[str, str]) -> None:
    data = yaml.safe_load(drafted(tmp_path, {"requirements.txt": "numpy\n", **files}))

    def keys(value: Any) -> set[str]:
        below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        return {*(value if isinstance(value, dict) else ()), *(key for each in below for key in keys(each))}

    assert "evil" not in keys(data)


def test_d68_no_credential_of_an_input_is_in_the_draft(tmp_path: Path) -> None:
    page = (
        "# Install\n```bash\ngit clone https://u:s3cr3tpw@h.example.org/a/b.git && cd b && pip install .\n"
        "pip install x --index-url https://u:s3cr3tpw@h.example.org/simple git+https://o:s3cr3tpw@h.example.org/a/c@v\n"
        "wandb login s3cr3tkey\nhuggingface-cli login --token s3cr3ttoken\nexport DB=postgres://u:s3cr3tpw@h/d\n"
        "export A_TOKEN=s3cr3t0\nsrun --export=API_KEY=s3cr3tkey python x.py --api-key s3cr3tkey\n```\n"
    )
    conda = "channels: ['https://u:s3cr3tpw@h.org/t/tk-s3cr3t/c']\ndependencies: [a]\nvariables: {PASSWORD: s3cr3tpw}\n"
    listed = "w @ https://u:s3cr3tpw@h.org/w-1-py3-none-any.whl\n--extra-index-url=https://u:s3cr3tpw@h.org\n"
    files = {"README.md": page, "environment.yml": conda, "requirements.txt": listed}
    assert "s3cr3t" not in drafted(tmp_path, files)


def test_d68_a_line_that_is_cut_shows_no_part_of_a_secret() -> None:
    assert "s3cr" not in quoted("a " * 1480 + "https://user:" + "s3cr3t" * 20 + "@host/x")


@pytest.mark.parametrize(
    "call",
    [
        lambda: expand_hosts(["n" + "9" * 4400 + "[0-1]"]),
        lambda: parse(b'{"a": 1, "a": 2}'),
        lambda: wheel("https://[x]/a-1-py3-none-any.whl"),
        lambda: parse_sacct(" |||\n"),
        lambda: parse_job("JobState= Restarts=0"),
        lambda: parse_toml("a." * 50_000 + "a=1"),
        lambda: read(f"[tool.poetry.dependencies]\na = '^{'9' * 4400}'\n", "pyproject.toml"),
    ],
)
def test_d26_what_no_parser_expects_is_refused_by_a_code_or_passed_over(call: Callable[[], object]) -> None:
    try:
        assert call() in (None, ()) or call()
    except (EnvbuildError, ValueError) as error:
        assert isinstance(error, EnvbuildError) or re.search("twice|more than 100 parts", str(error))


def _azure(place: tuple[str, str], value: Any) -> NodeFacts:
    plain = json.loads((resources.catalog() / "facts/azure-nd96.json").read_text())
    (plain[place[0]][0] if isinstance(plain[place[0]], list) else plain[place[0]])[place[1]] = value
    return NodeFacts.model_validate(plain)


@pytest.mark.parametrize("number", ["9" * 4400, "\u00b2"])
def test_d75_a_number_of_the_environment_of_facts_or_of_a_report_has_a_bound(
    number: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUDO_UID", number)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert trust.ours() == {0}
    assert health.faults(_azure(("gpus", "health"), {"remapped_rows.failure": number})) == ()
    assert flavour_cuda(f"cu{number}") == ()
    with pytest.raises(EnvbuildError, match="schema"):
        read_evidence(json.dumps({"schema_version": f"{number}.0"}).encode(), Path("e.json"))


def test_d75_no_number_of_outside_is_read_by_isdigit() -> None:
    # A program of builds and the pids of /proc, which the kernel writes.
    own = {"node/build/programs/guard.py"}
    top = Path(envbuild.__file__).parent
    bad = re.compile(r"isdigit\(\).*\bint\(|\bint\(.*\bisdigit\(")
    found = {path.relative_to(top).as_posix() for path in top.rglob("*.py") if bad.search(path.read_text())}
    assert found == own


def test_d75_facts_of_a_c_library_without_end_are_compared_at_once() -> None:
    platform = Platform("3.11", "x86_64", numbers("2." + "9" * 4400))
    assert rank("a-1-cp311-cp311-manylinux_2_28_x86_64.whl", platform) is not None


def _yaml_places(size: int) -> None:
    document = parse_yaml(b"a:\n" + b"- 1\n" * size, "x")
    for number in range(size):
        document.locate(("a", number))


def _twice(size: int) -> None:
    rows = ",".join(f'"{number}":1' for number in range(size))
    with pytest.raises(ValueError, match="there twice"):
        parse(f'{{{rows},"x":1,"x":2}}'.encode())


def _read(piece: str, name: str) -> Callable[[int], object]:
    return lambda size: read(piece * size, name)


@pytest.mark.parametrize(
    "work",
    [
        _yaml_places, _twice, _read("pip install [ a ", "setup.sh"), _read("! ", "setup.sh"), _read("A=b ", "setup.sh"),
        *(_read(piece, "setup.sh") for piece in ("$(", "'", '"\\', "`", "${", "${a-", "<<a\n", "\\\n", "a|", "$((")),
        _read("a[", "requirements.txt"), _read("a.b", "Pipfile"),
        _read("a.b", "pyproject.toml"), _read("conda install -c a b ", "setup.sh"),
        lambda size: read("channels: [a]\ndependencies: [" + "a, " * size + "b]", "environment.yml"),
        lambda size: read("[project]\ndependencies=[" + "'a'," * size + "]", "pyproject.toml"),
    ],
)  # fmt: skip
def test_d74_time_grows_with_the_input_and_not_with_its_square(work: Callable[[int], object]) -> None:
    def seconds(size: int) -> float:
        begin = time.process_time()
        work(size)
        return time.process_time() - begin

    small, large = min(seconds(1500) for _ in range(2)), seconds(12_000)
    assert large < max(small, 0.02) * 8 * 4
