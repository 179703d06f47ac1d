"""The planner: which steps a node gets, what they ask, and what a user is told first."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from envbuild.catalog.patches import load_patch
from envbuild.cli.provision_cmd import plan_text
from envbuild.errors import EnvbuildError
from envbuild.model.facts import NodeFacts
from envbuild.model.lock import Lock
from envbuild.model.patch import Patch
from envbuild.model.plan import NodePlan, Plan
from envbuild.model.target import Target
from envbuild.plan.node_steps import Inputs
from envbuild.plan.planner import ChosenVariants, make_plan
from envbuild.plan.tools import NodeTools, Tool
from envbuild.provision.run.context import Survey
from envbuild.resolve.estimate import Supply
from envbuild.resolve.rules.node import unexpected
from tests.resolve.builders import (
    compat,
    make_lock,
    node_facts,
    package,
    resolve_fleet,
    target,
    torch_lock,
    torch_package,
)
from tests.resolve.test_engine import TORCH_SITE, stamped, with_site


@dataclass(frozen=True)
class FakeTool:
    name: str
    folder: str


@dataclass(frozen=True)
class FakeTools:
    tools: tuple[FakeTool, ...] = (FakeTool("envbuild-node", "envbuild-node-1"), FakeTool("uv", "uv-2"))
    uv: str = "/data/envbuild/tools/uv-2/uv"
    interpreter: str | None = None
    uv_sha256: str = ""


CONTROLLER = {"host": "c", "boot_id": "b", "pid": 1}
LIB = {"name": "lib", "git": "https://example.org/lib", "commit": "1" * 40, "tree": "2" * 40}


def planned(facts: NodeFacts | dict[str, NodeFacts], lock: Lock | None = None, **options: Any) -> Plan:
    lock = lock or torch_lock()
    fleet = facts if isinstance(facts, dict) else {facts.node: facts}
    where: Target = options.pop("where", target())
    supply = options.pop("supply", None)
    resolutions = resolve_fleet(fleet, lock, where, compat(), supply)
    tools = dict.fromkeys(fleet, options.pop("tools", FakeTools()))
    inputs = Inputs(run="r1", controller=CONTROLLER, tools=tools, **options)
    return make_plan(where, lock, fleet, resolutions, inputs)


def only(plan: Plan) -> NodePlan:
    assert len(plan.nodes) == 1
    return plan.nodes[0]


def kinds(plan: Plan) -> list[str]:
    return [step.kind for step in only(plan).steps]


def request(plan: Plan, kind: str) -> dict[str, Any]:
    step = next(step for step in only(plan).steps if step.kind == kind)
    assert step.request is not None
    return step.request


def test_a_fresh_node_gets_every_step_in_order_and_an_environment_named_by_its_contents() -> None:
    plan = planned(node_facts("cpu-laptop"))
    node = only(plan)
    assert kinds(plan) == ["toolchain", "install", "smoke", "activate"]
    assert all(step.why for step in node.steps)
    assert not plan.nothing_to_do
    assert node.environment == f"/data/envbuild/envs/torch-smoke-exact-{node.variant_digest[:12]}"
    assert not {"build", "patches"} & set(request(plan, "install")["args"]), "there are no sources"


def test_tools_that_are_there_are_not_put_again() -> None:
    facts = node_facts("cpu-laptop", more={"toolchain": ["envbuild-node-1", "uv-2"]})
    assert "toolchain" not in kinds(planned(facts))
    partly = node_facts("cpu-laptop", more={"toolchain": ["uv-2"]})
    step = only(planned(partly, tool_bytes={"envbuild-node-1": 7, "uv-2": 100})).steps[0]
    assert "envbuild-node" in step.what and "uv" not in step.what.split(" into ")[0]
    assert step.disk_bytes == 7


def test_only_what_is_not_there_yet_is_done() -> None:
    lock = torch_lock()
    digest, bare = lock.variants[0].digest, node_facts("cpu-laptop")
    facts = stamped(bare, lock, digest)
    plan = planned(facts, lock)
    assert plan.nothing_to_do and kinds(plan) == []
    assert plan.warnings == ()
    with_tools = node_facts("cpu-laptop", more={"toolchain": ["envbuild-node-1", "uv-2"]})
    plan = planned(stamped(with_tools, lock, digest, current=False), lock)
    assert kinds(plan) == ["activate"]
    assert "another one is in use" in only(plan).steps[0].why
    with_a = stamped(bare, lock, digest, variables={"A": "1"})
    assert kinds(planned(with_a, lock, where=target(environment={"A": "1"}))) == []
    assert kinds(planned(with_a, lock, where=target(environment={"A": "2"})))[-1:] == ["activate"]
    half = facts.environments[0].model_copy(update={"stamp": None})
    assert "install" in kinds(planned(facts.model_copy(update={"environments": (half,)}), lock))
    plan = planned(facts, lock, repair=(facts.node,))
    assert kinds(plan) == ["toolchain", "install", "smoke", "activate"]
    assert plan.nodes[0].environment == f"{facts.environments[0].path}.2"
    assert {request(plan, verb)["args"]["environment"] for verb in kinds(plan)[1:]} == {plan.nodes[0].environment}


def generations(lock: Lock, *found: tuple[str, bool, bool]) -> NodeFacts:
    """A node with environments of a lock: what follows on the name, whether it is in use, whether it is stamped."""
    facts = stamped(node_facts("cpu-laptop"), lock, lock.variants[0].digest)
    first = facts.environments[0]
    made = [
        first.model_copy(update={"path": first.path + end, "current": current, "stamp": first.stamp if good else None})
        for end, current, good in found
    ]
    return facts.model_copy(update={"environments": tuple(made)})


@pytest.mark.parametrize(
    ("found", "kept", "again"),
    [
        ([], "", ""),
        ([("", True, True)], "", ".2"),
        ([("", False, True), (".2", True, True)], ".2", ".3"),
        ([("", True, True), (".2", False, True)], "", ".3"),
        ([("", False, True), (".2", False, True)], ".2", ".3"),
        ([("", True, True), (".2", False, False)], "", ".2"),
        ([(".10", True, True), (".9", False, True)], ".10", ".11"),
        ([("", True, False)], ".2", ".2"),
    ],
)
def test_d101_an_environment_is_built_again_in_a_folder_of_its_own(
    found: list[tuple[str, bool, bool]], kept: str, again: str
) -> None:
    lock = torch_lock()
    facts = generations(lock, *found)
    plain = f"/data/envbuild/envs/{lock.stack}-{lock.profile}-{lock.variants[0].digest[:12]}"
    assert planned(facts, lock).nodes[0].environment == plain + kept
    assert planned(facts, lock, repair=(facts.node,)).nodes[0].environment == plain + again


def test_requests_hold_exactly_the_arguments_of_the_protocol() -> None:
    index = {"pytorch-cpu": {"url": "https://download.pytorch.org/whl/cpu", "kind": "simple"}}
    plan = planned(node_facts("cpu-laptop"), indexes=index)
    install, smoke, activate = (request(plan, kind) for kind in ("install", "smoke", "activate"))
    for one in (install, smoke, activate):
        assert set(one) == {"protocol", "verb", "run", "prefix", "args"}
        assert (one["protocol"], one["run"], one["prefix"]) == (1, "r1", "/data/envbuild")
    assert set(install["args"]) == {
        "environment", "stack", "profile", "variant", "interpreter", "tools", "artifacts", "cache", "tmp",
        "controller", "wait",
    }  # fmt: skip
    assert install["args"]["interpreter"] == "/usr/bin/python3.11"
    assert install["args"]["tools"] == {"uv": "/data/envbuild/tools/uv-2/uv"}
    assert install["args"]["artifacts"] == {"find_links": [], "indexes": index, "offline": False, "sources": {}}
    assert set(smoke["args"]) == {"environment", "variant", "items", "cuda", "tmp"}
    assert smoke["args"]["cuda"] is False
    assert set(activate["args"]) >= {"environment", "stack", "profile", "variant", "variables", "evidence"}


def test_folders_with_found_files_are_told_to_the_install() -> None:
    lock = torch_lock()
    file = lock.variants[0].packages[0].files[0].file
    facts = node_facts(
        "cpu-laptop", more={"files_found": {file: f"/wheels/{file}", "other.whl": "/elsewhere/other.whl"}}
    )
    assert request(planned(facts, lock), "install")["args"]["artifacts"]["find_links"] == ["/wheels"]


def test_delivery_by_the_controller_makes_the_install_offline() -> None:
    lock = make_lock({"id": "v", "python": "3.11", "packages": [package("a", "1", size=5)], "sources": [LIB]})
    plan = planned(node_facts("cpu-laptop"), lock, where=target(delivery="controller"))
    assert kinds(plan) == ["toolchain", "deliver", "install", "smoke", "activate"]
    artifacts = request(plan, "install")["args"]["artifacts"]
    store = f"/data/envbuild/store/{only(plan).variant_digest[:12]}"
    assert artifacts["bundle"] == {"file": f"{store}/bundle.tar"}
    assert artifacts["sources"] == {"lib": f"sources/lib-{'1' * 40}-{'2' * 12}.bundle"}
    what = f"fetch 1 file and 1 source on this machine, where you type this, and bring them in a bundle to {store}"
    assert only(plan).steps[1].what == f"{what}, which `activate` removes"
    deliver, install = only(plan).steps[1:3]
    assert (deliver.fetch_bytes, install.fetch_bytes) == (5, 0)
    # The same is planned, with its reason, where the node does not reach what this machine has.
    lock = make_lock({"id": "v", "python": "3.11", "packages": [], "sources": [LIB]})
    facts = node_facts("cpu-laptop").model_copy(update={"reachable": {LIB["git"]: False}})
    plan = planned(facts, lock, supply=Supply(reachable={LIB["git"]: True}))
    deliver, install = only(plan).steps[1:3]
    assert deliver.what.startswith("fetch 0 files and 1 source on this machine, ")
    assert deliver.why == "the node does not reach example.org; this machine has or reaches it"
    assert request(plan, "install")["args"]["artifacts"]["bundle"]["file"].endswith("/bundle.tar")
    assert "to fetch" not in install.what


def test_estimates_count_one_file_a_package_and_say_what_has_no_size() -> None:
    two = package("a", "1", size=100)
    two["files"].append({"file": "a-1.tar.gz", "sha256": "c" * 64, "size": 999})
    lock = make_lock({"id": "v", "python": "3.11", "packages": [two, package("b", "1", size=None)]})
    plan = planned(node_facts("cpu-laptop"), lock)
    install = only(plan).steps[1]
    assert install.fetch_bytes == 100
    assert "no recorded size: b" in install.what
    assert install.disk_bytes > 100 and install.inodes > 2 and install.seconds > 0
    assert install.what.split(": ")[1].startswith("at least 0 kB to fetch, at least ")
    assert install.unsized == ("b",)


def shown(plan: Plan, facts: NodeFacts, **more: Any) -> str:
    """The text of a plan for one node."""
    return plan_text(plan, Survey(facts={facts.node: facts}, **more))


def total(plan: Plan, facts: NodeFacts) -> str:
    (line,) = [line for line in shown(plan, facts).splitlines() if "in all" in line]
    return line.strip()


def test_d08_a_sum_without_some_sizes_says_at_least_and_what_is_not_counted() -> None:
    packages = [package("a", "1", size=5_000_000), package("b", "1", size=None)]
    for rows, says in (
        ({"packages": packages[:1]}, "5 MB to fetch, about "),
        ({"packages": packages}, "at least 5 MB to fetch, at least "),
        ({"packages": packages[:1], "sources": [LIB]}, "at least 5 MB to fetch, about "),
        ({"packages": [], "sources": [LIB]}, "an unknown amount to fetch, about "),
    ):
        facts = node_facts("cpu-laptop")
        line = total(planned(facts, make_lock({"id": "v", "python": "3.11", **rows})), facts)
        left = "; not counted, often the largest part: b" if len(rows["packages"]) > 1 else ""
        left += "; counted on disk only: source lib" if "sources" in rows else ""
        assert line.startswith(f"in all     {says}")
        assert line.endswith(f" while building{left}")


def test_d08_tools_that_are_not_downloaded_yet_and_the_cache_of_this_machine_are_told() -> None:
    python = Tool("python", Path("/nowhere.tar.gz"), "3" * 64, "tree")
    facts = node_facts("cpu-laptop")
    lock = make_lock({"id": "v", "python": "3.11", "packages": [package("a", "1", size=5_000_000)]})
    for reachable, says in (({}, "if the node does not reach these "), ({"pypi": True}, None)):
        known = facts.model_copy(update={"reachable": reachable})
        plan = planned(known, lock, tools=NodeTools((python,), "p", "n", "u", None), undownloaded=[python])
        assert plan.nodes[0].steps[0].unsized == ("tool python",)
        assert plan.nodes[0].steps[0].why.endswith("; this machine brings them, and downloads python")
        text = shown(plan, known, variants={facts.node: lock.variants[0]})
        assert "in all     at least 5 MB to fetch, about " in text and "; counted on disk only: tool python\n" in text
        assert (f"\n    here       {says}" in text) if says else "\n    here " not in text


def test_the_sum_of_a_plan_names_the_folders_that_the_target_sets_beside_its_prefix() -> None:
    rows = {"id": "v", "python": "3.11", "packages": [package("a", "1", size=5_000_000)]}
    facts = node_facts("cpu-laptop")
    own = {"cache": "/c", "store": "/s", "tmp": "/t/{user}"}
    compiled = {**LIB, "build": {"kind": "wheel"}}
    for given, built, keys in (({}, LIB, []), (own, LIB, [*own]), ({}, compiled, ["compile"])):
        plan = planned(facts, make_lock({**rows, "sources": [built]}), where=target(**given))
        _, after = shown(plan, facts).split("    in all ")
        lines = [line for line in after.splitlines()[1:] if line.startswith("    ")]
        assert [line.split()[0] for line in lines] == keys
        assert all("not counted" in line for line in lines)


def test_gigabytes_for_a_missing_gpu_are_said_first() -> None:
    where = target(expects={"gpus_per_node": 8})
    plan = planned(node_facts("cpu-laptop"), where=where, supply=Supply(reachable={"pytorch-cpu": False}))
    assert plan.warnings[0].startswith("916 MB to fetch")
    assert any("expects 8 GPUs" in text for text in plan.warnings[1:])


def test_a_plan_doubts_a_shared_prefix_on_a_disk_of_the_node() -> None:
    where = target(placement="shared", connection={"kind": "ssh"}, hosts=["a", "b"], prefix="/tmp/envbuild")
    (warning,) = [text for text in planned(node_facts("cpu-laptop"), where=where).warnings if "own disk" in text]
    assert warning.startswith("`prefix: /tmp/envbuild` is on each node's own disk if /tmp is")


def test_variables_that_look_secret_are_named_without_their_values() -> None:
    values = {
        "HF_TOKEN": "hf_value",
        "WANDB_API_KEY": "w",
        "NCCL_DEBUG": "WARN",
        "MONKEY": "m",
        "TOKENIZERS_PARALLELISM": "0",
    }
    (warning,) = [
        text for text in planned(node_facts("cpu-laptop"), where=target(environment=values)).warnings if "clear" in text
    ]
    assert warning.startswith("HF_TOKEN, WANDB_API_KEY of the target's variables look like a secret")
    assert "hf_value" not in warning and "activate.sh" in warning and "modulefile" in warning
    path = target(environment={"SSL_KEY": {"path": "/etc/key", "if": "exists"}, "NCCL_DEBUG": "WARN"})
    assert not any("clear" in text for text in planned(node_facts("cpu-laptop"), where=path).warnings)


def test_a_refused_node_has_no_steps_and_no_warning_as_its_error_says_why() -> None:
    old = node_facts("v100-aws", more={"node": "old"})
    plan = planned({"good": node_facts("cpu-laptop", more={"node": "good"}), "old": old})
    assert [node.node for node in plan.nodes] == ["good"]
    assert not any("interpreter" in text for text in plan.warnings)
    error = EnvbuildError("disk-space", "old: there is too little room", hint="another prefix")
    text = shown(planned({"old": old}), old, errors={"old": error})
    assert "  old: error[disk-space]: there is too little room" in text.splitlines()
    lock = torch_lock()
    with pytest.raises(KeyError):
        ChosenVariants(lock).of(resolve_fleet({"old": old}, lock, target(), compat())["old"], old)


def test_the_same_warning_of_many_nodes_is_one_line() -> None:
    fleet = {f"n{i}": node_facts("rtx4090", pythons=["3.11.2"], more={"node": f"n{i}"}) for i in range(5)}
    plan = planned(fleet)
    lines = [text for text in plan.warnings if "does not use the node's GPUs" in text]
    assert len(lines) == 1 and lines[0].endswith("[n0, n1, n2 and 2 more]")


def test_a_base_is_planned_with_what_it_provides() -> None:
    where = target(base="system")
    plan = planned(with_site(node_facts("b200"), TORCH_SITE), where=where)
    variant = request(plan, "install")["args"]["variant"]
    assert variant["provided"] == TORCH_SITE
    assert variant["digest"] == only(plan).variant_digest == only(plan).resolution.variant_digest
    assert request(plan, "smoke")["args"]["cuda"] is True
    with_cpu = with_site(node_facts("b200"), {**TORCH_SITE, "torch": "2.13.0+cpu"})
    assert request(planned(with_cpu, where=where), "smoke")["args"]["cuda"] is False


def test_what_the_target_says_reaches_the_steps_and_stands_above_the_stack() -> None:
    smoke = [{"name": "sound"}, {"name": "machine", "floors": {"gemm_tflops": 1.0}}, {"name": "training"}]
    own = {"A": "stack", "B": "$(x) 'q'"}
    floors = {"gemm_tflops": 200.0, "all_reduce_busbw_gbps": 228.0, "multi_node_busbw_gbps": 185.0}
    topology = {"path": "/opt/topo.xml", "if": "exists"}
    where = target(
        environment={"A": "target", "T": topology}, floors={**floors, "training_tokens_per_second": 9.0},
        cache="/scratch/{user}/cache", tmp="{home}/tmp",
    )  # fmt: skip
    lock = make_lock({"id": "v", "python": "3.11", "environment": own, "smoke": smoke})
    plan = planned(node_facts("cpu-laptop"), lock, where=where)
    args = {verb: request(plan, verb)["args"] for verb in ("install", "smoke", "activate")}
    assert args["activate"]["variables"] == {"A": "target", "B": "$(x) 'q'", "T": topology}
    assert [item.get("floors", {}) for item in args["smoke"]["items"]] == [
        {}, {"gemm_tflops": 200.0, "all_reduce_busbw_gbps": 228.0}, {"training_tokens_per_second": 9.0},
    ]  # fmt: skip
    assert (args["install"]["cache"], args["install"]["tmp"]) == ("/scratch/u/cache", "/home/u/tmp")


def test_a_standalone_interpreter_comes_from_the_tools() -> None:
    row = {"id": "s", "python": "3.13", "interpreter": {"kind": "standalone", "name": "cpython", "sha256": "b" * 64}}
    tools = FakeTools(interpreter="/data/envbuild/tools/python-3/python/bin/python3")
    plan = planned(node_facts("cpu-laptop"), make_lock(row), tools=tools)
    assert only(plan).python == tools.interpreter
    assert request(plan, "install")["args"]["interpreter"] == tools.interpreter


@pytest.mark.parametrize(
    ("node", "expects", "fits"),
    [
        ("a100-azure", {"gpu": "A100-SXM4-80GB", "gpus_per_node": 8, "driver": ">=470"}, True),
        ("a100-polaris", {"gpu": "A100-SXM4-80GB"}, False),
        ("h200", {"gpu": "H200-SXM-141GB"}, True),
        ("h100", {"gpu": "H200-SXM-141GB"}, False),
        ("a100-azure", {"gpu": "A100 80 GB"}, True),
        ("a100-azure", {"gpu": "A100 80GB PCIe"}, False),
        ("h100", {"gpu": "H100 PCIe"}, False),
        ("rtx4090", {"gpu": "RTX-4090", "gpus_per_node": 4}, True),
        ("v100-aws", {"gpu": "V100-SXM2-16GB", "driver": ">=525"}, False),
        ("v100-aws", {"driver": ">=470,<471"}, True),
        ("cpu-laptop", {"gpu": "A100"}, False),
        ("cpu-laptop", {"driver": ">=470"}, False),
        ("cpu-laptop", {"gpus_per_node": 0}, True),
    ],
)
def test_hardware_that_is_not_as_expected_is_said(node: str, expects: dict[str, Any], fits: bool) -> None:
    assert (unexpected(node_facts(node), target(expects=expects)) == ()) is fits


SOURCE = {"name": "apex", "git": "https://example.org/apex", "commit": "1" * 40, "tree": "2" * 40}
FLAGS = {"flags": ["cpp_ext", "cuda_ext"]}


def compiled_lock(**source: Any) -> Lock:
    """A CUDA torch and one compiled source for Python 3.10."""
    fields = {"id": "cu124-py3.10", "python": "3.10", "torch": "2.5.0", "flavour": "cu124"}
    packages = [torch_package("2.5.0", "3.10", size=900_000_000)]
    return make_lock({**fields, "packages": packages, "sources": [{**SOURCE, "build": FLAGS, **source}]})


def patches() -> dict[str, Patch]:
    return {"apex-cuda-check": load_patch("apex-cuda-check")}


def test_what_is_compiled_is_told_to_the_install_and_to_the_reader() -> None:
    plan = planned(node_facts("h100", nvcc=["11.8", "12.4"]), compiled_lock(), where=target(build_jobs=16))
    assert request(plan, "install")["args"]["build"] == {
        "store": "/data/envbuild/store/wheels",
        "arch_list": ["9.0"],
        "cuda_home": "/usr/local/cuda-12.4",
        "nvcc": "12.4",
        "jobs": 16,
        "check_rebuild": False,
    }
    for kind in ("install", "smoke", "activate"):
        variant = request(plan, kind)["args"]["variant"]
        assert (variant["arch_list"], variant["digest"]) == (["9.0"], only(plan).variant_digest)
    assert only(plan).environment.endswith(only(plan).variant_digest[:12])
    step = only(plan).steps[1]
    says = "; compile apex (2 flags) for compute capability 9.0 with 16 jobs, where the wheel store has no wheel of it"
    assert says in step.what
    alone = planned(node_facts("h100"), compiled_lock(), where=target(build_jobs=1))
    assert only(alone).steps[1].seconds > step.seconds + 600
    where = target(store="{home}/wheels", build_jobs=4)
    plan = planned(node_facts("h100"), compiled_lock(), where=where, jobs=2, check_rebuild=True)
    build = request(plan, "install")["args"]["build"]
    assert (build["store"], build["jobs"], build["check_rebuild"]) == ("/home/u/wheels", 2, True)
    of_stack = compiled_lock().variants[0].to_json_dict() | {"environment": {"TORCH_CUDA_ARCH_LIST": "7.0;8.0+PTX"}}
    args = request(planned(node_facts("h100"), make_lock(of_stack)), "install")["args"]
    assert args["build"]["arch_list"] == ["7.0", "8.0+PTX"]
    assert "arch_list" not in args["variant"]


def test_patches_come_from_the_catalog_with_the_bounds_of_the_lock() -> None:
    digest = load_patch("apex-cuda-check").tried[0].commit
    pin = {"name": "apex-cuda-check", "digest": "a" * 64, "least": 3, "most": 4}
    named = {"patches": ["apex-cuda-check"], "commit": digest}
    plain = planned(node_facts("h100"), compiled_lock(**named), patches=patches())
    pinned = planned(node_facts("h100"), compiled_lock(**named, patch_pins=[pin]), patches=patches())
    ((one,), (two,)) = (request(plan, "install")["args"]["patches"]["apex"] for plan in (plain, pinned))
    exact = patches()["apex-cuda-check"].expected(digest)
    assert one["hits"] == list(exact)
    assert two["hits"] == [3, 4]
    assert one["edits"] == two["edits"]
    assert "patches" not in request(planned(node_facts("h100"), compiled_lock()), "install")["args"]


def test_d11_a_plan_says_what_stays_and_the_most_that_is_there_at_once() -> None:
    row = package("a", "1", size=6_000_000, unpacked={"bytes": 20_000_000, "inodes": 10})
    lock = make_lock({"id": "v", "python": "3.11", "packages": [row]})
    facts = node_facts("cpu-laptop")
    tools = {"tool_bytes": {"envbuild-node-1": 1_000_000, "uv-2": 40_000_000}}
    for where, delivered in ((target(), 0), (target(delivery="controller"), 6_000_000)):
        plan = planned(facts, lock, where=where, **tools)
        node, steps = only(plan), {step.kind: step for step in only(plan).steps}
        assert node.lasting_bytes == 41_000_000 + steps["install"].disk_bytes
        assert steps["smoke"].beside_bytes > steps["install"].beside_bytes > delivered
        assert node.peak_bytes == node.lasting_bytes + steps["smoke"].beside_bytes
        needed = {"bytes": steps["install"].disk_bytes, "inodes": steps["install"].inodes}
        assert request(plan, "install")["args"]["needed"] == needed
        plain = plan.to_json_dict()["nodes"][0]
        assert (plain["lasting_bytes"], plain["peak_bytes"]) == (node.lasting_bytes, node.peak_bytes)
        line = total(plan, facts)
        assert " 61 MB and " in line and " MB while building" in line and "about" not in line


def test_a_plan_says_seconds_where_they_were_measured_here_and_else_none() -> None:
    facts = node_facts("cpu-laptop")
    plan = planned(facts, make_lock({"id": "v", "python": "3.11", "packages": [package("a", "1", size=6_000_000)]}))
    node = only(plan)
    for measured, says in (
        ({}, r"while building$"),
        ({"seconds": 9.0, "before": 4.0}, rf"while building, about {4 * len(node.steps)} s as before$"),
    ):
        steps = tuple(step.model_copy(update=measured) for step in node.steps)
        told = plan.model_copy(update={"nodes": (node.model_copy(update={"steps": steps}),)})
        assert re.search(says, shown(told, facts), re.MULTILINE)
