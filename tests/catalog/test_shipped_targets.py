"""The targets of the documents: complete, overridable, refused at once where provisioning cannot do them yet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envbuild import resources
from envbuild.catalog.loader import is_template, list_stacks, list_targets, load_target
from envbuild.catalog.node_facts import list_facts, load_facts
from envbuild.errors import EnvbuildError
from envbuild.hostlist import expand_hosts
from envbuild.model.doubts import FIGURES, doubts
from envbuild.model.stack import EnvPath
from envbuild.model.target import ContainerSettings, HostSource, Target
from envbuild.node import facts as probe
from envbuild.node.protocol import user_name
from envbuild.node.smoke import machine
from envbuild.node.smoke.multi_node import METRIC
from envbuild.provision.run.context import Choice
from envbuild.provision.survey.hosts import refuse_unsupported, unsupported
from envbuild.provision.survey.prepare import prepare
from envbuild.resolve.rules.node import unexpected
from tests.support.fails import fails

STACKS = {
    "aws-p3-16xlarge": "megatron-alpa",
    "azure-nd96": "opt-175b",
    "h200": "torch-smoke",
    "pods-rtx4090": "megatronapp",
    "polaris": "megatron-deepspeed-alcf",
    "slurm-pyxis": "megatron-deepspeed-slurm",
}
TEMPLATES = ("pbs", "slurm", "ssh")
MISSING = {
    "azure-nd96": ["connection: job", "hosts named by slurm: hpc"],
    "polaris": ["connection: job"],
    "slurm-pyxis": ["connection: job", "hosts named by slurm"],
}


def shipped(name: str) -> Target:
    return load_target(name, template=True).target


@pytest.mark.parametrize(("name", "stack"), STACKS.items())
def test_a_target_says_all_that_matters(name: str, stack: str) -> None:
    target = shipped(name)
    assert (target.stack, stack in list_stacks()) == (stack, True)
    assert target.expects.driver or target.expects.gpu
    text = (resources.catalog() / "targets" / f"{name}.yaml").read_text(encoding="utf-8")
    for key in ("connection:", "scheduler:", "engine:", "placement:", "prefix:", "privilege:", "expects:", "floors:"):
        assert f"\n{key}" in text
    assert text.count("# ") >= 5, "every value names its source"
    if name not in ("h200", "pods-rtx4090", "slurm-pyxis"):
        assert target.placement == "shared" and target.tmp, "clusters share a prefix, temporary files are the node's"
    # Missing peer access is expected of GeForce cards alone.
    assert target.expects.peer_access is (False if name == "pods-rtx4090" else None)
    facts = load_facts(name)
    assert facts and all(unexpected(node, target) == () for node in facts.values())
    assert {node.scheduler.kind for node in facts.values()} == {target.scheduler.kind}


def test_all_targets_of_the_documents_are_shipped_and_name_nobodys_account_and_no_login_node() -> None:
    assert set(list_targets()) == {"local", *STACKS, *TEMPLATES} and set(list_facts()) == set(STACKS)
    ways = {name: shipped(name).connection for name in list_targets()}
    assert {way.login for way in ways.values()} == {None}
    users = {name: way.user for name, way in ways.items() if way.user}
    assert users == {"aws-p3-16xlarge": "ubuntu", "pods-rtx4090": "root"}, "those of an AMI and of an image"
    ndv4 = shipped("azure-nd96")
    topology = EnvPath.from_plain({"path": "/opt/microsoft/ndv4-topo.xml", "if": "exists"})
    assert (ndv4.environment["NCCL_TOPO_FILE"], ndv4.environment["NCCL_IB_PCI_RELAXED_ORDERING"]) == (topology, "1")
    assert ndv4.floors == {"all_reduce_8192_mib_busbw_gbps": 228, "multi_node_busbw_gbps": 185}


def test_the_example_facts_have_the_shape_of_a_probe() -> None:
    args = {"pythons": ["3.11"], "base_packages": True, "interpreters": ["python3"]}
    _, answer = probe.run({"prefix": "/nowhere/envbuild", "args": args})
    for name in list_facts():
        plain: dict[str, Any] = json.loads((resources.catalog() / "facts" / f"{name}.json").read_text())
        assert set(plain) == set(answer) - {"trees", "system_packages"}, f"{name}: these are asked for a stack"
        for key in ("os", "libc", "driver", "scheduler", "tools"):
            assert set(plain[key]) == set(answer[key]), f"{name}: {key}"
        for key in ("pythons", "compilers", "nics"):
            known = {field for row in answer[key] for field in row}
            known |= {"name", "kind", "state", "rate_gbps", "addresses"} if key == "nics" else {"path", "version"}
            assert {field for row in plain[key] for field in row} <= known, f"{name}: {key}"


@pytest.mark.parametrize(("name", "missing"), MISSING.items())
def test_what_cannot_be_provisioned_is_refused_before_anything_else(
    name: str, missing: list[str], tmp_path: Path
) -> None:
    with pytest.raises(EnvbuildError) as caught:
        prepare(Choice(target=name, stack="./no-such-stack.yaml"))
    error = caught.value
    assert (error.code, error.exit_code) == ("not-yet-supported", 7)
    assert all(text in error.why for text in missing), error.why
    assert len(error.details["missing"]) == len(missing)


def test_what_can_be_provisioned_is_not_refused_and_an_image_may_be_asked_though_not_built() -> None:
    for name in ("local", *STACKS):
        assert unsupported(shipped(name)) == {}
        assert "privilege: none" in unsupported(shipped(name).model_copy(update={"privilege": "sudo"})).values()
    target = shipped("pods-rtx4090").model_copy(update={"container": ContainerSettings(runtime="pyxis")})
    refuse_unsupported(target, only_ask=True)
    with fails("not-yet-supported") as caught:
        refuse_unsupported(target)
    assert caught.value.details["missing"] == ["container: {runtime: pyxis} without jobs of Slurm"]


def test_a_placeholder_is_named_with_the_field_to_say(tmp_path: Path) -> None:
    for name in (*TEMPLATES, "aws-p3-16xlarge", "polaris"):
        assert is_template(shipped(name))
        with fails("target-template") as caught:
            load_target(name)
    assert "scheduler.account" in caught.value.what
    mine = tmp_path / "mine.yaml"
    mine.write_text("name: mine\nextends: pbs\n")
    with fails("target-template") as caught:
        load_target(str(mine))
    held = "still holds placeholders: `scheduler.queue: <your-queue>`, `scheduler.account: <your-account>`"
    assert caught.value.what.endswith(held)
    assert caught.value.hint == f"add your own `scheduler.queue` and your own `scheduler.account` to {mine}"


def own(tmp_path: Path, text: str) -> Target:
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\n" + text, encoding="utf-8")
    return load_target(str(path)).target


def test_a_user_file_overrides_every_part(tmp_path: Path) -> None:
    target = own(
        tmp_path,
        "extends: azure-nd96\nhosts: ['slurm-hpc-pg0-[1-4]']\nconnection: {kind: ssh, user: me}\n"
        "prefix: /shared/{user}/e\nenvironment: {NCCL_TOPO_FILE: null, NCCL_DEBUG: WARN}\n"
        "expects: {driver: '>=525'}\nfloors: {multi_node_busbw_gbps: null}\n",
    )
    assert unsupported(target) == {}
    assert expand_hosts(target.hosts) == [f"slurm-hpc-pg0-{i}" for i in range(1, 5)]
    assert "NCCL_TOPO_FILE" not in target.environment
    assert target.environment["NCCL_DEBUG"] == "WARN"
    assert (target.expects.gpu, target.expects.driver) == ("A100-SXM4-80GB", ">=525")
    assert target.floors == {"all_reduce_8192_mib_busbw_gbps": 228}


def test_who_names_the_hosts_is_replaced_not_merged(tmp_path: Path) -> None:
    target = own(tmp_path, "extends: azure-nd96\nconnection: {kind: ssh}\nhosts: {command: [my-hosts, --all]}\n")
    assert isinstance(target.hosts, HostSource)
    assert target.hosts.given == {"command": "my-hosts --all"}
    with fails("not-yet-supported", 7):
        expand_hosts(target.hosts)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("extends: local\nconnection: {kind: job}\nhosts: [a]", "needs a scheduler: write `extends"),
        ("extends: ssh\nhosts: {slurm: hpc}", "for jobs write `extends: slurm`"),
        ("extends: slurm\nhosts: {slurm: a, inventory: b}", "exactly one of"),
        ("extends: slurm\nhosts: {slurm: -p}", "start with '-'"),
        ("extends: slurm\nhosts: [gpu1]", "write `hosts: {slurm: PARTITION}`"),
        ("prefix: /e\nhosts: {slurm: hpc}", "for these write `extends: slurm`"),
        ("prefix: /e\nhosts: [gpu1]", "mine.yaml:3:1"),
        ("extends: local\nprefx: /x", "unknown key"),
        ("extends: local\nprefix: /a/../b", "must not hold '..'"),
        ('extends: local\nprefix: "/a\\nb"', "control characters"),
        ("extends: local\ninterpreter: --help", "start with '-'"),
        ("extends: local\nconnection: {kind: telnet}", "must be 'local', 'ssh' or 'job'"),
        ("extends: local\nconnection: {kind: ssh, port: 99999}", "less than or equal to 65535"),
        ("extends: local\nconnection: {kind: ssh}\nhosts: ['{{ x }}']", "a host holds no"),
        ("extends: local\nconnection: {kind: ssh}\nhosts: []", "empty"),
        ("extends: local\nhosts: [elsewhere]", "`connection: local` has one host"),
        ("extends: local\nenvironment: {'A=B': x}", "must match"),
        ("extends: local\nenvironment: {A: 1}", "must be text"),
        ("extends: local\nexpects: {gpus_per_node: many}", "must be a whole number"),
        ("extends: ssh\nconnection: {host: a}", "PBS need `connection: {kind: job, login: {host: …}}`"),
        ("extends: ssh\nhosts: [a]\nconnection: {login: {host: a}}", "`login` has no effect with `conn"),
        ("extends: pbs\nscheduler: {requeue: true}", "PBS does not tell a job that it runs again"),
        ("extends: slurm\nconnection: {kind: Slurm}", "write `connection: {kind: job}`, and the partition as `hosts: "),
        ("extends: local\nengine: uv", "write `engine: venv`"),
        ("extends: local\nexpects: {driver: 470}", ":3:11: 470\nhint: put expects.driver in quotes"),
        ("extends: local\ncontainer: {runtime: Docker}", "did you mean `docker`?"),
        ("extends: ssh\nhosts: [a]\nfloors: {Busbw Gbps: 2}", "hint: write busbw-gbps\n"),
        ("extends: pbs\nscheduler: {filesystems: [Home]}", "hint: write filesystems: [home]\n"),
        ("extends: slurm\nhosts: hpc", "write hosts: {slurm: hpc}"),
        ("extends: ssh\nhosts: ['gpu[01-04']", "hosts[0] must have its brackets in pairs, as gpu[01-04]"),
        ("extends: ssh\nhosts: gpu01", "write hosts: [gpu01]"),
        ("extends: ssh\nhosts: {command: ./list --gpu}", "write command: [./list, --gpu]"),
        ("extends: slurm\nhosts: 'ndv4-[1-16]'", "write hosts: {slurm: PARTITION}"),
        ("extends: slurm\nhosts: {slurm: 'n[1-4]'}", "hosts.slurm: a job of Slurm runs on the nodes of a partition: w"),
        ("hosts: [gpu1]\nextends: slurm", "mine.yaml:2:1"),
        ("extends: slurm\nconnection: {login: {host: me@login1}}", "write login1 here, and `user: me` beside it"),
        ("extends: slurm\nconnection: {login: {host: 'ssh://me@a'}}", "must be a host name or address: letters"),
        ("extends: slurm\nprefix: ~/envs", 'write prefix: "{home}/envs"'),
        ("extends: slurm\nscheduler: slurm", "write `extends: slurm` or `extends: pbs`"),
        ("extends: slurm\nwrong: 1\nwalltime: 1\ngpus: 8", "is an unknown key (write `scheduler: {time_limit: 2h}`)"),
        ("extends: azure-nd96\nexpects: {gpus_per_node: 0}", "and `gpu: A100-SXM4-80GB` contradict each other"),
        ("extends: slurm\nscheduler: {nodes: 1}\nscheduler: {qos: a}", "write one `scheduler:` with the keys of both"),
        ("extends: pbs\nhosts: {pbs: ./nodes}", "write `hosts: {pbs: nodefile}`"),
        ("extends: slurm\npartition: hpc", "write `hosts: {slurm: NAME}`"),
        ("extends: slurm\nscheduler: {account: a b; rm}", "must have letters, digits and"),
        ('extends: slurm\nhosts: {slurm: "hpc*"}', "write hpc: with the * `sinfo` marks the default"),
        ("extends: slurm\nscheduler: {resources: [gpu=8]}", "of PBS; Slurm has `hosts: {slurm: PARTITION}`"),
        ("extends: pbs\nscheduler: {queue: gpu, qos: high}", "qos is of Slurm"),
        ("extends: slurm\nscheduler: {gres: gpu}", "write `expects: {gpus_per_node: 8}`"),
        ("extends: slurm\nscheduler: {ntasks-per-node: 8}", "write nothing for it: a job has one task a node"),
        ('extends: slurm\nscheduler: {nodes: "2"}', "write nodes: 2"),
        ("extends: slurm\nscheduler: {requeue: no}", "write requeue: false"),
        ("extends: azure-nd96\nscheduler: {cpus_per_node: 8}", "cpus_per_node has no effect with `exclusive: true`"),
        ("extends: slurm\nscheduler: {time_limit: 120}", "must be a time: 90s, 40m or 2h"),
        ("extends: slurm\nprefix: {home}/envs", 'put what begins with a bracket in quotes: "{home}/envs"'),
        ("extends: slurm\nengine: [venv\nprefix: '{home}/envs'", "check the indentation, brackets and quotes of line"),
        ("extends: slurm\nlogin: null", "write `connection: {login: null}`"),
        ("extends: slurm\nmodules: [cuda/11.6, a]", "write `scheduler: {modules: {load: [cuda/11.6, a]}}`"),
        ("extends: slurm\nmodules: module load cuda", "write `scheduler: {modules: {load: [cuda]}}`"),
        ("extends: slurm\ntime_limit: 2", "write `scheduler: {time_limit: …}`"),
        ("extends: slurm\nscheduler: {modules: cuda}", "write modules: {load: [cuda]}"),
        ("extends: slurm\nscheduler: {modules: [cuda/11.6, a]}", "write modules: {load: [cuda/11.6, a]}"),
        ("extends: slurm\nscheduler: {modules: {load: cuda/11.6 a}}", "write load: [cuda/11.6, a]"),
        ("extends: slurm\nscheduler: {modules: {load: [gcc, ml cuda a]}}", "write load: [gcc, cuda, a]"),
        (
            "extends: slurm\nscheduler: {modules: {load: [/usr/local/cuda-11.6]}}",
            "in /usr/local/cuda* is found without",
        ),
        ("extends: slurm\nconnection: {login: none}", "write login: null"),
        ("extends: slurm\nconnection: {login: {host: none}}", "must be a name: `none` and `null` name nothing"),
        ("extends: slurm\nfloors: none", "leave floors out"),
        ("extends: azure-nd96\nfloors: none", "write floors: null"),
        ("extends: azure-nd96\nnodes: 4", "write `scheduler: {nodes: 4}`"),
        ("extends: slurm\nlogin: login1", "write `connection: {login: {host: login1}}`"),
        ("extends: slurm\ncontainer: [a]", "write container: {KEY: VALUE}, KEY being runtime or image or"),
        ("extends: slurm\nscheduler: {modules: {load: ['ml a: b}']}}", "write [a:, b}]"),
        ("extends: slurm\nprefix: $SCRATCH/envs", "can be used; write what `echo $SCRATCH` prints there"),
        ("extends: slurm\nconnection: {login: login1}", "write login: {host: login1}"),
        ("extends: slurm\nconnection: {login: ssh me@login1}", "write login: {host: login1, user: me}"),
        ("extends: slurm\nconnection: ssh", "write connection: {kind: ssh}"),
        ("extends: slurm\nconnection: login1", "write connection: {KEY: VALUE}, KEY being kind or login or"),
        (
            "extends: slurm\nconnection: {login: {host: a, identity: b}}",
            "write `connection: {identity: b}`, beside `lo",
        ),
        ("extends: slurm\ncontainer: {nodes: 2}", "write `scheduler: {nodes: 2}`"),
        ("extends: slurm\nscheduler: {name: a}", "known: account, constraints"),
        ("hosts: {slurm: hpc}", "write `extends: slurm`, which has the other keys, or `prefix: FOLDER`"),
        ("extends: slurm\nprefix: /shared/$USER/envs", 'write prefix: "/shared/{user}/envs"'),
        ("extends: slurm\nprefix: $HOME", 'write prefix: "{home}/envbuild"'),
        ("extends: slurm\nprefix: /shared/<user>/envs", "only the placeholders {user}, {home} and {data}"),
        ("extends: local\nplacement: image", "needs engine: container"),
        ("extends: local\nengine: docker", "must be 'venv', 'conda' or 'container'"),
    ],
)
def test_a_target_that_contradicts_itself_is_refused(text: str, says: str, tmp_path: Path) -> None:
    with fails("manifest-invalid") as caught:
        own(tmp_path, text + "\n")
    assert says in f"{caught.value.what}\n{caught.value.why}\nhint: {caught.value.hint}\n"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("02:00:00", "2h"), ("1-12", "36h"), ("0-00:30", "30m"), ("90:00", "90m"), ("120", "120m or 120h"),
        ("2h30m", "150m"), ("2d", "48h"), ("90 min", "90m"), ("1.5h", "90m"), ("1 hour 5 seconds", "3605s"),
        ("0:00", ""), ("99999-00", ""), ("soon", ""), ("", ""),
    ],
)  # fmt: skip
def test_a_time_in_another_form_is_refused_with_the_one_to_write(typed: str, meant: str, tmp_path: Path) -> None:
    with fails("manifest-invalid") as caught:
        own(tmp_path, f"extends: azure-nd96\nscheduler: {{time_limit: '{typed}'}}\n")
    assert caught.value.what == "scheduler.time_limit must be a time: 90s, 40m or 2h"
    assert caught.value.hint == (f"write time_limit: {meant}" if meant else "")


@pytest.mark.parametrize("prefix", ["$HOME_DIR/envs", "$USER/envs", "~/a:b", "~/../a"])
def test_no_path_is_proposed_that_would_be_refused_too(prefix: str, tmp_path: Path) -> None:
    with fails("manifest-invalid") as caught:
        own(tmp_path, f"extends: slurm\nprefix: {prefix}\n")
    assert caught.value.hint == ""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "prefix: /mnt/resource_nvme/me/envbuild",
            "own disk if /mnt/resource_nvme (`tmp:` is there) is, and `plac",
        ),
        ("prefix: /tmp/envbuild", "own disk if /tmp is, and `placement: shared`"),
        ("prefix: /scratch/envbuild\ntmp: /scratch", "own disk if /scratch (`tmp:` is there) is, and `placement: sha"),
        ("prefix: /mnt/resource_nvme2/envbuild", ""),
        ("prefix: /scratch/{user}/envbuild\ntmp: /scratch/{user}/tmp", ""),
        ("prefix: /tmp/envbuild\nplacement: node-local\nshared: /shared/me", ""),
        ("prefix: /tmp/envbuild\ntmp: null\nconnection: {kind: local}\nhosts: [localhost]", ""),
        ("prefix: /shared/home/{user}", "`prefix: /shared/home/{user}` looks like a home folder, which nodes refuse"),
        ("prefix: /users/me/", "`prefix: /users/me/` looks like a home folder, which nodes refuse: write /users/me/en"),
        (f"prefix: /scratch/{user_name()}/", "may be a folder for all that is yours, not for envbuild alone: write /s"),
        ("prefix: /scratch/{user}", "may be a folder for all that is yours, not for envbuild alone: write /scratch/{"),
        ("prefix: /scratch/{user}/envbuild", ""),
        ("floors: {training_tokens: 1000}", "no such figure, except where the `step` of a stack does; did you mean `"),
        ("environment: {CUDA_HOME: /opt/cuda}", "CUDA_HOME: …}` does not choose the CUDA toolkit of builds"),
        ("connection: {user: mia}", "`connection: {user: mia}` has no effect without `login: {host: …}`"),
    ],
)
def test_what_may_not_be_meant_is_doubted(text: str, says: str, tmp_path: Path) -> None:
    found = "\n".join(doubts(own(tmp_path, f"extends: azure-nd96\n{text}\n")))
    assert says in found and (says or "`prefix:" not in found)


def test_floors_of_all_that_the_smoke_test_measures_are_known() -> None:
    measured = [*machine._CPU_GEMM, machine.CUDA_GEMM[0], *machine.CUDA_GEMM[1], *machine._CUDA_COPIES, METRIC]
    assert set(measured) <= set(FIGURES)
    sized = dict.fromkeys(("all_reduce_8192_mib_busbw_gbps", "gemm_cuda_bf16_4096_tflops"), 1.0)
    assert not list(doubts(shipped("azure-nd96").model_copy(update={"floors": sized})))
