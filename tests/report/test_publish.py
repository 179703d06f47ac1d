"""What is published are the fields that the schema marks, whatever is in the others."""

from __future__ import annotations

import gzip
import json
import typing
from pathlib import Path
from types import UnionType
from typing import Any

import pytest
from pydantic import BaseModel

from envbuild.cli.report_cmd import report
from envbuild.model.evidence import Evidence
from envbuild.report.publish import public_fields, published
from envbuild.report.recheck.verify import verify_report
from envbuild.report.render import render_markdown
from tests.report.samples import evidence, facts, fleet, gpu_checks, node
from tests.report.sealed import Sealed
from tests.support.plain import models_below

CANARIES = ("adacanary", "hostcanary", "canary.example.edu", "labcanary", "10.9.8.7", "fd00::9:8", "52:54:00:ab:cd:ef",
            "ada@mail.example.org", "ghp_abcdefghijklmnop1234", "GPU-11111111-2222-3333-4444-555555555555")  # fmt: skip


def full(kind: Any, canary: str) -> Any:
    """A value of a type in which every text is a canary that names its field."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return full(arguments[0], canary)
    if origin in (typing.Union, UnionType):
        return full(next(each for each in arguments if each is not type(None)), canary)
    if origin is typing.Literal:
        return arguments[0]
    if origin is tuple:
        return (full(arguments[0], canary),)
    if origin is dict:
        return {f"{canary}.key": full(arguments[1], f"{canary}.value")}
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        names = {name: f"{kind.__name__}.{name}" for name in kind.model_fields}
        return kind.model_construct(**{
            name: full(field.annotation, names[name]) for name, field in kind.model_fields.items()
        })  # fmt: skip
    return canary if kind in (str, Any) else kind(1)


def test_a_field_without_a_mark_is_not_published() -> None:
    text = json.dumps(public_fields(full(Evidence, "Evidence"), {"NodeEvidence.node": "node-1"}))
    fields = {
        f"{name}.{field}": (info.json_schema_extra or {}).get("public")  # type: ignore[union-attr]
        for name, model in models_below(Evidence).items()
        for field, info in model.model_fields.items()
    }
    marked = {name for name, mark in fields.items() if mark is True}
    assert len(marked) > 100 and {"NodeFacts.user", "Check.says", "Evidence.command"} <= fields.keys() - marked
    assert sorted(name for name in fields.keys() - marked if f'"{name}' in text) == []
    assert '"Evidence.stack"' in text and '"Metric.name"' in text and '"node-1"' in text


def test_a_text_that_the_schema_demands_and_does_not_mark_is_the_only_thing_that_stands_for_another() -> None:
    for name, model in models_below(Evidence).items():
        for field, info in model.model_fields.items():
            if info.is_required() and not info.json_schema_extra:
                reached = name in ("NodeLog", "StampFacts")  # no marked field leads there
                assert info.annotation is str or reached, f"{name}.{field} needs a mark"


def telling() -> Evidence:
    """A run in which users, hosts, places and secrets stand wherever a run may put them."""
    words = " ".join(("hostcanary1", "/home/adacanary/x", "/scratch/labcanary/e", *CANARIES))
    nodes: list[dict[str, Any]] = []
    for name in ("hostcanary1", "hostcanary2.canary.example.edu"):
        told = {**facts(name, 1), "user": "adacanary", "home": "/home/adacanary", "hostname": f"{name.split('.')[0]}"}
        told["prefix"] = {"path": "/scratch/labcanary/e", "writable": True}
        told["nics"] = [{"name": "eth0", "addresses": ["10.9.8.7", "fd00::9:8"]}]
        told["gpus"][0]["uuid"] = CANARIES[-1]
        told["warnings"] = [words]
        check = {"name": "smoke/x", "status": "failed", "says": f"{name}: {words}", "details": {words: [words]}}
        error = dict.fromkeys(("code", "what", "why", "hint"), f"{name}: {words}") | {"code": "drift", "exit": 1}
        nodes.append(
            node(name, facts=told, checks=[check], error=error, status="failed", exit=1, packages={"ninja": "1.10.2.3"},
                 environment="/scratch/labcanary/e/envs/x")
        )  # fmt: skip
    equality = {"root": "9" * 64, "nodes": [each["node"] for each in nodes]}
    command = ["envbuild", "provision", "--target", "labcanary", "--prefix", "/scratch/labcanary/e"]
    return evidence(*nodes, equality=equality, exit=1, target="labcanary", command=command, warnings=[words])


def test_nodes_have_one_label_all_over_and_figures_stay() -> None:
    found = published(telling())
    assert [each.node for each in found.nodes] == ["node-1", "node-2"]
    assert found.equality is not None and found.equality.nodes == ("node-1", "node-2")
    assert found.nodes[0].facts is not None and found.nodes[0].facts.node == "node-1"
    assert found.nodes[0].resolution is not None and found.nodes[0].resolution.node == "node-1"
    assert found.nodes[0].packages == {"ninja": "1.10.2.3"}
    checks = published(evidence(node(checks=gpu_checks()))).nodes[0].checks
    assert [each.metrics for each in checks] == [
        each.metrics for each in evidence(node(checks=gpu_checks())).nodes[0].checks
    ]
    assert checks[1].details["gpu0_bf16_tflops"] == 693.0
    assert len(checks[4].details["losses"]) == 60


@pytest.mark.parametrize(
    ("says", "kept"),
    [
        ("no usable GPU here: nothing ran on CUDA, though torch is built for CUDA 12.6", True),
        ("the rest of the smoke test, as only machine/gemm, training was asked for", True),
        ("no usable GPU here: nothing ran on hostcanary1", False),
    ],
)
def test_why_a_check_was_skipped_is_published_if_it_is_a_fixed_text(says: str, kept: bool) -> None:
    gap = {"name": "smoke/cuda", "status": "skipped", "says": says, "level": "not-checked"}
    found = published(evidence(node(checks=[*gpu_checks()[:1], gap])))
    assert found.nodes[0].checks[1].says == (says if kept else "not published")
    page = render_markdown(found)
    assert f"Not checked: {says if kept else 'smoke/cuda'}." in page
    assert (f"- smoke/cuda: {says}" in page) is kept
    assert "| not published |" not in page and "Not checked: not published" not in page


@pytest.mark.parametrize("run", [telling(), fleet(12)])
def test_what_is_published_can_be_published_again_and_is_the_same(run: Evidence) -> None:
    assert published(published(run)) == published(run) != run


def test_a_published_copy_still_holds_has_nothing_with_names_and_says_what_is_left_out_without_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sealed = Sealed(tmp_path / "private")
    out = tmp_path / "out"
    report.main(["show", str(sealed.folder), "--publish", "--output", str(out)], standalone_mode=False)
    err = capsys.readouterr().err
    for name in ("plan.json", "journal.jsonl"):
        assert f"{name} is left out: it may name your hosts and folders" in err and f"warning: {name}" not in err
    for path in (path for path in out.rglob("*") if path.is_file()):
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        assert b"gpu01" not in data, path.name
    assert [each.code for each in verify_report(out)[1] if each.kind == "problem"] == []


@pytest.mark.parametrize("form", ["summary", "md", "html", "junit", "cyclonedx", "json"])
def test_the_command_publishes_each_form_without_a_canary(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "evidence.json").write_text(json.dumps(telling().to_json_dict()))
    command = ["show", str(tmp_path), *(["--json"] if form == "json" else ["--format", form])]
    report.main(command, standalone_mode=False)
    own = capsys.readouterr().out
    report.main([*command, "--publish"], standalone_mode=False)
    text = capsys.readouterr().out
    assert form == "cyclonedx" or (CANARIES[1] in own and "node-1" in text)
    assert form != "md" or "envbuild provision torch-smoke --profile exact\n" in text
    assert text.startswith({"html": "<!doctype html>", "junit": "<testsuites", "cyclonedx": "{"}.get(form, ""))
    assert [canary for canary in CANARIES if canary.lower() in text.lower()] == []
