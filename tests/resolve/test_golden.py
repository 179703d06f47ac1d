"""Golden decisions: facts and a request in, the verdict of one rule out; reasons cite the compat data."""

from __future__ import annotations

import copy
import functools
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from envbuild.catalog.yaml_load import load_yaml
from envbuild.errors import EnvbuildError
from envbuild.model.resolution import Decision
from envbuild.resolve.compat import Compat
from envbuild.resolve.compat_read import compat_from_plain
from envbuild.resolve.engine import evaluate
from envbuild.resolve.request import Request
from tests.resolve.builders import compat, node_facts, plain_compat, rule_ids

CASES: list[dict[str, Any]] = [
    row for path in sorted((Path(__file__).parent / "golden").glob("*.yaml")) for row in load_yaml(path)
]


def request_of(row: dict[str, Any]) -> Request:
    fields = dict(row["request"])
    for key, kind in (("compiled", tuple), ("traits", frozenset), ("from_pypi", frozenset)):
        if key in fields:
            fields[key] = kind(fields[key])
    for key in ("flags", "patches"):
        if key in fields:
            fields[key] = {name: tuple(values) for name, values in fields[key].items()}
    return Request(**fields)


def decided(row: dict[str, Any], data: Compat) -> list[Decision]:
    facts = node_facts(row["node"], **row.get("facts", {}))
    return [d for d in evaluate(facts, request_of(row), data) if d.rule == row["rule"]]


@pytest.mark.parametrize("row", CASES, ids=[row["case"] for row in CASES])
def test_golden_decision(row: dict[str, Any]) -> None:
    found = decided(row, compat())
    assert found, f"the rule {row['rule']} said nothing"
    assert {d.verdict for d in found} == {row["verdict"]}, [d.what for d in found]
    for item in found:
        assert item.compared is not None and all(item.compared)
        assert item.source and item.verified
        assert len(item.verified) <= 120
        place, _, says = item.source.partition(": ")
        if place.startswith("compat/"):
            file, _, key = place.removeprefix("compat/").partition(".yaml#")
            rows = plain_compat()[file]
            assert key in rows or key in {rule["id"] for rule in rows["rules"]}, item.source
            assert 0 < len(says) <= 120
        assert row.get("says", "") in item.what
        assert row.get("instead", "") in item.alternatives
        if item.verdict == "refuse" and row["rule"] != "gpu-arch":
            assert item.alternatives, "a refusal names what would work"


@pytest.mark.parametrize("row", CASES, ids=[row["case"] for row in CASES])
def test_golden_reason_cites_a_key_of_the_data(row: dict[str, Any]) -> None:
    path, _, reason = row["because"].partition(": ")
    value: Any = plain_compat()
    for key in path.split("/"):
        assert key in value, f"{path}: no key {key}"
        value = value[key]
    assert reason


def test_every_rule_has_an_allow_and_a_non_allow_case() -> None:
    verdicts = defaultdict(set)
    for row in CASES:
        verdicts[row["rule"]].add("allow" if row["verdict"] == "allow" else "other")
    assert {rule for rule in rule_ids() if verdicts[rule] != {"allow", "other"}} == set()


def test_case_names_and_rule_ids_are_unique() -> None:
    names = [row["case"] for row in CASES]
    assert len(names) == len(set(names))
    ids = rule_ids()
    assert len(ids) == len(set(ids))


def test_unverified_data_never_refuse() -> None:
    for row in CASES:
        for item in evaluate(node_facts(row["node"], **row.get("facts", {})), request_of(row), compat()):
            assert not (item.verdict == "refuse" and item.verified.startswith(("not verified", "memory")))


def test_newest_and_oldest_torch_by_python_agree_with_what_was_asked_live() -> None:
    asked = plain_compat()["python"]["newest_torch"]
    for python, version in asked["newest"].items():
        tag = "cp" + python.replace(".", "")
        have = [v for v, r in compat().torch.items() if r.on_pypi and tag in r.tags["x86_64"]]
        assert have[-1] == version
        assert have[0] == asked["oldest"].get(python, have[0])


# Each kind of value that a rule uses, with another value: some verdict must change.
MUTATIONS = {
    "torch/releases/1.8.2/pypi": True,
    "torch/releases/1.10.0/pypi_flavour": "cu111",
    "torch/releases/1.8.2/x86_64/python/2": "cp35",
    "torch/releases/1.8.2/x86_64/unverified_python/0": "cp35",
    "torch/releases/2.6.0/flavours/cu126/glibc": "2.17",
    "torch/releases/1.11.0/flavours/cu113/arch": "7.0",
    "torch/releases/2.9.0/flavours/cu130/arch": "7.5",
    "torch/releases/2.7.0/flavours/cu128/unverified": None,
    "torch/releases/2.8.0/flavours/cu128/disputed": {},
    "torch/releases/2.13.0/flavours/cu130/ptx_unverified": None,
    "torch/releases/2.7.0/abi": 0,
    "torch/releases/2.6.0/flavours/cu126/abi": 0,
    "torch/glibc/tags/manylinux_2_28_x86_64": "2.29",
    "torch/glibc/tags/manylinux1_x86_64": "2.30",
    "cuda/driver_floors/linux/11": "455.0",
    "cuda/driver_floors/linux/12": "400.0",
    "cuda/driver_floors/no_minor_compat/10.2": "400.0",
    "cuda/toolkit_drivers/linux/11.8": "400.0",
    "cuda/toolkit_drivers/linux/12.1": "550.0",
    "cuda/toolkit_drivers/linux/13.2": "580.0",
    "cuda/forward_compat/excluded_branches/4": 511,
    "cuda/gpu_drivers/first_branch/9.0": 500,
    "cuda/gpu_drivers/unverified": False,
    "cuda/architectures/first_cuda/8.0": "11.8",
    "cuda/architectures/first_cuda/8.9": "11.0",
    "cuda/architectures/last_cuda/7.0": "13.5",
    "cuda/nvcc_check/torch_checks_from": "1.8.0",
    "cuda/nvcc_check/exact_minor": {},
    "cuda/nvcc_check/own_list": {},
    "cuda/nvcc_check/setuptools_needs": "60.0",
    "compilers/gcc/max_major/11.1": 12,
    "compilers/gcc/max_major/11.6": 12,
    "compilers/gcc/max_major_exact/11.4.0": 11,
    "compilers/gcc/disputed": {},
    "compilers/gcc/min_major/11.4": 5,
    "compilers/gcc/torch_min_major/2.1.0": 8,
    "compilers/gcc/torch_min_unverified": False,
    "compilers/gcc/torch_errors_below/2.2.2": 8,
    "gpus/kinds/geforce": ["nothing"],
    "gpus/kinds/data-centre": ["nothing"],
    "gpus/models/H200-SXM-141GB/sparse_tflops": 1500,
    "gpus/models/H200-SXM-141GB/bf16_dense_tflops": 1500,
    "images/images/22.02/cuda": "11.8.0",
    "images/images/23.04/min_driver": "540",
    "limits/zero_pipeline/max_stage": 2,
    "limits/mig/max_ranks": 2,
    "limits/mig/nccl_from": "2.32",
    "limits/bf16/min_capability": "7.5",
}


def _verdicts(data: Compat) -> list[set[str]]:
    return [{d.verdict for d in decided(row, data)} for row in CASES]


@functools.cache
def _undisturbed() -> list[set[str]]:
    return _verdicts(compat())


@pytest.mark.parametrize(("path", "value"), MUTATIONS.items())
def test_changing_a_value_changes_a_verdict(path: str, value: Any) -> None:
    plain = copy.deepcopy(plain_compat())
    holder: Any = plain
    *way, last = path.split("/")
    for key in way:
        holder = holder[key]
    if isinstance(holder, list):
        holder[int(last)] = value
    else:
        assert last in holder
        holder[last] = value
    assert _verdicts(compat_from_plain(plain)) != _undisturbed()


@pytest.mark.parametrize("index", range(len(plain_compat()["packages"]["rules"])))
def test_changing_a_row_of_the_package_rules_changes_a_verdict(index: int) -> None:
    plain = copy.deepcopy(plain_compat())
    row = plain["packages"]["rules"][index]
    name = row["breaks"].split(">")[0].split("<")[0]
    row["breaks"] = f"{name}>=9999"
    assert _verdicts(compat_from_plain(plain)) != _undisturbed()


def test_damaged_data_are_a_coded_error() -> None:
    plain = copy.deepcopy(plain_compat())
    del plain["cuda"]["driver_floors"]
    with pytest.raises(EnvbuildError) as caught:
        compat_from_plain(plain)
    assert caught.value.code == "installation-broken"
