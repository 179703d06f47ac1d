"""`plan --json` says what the text says, by classes of nodes."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from envbuild import resources
from envbuild.cli.provision_cmd import plan


def test_d103_equal_nodes_are_one_entry_with_all_names(tmp_path: Path) -> None:
    facts = json.loads((resources.catalog() / "facts/h200.json").read_text())
    names = [f"n{number:03}" for number in range(1, 65)]
    fleet = {name: {**facts, "node": name, "hostname": name} for name in names}
    fleet["n007"] = {**fleet["n007"], "driver": {**facts["driver"], "version": "999.1"}}
    (tmp_path / "facts.json").write_text(json.dumps(fleet))
    (tmp_path / "t.yaml").write_text(
        "name: t\nprefix: /data/envbuild\nhosts: ['n[001-064]']\nconnection: {kind: ssh}\n"
    )
    args = ["torch-smoke", "-t", str(tmp_path / "t.yaml"), "--facts", str(tmp_path / "facts.json"), "--json"]
    done = CliRunner().invoke(plan, args)
    shown = json.loads(done.stdout)["plan"]["nodes"]
    assert sorted(len(entry["nodes"]) for entry in shown) == [1, 63]
    assert {entry["node"] for entry in shown} == {"n001", "n007"}
    assert len(done.stdout) < 1_000_000
