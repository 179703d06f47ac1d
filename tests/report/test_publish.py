"""What is published names nobody: canaries over every form."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from envbuild.catalog.loader import load_stack
from envbuild.cli.report_cmd import report
from envbuild.model import file_list
from envbuild.model.evidence import Attachment, Evidence
from envbuild.report.copies import copy_report
from envbuild.report.formats.every import FORMATS
from envbuild.report.publish import Publisher, is_published, may_go, published
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


def machine(**more: Any) -> Publisher:
    told = {**facts("x3001", 1), "user": "alice", "home": "/home/alice", **more}
    told["prefix"] = {"path": "/lus/x/env", "writable": True}
    return Publisher(evidence(node("x3001", facts=told), target="mysite"))


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("10.1.2.3:61001", "address:61001"),
        ("http://10.1.2.3:3128/", "http://address:3128/"),
        ("10.1.2.3: connection refused", "address: connection refused"),
        ("fd00:1:2::3: refused", "address: refused"),
        ("fd00:1:2::3.", "address."),
        ("addr:fd00::3 and ::ffff:10.1.2.3", "addr:address and address"),
        ("52:54:00:ab:cd:ef: up", "address: up"),
        ("127.0.0.1:29500 of 10.1.2.3, [::1]", "127.0.0.1:29500 of address, [::1]"),
        ("at 10:20:30, std::vector<a>, 1.2.3.4.5", "at 10:20:30, std::vector<a>, 1.2.3.4.5"),
        ("job 123456.polaris-pbs-01.hsn.example.edu", "job host"),
        ("123456.polaris-pbs-01 on polaris-pbs-01", "123456.host on host"),
        ("--target=mysite", "--target=target"),
        ("x3001-hsn0 x3001_log", "node-1-hsn0 node-1_log"),
        ("/tmp/alice_run /tmp/envbuild-alice", "/tmp/user_run /tmp/envbuild-user"),
        ("/lus/x/env/a /lus/x/env", "/prefix/a /prefix"),
        ("/lus/x/envs/a", "/path/a"),
        ("malice", "malice"),
        ("x3001.hsn.example.edu: x3001.hsn.example.edu.", "node-1: node-1."),
        ("X3001.log of alice.b.example.edu", "node-1.log of user.b.example.edu"),
    ],
)
def test_addresses_names_and_places_go_wherever_they_end(text: str, clean: str) -> None:
    job = {"kind": "pbs", "job": "123456.polaris-pbs-01.hsn.example.edu"}
    assert machine(scheduler=job).text(text) == clean


def named(*words: str, warnings: tuple[str, ...] = ()) -> Evidence:
    """A run on two nodes whose command names hosts."""
    nodes = (node(name, facts=facts(name)) for name in ("aurora-gpu01", "aurora-gpu02"))
    return evidence(*nodes, command=["envbuild", "provision", *words], warnings=list(warnings))


@pytest.mark.parametrize(
    ("word", "clean"),
    [
        ("aurora-gpu[01-02]", "hosts"),
        ("aurora-gpu[01,07-09].hsn.example.edu", "hosts"),
        ("Aurora-GPU[03-64]", "hosts"),
        ("aurora-gpu01,aurora-gpu02", "node-1,node-2"),
        ("aurora-login3", "host"),
        ("aurora-login3.example.edu", "host"),
        ("login[1-4]", "hosts"),
        ("rack[1-2]node[01-04]", "hosts"),
        ("bob@aurora-gpu01", "user@node-1"),
        ("localhost", "localhost"),
    ],
)
def test_hosts_that_the_command_names_go_there_and_everywhere(word: str, clean: str) -> None:
    for words in (("--limit", word), (f"--exclude={word}",), ("--host", "aurora-gpu02", "--master", word)):
        run = named(*words, warnings=(f"{word}: slow", f"again: --exclude '{word}'."))
        found = published(run)
        assert found.command[-1] == words[-1].replace(word, clean)
        assert found.warnings == (f"{clean}: slow", f"again: --exclude '{clean}'.")
        assert render_json(published(found)) == render_json(found)
        left = run.to_json_dict()["command"]
        kept = Evidence.from_plain(found.to_json_dict() | {"command": left})
        assert is_published(found) and is_published(kept) == (word == clean and "aurora-gpu02" not in left)


@pytest.mark.parametrize("words", [("--prefix", "/lus/aurora/env"), ("--prefix=/lus/aurora/env",)])
def test_a_prefix_that_only_the_command_names_goes(words: tuple[str, ...]) -> None:
    run = named(*words, warnings=("/lus/aurora/env/envs/x is full",))
    found = published(run)
    assert found.command[-1] == words[-1].replace("/lus/aurora/env", "/prefix")
    assert found.warnings == ("/prefix/envs/x is full",)
    assert is_published(found) and not is_published(run)
    assert render_json(published(found)) == render_json(found)


def test_the_domain_of_a_host_that_only_the_command_names_goes_wherever_it_is() -> None:
    found = published(named("--master", "login1.hsn.example.edu", warnings=("login9.hsn.example.edu: down",)))
    assert found.warnings == ("host: down",)


def test_what_is_no_list_of_known_hosts_stays() -> None:
    texts = ("losses[0-3] and gpu[0]", "[01-02]", "aurora[1-2]")
    assert published(named(warnings=texts)).warnings == texts


def test_the_job_of_a_scheduler_goes() -> None:
    told = facts("x3001", 1) | {"scheduler": {"kind": "pbs", "job": "123456.polaris-pbs-01.hsn.example.edu"}}
    found = published(evidence(node("x3001", facts=told), target="mysite", command=["envbuild", "--target=mysite"]))
    assert found.nodes[0].facts is not None
    assert (found.nodes[0].facts.scheduler.kind, found.nodes[0].facts.scheduler.job) == ("pbs", None)
    assert (found.target, found.command) == ("target", ("envbuild", "--target=target"))


def test_names_that_are_part_of_packages_and_of_the_evidence_itself_change_neither() -> None:
    told = facts("lock", 1) | {"user": "flash", "home": "/home/flash"}
    run = evidence(
        node("lock", facts=told, packages={"flash-attn": "2.0"}),
        target="torch",
        warnings=["flash failed", "Flash-Attn"],
    )
    found = published(run)
    assert (found.stack, found.lock_digest, found.target) == (run.stack, run.lock_digest, "target")
    assert found.nodes[0].packages == {"flash-attn": "2.0"}
    assert found.warnings == ("user failed", "Flash-Attn")


def test_versions_of_the_base_are_no_addresses() -> None:
    run = evidence(node("gpu1", base_packages={"nvidia-cublas": "13.1.0.3"}))
    assert published(run).nodes[0].base_packages == {"nvidia-cublas": "13.1.0.3"}


def test_the_folder_that_a_run_of_the_stack_writes_into_goes() -> None:
    name = "torch-smoke-20260302T100000Z-4f2a-1/x.json"
    told = [f"/data/labcanary/my/bench/{name}", f"--config=/data/labcanary/{name}", f"/scratch/labcanary/e/l/{name}"]
    run = telling().model_copy(update={"stack": "torch-smoke", "run": "20260302T100000Z-4f2a", "warnings": tuple(told)})
    found = published(run)
    assert found.warnings == (f"/launches/{name}", f"--config=/launches/{name}", f"/prefix/l/{name}")
    assert published(found).warnings == found.warnings


def test_what_a_machine_calls_itself_is_no_other_node() -> None:
    run = evidence(*(node(f"gpu{n}", facts=facts(f"gpu{n}", 1) | {"hostname": f"vm{n}.example.org"}) for n in (1, 2)))
    told = [(each.node, each.facts and each.facts.hostname) for each in published(run).nodes]
    assert told == [("node-1", "node-1"), ("node-2", "node-2")]


def test_a_node_of_a_job_that_only_a_warning_of_its_gpus_names_goes() -> None:
    warning = "GPU 0 is in use by other processes: pid 7 (vi, 9 MiB); figures may be lower than what it can do"
    run = evidence(node("localhost"), warnings=[f"x3001: {warning}", f"localhost: {warning}"])
    assert published(run).warnings == (f"node-1: {warning}", f"localhost: {warning}")
    assert published(published(run)) == published(run)


def test_what_a_shipped_stack_says_keeps_its_words_whatever_the_target_is_called() -> None:
    findings = [each.to_json_dict() for each in load_stack("megatron-alpa").stack.findings]
    told = [{key: each[key] for key in ("id", "severity", "truth", "does")} for each in findings]
    run = evidence(stack="megatron-alpa", target="two", findings=told, warnings=["two failed"])
    found = published(run)
    assert (found.findings, found.target, found.warnings) == (run.findings, "target", ("target failed",))
    assert any("two" in each.truth.split() for each in found.findings)


def test_a_file_that_unpacks_to_more_than_a_list_may_have_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    data = gzip.compress(b"{}" + b" " * 5000)
    item = Attachment(kind="files", path="attachments/files.json.gz", sha256="a" * 64, bytes=len(data))
    assert may_go(evidence(), item, data)
    monkeypatch.setattr(file_list, "LIMIT", 4000)
    assert not may_go(evidence(), item, data)


@pytest.mark.parametrize("run", [telling(), fleet(12)])
def test_what_is_published_can_be_published_again_and_is_the_same(run: Evidence) -> None:
    once = published(run)
    assert render_json(published(once)) == render_json(once)
    assert is_published(once)
    assert not is_published(run)


def kept(key: str, value: Any) -> Evidence:
    """A published report in which one fact of a node is as it was."""
    data = published(telling()).to_json_dict()
    data["nodes"][0]["facts"][key] = value
    return Evidence.from_plain(data)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hostname", "login7"),
        ("user", "ada"),
        ("home", "/home/ada"),
        ("shared", "/lus/eagle/theta"),
        ("modules", "cray-python"),
        ("reachable", {"example.org": True}),
        ("prefix", {"path": "/lus/ada/env", "writable": True}),
        ("scheduler", {"kind": "pbs", "job": "123.pbs01"}),
        ("nics", [{"name": "eth0", "kind": "ethernet", "addresses": ["10.0.0.1"]}]),
        ("hostname", "a." * 500_000),
    ],
)
def test_one_fact_that_was_kept_is_no_published_report(key: str, value: Any) -> None:
    assert not is_published(kept(key, value))


def test_a_published_copy_still_holds_and_has_nothing_with_names(tmp_path: Path) -> None:
    sealed = Sealed(tmp_path / "private")
    written, left = copy_report(sealed.folder, tmp_path / "out", publish=True)
    assert {each.partition(" ")[0] for each in left} == {"plan.json", "journal.jsonl"}
    for path in written:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        assert b"gpu01" not in data, path.name
    assert [each.code for each in verify_report(tmp_path / "out")[1] if each.kind == "problem"] == []


def test_the_command_publishes_each_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "evidence.json").write_text(json.dumps(telling().to_json_dict()))
    for form in ("summary", "md", "html", "junit", "cyclonedx"):
        report.main(["show", str(tmp_path), "--format", form, "--publish"], standalone_mode=False)
        text = capsys.readouterr().out
        assert "node-1" in text or form == "cyclonedx"
        assert [canary for canary in CANARIES if canary.lower() in text.lower()] == [], form
