"""A file goes from process to process along a tree; who lies, stops or comes too late is found out."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from envbuild.node import paths
from envbuild.node.packs import relay, relay_tls
from envbuild.node.protocol import NodeError
from envbuild.provision.fleet.pack_routes import _certificate
from tests.support.patience import PATIENCE, until

DATA = os.urandom(1 << 20) * 3
SHA = hashlib.sha256(DATA).hexdigest()
NAME = "tiny-exact-0123456789ab.tar"
CERTIFICATE, KEY = _certificate()
TOKENS = {name: str(number) * 64 for number, name in enumerate("abcdef")}


def free_ports(count: int = 2) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


class Place:
    """A prefix that stands for a node; `run` is the verb in a process of its own."""

    def __init__(self, top: Path, name: str) -> None:
        self.name = name
        self.prefix = top / name
        self.file = self.prefix / paths.PACKS / NAME
        self.ports = free_ports()

    def args(self, parent: Place | None = None, children: tuple[Place, ...] = (), **more: Any) -> dict[str, Any]:
        args: dict[str, Any] = {"file": str(self.file), "sha256": SHA, "bytes": len(DATA), "patience": 2, **more}
        if parent is not None:
            args["parent"] = {"address": "127.0.0.1", "ports": parent.ports, "token": TOKENS[self.name]}
            args["parent"]["certificate"] = CERTIFICATE
        if children:
            args["children"] = [{"name": child.name, "token": TOKENS[child.name]} for child in children]
            args["listen"] = {"address": "127.0.0.1", "ports": self.ports, "certificate": CERTIFICATE, "key": KEY}
        return args

    def put(self, data: bytes = DATA) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_bytes(data)

    def request(self, args: dict[str, Any]) -> dict[str, Any]:
        return {"protocol": 1, "verb": "relay", "run": "r", "prefix": str(self.prefix), "args": args}

    def run(self, args: dict[str, Any]) -> tuple[bool, dict[str, Any]]:
        return relay.run(self.request(args))

    def start(self, args: dict[str, Any]) -> subprocess.Popen[str]:
        started = subprocess.Popen(
            [sys.executable, "-m", "envbuild.node", "relay"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert started.stdin is not None
        started.stdin.write(json.dumps(self.request(args)))
        started.stdin.close()
        started.stdin = None
        return started


def ended(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=PATIENCE)
    assert out, err
    data = json.loads(out)
    assert isinstance(data, dict)
    return data


@pytest.fixture
def places(tmp_path: Path) -> Iterator[list[Place]]:
    yield [Place(tmp_path, name) for name in "abcdef"]


def code(args: dict[str, Any], place: Place) -> tuple[str, int]:
    with pytest.raises(NodeError) as caught:
        place.run(args)
    return caught.value.code, caught.value.exit_code


def test_all_of_a_tree_get_the_file_whoever_begins_first(places: list[Place]) -> None:
    a, b, c, d, e, f = places
    a.put()
    started = [
        e.start(e.args(b)),
        d.start(d.args(c)),
        c.start(c.args(a, (d,))),
        b.start(b.args(a, (e, f))),
        f.start(f.args(b)),
        a.start(a.args(None, (b, c))),
    ]
    answers = [ended(each) for each in started]
    assert all(each["ok"] for each in answers), answers
    results = [each["result"] for each in answers]
    assert [each["given"] for each in results] == [[], [], ["d"], ["e", "f"], [], ["b", "c"]]
    assert {each.file.read_bytes() == DATA for each in places} == {True}
    assert [sorted(path.name for path in each.file.parent.iterdir()) for each in places] == [[NAME]] * 6


def test_what_is_there_is_not_sent_again_and_the_parent_does_not_wait(places: list[Place]) -> None:
    a, b = places[:2]
    a.put()
    b.put()
    began = time.monotonic()
    child = b.start(b.args(a, patience=2 * PATIENCE))
    changed, told = a.run(a.args(None, (b,), patience=2 * PATIENCE))
    assert (changed, told["given"], told["missed"]) == (False, [], ["b"])
    assert ended(child)["result"]["there"]
    assert time.monotonic() - began < PATIENCE


def test_a_changed_byte_is_found_and_nothing_stays(places: list[Place]) -> None:
    a, b = places[:2]
    bad = bytearray(DATA)
    bad[1 << 20] ^= 1
    a.put()
    giving = threading.Thread(target=lambda: a.run(a.args(None, (b,), sha256=hashlib.sha256(bad).hexdigest())))
    a.put(bytes(bad))
    giving.start()
    assert code(b.args(a), b) == ("transfer-damaged", 5)
    giving.join()
    assert list(b.file.parent.iterdir()) == []


def test_a_root_whose_file_is_another_gives_nothing(places: list[Place]) -> None:
    a, b = places[:2]
    a.put(DATA[:-1])
    assert code(a.args(None, (b,)), a) == ("transfer-damaged", 5)


def test_a_parent_that_is_not_there_is_named_in_time(places: list[Place]) -> None:
    a, b = places[:2]
    began = time.monotonic()
    assert code(b.args(a, patience=0.5), b) == ("peer-unreachable", 3)
    assert time.monotonic() - began < PATIENCE
    assert list(b.file.parent.iterdir()) == []


def test_who_waits_for_a_parent_that_gets_nothing_itself_is_told(places: list[Place]) -> None:
    a, b, c = places[:3]
    child = c.start(c.args(b, patience=20))
    assert code(b.args(a, (c,), patience=1.5), b) == ("peer-unreachable", 3)
    answer = ended(child)
    assert (answer["error"]["code"], answer["error"]["exit"]) == ("peer-gave-up", 3)


def test_a_child_that_does_not_come_is_missed_and_the_others_are_served(places: list[Place]) -> None:
    a, b, c = places[:3]
    a.put()
    child = c.start(c.args(a))
    _, told = a.run(a.args(None, (b, c)))
    assert (told["given"], told["missed"]) == (["c"], ["b"])
    assert ended(child)["ok"]


def test_nobody_without_the_token_gets_the_file_and_a_token_is_good_once(places: list[Place]) -> None:
    a, b = places[:2]
    a.put()
    giving = threading.Thread(target=lambda: a.run(a.args(None, (b,), patience=2)))
    giving.start()

    def ask(token: str) -> bytes:
        with relay_tls.taking({"certificate": CERTIFICATE}).wrap_socket(reached(a)) as connection:
            connection.sendall(token.encode())
            return connection.recv(1 << 16).lstrip(b".")[:1]

    assert ask("0" * 64) == b""
    assert ask(TOKENS["b"]) in (b"F", b""), "the dots may come alone first"
    assert ask(TOKENS["b"]) == b""
    giving.join()


def reached(place: Place) -> socket.socket:
    """A connection to who gives, as soon as it listens."""

    def connected() -> socket.socket | None:
        try:
            return socket.create_connection(("127.0.0.1", place.ports[0]), timeout=5)
        except OSError:
            return None

    found = until(connected)
    assert found is not None
    return found


def test_d30_nobody_without_tls_gets_a_byte_of_the_file(places: list[Place]) -> None:
    a, b = places[:2]
    a.put()
    giving = threading.Thread(target=lambda: a.run(a.args(None, (b,), patience=2)))
    giving.start()
    for words in (TOKENS["b"].encode(), b"GET / HTTP/1.1\r\n\r\n"):
        with reached(a) as connection, suppress(ConnectionError):
            connection.sendall(words)
            heard = b"".join(iter(lambda: connection.recv(1 << 16), b""))
            assert len(heard) < 16, "an alert of TLS at most"
    giving.join()


def test_d30_a_child_takes_nothing_from_who_has_another_certificate(places: list[Place]) -> None:
    a, b = places[:2]
    a.put()
    other, key = _certificate()
    listen = {"listen": {"address": "127.0.0.1", "ports": a.ports, "certificate": other, "key": key}}
    giving = threading.Thread(target=lambda: a.run({**a.args(None, (b,), patience=2), **listen}))
    giving.start()
    with pytest.raises(NodeError) as caught:
        args = b.args(a, patience=1)
        args["parent"]["ports"] = a.ports[:1]
        b.run(args)
    assert (caught.value.code, caught.value.exit_code) == ("peer-unreachable", 3)
    assert "certificate verify failed" in (caught.value.why or "")
    assert list(b.file.parent.iterdir()) == []
    giving.join()


def test_d30_what_goes_over_the_network_is_not_what_is_in_the_file(places: list[Place]) -> None:
    a, b = places[:2]
    text = b"this is what nobody else may read\n" * 2000
    args = {"sha256": hashlib.sha256(text).hexdigest(), "bytes": len(text)}
    a.put(text)
    child = b.args(a, **args)
    with socket.create_server(("127.0.0.1", 0)) as between:
        child["parent"]["ports"] = [between.getsockname()[1]]
        giving = a.start(a.args(None, (b,), **args))
        taking = b.start(child)
        down, up = between.accept()[0], reached(a)
        seen = bytearray()

        def pass_on(source: socket.socket, to: socket.socket) -> None:
            for data in iter(lambda: source.recv(1 << 16), b""):
                seen.extend(data)
                to.sendall(data)

        for ends in ((up, down), (down, up)):
            threading.Thread(target=pass_on, args=ends, daemon=True).start()
        assert ended(taking)["ok"]
        assert ended(giving)["ok"]
    assert len(seen) > len(text)
    assert b"nobody else" not in seen
    assert TOKENS["b"].encode() not in seen
    assert b.file.read_bytes() == text


def test_d30_a_python_without_ssl_leaves_the_way_to_the_controller(
    places: list[Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = places[:2]
    a.put()
    monkeypatch.setattr(relay_tls, "ssl", None)
    for place, args in ((a, a.args(None, (b,))), (b, b.args(a))):
        assert code(args, place) == ("peer-unreachable", 3)


def test_another_program_on_the_port_is_passed_over(places: list[Place]) -> None:
    a, b = places[:2]
    a.put()
    with socket.create_server(("127.0.0.1", a.ports[0])) as other:

        def answer() -> None:
            while True:
                try:
                    connection = other.accept()[0]
                except OSError:
                    return
                with connection:
                    connection.sendall(b"SSH-2.0-OpenSSH\r\n" + b" " * 100)

        threading.Thread(target=answer, daemon=True).start()
        child = b.start(b.args(a))
        _, told = a.run(a.args(None, (b,)))
    assert told["given"] == ["b"]
    assert ended(child)["ok"]


def test_a_full_disk_is_said_before_anything_is_sent(places: list[Place], monkeypatch: pytest.MonkeyPatch) -> None:
    b = places[1]
    real = os.statvfs

    def full(path: Any) -> Any:
        found = list(real(path))
        found[4] = 1
        return os.statvfs_result(found)

    monkeypatch.setattr(os, "statvfs", full)
    assert code(b.args(places[0]), b) == ("disk-full", 75)


def test_only_a_plain_name_in_the_folder_for_packs_is_touched(places: list[Place]) -> None:
    a = places[0]
    for bad in (f"{a.prefix}/tools/x", f"{a.prefix}/store/packs/../../x", f"{a.prefix}/store/packs/.x", "x", None):
        assert code({"file": bad, "remove": True}, a) == ("request-invalid", 2)


def test_a_pack_is_removed_with_its_record(places: list[Place]) -> None:
    a = places[0]
    a.put()
    record = a.file.with_suffix(".json")
    record.write_text("{}")
    assert a.run({"file": str(a.file), "remove": True})[0]
    assert list(a.file.parent.iterdir()) == []
    assert not a.run({"file": str(a.file), "remove": True})[0]


def test_what_a_killed_run_left_more_than_a_day_ago_is_swept(places: list[Place]) -> None:
    a, b = places[:2]
    b.file.parent.mkdir(parents=True)
    old, young = b.file.with_name("old.tar.half-1"), b.file.with_name("young.tar.half-2")
    for each in (old, young):
        each.write_text("half")
    os.utime(old, (1, 1))
    assert code(b.args(a, patience=0.1), b) == ("peer-unreachable", 3)
    assert [path.name for path in b.file.parent.iterdir()] == [young.name]
