"""Archives that no honest channel has: each is refused by name, and nothing is written anywhere."""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from envbuild.node.conda.meta import Placeholder
from tests.node.conda.support import CondaNode
from tests.node.env_support import Node
from tests.support.conda import File, Package, member
from tests.support.served import served as served_

ROW = {"path_type": "hardlink", "sha256": "0" * 64, "size_in_bytes": 7}
UNSAFE: dict[str, dict[str, Any]] = {
    "traversal": {"members": [member("../../evil")]},
    "listed traversal": {"paths": [{"_path": "../../evil", **ROW}]},
    "absolute": {"members": [member("/tmp/evil")]},
    "link that leaves": {"files": {"lib/out": File(link="../../../etc")}},
    "absolute link": {"files": {"lib/out": File(link="/etc/hostname")}},
    "file through a link": {"members": [member("lib/l", tarfile.SYMTYPE, "../../x"), member("lib/l/evil")]},
    "hard link": {"members": [member("lib/h", tarfile.LNKTYPE, "/etc/hostname")]},
    "pipe": {"members": [member("lib/f", tarfile.FIFOTYPE)]},
    "twice": {"members": [member("lib/d"), member("lib/d")]},
    "conda-meta": {"files": {"conda-meta/other-1.0-0.json": b"{}"}},
    "stamp": {"files": {".envbuild/stamp.json": b"{}"}},
    "listed and absent": {"paths": [{"_path": "lib/absent", **ROW}]},
    "no entry point": {"subdir": "noarch", "entry_points": ("../../x = a:b",)},
}


@pytest.fixture
def bare(node: Node) -> CondaNode:
    """A node whose channel has no Python: what is refused is refused before one is needed."""
    return CondaNode(node.top, None)


@pytest.mark.parametrize("suffix", [".conda", ".tar.bz2"])
@pytest.mark.parametrize("case", UNSAFE)
def test_an_unsafe_archive_is_refused_by_its_member(
    bare: CondaNode, case: str, suffix: Literal[".conda", ".tar.bz2"]
) -> None:
    package = Package("evil", suffix=suffix, **{"files": {"lib/fine": b"x"}, **UNSAFE[case]})
    error = bare.fails(bare.variant(bare.add(package)), "conda-package-unsafe", 5)
    assert error.what.startswith(f"evil-1.0-0{suffix} holds ")
    assert not list(bare.top.rglob("*evil")), "nothing was written"


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ({"files": {"bin/run": b"x"}}, {"subdir": "noarch", "entry_points": ("run = two:main",)}),
        ({"files": {"lib/x": File(link="y")}}, {"files": {"lib/x/y": b"1"}}),
    ],
    ids=["an entry point in the place of a file", "a folder in the place of a link"],
)
def test_no_package_replaces_what_another_has(bare: CondaNode, one: dict[str, Any], two: dict[str, Any]) -> None:
    bare.fails(bare.variant(bare.add(Package("one", **one), Package("two", **two))), "conda-clobber", 7)


def test_names_that_differ_in_case_alone_are_refused_where_they_are_one_file(
    bare: CondaNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envbuild.node.conda.prefix._folds_case", lambda folder: True)
    package = Package("terms", files={"share/N": b"1", "share/n": b"2"})
    assert "same file" in bare.fails(bare.variant(bare.add(package)), "conda-clobber", 7).why


@pytest.mark.parametrize("key", ["name", "version", "build", "subdir"])
def test_an_archive_that_says_it_is_another_package_is_refused(bare: CondaNode, key: str) -> None:
    package = Package("tool", index={key: "other"})
    locked = {**bare.add(package)[0], "name": "tool", "version": "1.0", "build": "0", "subdir": "linux-64"}
    assert "other" in bare.fails(bare.variant([locked]), "record-mismatch", 5).what


@pytest.mark.parametrize("suffix", [".conda", ".tar.bz2"])
def test_an_archive_that_is_cut_short_is_damaged(bare: CondaNode, suffix: Literal[".conda", ".tar.bz2"]) -> None:
    package = Package("tool", files={"lib/x": b"x" * 5000}, suffix=suffix)
    locked = bare.add(package)[0]
    path = bare.channel.folder / "linux-64" / package.file
    path.write_bytes(path.read_bytes()[:-200])
    cut = bare.channel.take(path, package.index_json())
    bare.fails(bare.variant([cut]), "artifact-damaged", 5)
    error = bare.fails(bare.variant([locked]), "hash-mismatch", 5)
    assert cut["sha256"] in error.why and locked["sha256"] in error.why


@pytest.fixture
def served(bare: CondaNode) -> Iterator[str]:
    """The channel's folder over HTTP: its address."""
    with served_(bare.channel.folder) as url:
        yield url


def test_an_archive_is_fetched_from_the_next_address_where_the_first_has_none(bare: CondaNode, served: str) -> None:
    bad = Package("evil", files={"lib/out": File(link="/etc")})
    locked = bare.add(bad)
    channels = {"channels": {"conda-forge": [f"{served}/nothing", served]}}
    artifacts = {"find_links": [], "offline": False, "conda": channels}
    bare.fails(bare.variant(locked), "conda-package-unsafe", 5, artifacts=artifacts)
    wrong = [dict(locked[0], sha256="0" * 64)]
    bare.fails(bare.variant(wrong), "hash-mismatch", 5, artifacts=artifacts)
    nowhere = dict(artifacts, conda={"channels": {"conda-forge": [f"{served}/nothing"]}})
    bare.fails(bare.variant(wrong), "network-unreachable", 75, artifacts=nowhere)
    bare.fails(bare.variant(wrong), "package-not-found", 4, artifacts=dict(artifacts, conda={}))


def test_nothing_is_fetched_twice_into_a_lasting_cache(bare: CondaNode, served: str) -> None:
    locked = bare.add(Package("evil", files={"lib/out": File(link="/etc")}))
    artifacts = {"find_links": [], "offline": False, "conda": {"channels": {"conda-forge": [served]}}}
    bare.fails(bare.variant(locked), "conda-package-unsafe", 5, artifacts=artifacts)
    kept = list(Path(bare.cache, "conda").iterdir())
    assert [path.name for path in kept] == [f"{locked[0]['sha256'][:12]}-evil-1.0-0.conda"]
    artifacts["conda"] = {"channels": {"conda-forge": ["http://127.0.0.1:9/gone"]}}
    bare.fails(bare.variant(locked), "conda-package-unsafe", 5, artifacts=artifacts)


def test_a_binary_placeholder_is_put_back_with_its_padding_and_a_changed_byte_shows() -> None:
    prefix, root = b"/opt/placeholder_of_some_length", b"/short"
    original = b"\0" + prefix + b"/lib:" + prefix + b"/b\0\0next" + prefix + b"\0"
    pad = len(prefix) - len(root)
    strings = (root + b"/lib:" + root + b"/b" + b"\0" * 2 * pad, root + b"\0" * pad)
    installed = b"\0" + strings[0] + b"\0\0next" + strings[1] + b"\0"
    said = Placeholder(prefix, hashlib.sha256(original).hexdigest(), text=False)
    assert len(installed) == len(original) and said.digest(installed, root) == said.sha256
    for place in range(len(installed)):
        changed = bytearray(installed)
        changed[place] ^= 1
        assert said.digest(bytes(changed), root) != said.sha256, place
