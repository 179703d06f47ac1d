"""What facts of a node's GPUs and ports mean, who is odd among equal nodes, and what helps."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from envbuild import resources
from envbuild.catalog.loader import load_target
from envbuild.catalog.node_facts import of_target
from envbuild.model.facts import NodeFacts
from envbuild.model.plan import Resolution
from envbuild.provision.survey.ask import with_clock
from envbuild.resolve import health
from envbuild.resolve.request import visible_gpus
from tests.resolve.builders import compat, make_lock, node_facts, resolve, target, torch_lock, torch_package

LOST = "Unable to determine the device handle for GPU0000:BA:00.0: Unknown Error"
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch; NVML library version: 570.195"
INFOROM = "nvidia-smi ended with 14: WARNING: infoROM is corrupted at gpu 0000:3B:00.0"
SEVEN = {"gpus": "7 x NVIDIA B200 @ 10.0", "physical": 8}
NONE = {"gpus": "", "physical": 8, "driver": None, "ceiling": None}


def azure(**more: Any) -> NodeFacts:
    data = json.loads((resources.catalog() / "facts/azure-nd96.json").read_text())
    return NodeFacts.model_validate({**data, **more})


def decided(facts: NodeFacts, variant: str | None = None, **fields: Any) -> Resolution:
    return resolve(facts, torch_lock(("3.12",)), target(**fields), compat(), variant=variant)


def said(resolution: Resolution, rule: str) -> str:
    return " | ".join(f"{d.verdict}: {d.what}; {d.instead}" for d in resolution.decisions if d.rule == rule)


@pytest.mark.parametrize(
    ("problem", "says"),
    [
        (INFOROM, "infoROM of GPU 0000:3B:00.0 is damaged, and CUDA may fail on it"),
        (LOST, "GPU 0000:BA:00.0 is lost"),
        ("nvidia-smi ended with 3: something new", "nvidia-smi reports a problem"),
        ("nvidia-smi did not answer within 10 s", "the driver hangs"),
    ],
)
def test_d56_what_was_read_of_gpus_counts_whatever_the_tool_says_beside_it(problem: str, says: str) -> None:
    got = decided(node_facts("b200", problem=problem))
    assert got.variant_id == "cu130-py3.12" and not said(got, "cuda-without-gpu")
    assert said(got, "gpu-health").startswith("warn: ") and says in said(got, "gpu-health")
    assert problem != INFOROM or "the smoke test decides" in said(got, "gpu-health")


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({**NONE, "problem": MISMATCH}, ("reboot the node", "rmmod", "apt-mark hold")),
        ({**NONE, "problem": "No devices were found"}, ("xid", "reset")),
        ({**NONE, "problem": "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."},
         ("modprobe nvidia",)),
        ({**NONE, "problem": "Failed to initialize NVML: Insufficient Permissions"}, ("/dev/nvidia",)),
        ({"problem": MISMATCH}, ("reboot the node",)),
        ({**NONE, "problem": "Failed to initialize NVML: GPU access blocked by the operating system"},
         ("wsl --update", "--gpus all")),
        ({**NONE, "problem": "nvidia-smi ended with 127: nvidia-smi: error while loading shared libraries: "
                             "libnvidia-ml.so.1"}, ("user libraries",)),
    ],
)  # fmt: skip
def test_d58_a_node_whose_gpus_are_broken_is_refused_with_what_helps(facts: dict[str, Any], says: tuple[str]) -> None:
    node = node_facts("b200", **facts)
    got = decided(node)
    assert got.refused
    text = said(got, "gpu-broken")
    assert all(words in text for words in says)
    assert "unset" not in text and "a CUDA variant" not in text
    assert "`--variant cpu-py3.12` builds for the CPU" in text
    asked = decided(node, variant="cpu-py3.12")
    assert not asked.refused
    assert says[0] in said(asked, "gpu-unused")


def test_d58_a_lost_gpu_is_named_with_reset_or_reboot() -> None:
    facts = node_facts("b200", **SEVEN, problem=LOST)
    text = said(decided(facts), "visible-gpus")
    assert "only 7 of 8 GPUs can be seen (GPU 0000:BA:00.0 is lost" in text
    assert "nvidia-smi --gpu-reset -i 0000:BA:00.0" in text and "reboot" in text and "administrator" in text
    assert "unset" not in text
    assert decided(facts, environment={}).variant_id == "cu130-py3.12"
    numbered = node_facts("b200", problem="Unable to determine the device handle for GPU2: 0000:65:00.0: Not Found")
    fault = health.driver_fault(numbered)
    assert fault is not None and "-i 0000:65:00.0" in fault.helps


@pytest.mark.parametrize(
    ("visible", "seen"),
    [("8,9", 0), ("0,0", 0), ("-1", 0), ("0,1,-1,2", 2), (" 0, 1", 2), ("6,7,8", 2), ("GPU-0123", 1), ("GPU-9", 0)],
)
def test_d59_gpus_that_the_variable_names_and_that_are_not_there_are_none(visible: str, seen: int) -> None:
    plain = node_facts("b200", visible=visible).to_json_dict()
    plain["gpus"] = [{**gpu, "uuid": f"GPU-0123{n}"} for n, gpu in enumerate(plain["gpus"])]
    facts = NodeFacts.model_validate(plain)
    assert visible_gpus(facts) == seen
    if not seen:
        job = facts.model_copy(update={"scheduler": facts.scheduler.model_copy(update={"kind": "slurm", "job": "7"})})
        wanted = "unset CUDA_VISIBLE_DEVICES" if visible != "-1" else "this job has no GPU"
        assert wanted in health.what_shows_gpus(job)


def test_d59_a_job_without_gpus_is_told_how_to_ask_for_them() -> None:
    job = {"scheduler": {"kind": "slurm", "version": "19.05", "job": "77"}}
    facts = node_facts("b200", gpus="", physical=4, visible="NoDevFiles", more=job)
    text = " | ".join(said(decided(facts), rule) for rule in ("visible-gpus", "gpu-unused"))
    assert "has no GPU: ask for them (`--gres=gpu:N`; in a target, `expects: {gpus_per_node: N}`)" in text
    assert "CUDA_VISIBLE_DEVICES is 'NoDevFiles'" in text
    pbs = node_facts("b200", gpus="", physical=4, visible="", more={"scheduler": {"kind": "pbs", "job": "77"}})
    assert "-l select=1:ngpus=N" in health.what_shows_gpus(pbs)
    recorded = azure(visible_devices="0,1,2,3")
    (placed,) = of_target({"n": recorded}, load_target("polaris", template=True).target)[0].values()
    assert "this job has 4: ask for them (`-l select=1:ngpus=N`;" in health.what_shows_gpus(placed), (
        "as the target says"
    )


def changed(field: str, value: Any, place: int = 3) -> NodeFacts:
    """The facts of an azure node, one value of a list's entry changed."""
    plain = azure().to_json_dict()
    part, _, key = field.partition(".")
    if isinstance(plain[part], list) and key:
        plain[part][place][key] = value
    elif key:
        plain[part][key] = value
    else:
        plain[part] = value
    return NodeFacts.model_validate(plain)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("nics.state", "down", "port mlx5_ib2 is down, and active on n[2-3]"),
        ("nics.rate_gbps", 100.0, "rate of mlx5_ib2 is 100 Gbit/s, and 200 Gbit/s on n[2-3]"),
        ("gpus.mig_enabled", True, "MIG is off, on, and off on n[2-3]"),
        ("gpus.memory_mib", 40960, "GPU memory is 81920 MiB, 40960 MiB, and 81920 MiB on n[2-3]"),
        ("driver.version", "535.54.03", "driver is 535.54.03, and 510.85.02 on n[2-3]"),
        ("driver.cuda_ceiling", "12.2", "newest CUDA of the driver is 12.2, and 11.6 on n[2-3]"),
        ("gpus_physical", 9, "GPUs is 8 of 9 x NVIDIA A100-SXM4-80GB, and 8 x NVIDIA A100-SXM4-80GB on n[2-3]"),
        ("memory_bytes", 10**12, "memory is 1000 GB, and 2040 GB on n[2-3]"),
        ("cpus", 48, "CPUs is 48, and 96 on n[2-3]"),
        ("os.kernel", "6.8.0", "kernel is 6.8.0, and 5.15.0-1034-azure on n[2-3]"),
        ("nvcc", [], "nvcc is none, and 11.6.124 on n[2-3]"),
        ("nics", [], "port mlx5_ib2 is absent, and active on n[2-3]"),
        ("gpus.health", {"power.limit": "300.00"}, "power limit is 300.00, and none on n[2-3]"),
        ("gpus.health", {"nvlinks": "17"}, "NVLinks is 17, and none on n[2-3]"),
        ("gpus.health", {"vbios_version": "96.0"}, "GPU firmware is 96.0, and none on n[2-3]"),
        ("gpus.health", {"pcie.link.gen.max": "3"}, "PCIe generation is 3, and none on n[2-3]"),
        ("limits.memlock", "64 KiB", "locked memory is 64 KiB, and none on n[2-3]"),
        ("limits.shm", "64 MiB", "shared memory is about 0 GiB, and none on n[2-3]"),
        ("limits.peermem", "not loaded", "nvidia_peermem is not loaded, and none on n[2-3]"),
        ("prefix.filesystem", "ext2", "file system of the prefix is ext2, and nfs4 on n[2-3]"),
    ],
)
def test_d60_the_odd_node_of_a_class_is_named(field: str, value: Any, says: str) -> None:
    fleet = {"n1": changed(field, value), "n2": azure(), "n3": azure()}
    assert health.odd_ones(fleet).get(says) == ["n1"], health.odd_ones(fleet)
    assert health.odd_ones({"n2": azure(), "n3": azure()}) == {}
    if field == "nics.state":  # of two nodes, the one whose port is down
        found = health.odd_ones({"a": changed(field, value), "b": azure()})
        assert found == {"port mlx5_ib2 is down, and active on b": ["a"]}


@pytest.mark.parametrize(
    ("gpu", "says"),
    [
        ({"ecc_errors": 5}, "counts 5 uncorrected memory errors"),
        ({"health": {"remapped_rows.failure": "1"}}, "could not be remapped"),
        ({"health": {"remapped_rows.pending": "Yes"}}, "waits for a reset to remap"),
        ({"health": {"pcie.link.width.current": "8", "pcie.link.width.max": "16"}}, "has 8 PCIe lanes"),
        ({"health": {"clocks_throttle_reasons.hw_slowdown": "Active"}}, "throttled by its hardware"),
        ({"health": {"fabric.state": "In Progress"}}, "not joined to the others by NVLink"),
        ({"health": {"gpu_recovery_action": "Reset"}}, "asks for its recovery: Reset"),
        ({"health": {"mig.mode.current": "Disabled", "mig.mode.pending": "Enabled"}}, "reset to have MIG Enabled"),
        ({"health": {"ecc.mode.current": "Enabled", "ecc.mode.pending": "Disabled"}}, "reboot to have ECC Disabled"),
        ({"health": {"nvlinks": "12", "nvlinks.active": "11"}}, "has 11 active NVLinks"),
        ({"health": {"clocks_throttle_reasons.sw_thermal_slowdown": "Active"}}, "throttled because it is too hot"),
    ],
)
def test_d60_what_a_gpu_says_of_itself_is_a_warning_with_its_bus_id(gpu: dict[str, Any], says: str) -> None:
    plain = azure().to_json_dict()
    plain["gpus"][3].update(gpu)
    (fault,) = health.faults(NodeFacts.model_validate(plain))
    assert fault.what.startswith("GPU 3 (00000004:00:00.0) ") and says in fault.what
    assert not fault.stops and fault.helps


@pytest.mark.parametrize(
    ("minutes", "says"), [(0, ""), (4, ""), (-12, "12 min behind that of this"), (90, "90 min ahead of that of this")]
)
def test_d60_a_clock_that_goes_wrong_is_a_warning(minutes: int, says: str) -> None:
    facts = azure(probed_at="2026-11-28T12:00:00Z")
    timed = with_clock(facts, datetime(2026, 11, 28, 12, tzinfo=UTC) - timedelta(minutes=minutes))
    found = [fault.what for fault in health.faults(timed) if "clock" in fault.what]
    assert [says in what for what in found] == [True] * bool(says)
    assert with_clock(azure(probed_at="?"), datetime.now(UTC)).limits == facts.limits


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ({"memlock": "64 KiB"}, "may lock 64 KiB of memory: NCCL cannot register"),
        ({"shm": "64 MiB"}, "shared memory of /dev/shm is 64 MiB"),
        ({"memlock": "unlimited", "shm": "64000 MiB", "peermem": "not loaded"}, ""),
        ({"shm": "much"}, ""),
    ],
)
def test_d60_limits_that_stop_nccl_are_warnings_where_there_are_gpus(limits: dict[str, str], says: str) -> None:
    found = health.faults(azure(limits=limits))
    assert [says in fault.what for fault in found] == ([True] if says else [])
    assert not health.faults(azure(limits=limits, gpus=[], gpus_physical=0))


def test_d60_a_gpu_that_takes_no_process_is_refused_and_what_is_well_says_nothing() -> None:
    plain = azure().to_json_dict()
    plain["gpus"][0]["health"] = {
        "compute_mode": "Default", "pcie.link.width.current": "16", "pcie.link.width.max": "16",
        "remapped_rows.failure": "0", "retired_pages.pending": "No", "clocks_throttle_reasons.hw_slowdown":
        "Not Active", "fabric.state": "Completed", "gpu_recovery_action": "None", "mig.mode.current": "Disabled",
        "mig.mode.pending": "Disabled", "nvlinks": "12", "nvlinks.active": "12",
    }  # fmt: skip
    assert health.faults(NodeFacts.model_validate(plain)) == ()
    plain["gpus"][0]["health"]["compute_mode"] = "Prohibited"
    assert not health.health(NodeFacts.model_validate(plain)).usable


def test_d92_a_target_that_expects_gpus_gets_no_cpu_build_and_the_nearest_reason() -> None:
    rows = []
    for kind in ("present", "standalone"):
        for flavour, index in (("cpu", "pytorch-cpu"), ("cu130", "pypi")):
            brought = {"kind": kind} if kind == "present" else {"kind": kind, "name": "py", "sha256": "0" * 64}
            version = "2.13.0+cpu" if flavour == "cpu" else "2.13.0"
            rows.append({
                "id": f"{flavour}-{kind}", "flavour": flavour, "python": "3.11", "torch": "2.13.0",
                "interpreter": brought, "packages": [torch_package(version, "3.11", index=index)],
            })  # fmt: skip
    facts = azure(driver={"version": "535.183.06", "cuda_ceiling": "12.2"})
    lock = make_lock(*rows)
    got = resolve(facts, lock, target(expects={"gpu": "A100"}), compat())
    assert got.refused
    text = " | ".join(f"{d.rule}: {d.what}; {d.alternatives}" for d in got.decisions if d.verdict == "refuse")
    assert "install a Python" not in text
    assert "driver" in text and "torch 2.13.0+cu126" in text
    there = resolve(facts, lock, target(), compat())
    assert there.variant_id == "cpu-standalone"
    assert "cu130-standalone was not taken (driver" in said(there, "gpu-unused")
    assert not resolve(facts, lock, target(expects={"gpu": "A100"}), compat(), variant="cpu-standalone").refused


def test_d93_a_node_without_the_python_is_told_that_the_stack_may_bring_one() -> None:
    got = resolve(node_facts("cpu-laptop", pythons=["3.8.10"]), torch_lock(("3.11",)), target(), compat())
    (item,) = [d for d in got.decisions if d.verdict == "refuse"]
    assert item.rule == "python-not-there"
    assert "`interpreters: [present, standalone]` in a stack file of your own" in (item.instead or "")
    asked = resolve(
        node_facts("cpu-laptop", pythons=["3.8.10"]), torch_lock(("3.11",)), target(), compat(), interpreter="3.11"
    )
    assert all("standalone" not in (d.instead or "") for d in asked.decisions)
