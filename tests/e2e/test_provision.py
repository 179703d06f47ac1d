"""The main job through the real command: build, build again, look only, and the script that does the same."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from envbuild.model.evidence import EVIDENCE_VERSION
from tests.e2e.world import World, snapshot
from tests.node.env_support import uv_path
from tests.support.programs import completed


def test_a_provision_leaves_an_environment_a_journal_and_reports(built: World) -> None:
    assert built.python("import alpha; print(alpha.VERSION)") == "1.0"
    first = built.good("run", "list", "--json").json["runs"][-1]
    assert (first["status"], first["stack"], first["target"]) == ("finished", "tiny", "local")
    run = built.runs / first["id"]
    names = {path.name for path in run.iterdir()}
    assert {"plan.json", "journal.jsonl", "evidence.json", "report.html", "report.md"} <= names
    assert json.loads((run / "evidence.json").read_text())["steps_run"] > 0
    assert run.stat().st_mode & 0o077 == 0
    kinds = [event["kind"] for event in built.events(first["id"])]
    assert kinds[:5] == ["run-started", "contacted", "resolved", "planned", "playbook-started"]
    assert kinds[-3:] == ["node-finished", "evidence-written", "run-finished"]
    assert "tiny" in built.good("report", "show", first["id"]).out
    assert built.good("report", "show", run).out == built.good("report", "show", first["id"]).out


def test_the_second_provision_has_nothing_to_do_and_runs_no_task(built: World) -> None:
    before = snapshot(built.prefix)
    root = json.loads((built.current / ".envbuild" / "stamp.json").read_text())["root"]
    done = built.provision(rc=0)
    assert "nothing to do" in done.err
    assert done.json["steps_run"] == 0
    assert (done.node["status"], done.node["root"]) == ("unchanged", root)
    statuses = {check["name"]: check["status"] for check in done.node["checks"]}
    assert statuses == {"stamp": "passed", "packages": "passed", "link": "passed", "files": "not-run"}
    kinds = [event["kind"] for event in built.events()]
    assert not {"playbook-started", "step-started", "step-finished"} & set(kinds), kinds
    planned = built.good("plan", "--target", "local", "--stack", "./tiny.yaml", "--json").json["plan"]["nodes"][0]
    assert [(each["rule"], each["verdict"]) for each in planned["resolution"]["decisions"]] == [("in-use", "allow")]
    assert snapshot(built.prefix) == before


def test_the_summary_is_on_stdout_and_the_rest_on_stderr(built: World) -> None:
    done = built.good("provision", "--stack", "./tiny.yaml")
    assert "tiny (exact)" in done.out
    assert len(done.out.splitlines()) <= 24, "the summary fits one screen"
    assert "contacting 1 node" not in done.out
    assert "\x1b" not in done.out + done.err
    assert "compared nothing" not in done.err
    quiet = built.good("provision", "--stack", "./tiny.yaml", "--quiet")
    assert quiet.err == ""
    assert "tiny" in quiet.out
    compared = built.good("provision", "--stack", "./tiny.yaml", "--check-rebuild")
    assert "--check-rebuild compared nothing" in compared.err and "--repair" in compared.err


def test_looking_changes_nothing_under_the_prefix(world: World) -> None:
    world.tiny()
    for verb in (("provision", "--dry-run"), ("plan",), ("provision", "--print-script")):
        done = world.good(*verb, "--target", "local", "--stack", "./tiny.yaml", "--json")
        kinds = [step["kind"] for step in done.json["plan"]["nodes"][0]["steps"]]
        assert kinds == ["toolchain", "install", "smoke", "activate"]
        assert not world.prefix.exists()
        assert world.good("run", "list", "--json").json["runs"] == []


def test_the_printed_script_builds_the_same_without_envbuild(world: World, tmp_path: Path) -> None:
    world.tiny(environment={"HF_GREETING": "hello $(id) 'you'"})
    script = tmp_path / "build.sh"
    script.write_text(world.good("provision", "--stack", "./tiny.yaml", "--print-script").out)
    env = {**world.env, "UV_FIND_LINKS": str(world.wheels)}
    env["PATH"] = f"{Path(uv_path()).parent}{os.pathsep}{env['PATH']}"
    done = completed(["bash", str(script)], env=env, timeout=120)
    assert done.returncode == 0, done.stderr
    assert world.python("import alpha; print(alpha.VERSION)") == "1.0"
    shell = '. "$1/.envbuild/activate.sh" && printf %s "$HF_GREETING" && python -c "import alpha"'
    said = completed(["sh", "-c", shell, "sh", str(world.current)], env=env)
    assert (said.returncode, said.stdout) == (0, "hello $(id) 'you'")


def test_the_printed_script_of_what_is_in_use_is_the_whole_one(built: World) -> None:
    before = snapshot(built.prefix)
    script = built.good("provision", "--stack", "./tiny.yaml", "--print-script").out
    assert "uv venv" in script and "alpha==1.0" in script
    assert "is there already; remove it first" in script
    assert snapshot(built.prefix) == before


def test_the_deviations_of_a_profile_are_in_evidence_and_report(world: World) -> None:
    world.tiny(deviations=["alpha 1.0 instead of 0.9, which is gone"])
    unbuilt = world.run("verify", "--target", "local", "--stack", "./tiny.yaml", "--json")
    assert (unbuilt.rc, unbuilt.json["deviations"]) == (1, []), "what is not there deviates from nothing"
    done = world.provision()
    assert (done.rc, done.json["deviations"]) == (0, ["alpha 1.0 instead of 0.9, which is gone"])
    page = (world.runs / done.json["run"] / "report.html").read_text()
    assert "alpha 1.0 instead of 0.9, which is gone" in page and "1 deviation" in page
    assert world.run("verify", "--target", "local", "--stack", "./tiny.yaml", "--json").json["deviations"]


@pytest.mark.slow
def test_going_back_is_switching_a_link(world: World) -> None:
    world.tiny()
    old = world.built()["environment"]
    (run,) = filter(Path.is_dir, world.runs.iterdir())
    assert sum(path.stat().st_size for path in run.rglob("*") if path.is_file()) < 1_000_000, "no copy of the tools"
    world.wheel("alpha", "2.0")
    world.lock(world.stack(packages=["alpha==2.0"]))
    new = world.built()["environment"]
    assert old != new
    for name in ("bin/python", "bin/activate", "pyvenv.cfg"):  # what an editor takes for an environment
        assert (world.current / name).is_file()
    assert world.python("import alpha; print(alpha.VERSION)") == "2.0"
    states = {item["path"]: item["current"] for item in world.good("status", "--all", "--json").json["environments"]}
    assert states == {old: False, new: True}
    world.good("env", "use", Path(old).name)
    assert world.good("env", "activate", "tiny", "--json").json["path"] == old
    assert world.python("import alpha; print(alpha.VERSION)") == "1.0"
    assert world.run("env", "remove", Path(old).name, "--yes").rc != 0
    assert Path(old).exists()
    _prune(world, old, new)


def _prune(world: World, in_use: str, other: str) -> None:
    """Of two environments the one that nobody uses goes, when it is old and when it is told."""
    assert world.good("store", "clean", "--only", "environments").out == "nothing is that old\n"
    old = ("store", "clean", "--only", "environments", "--keep", "0s")
    assert world.good(*old).out.splitlines()[-1].startswith("would remove 1 item, ")
    argv = [f"{other}/bin/python", "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, env={"VIRTUAL_ENV": other}) as process:
        kept = world.run(*old, "--yes", "--json", rc=7)
        assert old_ones(kept.json) == set()
        (error,) = kept.json["errors"].values()
        assert (error["code"], error["why"]) == ("environment-in-use", f"pid {process.pid}")
        process.communicate()
    half = Path(in_use).with_name("tiny-exact-0123456789ab")
    half.mkdir()
    assert old_ones(world.good(*old, "--yes", "--json").json) == {other, str(half)}
    assert list(Path(in_use).parent.iterdir()) == [Path(in_use)]
    assert world.python("import alpha; print(alpha.VERSION)") == "1.0"


def old_ones(told: dict[str, Any]) -> set[str]:
    """What `store clean` names to remove."""
    return {path for row in told["places"] for path in row["old"]}


@pytest.mark.parametrize(
    "line",
    [
        "verify --stack ./tiny.yaml",
        "verify --quick --stack ./tiny.yaml",
        "smoke --stack ./tiny.yaml",
        "doctor --facts-out facts.json",
        "status",
        "plan --stack ./tiny.yaml",
        "status --all",
        "env activate tiny",
        "env use tiny-exact",
        "run list",
        "run show last",
        "report show last",
    ],
)
def test_every_verb_about_what_is_built_gives_one_json_document(built: World, line: str) -> None:
    before = snapshot(built.prefix)
    done = built.good(*line.split(), "--json")
    assert done.json.get("schema") == 1 or done.json["schema_version"] == EVIDENCE_VERSION
    after = snapshot(built.prefix)
    if line.startswith("verify --stack"):  # all that it writes is when it read the contents
        for found in (before, after):
            found.pop(f"envs/{built.current.name}/.envbuild/read.json", None)
    assert after == before


def test_the_environment_is_beside_a_modulefile_that_names_it(built: World) -> None:
    text = (built.prefix / "modulefiles" / "envbuild" / "tiny").read_text()
    assert text.startswith("#%Module")
    assert str(built.current) in text
