"""The evidence of a run is complete, holds what a reader checks, and `verify --since` compares with it."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path

import pytest

from envbuild.lock.files import read_lock
from envbuild.model import evidence
from envbuild.model.lock import Variant
from envbuild.report.evidence_file import read_evidence
from tests.e2e.world import Done, World, site
from tests.support.need import need


def first(world: World) -> Path:
    return min(world.runs.iterdir())


def test_lock_variant_profile_plan_and_file_list_lie_beside_the_evidence_with_digests_that_hold(built: World) -> None:
    run = first(built)
    told = json.loads((run / "evidence.json").read_text())
    (node,) = told["nodes"]
    kept = {each["kind"]: each for each in told["attachments"]}
    assert set(kept) == {"lock", "profile", "stack", "variant", "files", "plan", "journal"}
    data = {kind: (run / each["path"]).read_bytes()[: each["bytes"]] for kind, each in kept.items()}
    assert {kind: hashlib.sha256(content).hexdigest() for kind, content in data.items()} == {
        kind: each["sha256"] for kind, each in kept.items()
    }
    lock = read_lock(run / kept["lock"]["path"])
    assert (kept["lock"]["sha256"], kept["profile"]["sha256"]) == (told["lock_digest"], lock.manifest_digest)
    assert evidence.root(evidence.unpack(data["files"])) == node["root"] == kept["files"]["of"]
    variant = Variant.from_plain(json.loads(data["variant"]))
    assert variant.compute_digest("tiny", "exact") == node["variant_digest"] == kept["variant"]["of"]
    log = told["nodes"][0]["log"]
    assert hashlib.sha256(Path(log["file"]).read_bytes()).hexdigest() == log["sha256"]
    (chosen,) = told["variants"]
    (locked,) = lock.variants[0].packages
    assert [(each["file"], each["sha256"]) for each in chosen["packages"]] == [
        (file.file, file.sha256) for file in locked.files
    ]


def test_a_run_that_did_nothing_asks_for_no_files_and_a_deep_verify_has_them(built: World) -> None:
    (node,) = json.loads((first(built) / "evidence.json").read_text())["nodes"]
    built.good("provision", "--stack", "tiny.yaml", "--target", "local")
    kinds = {each["kind"] for each in json.loads((built.last_run / "evidence.json").read_text())["attachments"]}
    assert kinds == {"lock", "profile", "stack", "variant", "plan", "journal"}
    told = built.good("verify", "--stack", "tiny.yaml", "--target", "local", "--json").json
    (files,) = [each for each in told["attachments"] if each["kind"] == "files"]
    assert files["of"] == node["root"]


def verified(world: World) -> set[str]:
    """What `report verify` could not check of the newest run; all else holds."""
    told = world.good("report", "verify", "last", "--json").json
    assert told["ok"], told
    return {each["topic"] for each in told["findings"] if each["kind"] == "not-checked"}


@pytest.mark.slow
def test_honest_reports_of_every_verb_hold_and_say_what_nobody_could_check(world: World) -> None:
    world.wheel()
    world.tiny(sources=[{**world.repository("helper", {"helper.py": "A = 1\n"}), "install": "path"}])
    world.built()
    assert verified(world) == {"signature", "lock", "root", "logs", "nodes"}
    place = ("--stack", "tiny.yaml", "--target", "local")
    world.good("provision", *place)
    assert verified(world) == {"signature", "lock", "page", "root", "nodes", "checks"}
    world.good("verify", *place)
    assert verified(world) >= {"lock", "root", "nodes"}
    world.good("smoke", *place)
    verified(world)
    (site(world.current) / "alpha" / "__init__.py").write_text("VALUE = 2\n")
    world.run("verify", *place, rc=1)
    verified(world)


def test_a_forged_number_is_exit_5_with_its_code(built: World) -> None:
    path = first(built) / "evidence.json"
    honest = path.read_text()
    path.write_text(honest.replace('"exit":0', '"exit":1', 1))
    done = built.run("report", "verify", str(path.parent), "--json")
    path.write_text(honest)
    assert (done.rc, done.json["ok"]) == (5, False)
    assert {each["code"] for each in done.json["findings"] if each["kind"] == "problem"} >= {"report-page-of-another"}
    page = built.run("report", "verify", str(path.with_name("report.html")))
    assert page.rc == 0


def test_a_report_is_signed_copied_and_verified_by_name_from_the_command_line(built: World) -> None:
    world = built
    key = world.top / "key"
    need("ssh-keygen")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    signers = world.top / "signers"
    signers.write_text(f"author@example.org {key.with_suffix('.pub').read_text()}")
    unsigned = world.run("report", "verify", "last", "--signers", str(signers), "--json")
    assert (unsigned.rc, unsigned.json["error"]["code"]) == (5, "report-unsigned")
    world.good("report", "sign", "last", "--key", str(key))
    copy = world.top / "copy"
    world.good("report", "show", "last", "--output", str(copy))
    page = world.work / "page.html"
    page.write_text(world.good("report", "show", "last", "--format", "html").out)
    for path in ("last", str(page), str(copy), str(copy / "report.html")):
        told = world.good("report", "verify", path, "--signers", str(signers)).out
        assert "author@example.org signed exactly this evidence" in " ".join(told.split())


def since(world: World, run: str, *more: str, stack: str = "./tiny.yaml", rc: int | None = None) -> Done:
    return world.run("verify", "--stack", stack, "--target", "local", "--since", run, "-q", *more, rc=rc)


def test_nothing_changed_is_exit_0_and_drift_is_exit_1_also_where_that_run_had_it(built: World) -> None:
    done = since(built, first(built).name)
    assert (done.rc, done.out, done.err) == (0, "", "")

    path = next(built.current.rglob("alpha/__init__.py"))
    before = path.read_bytes()
    path.write_bytes(before + b"\n# edited\n")
    done = since(built, first(built).name, rc=1)
    told = " ".join(done.out.split())
    assert "got worse" in told
    assert f"contents drifted files on localhost: 0 → 1, changed {path.relative_to(built.current)}" in told
    again = since(built, "last", rc=1)
    assert again.out.startswith("✗")
    assert "no difference in what both runs checked. tiny (exact) is not ready on localhost" in again.out
    changes = since(built, "last", "--json").json
    assert (changes["since"] < changes["run"], changes["changes"]) == (True, [])
    path.write_bytes(before)


def test_a_run_that_is_not_there_or_left_no_evidence_is_an_error_before_a_node_is_asked(built: World) -> None:
    before = {path.name for path in built.runs.iterdir()}
    done = since(built, "20200101T000000Z-aaaa")
    assert (done.rc, done.code, done.out) == (2, "run-unknown", "")
    assert {path.name for path in built.runs.iterdir()} == before
    (built.runs / first(built).name / "evidence.json").rename(built.top / "kept.json")
    try:
        assert since(built, min(before)).code == "evidence-missing"
    finally:
        (built.top / "kept.json").rename(built.runs / min(before) / "evidence.json")


def test_a_run_of_another_stack_is_refused_and_one_of_another_lock_is_said_to_be_that(built: World) -> None:
    run = first(built).name
    built.stack("other")
    built.lock(built.work / "other.yaml")
    done = since(built, run, stack="./other.yaml")
    assert (done.rc, done.code) == (2, "since-of-another")
    built.wheel(version="1.1")
    built.lock(built.stack(packages=["alpha==1.1"]))
    built.built()
    done = since(built, run)
    told = " ".join(done.out.split())
    assert (done.rc, "· run lock digest" in told, "· package alpha on localhost: 1.0 → 1.1" in told) == (0, True, True)
    assert "✗" not in told


def test_what_json_prints_of_a_run_is_its_evidence_and_is_shown_and_checked_as_such(built: World) -> None:
    out = built.run("verify", "--stack", "./tiny.yaml", "--target", "local", "--json").out
    kept = built.runs / json.loads(out)["run"]
    assert json.loads(out) == json.loads((kept / "evidence.json").read_text())
    path = built.work / "run.json"
    path.write_text(out)
    assert read_evidence(out.encode(), Path("run.json")).run == kept.name
    assert built.good("report", "show", "run.json", "--json").json == json.loads(out)
    assert built.good("report", "verify", "run.json").out.startswith("✓")
