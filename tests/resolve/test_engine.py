"""The resolver over whole locks: which variant, which interpreter, and why nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from envbuild.model.facts import NodeFacts
from envbuild.model.lock import Lock
from envbuild.model.plan import Decision, Resolution
from envbuild.plan.source_builds import build_request, compiler_variables
from envbuild.resolve import engine
from envbuild.resolve.engine import Resolver, evaluate
from envbuild.resolve.estimate import Supply, indexes_needed
from tests.resolve.builders import (
    GB,
    compat,
    make_lock,
    node_facts,
    package,
    resolve_fleet,
    source,
    target,
    torch_lock,
    torch_package,
    torch_row,
)
from tests.resolve.test_golden import CASES, request_of
from tests.support.fails import fails

PY311 = ["3.11.9 at /usr/bin/python3.11"]
TORCH_SITE = {"torch": "2.13.0+cu130", "numpy": "2.3.1"}
FORGE = source()["git"]
CUDA = {"flags": ["cuda_ext"]}


def decided(facts: NodeFacts, lock: Lock | None = None, **options: Any) -> Resolution:
    fields, supply = options.pop("target", {}), options.pop("supply", None)
    return Resolver(lock or torch_lock(), target(**fields), compat(), supply, **options).resolve(facts)


def rules(resolution: Resolution, verdict: str) -> list[str]:
    return [d.rule for d in resolution.decisions if d.verdict == verdict]


def of_rule(resolution: Resolution, rule: str) -> Decision:
    (decision,) = (d for d in resolution.decisions if d.rule == rule)
    return decision


def with_site(facts: NodeFacts, packages: dict[str, str] | None, **python: Any) -> NodeFacts:
    changed = tuple(p.model_copy(update={"packages": packages, **python}) for p in facts.pythons)
    return facts.model_copy(update={"pythons": changed})


def stamped(facts: NodeFacts, lock: Lock, digest: str, *, current: bool = True, **stamp: Any) -> NodeFacts:
    found = {
        "path": f"/data/envbuild/envs/{lock.stack}-{lock.profile}-{digest[:12]}",
        "stack": lock.stack,
        "profile": lock.profile,
        "variant_digest": digest,
        "current": current,
        "stamp": {"root": "r", **stamp},
    }
    return NodeFacts.model_validate({**facts.model_dump(), "environments": [found]})


@pytest.mark.parametrize(
    ("name", "facts", "variant", "says"),
    [
        ("cpu-laptop", {"pythons": [*PY311, "3.12.3"]}, "cpu-py3.11", ""),
        ("b200", {}, "cu130-py3.12", ""),
        ("b200", {"visible": ""}, "cpu-py3.12", ""),
        ("h200", {}, "cpu-py3.12", "cuda-compat-13-0"),
        ("rtx4090", {"pythons": PY311}, "cpu-py3.11", "needs driver 580.65.06"),
    ],
)
def test_a_node_takes_what_its_gpus_and_driver_allow_and_says_what_keeps_cuda_away(
    name: str, facts: dict[str, Any], variant: str, says: str
) -> None:
    got = decided(node_facts(name, **facts))
    assert got.variant_id == variant
    assert not says or any(says in f"{d.what} {d.instead}" for d in got.decisions if d.rule == "gpu-unused")
    assert name != "cpu-laptop" or (got.interpreter, rules(got, "warn")) == ("/usr/bin/python3.11", [])


def test_a_file_that_is_there_or_can_be_had_decides_and_what_the_node_reaches_counts_first() -> None:
    lock, gone = torch_lock(), Supply(reachable={"pytorch-cpu": False})
    cpu312 = next(v for v in lock.variants if v.id == "cpu-py3.12").packages[0].files[0].file
    facts = node_facts("cpu-laptop", pythons=[*PY311, "3.12.3"], more={"files_found": {cpu312: f"/wheels/{cpu312}"}})
    assert decided(facts, lock, supply=gone).variant_id == "cpu-py3.12"
    got = decided(node_facts("cpu-laptop"), supply=gone)
    heavy = of_rule(got, "cuda-without-gpu")
    assert got.variant_id == "cu130-py3.11"
    assert heavy.verdict == "warn" and heavy.what.startswith("916 MB to fetch")
    reaches = node_facts("cpu-laptop", more={"reachable": {"pytorch-cpu": True}})
    assert decided(reaches, supply=gone).variant_id == "cpu-py3.11"
    assert decided(reaches, supply=gone, target={"delivery": "controller"}).variant_id == "cu130-py3.11"
    assert decided(node_facts("cpu-laptop"), variant="cu130-py3.11").variant_id == "cu130-py3.11"
    with fails("variant-unknown") as caught:
        decided(node_facts("cpu-laptop"), variant="cu130-py3.10")
    assert "cu130-py3.1" in caught.value.hint
    assert indexes_needed(lock) == ["pypi", "pytorch-cpu"]


@pytest.mark.parametrize(
    ("variable", "value", "instead"),
    [
        ("NCCL_SOCKET_IFNAME", "eth0", "ens3"),
        ("NCCL_SOCKET_IFNAME", "=ens", "ens3"),  # not the beginning of a name
        ("GLOO_SOCKET_IFNAME", "ens", "ens3"),
        ("NCCL_SOCKET_IFNAME", "ens", None),
        ("NCCL_SOCKET_IFNAME", "eth0,ens", None),
        ("NCCL_SOCKET_IFNAME", "=ens3", None),
        ("NCCL_SOCKET_IFNAME", "^docker,lo", None),
        ("GLOO_SOCKET_IFNAME", "lo", None),  # virtual ones are not among the facts
        ("UCX_NET_DEVICES", "eth0", None),
    ],
)
def test_a_variable_that_names_an_interface_which_the_node_does_not_have_is_a_warning_of_that_node(
    variable: str, value: str, instead: str | None
) -> None:
    target = {"environment": {variable: value}}
    nics = [{"name": "ib0", "kind": "infiniband"}, {"name": "ens3", "addresses": ["10.0.0.4"]}]
    facts = node_facts("b200", more={"nics": nics})
    got = [d for d in decided(facts, target=target).decisions if d.rule == "interface-absent"]
    told = [f"`environment: {{{variable}: {instead}}}` in the target"] if instead else []
    assert [(d.verdict, d.instead) for d in got] == [("warn", text) for text in told]
    assert "interface-absent" not in rules(decided(node_facts("b200"), target=target), "warn"), "nobody has looked"


def test_the_variable_of_ucx_is_named_too_and_equal_nodes_of_other_interfaces_are_told_apart() -> None:
    """`opt-175b` sets both to the interface of its document's machines."""
    facts = node_facts("b200", more={"nics": [{"name": "ens3", "addresses": ["10.0.0.4"]}]})
    both = {"NCCL_SOCKET_IFNAME": "eth0", "UCX_NET_DEVICES": "eth0"}
    got = of_rule(decided(facts, target={"environment": both}), "interface-absent")
    assert got.what.startswith("NCCL_SOCKET_IFNAME and UCX_NET_DEVICES are eth0, and the node has no such")
    assert got.instead == "`environment: {NCCL_SOCKET_IFNAME: ens3, UCX_NET_DEVICES: ens3}` in the target"
    nodes = {name: node_facts("b200", more={"node": name, "nics": [{"name": name}]}) for name in ("eth0", "ens3")}
    found = Resolver(torch_lock(), target(environment=both), compat()).fleet(nodes)
    assert [node for node, got in found.items() if "interface-absent" in rules(got, "warn")] == ["ens3"]


HERE = Supply(reachable={"pypi": True, FORGE: True})


@pytest.mark.parametrize(
    ("pypi", "forge", "supply", "delivery", "by", "why"),
    [
        (False, False, HERE, "auto", "controller",
         "the node does not reach the index pypi, git.example.org; this machine has or reaches it"),
        (True, True, HERE, "auto", "node", "the node reaches what it needs"),
        (True, False, None, "auto", "controller",
         "the node does not reach git.example.org; `provision` checks whether this machine reaches it"),
        (True, None, None, "auto", "node",
         "whether the node reaches git.example.org is not known; what it does not reach, this machine downloads"),
        (True, False, Supply(reachable={"pypi": True, FORGE: False}), "auto", "node", ""),
        (False, False, HERE, "node", "node", ""),
        (True, True, HERE, "controller", "controller", "the target says that nodes fetch nothing themselves"),
    ],
)  # fmt: skip
def test_d12_who_fetches_is_who_can_or_whom_the_target_names(
    pypi: bool, forge: bool | None, supply: Supply | None, delivery: str, by: str, why: str
) -> None:
    lock = make_lock({"id": "v", "python": "3.11", "packages": [package("a", "1")], "sources": [source()]})
    reach = {"pypi": pypi} | ({} if forge is None else {FORGE: forge})
    facts = node_facts("cpu-laptop", more={"reachable": reach})
    got = decided(facts, lock, supply=supply, target={"delivery": delivery})
    assert (got.delivery.by, got.delivery.why) == (by, why)
    tries = by == "node" and False in reach.values()
    assert rules(got, "warn") == (["files-out-of-reach"] if tries else [])
    if supply and not supply.reachable[FORGE]:
        assert of_rule(got, "files-out-of-reach").compared == ("lib", "git.example.org cannot be reached")


def test_d06_a_source_that_the_node_cannot_reach_is_delivered_though_its_base_has_all_packages() -> None:
    base = {"kind": "system", "provides": ["torch==2.13.0"]}
    lock = make_lock({"id": "v", "python": "3.11", "base": base, "packages": [], "sources": [source()]})
    facts = with_site(node_facts("cpu-laptop", more={"reachable": {FORGE: False}}), TORCH_SITE)
    got = decided(facts, lock, target={"base": "system"})
    assert (got.variant_id, got.delivery.by) == ("v", "controller")


def on_system(packages: dict[str, str], **python: Any) -> Resolution:
    return decided(with_site(node_facts("cpu-laptop"), packages, **python), target={"base": "system"})


def test_base_system_only_when_asked_and_its_packages_are_part_of_the_digest() -> None:
    assert decided(with_site(node_facts("cpu-laptop"), TORCH_SITE)).variant_id == "cpu-py3.11"
    got = on_system(TORCH_SITE)
    assert (got.variant_id, got.interpreter) == ("system-py3.11", "/usr/bin/python3.11")
    assert on_system({**TORCH_SITE, "torch": "2.12.0"}).variant_digest != got.variant_digest
    assert not on_system(TORCH_SITE, virtual=True).refused, "a virtual environment can be a base"


@pytest.mark.parametrize(
    ("packages", "rule", "says"),
    [
        ({"numpy": "1.0"}, "base-lacks", "torch>=2.0"),
        ({**TORCH_SITE, "NumPy": "1.26.4"}, "replaces-base-package", "has numpy 1.26.4, which"),
    ],
)
def test_a_base_that_lacks_what_it_must_have_or_whose_package_would_be_hidden_is_refused(
    packages: dict[str, str], rule: str, says: str
) -> None:
    got = on_system(packages)
    assert got.refused and says in of_rule(got, rule).what
    old = with_site(node_facts("cpu-laptop"), packages)
    good = (old.pythons[0].model_copy(update={"packages": TORCH_SITE, "path": "/opt/python3.11"}), *old.pythons)
    chosen = decided(old.model_copy(update={"pythons": good}), target={"base": "system"})
    assert chosen.interpreter == "/opt/python3.11"


def test_a_prefix_base_takes_only_interpreters_below_it() -> None:
    row = {"id": "p", "python": "3.11", "base": {"kind": "prefix", "prefix": "/opt/site", "provides": ["torch>=2"]}}
    facts = with_site(node_facts("cpu-laptop", pythons=[*PY311, "3.11.4 at /opt/site/bin/python3.11"]), TORCH_SITE)
    assert decided(facts, make_lock(row)).interpreter == "/opt/site/bin/python3.11"
    assert decided(with_site(node_facts("cpu-laptop"), TORCH_SITE), make_lock(row)).refused


def test_a_module_base_needs_its_interpreter_named_or_jobs_that_load_it() -> None:
    row = {"id": "m", "python": "3.11", "base": {"kind": "module", "module": "conda/1", "provides": ["torch>=2"]}}
    facts, lock = with_site(node_facts("cpu-laptop", pythons=PY311), TORCH_SITE), make_lock(row)
    # In the PATH of such a job the module's interpreter comes first.
    first = facts.pythons[-1].model_copy(update={"path": "/soft/conda/bin/python3.11", "also": ("python3",)})
    facts = facts.model_copy(update={"pythons": (*facts.pythons, first)})
    named = {"base_python": "/usr/bin/python3.11"}
    jobs = {"hosts": {"slurm": "gpu"}, "connection": {"kind": "job"}, "scheduler": {"kind": "slurm"}}
    loaded = {**jobs, "scheduler": {"kind": "slurm", "modules": {"load": ["gcc", "conda/1"]}}}
    assert decided(facts, lock, target=loaded).interpreter == "/soft/conda/bin/python3.11"
    for told in (named, {**loaded, **named}):
        assert decided(facts, lock, target=told).interpreter == "/usr/bin/python3.11"
    for told, instead in (({}, "`base_python: PATH` in"), (jobs, "the missing module in the target's `scheduler: mod")):
        got = decided(facts, lock, target=told)
        assert got.refused and (of_rule(got, "base-module").instead or "").startswith(instead)


@pytest.mark.parametrize(
    ("asked", "interpreter"),
    [({}, "/b/python3.11"), ({"interpreter": "/a/python3.11"}, "/a/python3.11"),
     ({"interpreter": "3.11.2"}, "/a/python3.11"), ({"interpreter": "/c/python3.11"}, None),
     ({"target": {"base": "system", "base_python": "/a/python3.11"}}, "/a/python3.11")],
)  # fmt: skip
def test_the_newest_patch_release_is_taken_or_what_was_asked_for(asked: dict[str, Any], interpreter: str) -> None:
    facts = node_facts("cpu-laptop", pythons=["3.11.2 at /a/python3.11", "3.11.10 at /b/python3.11"])
    got = decided(with_site(facts, TORCH_SITE), **asked)
    assert (got.interpreter, got.refused) == (interpreter, interpreter is None)
    plain, newest = facts.pythons
    virtual = facts.model_copy(update={"pythons": (newest.model_copy(update={"virtual": True}), plain)})
    assert decided(virtual).interpreter == "/a/python3.11", "a plain one is preferred to one in a virtual environment"
    assert decided(with_site(facts, None, implementation="pypy")).refused, "one that is not CPython does not count"


def test_no_interpreter_says_which_are_there_and_a_standalone_one_needs_none() -> None:
    got = decided(node_facts("v100-aws"))
    first = got.decisions[0]
    assert got.refused and first.rule == "python-not-there"
    assert first.compared is not None and "3.8.0 at /usr/bin/python3.8" in first.compared[1]
    assert "3.11 or 3.12 or 3.13" in first.what
    assert first.instead is not None and "uv python install 3.11" in first.instead
    row = {"id": "s", "python": "3.13", "interpreter": {"kind": "standalone", "name": "cpython", "sha256": "b" * 64}}
    got = decided(node_facts("v100-aws"), make_lock(row))
    assert (got.variant_id, got.interpreter) == ("s", None)


def test_the_variant_in_use_is_kept_while_it_is_allowed() -> None:
    lock = torch_lock()
    cuda = next(v for v in lock.variants if v.id == "cu130-py3.12")
    facts = node_facts("cpu-laptop", pythons=[*PY311, "3.12.3"])
    assert decided(stamped(facts, lock, cuda.digest), lock).variant_id == "cu130-py3.12"
    assert decided(stamped(facts, lock, cuda.digest, current=False), lock).variant_id == "cpu-py3.11"
    gone = stamped(node_facts("cpu-laptop"), lock, cuda.digest)
    assert decided(gone, lock).variant_id == "cpu-py3.11"


def test_d07_an_interpreter_of_another_version_is_named_with_its_version() -> None:
    facts = node_facts("cpu-laptop", pythons=[*PY311, "3.8.18"])
    lock = make_lock({"id": "v", "python": "3.8", "packages": [package("a", "1")]})
    path, version = facts.pythons[0].path, facts.pythons[0].version
    got = decided(facts, lock, interpreter=path)
    assert got.decisions[0].what == f"{path} is Python {version}, and the stack needs Python 3.8"
    assert got.decisions[0].instead == f"name {facts.pythons[1].path}, or no interpreter"
    for asked, says in (
        ("/no/python", "/no/python is not a Python on this node; the stack needs Python 3.8"),
        ("3.8.1", "Python 3.8.1 was asked for; the stack needs Python 3.8, and this node has none"),
    ):
        assert decided(facts, lock, interpreter=asked).decisions[0].what == says


def test_d78_an_unrecorded_hash_changes_no_choice_and_names_the_command_that_records_it() -> None:
    bad = torch_package("1.11.0+cu113", "3.9", index="pytorch-cu113", reason="out of reach")
    bad["files"][0]["sha256"] = "unrecorded"
    rows = (torch_row("1.11.0+cu113", "3.9", id="bad", packages=[bad]), torch_row("1.10.0+cu113", "3.9", id="good"))
    got = decided(node_facts("a100-azure"), make_lock(*rows))
    assert got.variant_id == "bad"
    told = of_rule(got, "hash-unrecorded")
    assert (told.verdict, "out of reach" in told.what) == ("warn", True)
    assert told.instead is not None and told.instead.startswith("`envbuild lock record demo` records it")


def test_wheels_that_do_not_fit_the_c_library_are_refused() -> None:
    wheel = package("x", "1", file="x-1-cp312-cp312-manylinux_2_28_x86_64.whl")
    lock = make_lock({"id": "m", "python": "3.12", "packages": [wheel]})
    assert decided(node_facts("alpine"), lock).refused
    assert "no-fitting-file" in rules(decided(node_facts("v100-aws", pythons=["3.12.1"]), lock), "refuse")
    assert not decided(node_facts("b200"), lock).refused


@pytest.mark.parametrize(
    ("disk", "verdict", "rule"),
    [
        ({"free_bytes": 10**6}, "refuse", "disk-space"),
        ({"free_bytes": 500 * 10**6}, "warn", "disk-space"),
        ({"free_bytes": 10 * GB, "quota_bytes": 10**6}, "refuse", "disk-space"),
        ({"free_bytes": 10 * GB, "free_inodes": 0}, "refuse", "disk-inodes"),
        ({"free_bytes": 10 * GB}, "allow", "disk-space"),
    ],
)
def test_too_little_room_is_refused_and_doubtful_room_warns(disk: dict[str, int], verdict: str, rule: str) -> None:
    got = decided(node_facts("cpu-laptop", more={"prefix": {"path": "/d", "writable": True, **disk}}))
    assert rule in rules(got, verdict) and got.refused == (verdict == "refuse")
    if disk["free_bytes"] == 10**6:
        (short,) = (each.what for each in got.candidates[0].decisions if each.verdict == "refuse")
        assert short.startswith("there is too little room: 1 MB free in /d, ") and short.endswith(" needed")


def test_room_is_doubted_where_the_size_of_a_package_is_not_recorded_and_a_prefix_without_use_refused() -> None:
    lock = make_lock({"id": "m", "python": "3.12", "packages": [package("a", "1"), package("large", "1", size=None)]})
    for free, verdict in ((2 * GB, "warn"), (20 * GB, "allow")):
        more = {"prefix": {"path": "/d", "free_bytes": free, "writable": True}}
        room = of_rule(decided(node_facts("cpu-laptop", pythons=["3.12.1"], more=more), lock), "disk-space")
        assert room.verdict == verdict
        assert room.what.startswith("large may not fit, without a recorded size: 2.0 GB") == (verdict == "warn")
        assert (room.what == "there is room for what was counted, without large") == (verdict == "allow")
    prefix = {"path": "/d", "writable": False, "reason": "read-only file system"}
    got = decided(node_facts("cpu-laptop", more={"prefix": prefix}))
    assert got.refused and "read-only file system" in got.decisions[0].what


def test_an_environment_that_is_there_needs_no_room_and_no_index() -> None:
    lock = torch_lock()
    digest = next(v for v in lock.variants if v.id == "cpu-py3.11").digest
    prefix = {"path": "/d", "free_bytes": 0, "writable": True}
    facts = stamped(node_facts("cpu-laptop", more={"prefix": prefix}), lock, digest)
    got = decided(facts, lock, supply=Supply(reachable={"pytorch-cpu": False, "pypi": False}))
    assert got.variant_id == "cpu-py3.11"
    assert rules(got, "warn") == []


def apex(**more: Any) -> dict[str, Any]:
    return torch_row("1.10.0+cu113", "3.8", sources=[source("apex", build={"flags": ["cpp_ext", "cuda_ext"]}) | more])


PATCHED = {"patches": ["apex-cuda-check"]}
STOPS = "e2083df5eb96643c61613b9df48dd4eea6b07690"


def test_alone_or_beside_others_a_node_without_nvcc_or_a_compiler_is_refused() -> None:
    tools: dict[str, dict[str, Any]] = {"a": {}, "b": {"nvcc": []}, "c": {"gcc": []}, "d": {"nvcc": ["12.1"]}}
    fleet = {name: node_facts("a100-azure", more={"node": name}, **has) for name, has in tools.items()}
    lock = make_lock(apex(**PATCHED))
    got = resolve_fleet(fleet, lock, target(), compat())
    assert {name: rules(each, "refuse") for name, each in got.items()} == {
        "a": [], "b": ["nvcc-absent"], "c": ["gcc-range"], "d": ["nvcc-major"],
    }  # fmt: skip
    assert "apex-cuda-check" in rules(got["a"], "patch")
    assert "build-isolation" in rules(got["a"], "allow"), "its traits come from its name"
    digest = str(got["a"].variant_digest)
    for node in ("b", "c"):
        built = decided(stamped(fleet[node], lock, digest), lock)
        assert (built.variant_digest, rules(built, "refuse")) == (digest, []), "what is built needs no tool"


@pytest.mark.parametrize(
    ("row", "facts", "rule", "works"),
    [
        # A GPU that the toolkit cannot compile for is refused, though the list of architectures is assumed (D15).
        (torch_row("2.6.0", "3.12", flavour="cu124"), {"name": "b200"}, "gpu-arch", "cu128"),
        # A torch that only the packages name is asked about too (D13).
        (torch_row("2.6.0", "3.12") | {"torch": None}, {"name": "b200"}, "gpu-arch", ""),
        # A flag that Apex dropped is refused before the build (D16).
        (apex(**PATCHED, commit="526871a2c1141375e2beac65b2b7329d4c316b15",
              build={"flags": ["cuda_ext", "fast_multihead_attn"]}), {}, "apex-flags", ""),
        # An Apex that stops at another minor version is refused without its patch, whatever it is called (D19, D99).
        (apex(commit=STOPS), {}, "apex-cuda-check", "patches: [apex-cuda-check]"),
        (apex(commit=STOPS, name="Apex"), {}, "apex-cuda-check", "patches: [apex-cuda-check]"),
        # A CUDA stack whose wheel for aarch64 is a CPU build is refused (D21).
        (torch_row("2.8.0", "3.12", flavour="cu128", platform="linux_aarch64", packages=[
            torch_package("2.8.0", "3.12", file="torch-2.8.0-cp312-cp312-manylinux_2_28_aarch64.whl")]),
         {"name": "h200", "arch": "aarch64"}, "torch-aarch64", ""),
    ],
)  # fmt: skip
def test_what_is_impossible_is_refused_with_what_works(
    row: dict[str, Any], facts: dict[str, Any], rule: str, works: str
) -> None:
    got = decided(node_facts(**{"name": "a100-azure", **facts}), make_lock(row))
    assert works in {d.rule: d.alternatives for d in got.decisions if d.verdict == "refuse"}[rule]
    if rule == "gpu-arch":
        oldest = node_facts("b200", gpus="1 x NVIDIA Z1 @ 1.0")
        assert of_rule(decided(oldest, make_lock(row)), rule).alternatives == "", "no build of torch is for that GPU"


def test_d14_a_gcc_that_fits_is_given_to_the_build() -> None:
    lock = make_lock(apex(**PATCHED, commit=STOPS))
    gccs = ["12.2.0", "9.4.0 at /usr/bin/gcc-9", "9.4.0 at /usr/bin/g++-9"]
    facts = node_facts("a100-azure", nvcc=["11.3"], gcc=gccs)
    found = decided(facts, lock)
    assert found.gcc == "/usr/bin/gcc-9"
    request = build_request(lock.variants[0], facts, found, store=None, jobs=None, check_rebuild=False)
    assert request["variables"] == {
        "CC": "/usr/bin/gcc-9", "CXX": "/usr/bin/g++-9", "NVCC_PREPEND_FLAGS": "-ccbin /usr/bin/gcc-9",
    }  # fmt: skip
    usual = decided(node_facts("a100-azure", nvcc=["11.3"]), lock)
    assert usual.gcc is None
    assert compiler_variables(usual.gcc) == {}


def test_d14_nothing_is_called_patched_that_nobody_does() -> None:
    """Each such case says in its request, or on its node, who carries it out."""
    hands = ("patches", "build_variables", "variables", "uses", "expected_gpu")
    for row in CASES:
        facts = node_facts(row["node"], **row.get("facts", {}))
        for item in evaluate(facts, request_of(row), compat()):
            if item.verdict == "patch" and item.rule not in ("gcc-range", "nvcc-knows-gpu"):
                assert any(row["request"].get(key) for key in hands), (row["case"], item.rule)


def test_64_equal_nodes_cost_the_rules_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    lock, asked = torch_lock(), list[object]()
    monkeypatch.setattr(engine, "evaluate", lambda *given: asked.append(given) or evaluate(*given))
    resolver = Resolver(lock, target(), compat())
    for i in range(64):
        prefix = {"path": "/d", "free_bytes": 500 * GB + i, "writable": True}
        resolver.resolve(node_facts("b200", more={"node": f"n{i}", "prefix": prefix}))
    assert len(asked) == len(lock.variants)


def source_lock(**variant: Any) -> Lock:
    """A CUDA torch and one source that is compiled."""
    row = torch_row("2.5.0", "3.10", id="cu124-py3.10", flavour="cu124", sources=[source("ext", build=CUDA)])
    return make_lock({**row, **variant})


def test_the_gpus_that_sources_are_compiled_for_are_part_of_what_is_chosen() -> None:
    lock = source_lock()
    variant = lock.variants[0]
    tools = {"nvcc": ["12.4"], "gcc": ["11.4.0"], "pythons": ["3.10.12"]}
    digests = {}
    for node in ("h100", "a100-azure"):
        got = decided(node_facts(node, **tools), lock)
        assert got.arch_list is not None
        assert got.variant_digest == variant.with_arch_list("demo", "exact", got.arch_list).digest
        digests[got.arch_list] = got.variant_digest
    assert list(digests) == [("9.0",), ("8.0",)]
    assert len({variant.digest, *digests.values()}) == 3
    # A finished environment counts only where it was compiled for these GPUs.
    for archs, builds in ((("8.0",), True), (("9.0",), False)):
        facts = stamped(node_facts("h100"), lock, variant.with_arch_list("demo", "exact", archs).digest)
        assert any(d.rule == "disk-space" for d in decided(facts, lock).decisions) is builds
    # Without GPUs the target says what is compiled for.
    told = decided(node_facts("cpu-laptop", **tools), lock, target={"expects": {"gpu": "A100-SXM4-80GB"}})
    assert told.arch_list == ("8.0",) and "arch-list-from-target" in rules(told, "patch")
    # Nothing is bound where nothing is compiled for GPUs.
    cpu = source_lock(flavour="cpu", packages=[torch_package("2.5.0+cpu", "3.10", index="pytorch-cpu")])
    assert decided(node_facts("cpu-laptop", pythons=["3.10.12"]), cpu).arch_list is None
    for lock in (torch_lock(), source_lock(environment={"TORCH_CUDA_ARCH_LIST": "8.0"})):
        got = decided(node_facts("h100", pythons=["3.10.12", "3.12.3"]), lock)
        assert got.arch_list is None
        assert got.variant_digest in {variant.digest for variant in lock.variants}


@pytest.mark.parametrize(
    ("build", "needs"),
    [
        ({"flags": ["cpp_ext"]}, False),
        ({"flags": ["cpp_ext"], "extensions": ["thing_cuda"]}, True),
        ({"kind": "kernels", "modules": [{"name": "k", "sources": ["k.cpp"]}]}, False),
        ({"kind": "kernels", "modules": [{"name": "k", "sources": ["k.cpp", "k.cu"]}]}, True),
    ],
)
def test_what_a_build_says_of_cuda_asks_for_an_nvcc(build: dict[str, Any], needs: bool) -> None:
    got = decided(node_facts("h100", nvcc=[]), source_lock(sources=[source("ext", install="path", build=build)]))
    assert ("nvcc-absent" in [d.rule for d in got.decisions]) is needs
    assert got.refused is needs
