"""What wheels and trees take on a disk: read from listings, written into locks, covered by no digest."""

from __future__ import annotations

import os
import re
import zipfile
from pathlib import Path

import pytest

from envbuild.lock.files import read_lock
from envbuild.lock.readers.git import git_reader
from envbuild.lock.readers.wheel_record import of_wheel
from envbuild.lock.record import write_lock
from envbuild.lock.sources import taken_by, with_what_trees_say
from envbuild.model.common import BLOCK, Unpacked
from envbuild.model.stack import Source
from envbuild.node import paths
from tests.lock.build import MakeSupply, make, make_wheel, stack
from tests.lock.conftest import Repos, locked
from tests.support.repositories import git, lose_file
from tests.support.served import Silent, serving
from tests.support.wheels import write_wheel


def taken(folder: Path) -> Unpacked:
    """What lies below a folder, as a file system of 4 KiB blocks has it."""
    found = list(folder.rglob("*"))
    files = [path.stat().st_size for path in found if path.is_file() and not path.is_symlink()]
    blocks = sum(-(-size // BLOCK) for size in files) + sum(path.is_dir() for path in found)
    return Unpacked(bytes=blocks * BLOCK, inodes=len(found))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two thousand files of odd sizes: its listing is longer than what is asked for first."""
    files = {f"a/{number % 7}/module_{number}.py": os.urandom(number * 5 % 9000) for number in range(2000)}
    return write_wheel(tmp_path_factory.mktemp("wheel"), "a", "1.0", files)


class _Parts(Silent):
    """Gives the last bytes of `file` where it is asked for them, and all of it where `gives_parts` is False."""

    file: Path
    gives_parts = True

    def do_GET(self) -> None:
        data = self.file.read_bytes()
        last = re.fullmatch(r"bytes=-(\d+)", self.headers.get("Range", ""))
        part = data[-int(last[1]) :] if last and self.gives_parts else data
        self.answer(200 if part is data else 206, part)


def test_d11_a_wheel_takes_what_its_listing_says_of_which_only_the_end_is_fetched(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "out")
    assert of_wheel(wheel.as_uri()) == taken(tmp_path / "out")
    assert wheel.stat().st_size > 4 << 20
    handler = type("Handler", (_Parts,), {"file": wheel})
    with serving(handler) as server:
        url = f"{server}/{wheel.name}"
        assert of_wheel(url) == of_wheel(wheel.as_uri())
        handler.gives_parts = False
        assert of_wheel(url) is None
    (tmp_path / "b-1.0-py3-none-any.whl").write_bytes(b"no archive")
    unknown = ((tmp_path / name).as_uri() for name in ("b-1.0-py3-none-any.whl", "d-1.0.tar.gz"))
    for address in (*unknown, "http://127.0.0.1:9/c-1.0-py3-none-any.whl"):
        assert of_wheel(address) is None


def test_d11_a_tree_takes_what_git_lists_with_its_submodules(repos: Repos, tmp_path: Path) -> None:
    repos.create("inner")
    repos.commit("inner", "b.txt", "x" * 5000)
    repos.create("outer")
    repos.git("outer", "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", repos.url("inner"), "sub/in")
    (repos.folder / "outer" / "link").symlink_to("README")
    commit = repos.commit("outer", "c.txt", "y")
    asked = {"name": "o", "git": repos.url("outer"), "commit": commit, "submodules": True}
    source = locked(Source.from_plain(asked))
    git(tmp_path, "clone", "-q", "--recurse-submodules", str(repos.folder / "outer"), "out")
    for meta in (".git", "sub/in/.git"):
        paths.remove_tree(str(tmp_path / "out" / meta))
    with git_reader() as reader:
        assert taken_by(source, reader) == taken(tmp_path / "out")


def test_d11_a_lock_says_what_its_files_take_and_no_digest_covers_it(
    tmp_path: Path, repos: Repos, supply: MakeSupply
) -> None:
    repos.create("s")
    make_wheel(tmp_path / "house", "alpha", "1.0")
    sources = [{"name": "s", "git": repos.url("s"), "commit": repos.git("s", "rev-parse", "HEAD")}]
    file, lock = tmp_path / "my.lock.toml", make(stack(packages=["alpha"], sources=sources), supply(tmp_path / "house"))
    write_lock(file, lock)
    text, (variant,) = file.read_text(), read_lock(file).variants
    assert variant.packages[0].files[0].unpacked == Unpacked(bytes=5 * BLOCK, inodes=5)
    assert variant.sources[0].unpacked == Unpacked(bytes=BLOCK, inodes=1)
    assert variant.without_sizes().compute_digest("demo", "exact") == variant.digest

    file.write_text(re.sub(r"(, |\n)unpacked = {[^}]*}", "", text))
    assert read_lock(file).variants == (variant.without_sizes(),)
    # What is not to be had stays unknown.
    said: list[str] = []
    lose_file(repos.folder / "s", "README")
    bare = [source.model_copy(update={"unpacked": None}) for source in variant.sources]
    with git_reader() as reader:
        (source,) = with_what_trees_say(bare, None, reader, said.append)
    assert source.unpacked is None
    assert "the tree of s was not measured" in [text.split(":")[0] for text in said]
