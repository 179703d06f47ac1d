"""Archives that no honest channel has: each is refused by name, and nothing is written anywhere."""

from __future__ import annotations

import hashlib
import sys
import tarfile
from pathlib import Path
from typing import Any, Literal

import pytest

from envbuild.node.conda import layout, prefix
from envbuild.node.conda.meta import Placeholder
from tests.node.conda.support import CondaNode, rattler_folder
from tests.node.env_support import Node
from tests.support.conda import Channel, File, Package, member
from tests.support.fails import fails
from tests.support.served import served

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


Read = list[tuple[dict[str, Any], dict[str, Any]]]


def read(top: Path, packages: list[Package]) -> Read:
    """Each package as it is locked, and what rattler reads in its archive; one process for all of them."""
    locked, paths = [], []
    for number, package in enumerate(packages):
        channel = Channel(top / str(number))
        locked.append(channel.add(package))
        paths.append(str(channel.folder / package.subdir / package.file))
    tools = {"rattler": rattler_folder(), "rattler_python": sys.executable}
    contents = prefix.read(tools, str(top), paths)
    return [(each, contents[path]) for each, path in zip(locked, paths, strict=True)]


def planned(*read: tuple[dict[str, Any], dict[str, Any]]) -> layout.Layout:
    contents = {package["name"]: content for package, content in read}
    return layout.plan([package for package, _ in read], contents, "3.11", "/prefix/envs/x")


SUFFIXES: tuple[Literal[".conda", ".tar.bz2"], ...] = (".conda", ".tar.bz2")
CASES = [(case, suffix) for case in UNSAFE for suffix in SUFFIXES]


def evil(case: str, suffix: Literal[".conda", ".tar.bz2"]) -> Package:
    return Package("evil", suffix=suffix, **{"files": {"lib/fine": b"x"}, **UNSAFE[case]})


@pytest.fixture(scope="module")
def unsafe(tmp_path_factory: pytest.TempPathFactory) -> Read:
    """Every unsafe archive, which is read and writes nothing by that."""
    top = tmp_path_factory.mktemp("unsafe")
    found = read(top, [evil(*case) for case in CASES])
    assert not list(top.rglob("*evil"))
    return found


@pytest.mark.parametrize("number", range(len(CASES)), ids=[f"{case}{suffix}" for case, suffix in CASES])
def test_an_unsafe_archive_is_refused_by_its_member(unsafe: Read, number: int) -> None:
    with fails("conda-package-unsafe", 5) as caught:
        planned(unsafe[number])
    assert caught.value.what.startswith(f"{unsafe[number][0]['file']} holds ")


def test_a_refused_archive_is_not_unpacked(bare: CondaNode) -> None:
    bare.fails(bare.variant(bare.add(evil("file through a link", ".conda"))), "conda-package-unsafe", 5)
    assert not list(bare.top.rglob("*evil")), "nothing was written"


def test_no_package_replaces_what_another_has(tmp_path: Path) -> None:
    run, one, other, link, folder, entry = read(
        tmp_path,
        [
            Package("run", files={"bin/run": b"x"}),
            Package("one", files={"share/common": b"same"}),
            Package("other", files={"share/common": b"other"}),
            Package("link", files={"lib/x": File(link="y")}),
            Package("folder", files={"lib/x/y": b"1"}),
            Package("entry", subdir="noarch", entry_points=("run = two:main",)),
        ],
    )
    for pair in ((run, entry), (link, folder), (one, other)):
        with fails("conda-clobber", 7) as caught:
            planned(*pair)
        assert all(f"{package['name']} 1.0 0" in caught.value.what for package, _ in pair)


def test_names_that_differ_in_case_alone_are_refused_where_they_are_one_file(
    bare: CondaNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envbuild.node.conda.prefix._folds_case", lambda folder: True)
    package = Package("terms", files={"share/N": b"1", "share/n": b"2"})
    assert "same file" in bare.fails(bare.variant(bare.add(package)), "conda-clobber", 7).why


def test_an_archive_that_says_it_is_another_package_is_refused(tmp_path: Path) -> None:
    keys = ("name", "version", "build", "subdir")
    told = {"name": "tool", "version": "1.0", "build": "0", "subdir": "linux-64"}
    for locked, content in read(tmp_path, [Package("tool", index={key: "other"}) for key in keys]):
        with fails("record-mismatch", 5) as caught:
            planned(({**locked, **told}, content))
        assert "other" in caught.value.what


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_archive_that_is_cut_short_is_damaged(bare: CondaNode, suffix: Literal[".conda", ".tar.bz2"]) -> None:
    package = Package("tool", files={"lib/x": b"x" * 5000}, suffix=suffix)
    locked = bare.add(package)[0]
    path = bare.channel.folder / "linux-64" / package.file
    path.write_bytes(path.read_bytes()[:-200])
    cut = bare.channel.take(path, package.index_json())
    bare.fails(bare.variant([cut]), "artifact-damaged", 5)
    error = bare.fails(bare.variant([locked]), "hash-mismatch", 5)
    assert cut["sha256"] in error.why and locked["sha256"] in error.why


def test_an_archive_is_fetched_once_and_from_the_next_address_where_the_first_has_none(bare: CondaNode) -> None:
    locked = bare.add(Package("evil", files={"lib/out": File(link="/etc")}))
    wrong = [dict(locked[0], sha256="0" * 64)]

    def ends(code: str, exit_code: int, conda: list[dict[str, Any]], *addresses: str) -> None:
        channels = {"channels": {"conda-forge": list(addresses)}} if addresses else {}
        artifacts = {"find_links": [], "offline": False, "conda": channels}
        bare.fails(bare.variant(conda), code, exit_code, artifacts=artifacts)

    with served(bare.channel.folder) as url:
        ends("conda-package-unsafe", 5, locked, f"{url}/nothing", url)
        kept = list(Path(bare.cache, "conda").iterdir())
        assert [path.name for path in kept] == [f"{locked[0]['sha256'][:12]}-evil-1.0-0.conda"]
        ends("hash-mismatch", 5, wrong, url, f"{url}/nothing")
        ends("network-unreachable", 75, wrong, f"{url}/nothing")
        ends("package-not-found", 4, wrong)
    ends("conda-package-unsafe", 5, locked, "http://127.0.0.1:9/gone")  # it lies in a cache that lasts


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
