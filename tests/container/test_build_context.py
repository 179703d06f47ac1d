"""Build contexts: written once, and compared with what the lock gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuild.container import build
from envbuild.container.select import Choice, recipe_for
from tests.support.fails import fails


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return build.texts(recipe_for(Choice("opt-175b")))


def test_a_context_is_written_once_and_its_dockerignore_lets_through_what_is_copied(
    texts: dict[str, str], tmp_path: Path
) -> None:
    assert build.write(tmp_path, texts) == list(texts)
    assert build.write(tmp_path, texts) == []
    assert build.compare(tmp_path, texts) == ""
    allowed = {line.removeprefix("!") for line in texts[".dockerignore"].splitlines()[1:]}
    copied = [
        name
        for line in texts["Dockerfile"].splitlines()
        if line.startswith("COPY ") and "--from=" not in line
        for name in line.split()[1:-1]
    ]
    assert set(copied) == allowed == {name.partition("/")[0] for name in texts} - {"Dockerfile", ".dockerignore"}


def test_an_edit_by_hand_is_shown_as_a_diff(texts: dict[str, str], tmp_path: Path) -> None:
    build.write(tmp_path, texts)
    file = tmp_path / "Dockerfile"
    file.write_text(file.read_text().replace("USER 10001:10001", "USER root"))
    (tmp_path / "requirements.txt").unlink()
    diff = build.compare(tmp_path, texts)
    assert "-USER root\n" in diff and "+USER 10001:10001\n" in diff
    assert f"{tmp_path / 'requirements.txt'} is missing" in diff
    file.write_text(file.read_text().rstrip("\n"))
    assert "no line break at the end" in build.compare(tmp_path, texts)
    file.write_text("")
    assert "more lines of" in build.compare(tmp_path, texts)


def test_a_folder_that_cannot_be_written_is_no_traceback(texts: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with fails("output-unwritable"):
        build.write(tmp_path / "file", texts)
