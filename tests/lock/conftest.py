from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from envbuild.catalog.indexes import IndexEntry
from envbuild.errors import EnvbuildError
from envbuild.lock.readers.git import git_reader
from envbuild.lock.readers.torch_wheels import Supply
from envbuild.lock.sources import lock_source
from envbuild.model.lock import ArtifactFile, LockedSource
from envbuild.model.stack import Source
from tests.lock.build import index_at
from tests.support import known_pythons
from tests.support.files import write_file
from tests.support.repositories import git


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh HOME without pip, uv or git configuration; uv may only use find-links."""
    folder = tmp_path / "home"
    folder.mkdir()
    for key in [k for k in os.environ if k.startswith(("PIP_", "UV_", "GIT_", "XDG_"))]:
        monkeypatch.delenv(key)
    monkeypatch.setenv("HOME", str(folder))
    write_file(folder / ".config" / "uv" / "uv.toml", "no-index = true\n")
    known_pythons.tell(tmp_path / "uv-cache")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    (folder / ".gitconfig").write_text("[user]\nname = t\nemail = t@example.org\n[init]\ndefaultBranch = main\n")
    return folder


@pytest.fixture
def supply(home: Path) -> Callable[..., Supply]:
    def make(*links: Path, records: tuple[ArtifactFile, ...] = (), requires: dict[str, tuple[str, ...]] | None = None,
             url: str = "", reachable: bool = False) -> Supply:  # fmt: skip
        def torch_index(version: str, flavour: str) -> IndexEntry:
            if flavour not in ("cpu", "cu111", "cu118"):
                raise EnvbuildError("index-unknown", f"no package index is known for torch {version}+{flavour}")
            return index_at(f"pytorch-{flavour}", url or f"https://example.org/whl/{flavour}")

        return Supply(
            find_links=tuple(str(link) for link in links),
            torch_index=torch_index,
            pypi_flavours={"1.0.0": "cu130", "1.8.1": "cu102", "1.8.2": None, "2.0.1": "cu117", "2.5.0": "cu124"},
            records={record.file: record for record in records},
            requires=requires or {},
            reachable=lambda _: reachable,
        )

    return make


def locked(source: Source) -> LockedSource:
    """A source as it is locked, by a reader of its own."""
    with git_reader() as reader:
        return lock_source(source, reader)


class Repos:
    """Git repositories under one folder, reached as https://git.example.org/<name> through insteadOf."""

    def __init__(self, folder: Path, home: Path) -> None:
        self.folder = folder
        with (home / ".gitconfig").open("a") as stream:
            stream.write(f'[url "file://{folder}/"]\ninsteadOf = https://git.example.org/\n')
            stream.write('[protocol "file"]\nallow = always\n')

    def git(self, name: str, *arguments: str) -> str:
        return git(self.folder / name, *arguments)

    def create(self, name: str) -> str:
        self.git(name, "init", "-q", "--template=")
        return self.commit(name, "README", name)

    def commit(self, name: str, file: str, text: str) -> str:
        (self.folder / name / file).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name / file).write_text(text)
        self.git(name, "add", "-A")
        self.git(name, "commit", "-q", "-m", "change")
        return self.git(name, "rev-parse", "HEAD")

    def tree(self, name: str, commit: str) -> str:
        return self.git(name, "rev-parse", f"{commit}^{{tree}}")

    @staticmethod
    def url(name: str) -> str:
        return f"https://git.example.org/{name}"


@pytest.fixture
def repos(tmp_path: Path, home: Path) -> Repos:
    return Repos(tmp_path / "repos", home)
