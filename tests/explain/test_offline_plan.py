"""`explain` and `plan` for every stack, target and fleet from example facts: without a network, at once."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from envbuild.catalog.loader import list_stacks, list_targets, load_stack, load_target
from envbuild.catalog.node_facts import list_facts, load_facts
from envbuild.catalog.yaml_load import load_yaml
from envbuild.cli.explain_cmd import explain
from envbuild.explain.view import outline
from envbuild.model.facts import NodeFacts
from envbuild.resolve.node_classes import group
from tests.resolve.builders import compat, node_facts, plain_compat, resolve_fleet, target
from tests.support import forked
from tests.support.files import write_file

# Each target that names a stack, with the example facts of its hardware; the templates and this machine have none of
# their own.
TARGETS = {
    name: name if name in list_facts() else "h200"
    for name in list_targets()
    if load_target(name, template=True).target.stack is not None
}
WITHOUT_FACTS = {"local", "pbs", "slurm", "ssh"}
# What is built there where it is not the document's own profile.
PROFILES = {"polaris": "module-2025-09-25"}
GUARD = """
import socket, sys

def refuse(self, address, *more):
    if self.family != socket.AF_UNIX:
        with open({log!r}, "a") as out:
            out.write(repr(address) + chr(10))
        raise OSError("this test forbids the network")

socket.socket.connect = refuse
socket.socket.connect_ex = refuse
"""


def run(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run envbuild with a fresh HOME and no network."""
    log = tmp_path / "network.log"
    guard = write_file(tmp_path / "guard.py", GUARD.format(log=str(log)))
    kept = {key: value for key, value in os.environ.items() if key in ("PATH", "LANG", "LC_ALL")}
    env = {**kept, "HOME": str(tmp_path / "home"), "NO_COLOR": "1"}
    (tmp_path / "home").mkdir(exist_ok=True)
    before = ("tests.support.no_network:forbid", str(guard))
    ended = forked.run(arguments, env=env, cwd=tmp_path, timeout=120, before=before)
    assert not log.exists(), log.read_text()
    return ended


def stack_of(target: str) -> str:
    """The stack that a target names."""
    return str(load_target(target, template=True).target.stack)


def test_every_stack_has_its_default_target() -> None:
    assert {target for target, facts in TARGETS.items() if facts != target} == WITHOUT_FACTS
    assert {stack_of(target) for target in TARGETS} == set(list_stacks())


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_d03_every_target_plans_and_explains_its_default_stack_from_its_own_facts(target: str, tmp_path: Path) -> None:
    stack, facts, profile = stack_of(target), TARGETS[target], PROFILES.get(target, "exact")
    done = run(tmp_path, "plan", "--target", target, "--facts", facts)
    origin = f"stack: {stack}, from the target {target}; for another, name it after the command\n"
    assert (done.returncode, done.stderr) == (0, origin)
    assert f"plan: {stack} ({profile}) on {target}" in done.stdout
    assert "because" in done.stdout
    assert list((tmp_path / "home").rglob("*")) == []
    if target in WITHOUT_FACTS:
        return
    done = run(tmp_path, "explain", stack, "--target", target, "--facts", facts)
    example = f"example facts of {facts}: its nodes, GPUs, drivers and user `[a-z]+`, not yours\n"
    assert done.returncode == 0 and re.fullmatch(example, done.stderr)
    assert f"{stack} ({profile})" in done.stdout
    assert (f"profile {profile}: " in done.stdout) is (profile != "exact")
    assert "Decisions for " in done.stdout
    assert ": refused" not in done.stdout


def test_explain_decides_as_plan_does_and_says_what_it_could_not_know(tmp_path: Path) -> None:
    place = ("--target", "azure-nd96", "--facts", "azure-nd96", "--json")
    explained = json.loads(run(tmp_path, "explain", *place).stdout)["decisions"]
    planned = json.loads(run(tmp_path, "plan", *place).stdout)["plan"]["nodes"][0]["resolution"]["decisions"]
    other = ("node", "chosen")
    assert [{k: v for k, v in row.items() if k not in other} for row in explained if row["chosen"]] == planned
    done = run(tmp_path, "explain", "megatron-deepspeed-alcf", "--facts", "polaris")
    assert "decisions: no target was given: `--target TARGET` says what jobs load" in done.stdout
    done = run(tmp_path, "explain", "opt-175b", "--facts", "azure-nd69")
    assert done.returncode == 2
    assert "error[facts-unknown]" in done.stderr
    assert "did you mean `azure-nd96`?" in done.stderr


def test_d03_a_plan_says_why_its_profile_was_chosen_and_what_that_one_lacks(tmp_path: Path) -> None:
    target, profile = "polaris", PROFILES["polaris"]
    done = run(tmp_path, "plan", "--target", target, "--facts", target, "--json")
    plan = json.loads(done.stdout)["plan"]
    deviations = load_stack(plan["stack"]).stack.profiles[profile].deviations
    assert plan["profile_why"] == "the target polaris names it"
    assert set(plan["warnings"]) >= {f"profile {profile}: {text}" for text in deviations}
    done = run(tmp_path, "explain", plan["stack"], "--target", target, "--json")
    assert json.loads(done.stdout)["profile_why"] == plan["profile_why"]


def test_d10_the_hint_for_a_module_that_is_gone_names_the_profile_that_fits(tmp_path: Path) -> None:
    place = ("plan", "--target", "polaris", "--facts", "polaris", "--json", "--profile")
    done = run(tmp_path, *place, "exact")
    [error] = json.loads(done.stdout)["errors"].values()
    assert (done.returncode, error["code"]) == (7, "base-module")
    assert "jobs of polaris load conda/2025-09-25" in error["why"]
    assert error["hint"].startswith("`--profile module-2025-09-25` fits; or ")
    assert "conda/2023-10-04" not in error["hint"]
    done = run(tmp_path, *place, "module-2025-09-25")
    assert done.returncode == 0


def test_a_plan_says_what_provision_cannot_do_yet(tmp_path: Path) -> None:
    target = tmp_path / "mine.yaml"
    target.write_text("{name: mine, extends: pods-rtx4090, hosts: [gpu1], container: {runtime: pyxis}}")
    done = run(tmp_path, "plan", "--target", str(target), "--stack", "torch-smoke", "--facts", "pods-rtx4090")
    assert "provision` cannot do this yet: container: {runtime: pyxis} without jobs of Slurm" in done.stdout


def test_the_users_own_facts_file_and_one_of_its_hosts(tmp_path: Path) -> None:
    plain = json.loads((Path(__file__).parents[2] / "envbuild/catalog/facts/h200.json").read_text())
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"one": plain, "two": plain}))
    done = run(tmp_path, "plan", "--target", "h200", "--facts", str(file), "--json")
    assert [node["nodes"] for node in json.loads(done.stdout)["plan"]["nodes"]] == [["one", "two"]]
    named = ("plan", "--target", "azure-nd96", "--stack", "torch-smoke", "--facts", str(file), "--json", "--host")
    done = run(tmp_path, *named, "two")
    assert [node["node"] for node in json.loads(done.stdout)["plan"]["nodes"]] == ["two"]
    done = run(tmp_path, *named, "three")
    assert json.loads(done.stdout)["error"]["code"] == "facts-unknown"


@pytest.mark.parametrize("verb", ["provision", "plan", "status --all"])
def test_nodes_that_cannot_be_reached_yet_are_refused_once_and_nothing_is_written(verb: str, tmp_path: Path) -> None:
    done = run(tmp_path, *verb.split(), "--target", "slurm-pyxis")
    code, exit_code = ("target-template", 2) if verb != "status --all" else ("not-yet-supported", 7)
    assert (done.returncode, done.stdout) == (exit_code, "")
    assert done.stderr.count(f"error[{code}]") == done.stderr.count("error[") == 1
    assert "<your-partition>" in done.stderr
    assert list((tmp_path / "home").rglob("*")) == []


CASES: list[dict[str, Any]] = list(load_yaml(Path(__file__).parent / "fleets.yaml"))


def fleet_of(row: dict[str, Any]) -> dict[str, NodeFacts]:
    fleet: dict[str, NodeFacts] = {}
    for kind in row["nodes"]:
        facts = node_facts(kind["node"], **kind.get("facts", {}))
        names = [f"{kind['node']}-{i:02}" for i in range(kind["count"])]
        fleet |= {name: facts.model_copy(update={"node": name, "hostname": name}) for name in names}
    return fleet


@pytest.mark.parametrize("row", CASES, ids=[row["case"] for row in CASES])
def test_each_kind_of_node_gets_one_variant_or_a_reason(row: dict[str, Any]) -> None:
    fleet = fleet_of(row)
    lock = outline(load_stack(row["stack"]).stack, row["profile"])
    got = resolve_fleet(fleet, lock, target(), compat())
    for kind in row["nodes"]:
        own = [resolution for name, resolution in got.items() if name.startswith(f"{kind['node']}-")]
        assert len(own) == kind["count"]
        assert {r.variant_id for r in own} == {kind.get("variant")}, [d.what for d in own[0].decisions]
        if "refused" in kind:
            for resolution in own:
                refusal = next(d for d in resolution.decisions if d.rule == kind["refused"])
                assert (refusal.verdict, bool(refusal.alternatives)) == ("refuse", True)
    assert sorted(len(found.nodes) for found in group(fleet)) == sorted(kind["count"] for kind in row["nodes"])
    value: Any = plain_compat()
    for key in row["because"].partition(": ")[0].split("/"):
        assert key in value, "the reason cites a key of the data"
        value = value[key]


def test_a_fleet_is_explained_kind_by_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "fleet.json"
    facts = {name: node.model_dump(mode="json") for name, node in fleet_of(CASES[0]).items()}
    file.write_text(json.dumps(facts))
    assert list(load_facts(str(file))) == list(facts)
    code = explain.main(args=["opt-175b", "--facts", str(file)], standalone_mode=False)
    out = capsys.readouterr().out
    assert code == 0
    assert "Decisions for 60 nodes (a100-azure-00 to a100-azure-59): cp39-linux_x86_64-cu113" in out
    assert "Decisions for 4 nodes (h100-00 to h100-03): refused" in out
    assert "Other profiles" in out


def test_what_nodes_have_in_common_is_one_object_in_memory(tmp_path: Path) -> None:
    plain = load_facts("azure-nd96").popitem()[1].model_dump(mode="json")
    nodes = [{**plain, "node": name} for name in ("a", "b")]
    for node in nodes:
        node["gpus"] = [{**gpu, "uuid": f"GPU-{node['node']}-{gpu['index']}"} for gpu in plain["gpus"]]
    (tmp_path / "two.json").write_text(json.dumps(nodes))
    first, second = load_facts(str(tmp_path / "two.json")).values()
    assert first.nics is second.nics
    assert first.gpus != second.gpus
