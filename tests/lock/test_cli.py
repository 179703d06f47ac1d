"""`envbuild lock`, run as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from uv import find_uv_bin

from envbuild.cli.entry import main
from envbuild.errors import ExitCode
from envbuild.lock.files import read_lock
from tests.lock.build import make_wheel
from tests.lock.conftest import Repos
from tests.support.programs import completed

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture
def stack(tmp_path: Path, repos: Repos, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`my.yaml` with a package and a source, its wheels in a find-links folder of pip's configuration."""
    make_wheel(tmp_path / "house", "alpha", "1.0")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "house"))
    commit = repos.create("a")
    path = tmp_path / "my.yaml"
    path.write_text(
        f"""name: mine
summary: a stack of my own
profiles:
  exact:
    python: ["{PYTHON}"]
    packages: [alpha]
    sources:
      - {{name: a, git: "{Repos.url("a")}", commit: {commit}, ref: main}}
"""
    )
    return path


CPYTHON = "https://conda.anaconda.org/conda-forge/linux-64/python-3.11.7-h955ad1f_0.conda"
ALPHA = CPYTHON.replace("python-3.11.7", "alpha-1.0")


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["lock", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Pipfile", '[packages]\nalpha = "*"\n'),
        ("pixi.lock", f"packages:\n- conda: {CPYTHON}\n- {{pypi: https://x/a, name: alpha, version: '1.0'}}\n"),
        ("conda-linux-64.lock", f"# platform: linux-64\n@EXPLICIT\n{CPYTHON}#0f\n{ALPHA}\n"),
        ("spec.txt", f"@EXPLICIT\n{ALPHA}\n{CPYTHON.replace('linux', 'osx')}\n"),
    ],
)
def test_d62_a_file_that_lists_packages_stands_for_its_draft(
    name: str, text: str, stack: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(stack.parent)
    Path(name).write_text(text)
    code, made = call(capsys, "create", f"./{name}")
    assert (code, made["variants"][0]["packages"]) == (ExitCode.OK, 1)
    code, made = call(capsys, "create", f"./{name}")
    assert (code, made["changed"]) == (ExitCode.OK, False)


def test_create_writes_the_lock_beside_the_stack_and_again_changes_nothing_until_something_else_is_asked(
    stack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, first = call(capsys, "create", str(stack))
    lock = stack.with_name("my.lock.toml")
    assert (code, first["lock"], first["changed"]) == (ExitCode.OK, str(lock), True)
    assert first["variants"][0]["packages"] == 1
    good = lock.read_text()
    code, second = call(capsys, "create", str(stack))
    assert (code, second["changed"], second["diff"]) == (ExitCode.OK, False, {"same": True, "changes": []})
    assert lock.read_text() == good
    # A damaged lock is replaced.
    lock.write_text(good.replace('version = "1.0"', 'version = "9.0"'))
    assert main(["lock", "check", str(stack)]) == ExitCode.INTEGRITY
    assert "error[lock-digest-mismatch]" in capsys.readouterr().err
    assert main(["lock", "create", str(stack)]) == ExitCode.OK
    assert "not used" in capsys.readouterr().err
    assert lock.read_text() == good
    make_wheel(tmp_path / "house", "beta", "1.0")
    make_wheel(tmp_path / "house", "alpha", "2.0")
    text = stack.read_text().replace("[alpha]", "[alpha, beta]")
    stack.write_text(text + "    environment: {A: b}\n")
    assert call(capsys, "create", str(stack))[1]["variants"][0]["packages"] == 2
    stack.write_text(text)
    old = tmp_path / "old.lock.toml"
    old.write_text(good)
    assert call(capsys, "create", str(stack), "--upgrade")[0] == ExitCode.OK
    assert {each.name: each.version for each in read_lock(lock).variants[0].packages} == {"alpha": "2.0", "beta": "1.0"}
    assert main(["lock", "diff", str(old), str(lock)]) == ExitCode.OK
    assert "~ package alpha 1.0 -> 2.0" in capsys.readouterr().out
    assert call(capsys, "diff", str(old), str(old))[1]["same"] is True
    # The file that `export` writes is one that uv reads.
    export = ["lock", "export", str(stack), "--wheelhouse", str(tmp_path / "house"), "-o"]
    assert main([*export, str(tmp_path / "x.toml")]) == ExitCode.USAGE
    assert "pylock.mine.toml" in capsys.readouterr().err
    out = str(tmp_path / "pylock.mine.toml")
    assert main([*export, out]) == ExitCode.OK
    done = completed([find_uv_bin(), "pip", "install", "--dry-run", "-p", sys.executable, "-r", out])
    assert "alpha==2.0" in done.stderr, done.stderr
    assert main(["lock", "export", str(stack), "--format", "conda-explicit"]) == ExitCode.USAGE


def test_create_resolves_nothing_where_only_what_is_run_has_changed(
    stack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    call(capsys, "create", str(stack))
    before = read_lock(stack.with_name("my.lock.toml"))
    text = stack.read_text()
    stack.write_text(text + "    environment: {A: b}\n    imports: [a]\n    deviations: [another one]\n")
    monkeypatch.setenv("PATH", str(tmp_path / "neither git nor uv"))
    code, done = call(capsys, "create", str(stack))
    assert (code, done["changed"]) == (ExitCode.OK, True)
    after = read_lock(stack.with_name("my.lock.toml"))
    assert (after.variants[0].environment, after.variants[0].imports) == ({"A": "b"}, ("a",))
    assert (after.variants[0].packages, after.created_with) == (before.variants[0].packages, before.created_with)
    assert after.variants[0].digest != before.variants[0].digest
    monkeypatch.undo()
    assert call(capsys, "check", str(stack), "--offline")[0] == ExitCode.OK
    stack.write_text(text)
    assert call(capsys, "create", str(stack))[0] == ExitCode.OK
    assert read_lock(stack.with_name("my.lock.toml")) == before


def test_check_shows_of_two_lists_what_only_one_of_them_has(stack: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stack.write_text(stack.read_text() + "    imports: [a, b]\n")
    call(capsys, "create", str(stack))
    stack.write_text(stack.read_text().replace("[a, b]", "[a, c]") + "    smoke: [{name: sound, deadline: 5}]\n")
    code, data = call(capsys, "check", str(stack), "--offline")
    assert (code, data["ok"]) == (ExitCode.CHECK_FAILED, False)
    said = {each["says"] for each in data["findings"]}
    name = read_lock(stack.with_name("my.lock.toml")).variants[0].id
    assert f"{name}: c in the stack, b in the lock" in said
    assert f'{name}: {{"name": "sound", "deadline": 5.0}} in the stack, {{"name": "sound"}} in the lock' in said


def test_check_says_when_a_branch_has_moved_and_counts_what_it_could_not_ask(
    stack: Path, repos: Repos, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["lock", "create", str(stack)])
    old, new = repos.git("a", "rev-parse", "HEAD"), repos.commit("a", "x", "2")
    capsys.readouterr()
    code, data = call(capsys, "check", str(stack))
    (moved,) = data["findings"]
    assert (code, moved["code"], moved["kind"]) == (ExitCode.CHECK_FAILED, "ref-moved", "problem")
    assert old in moved["says"] and new in moved["says"] and "not affected" in moved["says"]
    assert call(capsys, "check", str(stack), "--offline")[0] == ExitCode.OK
    (repos.folder / "a").rename(repos.folder / "b")
    code, data = call(capsys, "check", str(stack))
    assert (code, data["ok"], data["unchecked"]) == (ExitCode.OK, True, 2), "the source, and what its build needs"
    assert main(["lock", "check", str(stack)]) == ExitCode.OK
    assert "2 not checked" in capsys.readouterr().out


def test_bad_arguments_exit_2_and_write_nothing(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "x.lock.toml"
    for arguments in (
        ["check", "torch-smok"],
        *(["create", "torch-smoke", *words, "-o", str(output)]
          for words in (["--profile", "none"], ["--as-of", "yesterday"], ["--index", "x"])),
        ["diff", "/none/a", "/none/b"],
    ):  # fmt: skip
        assert main(["lock", *arguments]) == ExitCode.USAGE
        assert "error[" in capsys.readouterr().err
    assert not output.exists()


def test_help_imports_neither_pydantic_nor_tomlkit() -> None:
    code = (
        "import sys; from envbuild.cli.entry import main; main(['lock', 'create', '--help']);"
        "sys.exit(any(m in sys.modules for m in ('pydantic', 'tomlkit', 'packaging.requirements')))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
