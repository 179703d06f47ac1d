"""What is published names nobody: canaries over every form."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from envbuild.cli.report_cmd import report
from envbuild.model.evidence import Evidence
from envbuild.report.copies import copy_report
from envbuild.report.formats.every import FORMATS
from envbuild.report.publish import published
from envbuild.report.recheck.verify import verify_report
from envbuild.report.render import render_html, render_json, render_markdown
from tests.report.samples import evidence, facts, fleet, node
from tests.report.sealed import Sealed

CANARIES = ("adacanary", "hostcanary", "canary.example.edu", "labcanary", "10.9.8.7", "fd00::9:8", "52:54:00:ab:cd:ef",
            "ada@mail.example.org", "ghp_abcdefghijklmnop1234", "GPU-11111111-2222-3333-4444-555555555555")  # fmt: skip


def telling() -> Evidence:
    words = " ".join(
        (
            "adacanary",
            "hostcanary1",
            "login1.canary.example.edu",
            "/home/adacanary/x",
            "/scratch/labcanary/e",
            "login7.canary.example.edu",
            *CANARIES[4:],
        )
    )
    nodes: list[dict[str, Any]] = []
    for name in ("hostcanary1", "hostcanary2.canary.example.edu"):
        told = {**facts(name, 1), "user": "adacanary", "home": "/home/adacanary", "hostname": f"{name.split('.')[0]}"}
        told["prefix"] = {"path": "/scratch/labcanary/e", "writable": True}
        told["nics"] = [{"name": "eth0", "addresses": ["10.9.8.7", "fd00::9:8"]}]
        told["gpus"][0]["uuid"] = CANARIES[-1]
        told["warnings"] = [words]
        check = {
            "name": "smoke/x",
            "status": "failed",
            "says": words.replace("hostcanary1", name),
            "details": {words: [words]},
        }
        check["metrics"] = [{"name": name, "unit": "x", "n": 1, "median": 1.0, "least": 1.0, "greatest": 1.0}]
        error = dict.fromkeys(("code", "what", "why", "hint"), f"{name}: {words}") | {"exit": 1}
        nodes.append(
            node(name, facts=told, checks=[check], error=error, status="failed", exit=1, packages={"ninja": "1.10.2.3"},
                 environment="/scratch/labcanary/e/envs/x")
        )  # fmt: skip
    equality = {"root": "9" * 64, "nodes": [each["node"] for each in nodes]}
    command = ["envbuild", "provision", "--target", "labcanary", "--prefix", "/scratch/labcanary/e"]
    named = {"target": "labcanary", "command": command, "warnings": [words], "deviations": [words]}
    return evidence(*nodes, equality=equality, exit=1, **named)


@pytest.mark.parametrize(
    "form", [render_html, render_markdown, render_json, *(render for _, render in FORMATS.values())]
)
def test_no_canary_is_in_any_form(form: Any) -> None:
    run = telling()
    assert form is FORMATS["cyclonedx"][1] or any(canary in form(run) for canary in CANARIES[:2])
    text = form(published(run))
    assert [canary for canary in CANARIES if canary.lower() in text.lower()] == []
    assert "labcanary" not in text


def test_pseudonyms_are_the_same_all_over_and_versions_are_no_addresses() -> None:
    found = published(telling())
    names = [each.node for each in found.nodes]
    assert names == ["node-1", "node-2"]
    assert found.equality is not None
    assert list(found.equality.nodes) == names
    assert found.nodes[0].facts is not None
    assert found.nodes[0].facts.hostname == "node-1"
    assert found.nodes[0].packages == {"ninja": "1.10.2.3"}
    assert published(fleet()).target == "target"
    assert published(evidence()).target == "local"


def test_what_is_published_can_be_published_again_and_is_the_same() -> None:
    once = published(telling())
    assert render_json(published(once)) == render_json(once)


def test_a_published_copy_still_holds_and_has_nothing_with_names(tmp_path: Path) -> None:
    sealed = Sealed(tmp_path / "private")
    written, left = copy_report(sealed.folder, tmp_path / "out", publish=True)
    assert set(left) == {"plan.json", "journal.jsonl", "attachments/profile.json"}
    for path in written:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        assert b"gpu01" not in data, path.name
    assert [each.code for each in verify_report(tmp_path / "out")[1] if each.kind == "problem"] == []


def test_the_command_publishes_each_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "evidence.json").write_text(json.dumps(telling().to_json_dict()))
    for form in ("summary", "md", "html", "junit", "cyclonedx", "csv"):
        report.main(["show", str(tmp_path), "--format", form, "--publish"], standalone_mode=False)
        text = capsys.readouterr().out
        assert "node-1" in text or form == "cyclonedx"
        assert [canary for canary in CANARIES if canary.lower() in text.lower()] == [], form
