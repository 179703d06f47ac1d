"""The resolver over whole locks: which variant, which interpreter, and why nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from envbuild.model.facts import NodeFacts
from envbuild.model.lock import Lock
from envbuild.model.plan import Resolution
from envbuild.resolve import engine
from envbuild.resolve.engine import Resolver, evaluate
from envbuild.resolve.estimate import Supply, indexes_needed, wanted_files
from envbuild.resolve.node_classes import group
from tests.resolve.builders import (
    GB,
    compat,
    make_lock,
    node_facts,
    node_rows,
    package,
    resolve,
    resolve_fleet,
    target,
    torch_lock,
    torch_package,
)
from tests.support.fails import fails

PY311 = ["3.11.9 at /usr/bin/python3.11"]
TORCH_SITE = {"torch": "2.13.0+cu130", "numpy": "2.3.1"}


def decided(facts: NodeFacts, lock: Lock | None = None, **options: Any) -> Resolution:
    fields = options.pop("target", {})
    supply = options.pop("supply", None)
    return resolve(facts, lock or torch_lock(), target(**fields), compat(), supply, **options)


def rules(resolution: Resolution, verdict: str) -> list[str]:
    return [d.rule for d in resolution.decisions if d.verdict == verdict]


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


def test_no_gpu_takes_the_cpu_build_of_the_first_python() -> None:
    got = decided(node_facts("cpu-laptop", pythons=[*PY311, "3.12.3"]))
    assert (got.variant_id, got.interpreter) == ("cpu-py3.11", "/usr/bin/python3.11")
    assert rules(got, "warn") == []


def test_a_gpu_with_a_driver_takes_cuda() -> None:
    got = decided(node_facts("b200"))
    assert got.variant_id == "cu130-py3.12"


def test_a_driver_that_needs_a_compat_package_takes_cpu_and_says_why() -> None:
    got = decided(node_facts("h200"))
    assert got.variant_id == "cpu-py3.12"
    texts = [d.instead or "" for d in got.decisions if d.rule == "gpu-unused"]
    assert any("cuda-compat-13-0" in text for text in texts)


def test_a_driver_below_the_floor_on_a_geforce_takes_cpu_and_says_why() -> None:
    got = decided(node_facts("rtx4090", pythons=PY311))
    assert got.variant_id == "cpu-py3.11"
    assert any("needs driver 580.65.06" in d.what for d in got.decisions)


def test_hidden_gpus_count_as_no_gpu() -> None:
    assert decided(node_facts("b200", visible="")).variant_id == "cpu-py3.12"


def test_python_whose_file_was_found_is_preferred() -> None:
    lock = torch_lock()
    cpu312 = next(v for v in lock.variants if v.id == "cpu-py3.12").packages[0].files[0].file
    facts = node_facts("cpu-laptop", pythons=[*PY311, "3.12.3"])
    facts = facts.model_copy(update={"files_found": {cpu312: f"/wheels/{cpu312}"}})
    got = decided(facts, lock, supply=Supply(reachable={"pytorch-cpu": False}))
    assert got.variant_id == "cpu-py3.12"


def test_cuda_build_where_only_that_can_be_had_says_its_gigabytes() -> None:
    got = decided(node_facts("cpu-laptop"), supply=Supply(reachable={"pytorch-cpu": False}))
    assert got.variant_id == "cu130-py3.11"
    heavy = [d for d in got.decisions if d.rule == "cuda-without-gpu"]
    assert heavy[0].verdict == "warn" and heavy[0].what.startswith("916 MB to fetch")


def test_what_the_node_reaches_counts_before_what_the_controller_reaches() -> None:
    facts = node_facts("cpu-laptop").model_copy(update={"reachable": {"pytorch-cpu": True}})
    supply = Supply(reachable={"pytorch-cpu": False})
    assert decided(facts, supply=supply).variant_id == "cpu-py3.11"
    assert decided(facts, supply=supply, target={"delivery": "controller"}).variant_id == "cu130-py3.11"


def test_nothing_reachable_still_decides_and_warns() -> None:
    supply = Supply(reachable={"pytorch-cpu": False, "pypi": False})
    got = decided(node_facts("cpu-laptop"), supply=supply)
    assert got.variant_id == "cpu-py3.11"
    assert "files-out-of-reach" in rules(got, "warn")


SOURCE = {"name": "lib", "git": "https://git.example.org/lib", "commit": "1" * 40, "tree": "2" * 40}
FORGE = SOURCE["git"]


@pytest.mark.parametrize(
    ("variable", "value", "instead"),
    [
        ("NCCL_SOCKET_IFNAME", "eth0", "ens3"),
        ("NCCL_SOCKET_IFNAME", "eth0,eth1", "ens3"),
        ("NCCL_SOCKET_IFNAME", "=ens", "ens3"),  # not the beginning of a name
        ("GLOO_SOCKET_IFNAME", "ens", "ens3"),
        ("NCCL_SOCKET_IFNAME", "ens", None),
        ("NCCL_SOCKET_IFNAME", "eth0,ens", None),
        ("NCCL_SOCKET_IFNAME", "=ens3", None),
        ("NCCL_SOCKET_IFNAME", "^docker,lo", None),
        ("GLOO_SOCKET_IFNAME", "lo", None),  # virtual ones are not among the facts
        ("NCCL_SOCKET_IFNAME", "", None),
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


def test_the_variable_of_ucx_with_the_same_interface_is_named_too() -> None:
    """`opt-175b` sets both to the interface of its document's machines."""
    facts = node_facts("b200", more={"nics": [{"name": "ens3", "addresses": ["10.0.0.4"]}]})
    both = {"NCCL_SOCKET_IFNAME": "eth0", "UCX_NET_DEVICES": "eth0"}
    (got,) = (d for d in decided(facts, target={"environment": both}).decisions if d.rule == "interface-absent")
    assert got.what.startswith("NCCL_SOCKET_IFNAME and UCX_NET_DEVICES are eth0, and the node has no such")
    assert got.instead == "`environment: {NCCL_SOCKET_IFNAME: ens3, UCX_NET_DEVICES: ens3}` in the target"


def test_equal_nodes_of_other_interfaces_are_told_apart() -> None:
    nodes = {name: node_facts("b200", more={"node": name, "nics": [{"name": name}]}) for name in ("eth0", "ens3")}
    found = Resolver(torch_lock(), target(environment={"NCCL_SOCKET_IFNAME": "eth0"}), compat()).fleet(nodes)
    assert [node for node, got in found.items() if "interface-absent" in rules(got, "warn")] == ["ens3"]


def sourced() -> Lock:
    return make_lock({"id": "v", "python": "3.11", "packages": [package("a", "1")], "sources": [SOURCE]})


def reaching(**reach: bool) -> NodeFacts:
    named = {"pypi" if name == "pypi" else FORGE: good for name, good in reach.items()}
    return node_facts("cpu-laptop").model_copy(update={"reachable": named})


def test_d12_the_controller_fetches_where_the_node_cannot_and_it_can() -> None:
    here = Supply(reachable={"pypi": True, FORGE: True})
    got = decided(reaching(pypi=False, forge=False), sourced(), supply=here)
    assert (got.delivery.by, rules(got, "warn")) == ("controller", [])
    assert got.delivery.why == "the node does not reach the index pypi, git.example.org; this machine has or reaches it"
    got = decided(reaching(pypi=True, forge=True), sourced(), supply=here)
    assert (got.delivery.by, got.delivery.why) == ("node", "the node reaches what it needs")


def test_d12_without_an_answer_of_this_machine_the_plan_says_that_it_is_asked_later() -> None:
    got = decided(reaching(pypi=True, forge=False), sourced())
    assert got.delivery.by == "controller"
    assert (
        got.delivery.why
        == "the node does not reach git.example.org; `provision` checks whether this machine reaches it"
    )
    got = decided(reaching(pypi=True), sourced())
    assert (got.delivery.by, got.delivery.why) == ("node", "whether the node reaches git.example.org is not known")


def test_d12_where_nobody_can_fetch_it_the_node_tries_and_the_plan_warns() -> None:
    nobody = Supply(reachable={"pypi": True, FORGE: False})
    got = decided(reaching(pypi=True, forge=False), sourced(), supply=nobody)
    assert (got.delivery.by, rules(got, "warn")) == ("node", ["files-out-of-reach"])
    (warning,) = [d for d in got.decisions if d.rule == "files-out-of-reach"]
    assert warning.compared == ("lib", "git.example.org cannot be reached")


def test_d12_what_the_target_says_of_delivery_stands() -> None:
    here, far = Supply(reachable={"pypi": True, FORGE: True}), reaching(pypi=False, forge=False)
    assert decided(far, sourced(), supply=here, target={"delivery": "node"}).delivery.by == "node"
    near = reaching(pypi=True, forge=True)
    assert decided(near, sourced(), supply=here, target={"delivery": "controller"}).delivery.by == "controller"


def test_d06_a_source_that_the_node_cannot_reach_is_delivered_though_its_base_has_all_packages() -> None:
    base = {"kind": "system", "provides": ["torch==2.13.0"]}
    lock = make_lock({"id": "v", "python": "3.11", "base": base, "packages": [], "sources": [SOURCE]})
    facts = with_site(reaching(forge=False), TORCH_SITE)
    got = decided(facts, lock, target={"base": "system"})
    assert (got.variant_id, got.delivery.by) == ("v", "controller")


def test_base_system_only_when_asked() -> None:
    facts = with_site(node_facts("cpu-laptop"), TORCH_SITE)
    assert decided(facts).variant_id == "cpu-py3.11"
    got = decided(facts, target={"base": "system"})
    assert got.variant_id == "system-py3.11"
    assert got.interpreter == "/usr/bin/python3.11"


def test_the_digest_of_a_system_base_covers_what_it_provides() -> None:
    one = decided(with_site(node_facts("cpu-laptop"), TORCH_SITE), target={"base": "system"})
    other = decided(with_site(node_facts("cpu-laptop"), {**TORCH_SITE, "torch": "2.12.0"}), target={"base": "system"})
    assert one.variant_digest != other.variant_digest


def test_a_base_without_torch_is_refused_and_says_what_it_lacks() -> None:
    got = decided(with_site(node_facts("cpu-laptop"), {"numpy": "1.0"}), target={"base": "system"})
    assert got.refused
    assert any(d.rule == "base-lacks" and "torch>=2.0" in d.what for d in got.decisions)


def test_a_base_whose_package_would_be_hidden_is_refused_in_the_plan_as_on_the_node() -> None:
    old = with_site(node_facts("cpu-laptop"), {**TORCH_SITE, "NumPy": "1.26.4"})
    got = decided(old, target={"base": "system"})
    assert got.refused
    assert any(d.rule == "replaces-base-package" and "has numpy 1.26.4, which" in d.what for d in got.decisions)
    other = (old.pythons[0].model_copy(update={"packages": TORCH_SITE, "path": "/opt/python3.11"}), *old.pythons)
    chosen = decided(old.model_copy(update={"pythons": other}), target={"base": "system"})
    assert chosen.interpreter == "/opt/python3.11"


def test_a_virtual_environment_can_be_a_base() -> None:
    got = decided(with_site(node_facts("cpu-laptop"), TORCH_SITE, virtual=True), target={"base": "system"})
    assert not got.refused


def test_a_plain_interpreter_is_preferred_to_one_in_a_virtual_environment() -> None:
    facts = node_facts("cpu-laptop", pythons=["3.11.1 at /usr/bin/python3.11", "3.11.9 at /home/u/v/bin/python"])
    plain, virtual = facts.pythons
    facts = facts.model_copy(update={"pythons": (virtual.model_copy(update={"virtual": True}), plain)})
    assert decided(facts).interpreter == "/usr/bin/python3.11"


def test_base_python_names_the_interpreter() -> None:
    facts = node_facts("cpu-laptop", pythons=["3.11.2 at /usr/bin/python3.11", "3.11.9 at /opt/x/bin/python3.11"])
    facts = with_site(facts, TORCH_SITE)
    got = decided(facts, target={"base": "system", "base_python": "/usr/bin/python3.11"})
    assert got.interpreter == "/usr/bin/python3.11"


def test_a_prefix_base_takes_only_interpreters_below_it() -> None:
    row = {"id": "p", "python": "3.11", "base": {"kind": "prefix", "prefix": "/opt/site", "provides": ["torch>=2"]}}
    facts = with_site(node_facts("cpu-laptop", pythons=[*PY311, "3.11.4 at /opt/site/bin/python3.11"]), TORCH_SITE)
    assert decided(facts, make_lock(row)).interpreter == "/opt/site/bin/python3.11"
    assert decided(with_site(node_facts("cpu-laptop"), TORCH_SITE), make_lock(row)).refused


def test_a_module_base_needs_its_interpreter_named() -> None:
    row = {"id": "m", "python": "3.11", "base": {"kind": "module", "module": "conda/1", "provides": ["torch>=2"]}}
    facts = with_site(node_facts("cpu-laptop"), TORCH_SITE)
    got = decided(facts, make_lock(row))
    assert got.refused and "base-module" in rules(got, "refuse")
    named = decided(facts, make_lock(row), target={"base_python": "/usr/bin/python3.11"})
    assert named.variant_id == "m"


def test_the_interpreter_of_a_module_that_jobs_load_is_the_first_in_their_path() -> None:
    row = {"id": "m", "python": "3.11", "base": {"kind": "module", "module": "conda/1", "provides": ["torch>=2"]}}
    facts = with_site(node_facts("cpu-laptop", pythons=["3.11.9 at /usr/bin/python3.11", *PY311]), TORCH_SITE)
    first = facts.pythons[-1].model_copy(update={"path": "/soft/conda/bin/python3.11", "also": ("python3",)})
    facts = facts.model_copy(update={"pythons": (*facts.pythons, first)})
    jobs = {"hosts": {"slurm": "gpu"}, "connection": {"kind": "job"}}
    loaded = {"scheduler": {"kind": "slurm", "modules": {"load": ["gcc", "conda/1"]}}, **jobs}
    assert decided(facts, make_lock(row), target=loaded).interpreter == "/soft/conda/bin/python3.11"
    named = {**loaded, "base_python": "/usr/bin/python3.11"}
    assert decided(facts, make_lock(row), target=named).interpreter == "/usr/bin/python3.11"
    other = decided(facts, make_lock(row), target={**jobs, "scheduler": {"kind": "slurm"}})
    (why,) = (item for item in other.decisions if item.rule == "base-module")
    assert (why.instead or "").startswith("the missing module in the target's `scheduler: modules:`, if the site has")


def test_the_newest_patch_release_is_taken() -> None:
    facts = node_facts("cpu-laptop", pythons=["3.11.2 at /a/python3.11", "3.11.10 at /b/python3.11"])
    assert decided(facts).interpreter == "/b/python3.11"


def test_an_interpreter_can_be_asked_for() -> None:
    facts = node_facts("cpu-laptop", pythons=["3.11.2 at /a/python3.11", "3.11.10 at /b/python3.11"])
    assert decided(facts, interpreter="/a/python3.11").interpreter == "/a/python3.11"
    assert decided(facts, interpreter="3.11.2").interpreter == "/a/python3.11"
    assert decided(facts, interpreter="/c/python3.11").refused


def test_a_variant_can_be_asked_for() -> None:
    assert decided(node_facts("cpu-laptop"), variant="cu130-py3.11").variant_id == "cu130-py3.11"


def test_an_unknown_variant_names_the_nearest() -> None:
    with fails("variant-unknown") as caught:
        decided(node_facts("cpu-laptop"), variant="cu130-py3.10")
    assert "cu130-py3.1" in caught.value.hint


def test_the_variant_in_use_is_kept_while_it_is_allowed() -> None:
    lock = torch_lock()
    cuda = next(v for v in lock.variants if v.id == "cu130-py3.12")
    facts = node_facts("cpu-laptop", pythons=[*PY311, "3.12.3"])
    assert decided(stamped(facts, lock, cuda.digest), lock).variant_id == "cu130-py3.12"
    assert decided(stamped(facts, lock, cuda.digest, current=False), lock).variant_id == "cpu-py3.11"
    gone = stamped(node_facts("cpu-laptop"), lock, cuda.digest)
    assert decided(gone, lock).variant_id == "cpu-py3.11"


def test_no_interpreter_says_which_are_there() -> None:
    got = decided(node_facts("v100-aws"))
    assert got.refused
    first = got.decisions[0]
    assert first.rule == "python-not-there"
    assert first.compared is not None and "3.8.0 at /usr/bin/python3.8" in first.compared[1]
    assert "3.11 or 3.12 or 3.13" in first.what
    assert first.instead is not None and "uv python install 3.11" in first.instead


def test_d07_an_interpreter_of_another_version_is_named_with_its_version() -> None:
    facts = node_facts("cpu-laptop", pythons=[*PY311, "3.8.18"])
    lock = make_lock({"id": "v", "python": "3.8", "packages": [package("a", "1")]})
    path, version = facts.pythons[0].path, facts.pythons[0].version
    got = resolve(facts, lock, target(), compat(), interpreter=path)
    assert got.decisions[0].what == f"{path} is Python {version}, and the stack needs Python 3.8"
    assert got.decisions[0].instead == f"name {facts.pythons[1].path}, or no interpreter"
    for asked, says in (
        ("/no/python", "/no/python is not a Python on this node; the stack needs Python 3.8"),
        ("3.8.1", "Python 3.8.1 was asked for; the stack needs Python 3.8, and this node has none"),
    ):
        assert resolve(facts, lock, target(), compat(), interpreter=asked).decisions[0].what == says


def test_an_interpreter_that_is_not_cpython_does_not_count() -> None:
    facts = node_facts("cpu-laptop")
    pypy = facts.model_copy(
        update={"pythons": tuple(p.model_copy(update={"implementation": "pypy"}) for p in facts.pythons)}
    )
    assert decided(pypy).refused


def test_a_standalone_interpreter_needs_none_on_the_node() -> None:
    row = {"id": "s", "python": "3.13", "interpreter": {"kind": "standalone", "name": "cpython", "sha256": "b" * 64}}
    got = decided(node_facts("v100-aws"), make_lock(row))
    assert (got.variant_id, got.interpreter) == ("s", None)


def test_d78_an_unrecorded_hash_changes_no_choice_and_names_the_command_that_records_it() -> None:
    file = {"reason": "out of reach"}
    bad = torch_package("1.11.0+cu113", "3.9", index="pytorch-cu113", **file)
    bad["files"][0]["sha256"] = "unrecorded"
    good = torch_package("1.10.0+cu113", "3.9", index="pytorch-cu113")
    rows = [
        {"id": "bad", "python": "3.9", "torch": "1.11.0", "flavour": "cu113", "packages": [bad]},
        {"id": "good", "python": "3.9", "torch": "1.10.0", "flavour": "cu113", "packages": [good]},
    ]
    got = decided(node_facts("a100-azure"), make_lock(*rows))
    assert got.variant_id == "bad"
    [told] = [d for d in got.decisions if d.rule == "hash-unrecorded"]
    assert (told.verdict, "out of reach" in told.what) == ("warn", True)
    assert told.instead is not None and told.instead.startswith("`envbuild lock record demo` records it")


def test_another_architecture_is_refused() -> None:
    got = decided(node_facts("cpu-laptop", arch="aarch64"))
    assert got.refused and "platform" in rules(got, "refuse")


def test_wheels_that_do_not_fit_the_c_library_are_refused() -> None:
    row = {
        "id": "m",
        "python": "3.12",
        "packages": [package("x", "1", file="x-1-cp312-cp312-manylinux_2_28_x86_64.whl")],
    }
    assert decided(node_facts("alpine"), make_lock(row)).refused
    old = node_facts("v100-aws", pythons=["3.12.1"])
    assert "no-fitting-file" in rules(decided(old, make_lock(row)), "refuse")
    assert not decided(node_facts("b200"), make_lock(row)).refused


def test_too_little_room_is_refused_and_doubtful_room_warns() -> None:
    def at(free: int, **disk: Any) -> Resolution:
        prefix = {"path": "/d", "free_bytes": free, "writable": True, **disk}
        return decided(node_facts("cpu-laptop", more={"prefix": prefix}))

    assert "disk-space" in rules(at(10**6), "refuse")
    (short,) = (each.what for each in at(10**6).candidates[0].decisions if each.verdict == "refuse")
    assert short.startswith("there is too little room: 1 MB free in /d, ") and short.endswith(" needed")
    assert "disk-space" in rules(at(500 * 10**6), "warn")
    assert not at(10 * GB).refused
    assert "disk-space" in rules(at(10 * GB, quota_bytes=10**6), "refuse")
    assert "disk-inodes" in rules(at(10 * GB, free_inodes=0), "refuse")


def test_a_prefix_that_cannot_be_used_is_refused_with_the_reason() -> None:
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


def test_apex_from_source_is_decided_by_the_toolkits_on_the_node() -> None:
    source = {
        "name": "apex",
        "git": "https://github.com/NVIDIA/apex",
        "commit": "2" * 40,
        "tree": "3" * 40,
        "patches": ["apex-cuda-check"],
        "patch_pins": [{"name": "apex-cuda-check", "digest": "4" * 64, "least": 1, "most": 1}],
        "build": {"kind": "wheel", "flags": ["--cpp_ext", "--cuda_ext"]},
    }
    torch = torch_package("1.11.0+cu113", "3.9", index="pytorch-cu113")
    row = {
        "id": "opt",
        "python": "3.9",
        "torch": "1.11.0",
        "flavour": "cu113",
        "packages": [torch],
        "sources": [source],
    }
    lock = make_lock(row)
    got = decided(node_facts("a100-azure"), lock)
    assert "apex-cuda-check" in rules(got, "patch")
    # Its traits come from its name.
    assert "build-isolation" in rules(got, "allow")
    assert "nvcc-major" in rules(decided(node_facts("a100-azure", nvcc=["12.1"]), lock), "refuse")
    assert "nvcc-absent" in rules(decided(node_facts("a100-azure", nvcc=[]), lock), "refuse")


def test_a_mixed_fleet_is_decided_class_by_class() -> None:
    torch = torch_package("1.11.0+cu113", "3.10", index="pytorch-cu113")
    newer = torch_package("2.1.0+cu121", "3.10", index="pytorch-cu121")
    lock = make_lock(
        {"id": "exact", "python": "3.10", "torch": "1.11.0", "flavour": "cu113", "packages": [torch]},
        {"id": "newer", "python": "3.10", "torch": "2.1.0", "flavour": "cu121", "packages": [newer]},
    )
    fleet = {f"a{i:02}": node_facts("a100-polaris", more={"node": f"a{i:02}"}) for i in range(60)}
    fleet |= {f"h{i}": node_facts("h100", more={"node": f"h{i}"}) for i in range(4)}
    got = resolve_fleet(fleet, lock, target(), compat())
    assert {got[n].variant_id for n in fleet if n.startswith("a")} == {"exact"}
    assert {got[n].variant_id for n in fleet if n.startswith("h")} == {"newer"}
    classes = group(fleet)
    assert [len(c.nodes) for c in classes] == [60, 4]
    assert "H100" in classes[1].label


def test_64_equal_nodes_cost_the_rules_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    lock, asked = torch_lock(), list[object]()
    monkeypatch.setattr(engine, "evaluate", lambda *given: asked.append(given) or evaluate(*given))
    resolver = Resolver(lock, target(), compat())
    for i in range(64):
        prefix = {"path": "/d", "free_bytes": 500 * GB + i, "writable": True}
        resolver.resolve(node_facts("b200", more={"node": f"n{i}", "prefix": prefix}))
    assert len(asked) == len(lock.variants)


def test_supply_helpers_name_what_a_lock_needs() -> None:
    lock = torch_lock(("3.11",))
    assert set(wanted_files(lock)) == {f.file for v in lock.variants for p in v.packages for f in p.files}
    assert indexes_needed(lock) == ["pypi", "pytorch-cpu"]


@pytest.mark.parametrize("name", sorted(node_rows()))
def test_every_shipped_example_node_is_decided(name: str) -> None:
    got = decided(node_facts(name))
    assert len(got.candidates) == 9
    assert got.refused == (got.variant_id is None)


def source_lock(**variant: Any) -> Lock:
    """A CUDA torch and one source that is compiled."""
    source = {"name": "ext", "git": "https://example.org/ext.git", "commit": "0" * 40, "tree": "1" * 40}
    fields = {
        "id": "cu124-py3.10",
        "python": "3.10",
        "torch": "2.5.0",
        "flavour": "cu124",
        "packages": [torch_package("2.5.0", "3.10")],
        "sources": [{**source, "build": {"flags": ["cuda_ext"]}}],
    }
    return make_lock({**fields, **variant})


def test_the_gpus_that_sources_are_compiled_for_are_part_of_what_is_chosen() -> None:
    lock = source_lock()
    digests = {}
    for node in ("h100", "a100-azure"):
        facts = node_facts(node, nvcc=["12.4"], gcc=["11.4.0"], pythons=["3.10.12"])
        got = decided(facts, lock)
        assert got.arch_list is not None
        assert got.variant_digest == lock.variants[0].with_arch_list("demo", "exact", got.arch_list).digest
        digests[got.arch_list] = got.variant_digest
    assert list(digests) == [("9.0",), ("8.0",)]
    assert len({lock.variants[0].digest, *digests.values()}) == 3


def test_a_finished_environment_counts_only_where_it_was_compiled_for_these_gpus() -> None:
    lock = source_lock()
    facts = node_facts("h100")
    other = lock.variants[0].with_arch_list("demo", "exact", ("8.0",)).digest
    assert any(d.rule == "disk-space" for d in decided(stamped(facts, lock, other), lock).decisions)
    same = lock.variants[0].with_arch_list("demo", "exact", ("9.0",)).digest
    assert not any(d.rule == "disk-space" for d in decided(stamped(facts, lock, same), lock).decisions)


@pytest.mark.parametrize(("patches", "verdict"), [((), "warn"), (("apex-cuda-check",), "patch")])
def test_a_check_of_apex_counts_as_patched_only_where_the_lock_patches_it(
    patches: tuple[str, ...], verdict: str
) -> None:
    apex = {"name": "apex", "git": "https://example.org/apex.git", "commit": "0" * 40, "tree": "1" * 40}
    pins = [{"name": name, "digest": "2" * 64, "least": 1, "most": 1} for name in patches]
    source = {**apex, "patches": patches, "patch_pins": pins, "build": {"flags": ["cuda_ext"]}}
    got = decided(node_facts("h100", nvcc=["12.6"], gcc=["11.4.0"], pythons=["3.10.12"]), source_lock(sources=[source]))
    assert "apex-cuda-check" in rules(got, verdict)


def test_nothing_is_bound_where_nothing_is_compiled_for_gpus() -> None:
    plain, facts = torch_lock(), node_facts("h100", pythons=["3.10.12", "3.12.3"])
    for lock in (plain, source_lock(environment={"TORCH_CUDA_ARCH_LIST": "8.0"})):
        got = decided(facts, lock)
        assert got.arch_list is None
        assert got.variant_digest in {variant.digest for variant in lock.variants}
    cpu = source_lock(flavour="cpu", packages=[torch_package("2.5.0+cpu", "3.10", index="pytorch-cpu")])
    assert decided(node_facts("cpu-laptop", pythons=["3.10.12"]), cpu).arch_list is None


def test_without_gpus_the_target_says_what_is_compiled_for() -> None:
    facts = node_facts("cpu-laptop", nvcc=["12.4"], gcc=["11.4.0"], pythons=["3.10.12"])
    got = decided(facts, source_lock(), target={"expects": {"gpu": "A100-SXM4-80GB"}})
    assert got.arch_list == ("8.0",)
    assert "arch-list-from-target" in rules(got, "patch")


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
    lock = source_lock()
    source = {**lock.variants[0].sources[0].to_json_dict(), "install": "path", "build": build}
    got = decided(node_facts("h100", nvcc=[]), source_lock(sources=[source]))
    assert ("nvcc-absent" in [d.rule for d in got.decisions]) is needs
    assert got.refused is needs
