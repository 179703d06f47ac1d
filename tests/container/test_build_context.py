"""Build contexts: written once, compared with what the lock gives; their edits, and the trees after them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from envbuild import resources
from envbuild.cli.entry import main
from envbuild.container import build
from envbuild.container.select import recipe_for
from envbuild.lock.readers.git import git_reader
from envbuild.lock.sources import with_patched_trees
from envbuild.model.lock import LockedSource
from tests.container.test_dockerfile import commands_of, recipe_of
from tests.node.env_support import make_repository, redirect_git
from tests.node.forge import FILES, PATCH
from tests.support.fails import fails


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return build.texts(recipe_for("opt-175b"))


def test_a_context_is_written_once_and_an_edit_by_hand_is_shown_as_a_diff(
    texts: dict[str, str], tmp_path: Path
) -> None:
    context = tmp_path / "context"
    assert build.write(context, texts) == list(texts)
    assert (build.write(context, texts), build.compare(context, texts)) == ([], "")
    file = context / "Dockerfile"
    file.write_text(file.read_text().replace("USER 10001:10001", "USER root"))
    (context / "requirements.txt").unlink()
    diff = build.compare(context, texts)
    assert "-USER root\n" in diff and "+USER 10001:10001\n" in diff
    assert f"{context / 'requirements.txt'} is missing" in diff
    file.write_text(file.read_text().rstrip("\n"))
    assert "no line break at the end" in build.compare(context, texts)
    file.write_text("")
    assert "more lines of" in build.compare(context, texts)
    with fails("output-unwritable"):
        build.write(file, texts)


def test_its_dockerignore_lets_through_what_is_copied(texts: dict[str, str]) -> None:
    allowed = {line.removeprefix("!") for line in texts[".dockerignore"].splitlines()[1:]}
    lines = (line for line in texts["Dockerfile"].splitlines() if line.startswith("COPY ") and "--from=" not in line)
    copied = {name for line in lines for name in line.split()[1:-1]}
    assert copied == allowed == {name.partition("/")[0] for name in texts} - {"Dockerfile", ".dockerignore"}


# Lines that git changes when it adds or checks out a file.
ATTRIBUTES = {".gitattributes": "*.txt text eol=crlf\n", "crlf.txt": "a\r\nb\r\n"}


def test_a_build_refuses_an_edit_that_gives_another_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    redirect_git(monkeypatch, tmp_path / "hub")
    commit, tree = make_repository(tmp_path / "hub" / "quick", {**FILES, **ATTRIBUTES})
    row = {"name": "quick", "git": "https://git.example.org/quick", "commit": commit, "tree": tree}
    source = LockedSource.from_plain({**row, "patches": [PATCH]})
    variant = recipe_for("torch-smoke").variant.model_copy(update={"sources": (source,)})
    unrecorded, last = recipe_of(variant).stage("sources").lines[-2:]
    assert "is not compared" in unrecorded and last == "RUN python3 /patches/patch.py /patches/quick.json ."
    with git_reader() as reader:
        sources = with_patched_trees(variant.sources, None, reader, pytest.fail)
    assert sources[0].patched_tree not in (None, sources[0].tree)
    recipe = recipe_of(variant.model_copy(update={"sources": sources}))
    stage = recipe.stage("sources")
    *_, first = (number for number, line in enumerate(stage.lines) if line == "WORKDIR /src/quick")
    commands = " && ".join(commands_of(stage.lines[first:]))

    def built(name: str, old: str = "", new: str = "") -> int:
        top = tmp_path / name
        build.write(top, {file: text.replace(old, new) if old else text for file, text in recipe.files.items()})
        (top / "src").mkdir()
        line = commands.replace("/patches/", f"{top}/patches/")
        return subprocess.run(["sh", "-c", line], cwd=top / "src", capture_output=True, check=False).returncode

    assert built("ours") == 0
    assert "np.float" not in (tmp_path / "ours" / "src" / "quick" / "old.py").read_text().replace("np.float64", "")
    assert not (tmp_path / "ours" / "src" / ".git").exists()
    assert built("other", "        tree.write()", "        pass") != 0, "an edit that was not made"
    assert not any("np.float" in text for name, text in recipe.files.items() if name.endswith(".json"))


def test_the_command_shows_an_edit_by_hand_and_writes_all_stacks_byte_for_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def contents(folder: Path) -> dict[Path, bytes]:
        return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    shipped = resources.containers()
    own = shutil.copytree(shipped, tmp_path / "containers")
    monkeypatch.setattr(resources, "containers", lambda: own)
    file = own / "opt-175b" / "Dockerfile"
    edited = file.read_text().replace("USER 10001:10001", "USER root")
    file.write_text(edited)
    assert main(["image", "dockerfile", "--check"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert f"--- {file}" in lines and f"+++ {file} (from the lock)" in lines
    assert "-USER root" in lines and "+USER 10001:10001" in lines
    assert len(lines) < 30, "what agrees takes a line each"
    assert file.read_text() == edited, "a check writes nothing"
    for folder in own.iterdir():
        shutil.rmtree(folder)
    assert main(["image", "dockerfile"]) == 0
    assert str(own) in capsys.readouterr().out
    assert contents(own) == contents(shipped)
