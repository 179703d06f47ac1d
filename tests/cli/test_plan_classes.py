"""`plan --json` says what the text says, by classes of nodes."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from envbuild import resources
from envbuild.cli.explain_cmd import explain
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


def test_d103_what_facts_say_of_another_prefix_and_of_other_hosts_does_not_count(tmp_path: Path) -> None:
    plain = json.loads((resources.catalog() / "facts/h200.json").read_text())
    full = {**plain, "node": "gpu2", "prefix": {**plain["prefix"], "path": "/a/envbuild", "writable": False}}
    (tmp_path / "facts.json").write_text(json.dumps(full))
    (tmp_path / "t.yaml").write_text("name: t\nprefix: /b/{user}\nhosts: ['gpu[01-02]']\nconnection: {kind: ssh}\n")
    args = ["torch-smoke", "-t", str(tmp_path / "t.yaml"), "--facts", str(tmp_path / "facts.json")]
    done, explained = CliRunner().invoke(plan, args), CliRunner().invoke(explain, args)
    assert (done.exit_code, explained.exit_code) == (0, 0), done.output
    for output in (done.stdout, explained.stderr):
        assert "the facts of gpu2 are of /a/envbuild, the target has /b/root: " in output
        assert "the target t has no host gpu2: it has gpu[01-02]" in output
    assert "refused" not in explained.stdout
    refused = CliRunner().invoke(plan, [*args, "--prefix", "/a/envbuild"])
    (tmp_path / "t.yaml").write_text((tmp_path / "t.yaml").read_text().replace("kind: ssh", "kind: ssh, user: bob"))
    assert "are of /a/envbuild, the target has /b/bob: " in CliRunner().invoke(plan, args).stdout
    assert "error[prefix-usable]" in refused.output and "the facts of" not in refused.output
    both = [full, {**full, "node": "gpu1"}]
    (tmp_path / "facts.json").write_text(json.dumps(both))
    refused = CliRunner().invoke(plan, [*args, "--prefix", "/a/envbuild"])
    assert "\n  gpu[1-2]: error[prefix-usable]: " in refused.output and refused.output.count("    hint: ") == 1
