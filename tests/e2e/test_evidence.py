"""The evidence of a real run is complete: everything that a reader needs to check it lies in its directory."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path

from envbuild.lock.files import read_lock
from envbuild.model import evidence
from envbuild.model.lock import Variant
from tests.e2e.world import MINOR, World
from tests.support.need import need


def first(world: World) -> Path:
    return min(world.runs.iterdir())


def newest(world: World) -> Path:
    return max(world.runs.iterdir())


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
    kinds = {each["kind"] for each in json.loads((newest(built) / "evidence.json").read_text())["attachments"]}
    assert kinds == {"lock", "profile", "stack", "variant", "plan", "journal"}
    told = built.good("verify", "--stack", "tiny.yaml", "--target", "local", "--json").json
    (files,) = [each for each in told["attachments"] if each["kind"] == "files"]
    assert files["of"] == node["root"]


def verified(world: World, *more: str) -> list[dict[str, str]]:
    """What `report verify` could not check of the newest run; all else holds."""
    told = world.good("report", "verify", "last", "--json", *more).json
    assert told["ok"], told
    return [each for each in told["findings"] if each["kind"] == "not-checked"]


def test_honest_reports_of_every_verb_hold_and_say_what_nobody_could_check(world: World) -> None:
    world.wheel()
    world.tiny(sources=[{**world.repository("helper", {"helper.py": "A = 1\n"}), "install": "path"}])
    world.built()
    built = verified(world)
    assert {each["topic"] for each in built} == {"signature", "lock", "root", "logs", "nodes"}
    world.good("provision", "--stack", "tiny.yaml", "--target", "local")
    assert {each["topic"] for each in verified(world)} == {"signature", "lock", "page", "root", "nodes", "checks"}
    world.good("verify", "--stack", "tiny.yaml", "--target", "local")
    assert {each["topic"] for each in verified(world)} >= {"lock", "root", "nodes"}
    world.good("smoke", "--stack", "tiny.yaml", "--target", "local")
    verified(world)
    (world.current / "lib" / f"python{MINOR}" / "site-packages" / "alpha" / "__init__.py").write_text("VALUE = 2\n")
    drifted = world.run("verify", "--stack", "tiny.yaml", "--target", "local")
    assert drifted.rc == 1
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
