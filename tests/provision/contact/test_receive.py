"""Files of a node over SSH with real servers: whole and checked, or not at all, and gone from the node."""

from __future__ import annotations

import hashlib
import os
import resource
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envbuild.model.target import Connection
from envbuild.provision.contact.wheel_stores import LIMIT, receive
from tests.support.fails import fails
from tests.transport.test_ssh import StartServer, client, options, start

__all__ = ["client", "start"]
DATA = os.urandom(300_000) + b"\n===envbuild file"


def told(data: bytes = DATA) -> dict[str, Any]:
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "it's a pack.tar"
    path.write_bytes(DATA)
    return path


def test_a_file_arrives_whole_and_is_gone_there(start: StartServer, client: Path, tmp_path: Path, file: Path) -> None:
    server = start()
    (server.home / ".bashrc").write_text("echo ===envbuild file; echo noise >&2\n")
    receive(server.address, str(file), tmp_path / "to", connection=options(client, server, server.known), **told())
    assert (tmp_path / "to").read_bytes() == DATA
    assert not file.exists()


@pytest.mark.parametrize(
    ("change", "code", "number"),
    [
        ({"size": len(DATA) + 1}, "transfer-cut-off", 3),
        ({"size": len(DATA) - 1}, "transfer-damaged", 5),
        ({"sha256": "0" * 64}, "transfer-damaged", 5),
        ({"size": LIMIT + 1}, "transfer-too-large", 7),
        ({"size": 1 << 33}, "disk-full", 75),
    ],
)
def test_what_is_not_the_file_does_not_stay(
    start: StartServer,
    client: Path,
    tmp_path: Path,
    file: Path,
    change: dict[str, Any],
    code: str,
    number: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = start()
    # No test fills a disk.
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1 << 32))
    with fails(code, number):
        receive(
            server.address, str(file), tmp_path / "to", connection=options(client, server, server.known),
            **{**told(), **change},
        )  # fmt: skip
    assert not [path for path in tmp_path.iterdir() if path.name.endswith((".half", "to"))]


def test_a_file_that_is_not_there_is_told_with_the_words_of_the_node(
    start: StartServer, client: Path, tmp_path: Path
) -> None:
    server = start()
    with fails("transfer-cut-off") as found:
        receive(
            server.address, "/nowhere/pack", tmp_path / "to", connection=options(client, server, server.known), **told()
        )
    assert "/nowhere/pack" in found.value.why


def test_on_this_machine_a_file_is_copied(tmp_path: Path, file: Path) -> None:
    receive("localhost", str(file), tmp_path / "to", connection=Connection(kind="local"), **told())
    assert (tmp_path / "to").read_bytes() == DATA
    assert not file.exists()


@pytest.mark.slow
def test_hundreds_of_megabytes_need_no_memory(start: StartServer, client: Path, tmp_path: Path) -> None:
    server, path, block = start(), tmp_path / "large", os.urandom(1 << 20)
    total = hashlib.sha256()
    with path.open("wb") as out:
        for _ in range(400):
            out.write(block)
            total.update(block)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.monotonic()
    receive(
        server.address, str(path), tmp_path / "to", size=400 << 20, sha256=total.hexdigest(),
        connection=options(client, server, server.known),
    )  # fmt: skip
    seconds = time.monotonic() - began
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    sys.stderr.write(f"400 MiB in {seconds:.1f} s, {grown / 1024:.0f} MiB more memory\n")
    assert grown < 64 << 10
