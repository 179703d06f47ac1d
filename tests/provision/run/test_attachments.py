"""What lies beside the evidence: digests that hold, a root that can be computed again, and a size that can be kept."""

from __future__ import annotations

import base64
import gzip
import json
import random
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from envbuild.model import evidence
from envbuild.model.evidence import NodeEvidence
from envbuild.model.target import Target
from envbuild.provision.contact.first_contact import ContactResult
from envbuild.provision.run import conclude
from envbuild.provision.run.conclude import FileLists
from envbuild.provision.run.run_dir import RunDir


def many_files(count: int) -> dict[str, list[Any]]:
    """Rows as a torch environment has them: deep paths, and digests that nothing compresses."""
    chance = random.Random(7)
    names = ("nn/functional", "include/ATen/ops", "distributed/_tensor", "testing/_internal", "ao/quantization")
    return {
        f"lib/python3.11/site-packages/torch/{names[n % 5]}/module_{n // 7}_{n}.{'h' if n % 3 else 'py'}": [
            "file", chance.randbytes(32).hex(), chance.randrange(200_000), n % 50 == 0,
        ]
        for n in range(count)
    }  # fmt: skip


def test_a_list_of_15000_files_leaves_room_for_the_rest_of_a_run_of_one_megabyte_and_comes_back_whole() -> None:
    files = many_files(15_000)
    packed = evidence.pack(files)
    assert len(packed) < 640_000
    assert evidence.unpack(packed) == files
    assert evidence.pack(dict(reversed(files.items()))) == packed


NO_LISTS = {
    "empty": b"",
    "not compressed": b"{}",
    "truncated": evidence.pack(many_files(20))[:-9],
    "something behind it": evidence.pack(many_files(2)) + b"more",
    "no mapping": gzip.compress(b"1"),
    "no columns": gzip.compress(b"[1]"),
    "columns of two lengths": gzip.compress(b'[["a", "b"], ["file"]]'),
    "paths that are none": gzip.compress(b'[[[]], ["file"], [""], [1], [0]]'),
    "paths that are numbers": gzip.compress(json.dumps([[1], ["file"], ["0" * 64], [1], [0]]).encode()),
    "too few columns": gzip.compress(b'[["a"], ["file"]]'),
    "deeply nested": gzip.compress(b"[" * 200_000),
    "a tag that is a list": gzip.compress(json.dumps({"a": [["file"], "0" * 64, 1, 0]}).encode()),
    "a short digest": gzip.compress(json.dumps({"a": ["file", "0" * 63, 1, 0]}).encode()),
}


@pytest.mark.parametrize("data", NO_LISTS.values(), ids=NO_LISTS)
def test_what_is_no_list_of_files_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        evidence.unpack(data)


def test_a_list_larger_than_the_limit_is_refused() -> None:
    test_what_is_no_list_of_files_is_refused(gzip.compress(b" " * (evidence.LIMIT + 1), 1))


A, B = many_files(5), many_files(6)
RUN = RunDir(Path("r"))


def node(name: str, root: str | None, level: str = "measured") -> NodeEvidence:
    told = {"node": name, "status": "ok", "exit": 0, "root": root, "root_level": level, "environment": "/p/envs/e"}
    return NodeEvidence.from_plain(told)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of nodes that were asked; `b...` have the files B, `liar` some that are not of its root."""
    names: list[str] = []

    def contact(requests: Iterable[str], *_: Any, **__: Any) -> dict[str, ContactResult]:
        requests = list(requests)
        names.extend(requests)
        packed = {
            name: base64.b64encode(zlib.compress(json.dumps(B if name.startswith("b") else A).encode())).decode()
            for name in requests
        }
        return {
            name: ContactResult(name, {}, (), {"ok": True, "result": {"root": "", "files": text}}, 0)
            for name, text in packed.items()
        }

    monkeypatch.setattr(conclude, "contact", contact)
    return names


def target(kind: str = "ssh") -> Target:
    more = {"scheduler": {"kind": "slurm"}} if kind == "job" else {}
    return Target.from_plain({"name": "t", "hosts": ["a1"], "prefix": "/p", "connection": {"kind": kind}, **more})


def test_one_node_is_asked_for_each_measured_root_and_nobody_twice(asked: list[str]) -> None:
    roots = evidence.root(A), evidence.root(B)
    nodes = [node("a1", roots[0]), node("a2", roots[0]), node("b1", roots[1]), node("a3", roots[0], "stamped")]
    lists = FileLists(target(), RUN)
    assert lists(nodes[:1]) == {"a1": A}
    assert lists.by_root(nodes) == {roots[0]: A, roots[1]: B}
    assert asked == ["a1", "b1"]


def test_a_list_that_does_not_give_the_root_is_not_kept_and_a_stamped_root_asks_nobody(asked: list[str]) -> None:
    lists = FileLists(target(), RUN)
    assert lists.by_root([node("liar", evidence.root(B)), node("a1", "0" * 64, "stamped")]) == {}
    assert asked == ["liar"]


def test_of_nodes_of_a_job_the_login_host_is_asked_which_sees_their_prefix(
    asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    login = target("ssh").model_copy(update={"hosts": ("login1",)})
    monkeypatch.setattr(conclude, "as_login", lambda _: login)
    nodes = [node("n1", evidence.root(A)), node("n2", evidence.root(A))]
    assert FileLists(target("job"), RUN).by_root(nodes) == {evidence.root(A): A}
    assert asked == ["login1"]
