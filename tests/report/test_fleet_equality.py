"""Fleet equality: one root is one line; who deviates is told in what, in three lines at most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from envbuild.model.evidence import Equality, NodeEvidence
from envbuild.provision.run.evidence import of_another_root
from envbuild.report.equality import equality_of, without_cause

A, B, C = ("a" * 64, "b" * 64, "c" * 64)
FILES = {f"lib/m{number}.py": "file-0123" for number in range(10)}


def _node(name: str, root: str | None = A, **more: Any) -> NodeEvidence:
    python = more.pop("python", "3.11.7")
    check = {"name": "stamp", "status": "passed", "says": "", "details": {"python": python}}
    data = {"node": name, "status": "ok", "exit": 0, "root": root, "packages": {"numpy": "1.26.4", "torch": "2.1"}}
    return NodeEvidence.from_plain({**data, "variant_digest": "d" * 64, "checks": [check], **more})


def _never(_: Sequence[NodeEvidence]) -> dict[str, Mapping[str, str]]:
    pytest.fail("nobody has to be asked where all roots are equal")


def _files(**of: Mapping[str, str]) -> Any:
    asked: list[str] = []

    def ask(nodes: Sequence[NodeEvidence]) -> dict[str, Mapping[str, str]]:
        asked.extend(node.node for node in nodes)
        return {node.node: of.get(node.node, FILES) for node in nodes}

    ask.asked = asked  # type: ignore[attr-defined]
    return ask


def test_equal_nodes_have_one_root_and_nobody_is_asked() -> None:
    found = equality_of([_node("n1"), _node("n2"), _node("n3", None)], _never)
    assert found == Equality(root=A, python="3.11.7", nodes=("n1", "n2"))


def test_one_node_alone_is_compared_with_nothing() -> None:
    assert equality_of([_node("n1"), _node("n2", None)], _never) is None


def test_who_deviates_has_its_packages_and_files_named_and_one_of_each_kind_is_asked() -> None:
    changed = {**FILES, "lib/m3.py": "file-4567", "lib/new.py": "file-89"}
    del changed["lib/m7.py"]
    odd = {"packages": {"numpy": "1.26.3", "torch": "2.1"}}
    ask = _files(n3=changed)
    found = equality_of([_node("n1"), _node("n2"), _node("n3", B, **odd), _node("n4", B, **odd)], ask)
    assert found is not None
    assert (found.root, found.nodes) == (A, ("n1", "n2"))
    (deviation,) = found.deviating
    assert (deviation.nodes, deviation.root) == (("n3", "n4"), B)
    assert deviation.differs == (
        "1 of 2 packages differs: numpy 1.26.3, not 1.26.4",
        "3 of 10 files differ: changed lib/m3.py; missing lib/m7.py; extra lib/new.py",
    )
    assert ask.asked == ["n1", "n3"]


def test_the_interpreter_is_named_and_many_files_are_counted() -> None:
    files = dict.fromkeys(FILES, "file-other")
    found = equality_of([_node("n1"), _node("n2"), _node("n3", B, python="3.11.2")], _files(n3=files))
    assert found is not None
    assert found.deviating[0].differs == (
        "Python 3.11.2, not 3.11.7",
        "10 of 10 files differ: changed lib/m0.py; changed lib/m1.py; changed lib/m2.py and 7 more",
    )


def test_another_variant_is_told_as_such_also_where_files_cannot_be_compared() -> None:
    found = equality_of([_node("n1"), _node("n2"), _node("n3", B, variant_digest="e" * 64)], lambda _: {})
    assert found is not None
    assert found.deviating[0].differs == ("variant eeeeeeeeeeee, not dddddddddddd", "its files could not be compared")


def test_what_drifted_since_its_stamp_deviates_although_its_root_is_the_usual_one() -> None:
    drift = [{"kind": "changed", "path": "lib/m1.py"}]
    found = equality_of([_node("n1"), _node("n2", drift=drift, drift_count=5, exit=1, status="failed")], _never)
    assert found is not None
    assert found.nodes == ("n1",)
    assert found.deviating[0].differs == ("drifted since it was stamped: changed lib/m1.py and 4 more",)


def test_of_two_roots_on_equally_many_nodes_the_first_is_the_usual_one() -> None:
    found = equality_of([_node("n1", C), _node("n2", A)], _files())
    assert found is not None
    assert (found.root, found.deviating[0].nodes) == (C, ("n2",))


def test_where_nobody_is_to_be_asked_files_are_not_spoken_of() -> None:
    found = equality_of([_node("n1"), _node("n2"), _node("n3", B, python="3.11.2")], None)
    assert found is not None
    assert found.deviating[0].differs == ("Python 3.11.2, not 3.11.7",)


def test_d106_a_root_that_variant_and_interpreter_do_not_explain_fails_with_what_to_do() -> None:
    changed, older = _node("n3", B), _node("n4", C, python="3.11.2")
    other, drifted = _node("n5", C, variant_digest="e" * 64), _node("n6", drift_count=2)
    nodes = [_node("n1"), _node("n2"), changed, older, other, drifted]
    found = equality_of(nodes, None)
    assert found is not None and found.python == "3.11.7"
    assert without_cause(nodes, found) == [changed]
    failed = of_another_root(changed, found.root, ("envbuild", "provision", "x", "--target", "fleet.yaml"))
    assert failed.error is not None
    assert (failed.status, failed.exit, failed.error["code"], failed.error["exit"]) == ("failed", 1, "drift", 1)
    assert "`envbuild provision x --target fleet.yaml --repair` builds it again" in failed.error["hint"]
    unknown = [_node("n1", python=""), _node("n2", python=""), _node("n3", B, python="")]
    assert without_cause(unknown, equality_of(unknown, None)) == [], "nobody knows the interpreters"
