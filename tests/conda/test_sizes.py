from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from envbuild.conda.solve import with_sizes
from envbuild.model.common import Unpacked
from envbuild.model.stack import CondaPackage
from tests.support.conda import Channel, Package
from tests.support.served import Folder, serving

FILES = {"bin/app": b"x" * 5000, "lib/a/b": b"y"}
TAKES = Unpacked.of({"bin/app": 5000, "lib/a/b": 1})


@pytest.fixture
def forge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Channel:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    return Channel(tmp_path / "forge", "forge")


def locked(forge: Channel, package: Package) -> CondaPackage:
    return CondaPackage.from_plain(forge.add(package))


def test_both_formats_are_measured_by_their_own_list(forge: Channel) -> None:
    packages = [
        locked(forge, Package("new", files=FILES)),
        locked(forge, Package("old", files=FILES, suffix=".tar.bz2")),
    ]
    said: list[str] = []
    found = with_sizes(packages, {"forge": [forge.url]}, said.append)
    assert [each.unpacked for each in found] == [TAKES, TAKES]
    assert said == []


def test_what_is_known_is_not_asked_again_and_what_cannot_be_read_is_said(forge: Channel, tmp_path: Path) -> None:
    known = locked(forge, Package("known", files=FILES)).model_copy(update={"unpacked": TAKES})
    damaged = locked(forge, Package("damaged", files=FILES))
    for path in (tmp_path / "forge" / "linux-64").glob("*.conda"):
        path.write_bytes(b"nonsense")
    said: list[str] = []
    found = with_sizes([known, damaged], {"forge": [forge.url]}, said.append)
    assert [each.unpacked for each in found] == [TAKES, None]
    assert said == ["what conda's damaged takes on a disk could not be read"]


def test_a_server_that_gives_no_ranges_is_not_asked_for_whole_archives(forge: Channel, tmp_path: Path) -> None:
    asked: list[str] = []

    class Handler(Folder):
        def do_GET(self) -> None:
            asked.append(self.path)
            super().do_GET()

    package = locked(forge, Package("old", files=FILES, suffix=".tar.bz2"))
    with serving(partial(Handler, directory=str(tmp_path / "forge"))) as address:
        (found,) = with_sizes([package], {"forge": [address]}, lambda _: None)
    assert found.unpacked is None
    assert asked == []
