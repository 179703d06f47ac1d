"""The smoke programs with a real torch on the CPU, as they are and with one line broken."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from envbuild.model.evidence import Check
from envbuild.node.smoke import smoke
from envbuild.node.smoke.runner import Scratch, run_programs
from tests.node.torch_env import PYTHON, TORCH, torch_environment
from tests.support.patience import with_deadline
from tests.support.programs import completed
from tests.support.torch_imported import torch_imported as torch_imported

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.usefixtures("torch_imported")]
FAKE = Path(__file__).parents[2] / "support" / "fake_cuda.py"
VARIANT = {
    "python": PYTHON,
    "torch": "2.13.0",
    "flavour": "cpu",
    "imports": ["torch", "torch.nn"],
    "packages": [{"name": "torch", "version": TORCH}],
}


def broken(program: str, line: str, instead: str) -> dict[str, str]:
    text = (Path(smoke.__file__).parent / "programs" / f"{program}.py").read_text()
    assert text.count(line) >= 1
    return {program: text.replace(line, instead)}


def checks(
    item: dict[str, Any], programs: dict[str, str], *only: str, also: Sequence[str] = (), **more: Any
) -> list[dict[str, Any]]:
    """The checks of an item and of those that are named; `only`: some of them."""
    spec = smoke.Spec(str(torch_environment()), VARIANT, **{"cuda": False, "only": only, **more})
    return smoke.smoke_items(spec, [item, *({**item, "name": name} for name in also)], None, programs)


def products(*changes: tuple[str, str], **item: Any) -> dict[str, Any]:
    """The check of products on two GPUs that the processor stands in for."""
    item = {"name": "machine", "deadline": 500, **item}
    return checks(item, behind_stand_ins("gemm", *changes), "machine/gemm", cuda=True)[0]


def test_all_items_pass_through_the_node_program_and_leave_no_trace(tmp_path: Path) -> None:
    environment = torch_environment()
    before = sum(1 for _ in environment.rglob("*"))
    names = ("sound", "machine", "training")
    items = [{"name": name, "deadline": 500.0} for name in names]
    args = {"environment": str(environment), "variant": VARIANT, "items": items, "cuda": False, "tmp": str(tmp_path)}
    request = {"protocol": 1, "verb": "smoke", "run": "r1", "prefix": str(tmp_path), "args": args}
    done = completed([sys.executable, "-m", "envbuild.node", "smoke"], input=json.dumps(request))
    answer = json.loads(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    found = [Check.from_plain(check) for check in answer["result"]["checks"]]
    assert [check.name for check in found] == [
        "smoke/sound",
        "smoke/machine/gemm",
        "smoke/machine/copies",
        "smoke/machine/all-reduce",
        "smoke/training",
    ]
    assert all(check.status == "passed" for check in found)
    assert found[4].details["first_step_seconds"] > 0
    losses = found[4].details["losses"]
    assert (found[4].details["loss_first"], found[4].details["loss_last"]) == (losses[0], losses[-1])
    assert f"from {losses[0]:.4g} to {losses[-1]:.4g} in 60 steps" in found[4].says, "as the curve's own sentence"
    assert found[4].metrics[0].n == 59
    measured = {metric.name: metric.n for check in found[1:4] for metric in check.metrics}
    kinds = [f"gemm_cpu_{kind}_{size}tflops" for kind in ("float32", "float64") for size in ("256_", "512_", "")]
    sums = [f"all_reduce_{size}busbw_gbps" for size in ("1_mib_", "4_mib_", "16_mib_")]
    assert measured == dict.fromkeys([*kinds, *sums, "copy_cpu_gbps"], 10)
    assert found[2].details["device_gbps"] == [pytest.approx(found[2].metrics[0].median, rel=1e-4)]  # of an even number
    assert found[3].details["bytes"] == 16 << 20
    assert sum(1 for _ in environment.rglob("*")) == before


def test_a_model_that_does_not_learn_fails() -> None:
    program = broken("training", "        self.optimizer.step()\n", "")["training"].replace('"steps": 60', '"steps": 6')
    check = checks({"name": "training", "deadline": 500}, {"training": program})[0]
    assert check["status"] == "failed"
    assert check["says"].startswith("the loss did not fall")


def test_one_wrong_element_of_a_product_a_copy_and_a_sum_and_a_nan_loss_are_found() -> None:
    lines = {
        "gemm": ("    rows, vector = expected", "    product[50, 70] += 1\n    rows, vector = expected"),
        "allreduce": (
            "            dist.all_reduce(data)\n",
            "            dist.all_reduce(data)\n            data[-1] += rank\n",
        ),
        "copies": (
            '        _same(channel, "copy within',
            '        got[number][7] += 1\n        _same(channel, "copy within',
        ),
        "training": ("return float(loss.item())", "return float('nan') and loss.item() * float('nan')"),
    }
    programs = {}
    for name, change in lines.items():
        programs |= broken(name, *change)
    programs["gemm"] = programs["gemm"].replace("_CPU_SIZES = (256, 512, 1024)", "_CPU_SIZES = (256,)")
    programs["copies"] = programs["copies"].replace("_CPU_BYTES = 64 << 20", "_CPU_BYTES = 8 << 20")
    gemm, copies, reduce, training = checks({"name": "machine", "deadline": 500}, programs, also=["training"])
    assert gemm["says"].startswith("CPU float32 256×256: wrong result")
    assert copies["says"] == "copy within cpu: 1 of 1048576 words are not what was sent"
    assert reduce["says"].startswith(
        "all-reduce of 1 × float32: wrong sum in 1 of 1 elements, element 0 is 2.0 instead of 1.0"
    )
    assert training["says"].startswith("the loss is nan at step 1")


def test_a_rank_that_never_comes_is_a_hang_in_the_rendezvous() -> None:
    programs = broken(
        "allreduce",
        "    dist.init_process_group(",
        "    rank and __import__('time').sleep(600)\n    dist.init_process_group(",
    )

    def met(check: dict[str, Any]) -> bool:
        failures = check["details"]["failures"]
        return any("hung past its deadline" in text and "rendezvous of 2 ranks" in text for text in failures)

    def reduced(deadline: float) -> dict[str, Any]:
        return checks({"name": "machine", "deadline": deadline}, programs, "machine/all-reduce")[0]

    _, reduce = with_deadline(reduced, 15, met)
    assert reduce["status"] == "failed"
    assert met(reduce)


def test_copies_between_devices_are_a_matrix_whose_slowest_pair_is_the_metric_and_a_damaged_one_is_named() -> None:
    """Here between names of the processor: what is proven is the shape, not a link."""
    one = '"copy_cpu_gbps")\n'
    devices = "[torch.device('cpu')] * 3"
    more = one + f"        peers(channel, {devices}, 1 << 20)\n        host(channel, {devices}, 1 << 20)\n"
    more = broken("copies", one, more)["copies"].replace(".pin_memory()", "")
    few = "return [size / seconds / 1e9 for seconds in took]"
    slow = (
        "_rates.calls += 1\n    return [size / seconds / 1e9 / (1e6 if _rates.calls == 4 else 1) for seconds in took]"
    )
    assert few in more
    programs = {"copies": more.replace(few, slow).replace("\ndef main(", "\n_rates.calls = 0\n\n\ndef main(")}
    check = checks({"name": "machine", "deadline": 500}, programs, "machine/copies")[0]
    assert check["says"] == "copies arrive whole on the CPU; 6 pairs of GPUs"
    matrix = check["details"]["peer_gbps"]
    assert [matrix[index][index] for index in range(3)] == [None] * 3
    metrics = {metric["name"]: metric for metric in check["metrics"]}
    peers = [rate for row in matrix for rate in row if rate is not None]
    assert len(peers) == 6
    assert metrics["copy_peer_gbps"]["median"] == pytest.approx(min(peers), rel=1e-3)
    assert 0 < min(peers) < sorted(peers)[1] / 1e3
    assert (metrics["copy_peer_gbps"]["n"], metrics["copy_host_to_device_gbps"]["n"]) == (3, 10)
    lost = {"copies": programs["copies"].replace("got[target], sent[source])]", "got[target][1:], sent[source][1:])]")}
    check = checks({"name": "machine", "deadline": 500}, lost, "machine/copies")[0]
    assert check["says"].startswith("copy from cpu to cpu: 1 of 131072 words are not what was sent")


def test_a_size_that_would_take_too_long_is_left_out_by_all_ranks() -> None:
    programs = broken("allreduce", "_SECONDS = 10.0", "_SECONDS = 0.0")
    check = checks({"name": "machine", "deadline": 500}, programs, "machine/all-reduce")[0]
    (metric,) = check["metrics"]
    assert (check["status"], metric["name"]) == ("passed", "all_reduce_1_mib_busbw_gbps")
    assert check["details"]["bytes"] == 1 << 20
    floors = {"all_reduce_16_mib_busbw_gbps": 1e9}
    check = checks({"name": "machine", "deadline": 500, "floors": floors}, programs, "machine/all-reduce")[0]
    assert check["status"] == "failed"
    assert re.search(
        r"is \S+ GB/s, below its floor .*; measured at 1 MiB, 16 MiB would have taken \S+ s$", check["says"]
    )


def test_a_floor_of_a_size_that_gpus_have_no_memory_for_is_not_checked() -> None:
    few = ("_CUDA_TIMED = ", "_CUDA_TIMED = (_MIB, 2 * _MIB)\n_UNUSED = ")
    room = ("return int(torch.cuda.mem_get_info(device)[0]) // 5", "return _MIB")
    programs = behind_stand_ins("allreduce", few, room, ("dist.get_backend()", "backend")) | behind_stand_ins("gpus")
    floors = {"all_reduce_1_mib_busbw_gbps": 1e-9, "all_reduce_2_mib_busbw_gbps": 1e9}
    item = {"name": "machine", "deadline": 500, "floors": floors}
    check, *others = checks(item, programs, "machine/all-reduce", cuda=True, gpus=2)
    assert (check["status"], [metric["name"] for metric in check["metrics"]]) == (
        "passed", ["all_reduce_1_mib_busbw_gbps"]
    ), check  # fmt: skip
    (left,) = [other for other in others if other["name"] == "smoke/floors"]
    assert (left["status"], left["level"]) == ("skipped", "not-checked")
    assert left["says"].endswith("all_reduce_2_mib_busbw_gbps was not measured: a GPU has memory for 1 MiB at most")


def behind_stand_ins(program: str, *changes: tuple[str, str]) -> dict[str, str]:
    """The program as for two GPUs, which the processor stands in for, with smaller sizes."""
    text = (Path(smoke.__file__).parent / "programs" / f"{program}.py").read_text()
    start = "\ndef main("
    install = "\nfrom . import fake_cuda\nfake_cuda.install(2)\n"
    for old, new in (*changes, (start, install + start)):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return {program: text, FAKE.stem: FAKE.read_text()}


SMALL_PRODUCTS = (
    ("(1024, 2048, 4096, 8192)", "(64, 128)"),
    ("_SECONDS = 0.3", "_SECONDS = 0.001"),
    ("_LIMITED, _SWING = 4096, 1.2", "_LIMITED, _SWING = 128, 0.004"),
    ("torch.Generator(device=device)", "torch.Generator()"),
    ("torch.cuda.get_device_name(index)", "'GPU %d' % index"),  # of one kind the slower one would be named
)


def test_the_slowest_gpu_decides_in_a_type_that_every_gpu_has_and_float32_is_float32() -> None:
    slow = ("values = gpu.finish()", "values = [value / 1e3 ** index for value in gpu.finish()]")
    older = ("torch.cuda.get_device_capability(index)[0]", "(8, 7)[index]")
    tell = (
        '    channel.facts({"size": _CUDA',
        "    channel.facts({'float32': torch.get_float32_matmul_precision()})\n    channel.facts({\"size\": _CUDA",
    )
    image = (
        "    if torch_version(torch) < [1, 12]:",
        "    torch.set_float32_matmul_precision('high')\n    if torch_version(torch) < [1, 12]:",
    )
    check = products(*SMALL_PRODUCTS, slow, older, tell, image, floors={"gemm_cuda_fp16_tflops": 1e6})
    *_, metric = check["metrics"]
    assert (metric["name"], check["details"]["float32"]) == ("gemm_cuda_fp16_tflops", "highest")
    assert metric["median"] == pytest.approx(check["details"]["gpu1_fp16_tflops"])
    assert metric["greatest"] < check["details"]["gpu0_fp16_tflops"]
    assert check["says"].endswith(" TFLOP/s on GPU 1, below its floor 1,000,000")


def test_products_that_reach_the_power_limit_are_looked_at_for_a_whole_swing_of_it() -> None:
    """Any 0.3 s of an H100 that works on had a median of 606 to 718 TFLOP/s, any 1.2 s one of 688 to 702."""
    clock = ("first.elapsed_time(last) / 1e3 ", "0.0021 * self._at_once ")  # each product takes 2.1 ms
    tell = (
        "values = gpu.finish()",
        "values = gpu.finish(); channel.facts({'%s_%d' % (short, size): [gpu._samples, gpu._at_once]})",
    )
    swing = ("_LIMITED, _SWING = 4096, 1.2", "_LIMITED, _SWING = 128, 1.2")
    changes = [each for each in SMALL_PRODUCTS if "SWING" not in each[0] and "_SECONDS" not in each[0]]
    check = products(*changes, swing, clock, tell)
    assert check["status"] == "passed", check
    found = {name: check["details"][name] for name in ("bf16_64", "bf16_128", "float32_128")}
    assert found == {"bf16_64": [143, 1], "bf16_128": [286, 2], "float32_128": [143, 1]}


def test_products_of_every_gpu_are_recorded_on_its_own_stream_and_an_empty_recording_is_a_wrong_result() -> None:
    """Of the second of two H100 nothing was recorded, so it had 1,508,249,295 TFLOP/s and the first one was "slow"."""
    several = ("_SAMPLES = (10, 300)", "_SAMPLES = (1, 2)")
    other = ("torch.cuda.graph(graph, stream=stream)", "torch.cuda.graph(graph)")
    check = products(*SMALL_PRODUCTS, several, other)
    assert check["status"] == "failed"
    wrong = [text.split(",")[0] for text in check["details"]["failures"]]
    assert wrong[0] == "GPU 1 bfloat16 64×64: wrong result"
    assert not [text for text in wrong if text.startswith("GPU 0")]


@pytest.mark.parametrize(
    ("able", "least", "half"),
    [("True", "[1, 11]", "bfloat16"), ("rank == 0", "[1, 11]", "float16"), ("True", "[99, 0]", "float16")],
)
def test_ranks_sum_in_one_type_that_every_gpu_and_its_nccl_have(able: str, least: str, half: str) -> None:
    changes = (
        ("torch.cuda.get_device_capability(device)[0] >= 8", able.replace("rank", "dist.get_rank()")),
        ("torch_version(torch) >= [1, 11]", f"torch_version(torch) >= {least}"),
        (
            "    for dtype, name in dtypes:\n",
            "    channel.facts({'half': dtypes[-1][1]})\n    for dtype, name in dtypes:\n",
        ),
        ("_CUDA_TIMED = ", "_CUDA_TIMED = (_MIB,)\n_UNUSED = "),
        ("dist.get_backend()", "backend"),
    )
    programs = behind_stand_ins("allreduce", *changes) | behind_stand_ins("gpus")
    with Scratch(str(torch_environment()), {}, None, programs) as scratch:
        store = scratch.fresh("store")
        requests = [{"rank": rank, "world": 2, "backend": "nccl", "store": store} for rank in range(2)]
        outcomes = run_programs(scratch, "allreduce", requests, 400.0)
    assert [outcome.facts().get("half") for outcome in outcomes] == [half, half], outcomes[0].stderr
    assert not any(outcome.of("failure") for outcome in outcomes)


def test_what_gpus_run_is_right_behind_stand_ins_for_cuda_and_nccl() -> None:
    """No speed, kernel or link is proven by that: names, shapes and the way through the programs are."""
    programs = behind_stand_ins("gemm", *SMALL_PRODUCTS)
    peer = ("torch.cuda.can_device_access_peer(one, other)", "True")
    sizes = (("_CUDA_BYTES = 2 << 30", "_CUDA_BYTES = 1 << 20"), ("256 << 20", "1 << 20"))
    programs.update(behind_stand_ins("copies", peer, *sizes))
    few = ("_CUDA_TIMED = ", "_CUDA_TIMED = (_MIB, 2 * _MIB)\n_UNUSED = ")
    programs.update(behind_stand_ins("allreduce", few, ("dist.get_backend()", "backend")))
    found = checks({"name": "machine", "deadline": 500}, programs, cuda=True)
    gemm, copies, reduce = found[:3]
    assert [check["status"] for check in (gemm, copies, reduce)] == ["passed"] * 3, found
    assert [metric["name"] for metric in gemm["metrics"]] == [
        "gemm_cuda_bf16_64_tflops", "gemm_cpu_float32_tflops", "gemm_cpu_float64_tflops", "gemm_cuda_float32_tflops",
        "gemm_cuda_bf16_tflops",
    ]  # fmt: skip
    assert {"gpu0_bf16_tflops", "gpu1_bf16_tflops", "size", "gpu_state"} <= set(gemm["details"])
    assert [metric["name"] for metric in copies["metrics"]] == [
        "copy_peer_gbps", "copy_host_to_device_gbps", "copy_device_to_host_gbps", "copy_device_gbps"
    ]  # fmt: skip
    assert [len(copies["details"][key]) for key in ("peer_gbps", "device_gbps", "host_to_device_gbps")] == [2, 2, 2]
    assert [metric["name"] for metric in reduce["metrics"]] == [
        "all_reduce_1_mib_busbw_gbps", "all_reduce_2_mib_busbw_gbps"
    ]  # fmt: skip
    assert (reduce["details"]["ranks"], reduce["details"]["backend"], reduce["details"]["nvls"]) == (2, "nccl", None)
