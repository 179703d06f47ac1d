"""Mixed fleets: per kind of node one variant, or refused with the reason; data in fleets.yaml."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envbuild.catalog.loader import load_stack
from envbuild.catalog.node_facts import load_facts
from envbuild.catalog.yaml_load import load_yaml
from envbuild.cli.explain_cmd import explain
from envbuild.explain.view import outline
from envbuild.model.facts import NodeFacts
from envbuild.resolve.node_classes import group
from tests.resolve.builders import compat, node_facts, plain_compat, resolve_fleet, target

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


@pytest.mark.parametrize("row", CASES, ids=[row["case"] for row in CASES])
def test_the_reason_of_a_fleet_cites_a_key_of_the_data(row: dict[str, Any]) -> None:
    value: Any = plain_compat()
    for key in row["because"].partition(": ")[0].split("/"):
        assert key in value
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
    assert len({id(gpu.name) for node in (first, second) for gpu in node.gpus}) == 1
