"""What a refused node is told begins with what is true of it."""

from __future__ import annotations

from envbuild.provision.survey.ask import refusal
from tests.resolve.builders import compat, make_lock, node_facts, package, resolve, target


def test_a_disk_that_is_too_small_is_said_first_with_what_there_is_and_what_is_needed() -> None:
    facts = node_facts("cpu-laptop", more={"prefix": {"path": "/data/envbuild", "writable": True, "free_bytes": 1000}})
    row = {"id": "v", "python": "3.11", "packages": [package("six", "1.17.0", size=5_000_000)]}
    error = refusal(resolve(facts, make_lock(row), target(), compat()))
    assert error.code == "disk-space"
    assert error.what.startswith("cpu-laptop: there is too little room: 1 kB free in /data/envbuild, ")
    assert error.what.endswith(" needed")
    assert error.why == "v of demo would fit otherwise"
    assert "`envbuild store clean`" in error.hint


def test_a_node_that_no_variant_fits_is_told_so_with_the_rule() -> None:
    error = refusal(
        resolve(
            node_facts("cpu-laptop", pythons=["3.9.2"]), make_lock({"id": "v", "python": "3.11"}), target(), compat()
        )
    )
    assert (error.code, error.what) == ("python-not-there", "cpu-laptop: no variant of demo fits this node")
    assert "3.11" in error.why
