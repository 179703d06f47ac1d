"""Smoke item `machine`: matrix products, copies and an all-reduce, each right and each measured by size."""

from __future__ import annotations

from collections.abc import Sequence

from envbuild.node.protocol import Json
from envbuild.node.smoke import gpu_state
from envbuild.node.smoke.check import Part, Work, bus_bandwidth, plain
from envbuild.node.smoke.only import chosen
from envbuild.node.smoke.runner import causes_first, run_programs

_CPU_GEMM = ("gemm_cpu_float32_tflops", "gemm_cpu_float64_tflops")
# The last one stands for the check: what training uses.
CUDA_GEMM = ("gemm_cuda_float32_tflops", ("gemm_cuda_bf16_tflops", "gemm_cuda_fp16_tflops"))
_CUDA_COPIES = ("copy_host_to_device_gbps", "copy_device_to_host_gbps", "copy_device_gbps")
# Part of the other GPUs' speed below which one is named. GPUs of one host lay within 6 % of each other on H200, and on
# no other kind was it measured: so it warns, and refuses nothing. A floor does, which the slowest GPU is compared with.
_SLOW = 0.85
_BUS = "all_reduce_%d_mib_busbw_gbps"
# Of the peak of its kind, which single cards boost above.
IMPOSSIBLE = 1.5
# A floor that names no size is about the largest one that was measured.
_BUS_LARGEST = "all_reduce_busbw_gbps"


def run(work: Work) -> list[Part]:
    """The checks that are asked for."""
    spec = work.spec
    parts = [_gemm(work)] if chosen(spec.only, "machine/gemm") else []
    gpus: object = 0
    if spec.cuda:
        gpus = (parts[0].details if parts else work.run("gpus", {}).facts()).get("gpus")
    gpus = gpus if isinstance(gpus, int) else None  # who knows what a program wrote there
    if chosen(spec.only, "machine/copies"):
        parts.append(_copies(work))
    if chosen(spec.only, "machine/all-reduce"):
        parts.append(_all_reduce(work, gpus))
    if spec.cuda and gpus is not None and gpus < spec.gpus:  # where it sees none, its program says so, too
        for part in parts[:1]:
            part.failures.append(f"torch sees {gpus} of {spec.gpus} GPUs that the target is to have")
    return parts


def _gemm(work: Work) -> Part:
    part, spec = Part("smoke/machine/gemm"), work.spec
    with gpu_state.sampled(work.scratch.fresh("gpus"), spec.variables) as state:
        outcome = work.run("gemm", {"cuda": spec.cuda})
    part.take(outcome, work.deadline, "the GEMM program")
    part.demand(outcome, *_CPU_GEMM, *(CUDA_GEMM if spec.cuda else ()))
    if not spec.cuda:
        part.says = "matrix products equal their float64 reference on the CPU"
        return part.stop()
    part.says = "matrix products equal their float64 reference on CPU and GPUs"
    part.details["gpu_state"] = state
    part.failures[:0] = gpu_state.full(state) if part.failures else []
    wrong = _impossible(part.details, spec.peaks)
    part.failures.extend(wrong)
    slow = [] if wrong else slow_gpus(part.details, spec.in_use)
    if slow and not spec.in_use:  # they may have come since, and what ran here has ended
        spec.in_use = gpu_state.in_use(gpu_state.visible(spec.variables))
        slow = slow_gpus(part.details, spec.in_use)
    if slow:
        part.details["slow_gpus"] = slow
    rates = [(_rate(part.details, index), index) for index in range(len(part.details.get("gpu_names") or []))]
    if len(rates) > 1:
        part.whose = dict.fromkeys(CUDA_GEMM[-1], f" on GPU {min(rates)[1]}")
    return part.stop()


def _impossible(facts: Json, peaks: dict[str, float]) -> list[str]:
    """One sentence for each GPU that is said to compute more than its kind can: it was not timed."""
    reasons = []
    for index, name in enumerate(facts.get("gpu_names") or []):
        rate, peak = _rate(facts, index), peaks.get(str(name))
        if peak and rate > IMPOSSIBLE * peak:
            reasons.append(f"GPU {index}: {plain(rate)} TFLOP/s cannot be, the peak of {name} is {plain(peak)}")
    return reasons


def slow_gpus(facts: Json, in_use: Sequence[Json] = ()) -> list[str]:
    """One sentence for each GPU that is slower than the others of its kind, with what nvidia-smi says of it.

    `in_use`: what `gpu_state.occupied` found.
    """
    names = [str(name) for name in facts.get("gpu_names") or []]
    reasons = []
    for index, name in enumerate(names):
        alike = [_rate(facts, other) for other, model in enumerate(names) if model == name]
        rates, own = sorted(rate for rate in alike if rate), _rate(facts, index)
        middle = rates[len(rates) // 2] if rates else 0.0  # of two GPUs the faster one
        if 0 < own < _SLOW * middle:
            share = f"{100 * own / middle:.0f} % of the others' {plain(middle)}"
            reasons.append(f"GPU {index} is slow: {plain(own)} TFLOP/s, {share}{_reasons(facts, index, in_use)}")
    return reasons


def _rate(facts: Json, index: int) -> float:
    rates = (facts.get(f"gpu{index}_{short}_tflops") for short in ("bf16", "fp16"))
    return next((float(rate) for rate in rates if rate), 0.0)


def _reasons(facts: Json, index: int, in_use: Sequence[Json]) -> str:
    """What nvidia-smi says of that GPU. Its numbers may be others than torch's, so it is found by its UUID alone."""
    own = (facts.get("gpu_uuids") or {}).get(str(index))
    rows: list[Json] = [row for row in facts.get("gpu_state") or [] if own and row.get("uuid") == own]
    row = rows[0] if rows else {}
    clock = f" at {plain(row['sm_mhz'])} MHz" if row.get("sm_mhz") else ""
    others = ["it is " + row["how"] for row in in_use if own and row["uuid"] == own]
    return clock + "".join(", " + reason for reason in (row.get("throttle") or []) + others)


def _copies(work: Work) -> Part:
    part, cuda = Part("smoke/machine/copies"), work.spec.cuda
    outcome = work.run("copies", {"cuda": cuda})
    part.take(outcome, work.deadline, "the copy program")
    part.demand(outcome, *(_CUDA_COPIES if cuda else ("copy_cpu_gbps",)))
    pairs = sum(rate is not None for row in part.details.get("peer_gbps") or [] for rate in row)
    between = f"; {pairs} pairs of GPUs" if pairs else ""
    part.says = "copies arrive whole %s%s" % ("on GPUs, from and to the host" if cuda else "on the CPU", between)
    return part.stop()


def _all_reduce(work: Work, gpus: int | None) -> Part:
    part, spec = Part("smoke/machine/all-reduce"), work.spec
    if gpus is None:
        part.failures.append("the number of GPUs is not known, because the GEMM program did not say it")
        return part.stop()
    if spec.cuda and not gpus:
        part.failures.append("torch sees no GPU")
        return part.stop()
    backend, world = ("nccl", gpus) if gpus > 1 else ("gloo", 2)
    note = "; NCCL needs a GPU for each rank and only one is visible" if gpus == 1 else ""
    store = work.scratch.fresh("store")
    requests = [{"rank": rank, "world": world, "backend": backend, "store": store} for rank in range(world)]
    outcomes = run_programs(work.scratch, "allreduce", requests, work.left())
    for rank, outcome in causes_first(outcomes):
        part.take(outcome, work.deadline, f"rank {rank} of {world}")
    facts = [outcome.facts() for outcome in outcomes]
    _judge_ranks(part, facts, world, backend)
    nvls = facts[0].get("nvls")
    part.details.update({"backend": backend, "ranks": world, "nvls": nvls})
    note += f"; NVLS {'on' if nvls else 'off'}" if nvls is not None else ""
    note += _of_links(part, spec.links.get(str(facts[0].get("gpu"))))
    part.says = f"the sum over {world} ranks ({backend}) is exact in every size and dtype{note}"
    return part.stop()


def _of_links(part: Part, link: float | None) -> str:
    """The largest sum's bandwidth beside what NVLink gives one way, which is all that a sum in a ring can reach."""
    if not link or not part.metrics:
        return ""
    reached = float(part.metrics[-1]["median"])
    part.details["nvlink_gbps"] = link
    return f"; {plain(reached)} GB/s are {100 * reached / link:.0f} % of NVLink's {plain(link)} one way"


def _judge_ranks(part: Part, facts: list[Json], world: int, backend: str) -> None:
    """Every rank must have been there; bus bandwidth from the slowest rank of each repeat, in GB/s."""
    ranks = sorted(fact.get("rank", -1) for fact in facts)
    present = [rank for rank in ranks if rank >= 0]
    if present != list(range(world)):
        part.failures.append(f"{world} ranks were asked for and {len(present)} took part: {present}")
    for fact in facts:
        if "rank" in fact and (fact.get("world") != world or fact.get("backend") != backend):
            place = f"one of {fact.get('world')} ranks with {fact.get('backend')}"
            part.failures.append(f"rank {fact['rank']} says it is {place}")
    timed = [list(fact.get("timed") or []) for fact in facts]
    sizes = [[size for size, _ in row] for row in timed]
    if not sizes[0] or any(row != sizes[0] for row in sizes) or not all(took for row in timed for _, took in row):
        part.failures.append("the bus bandwidth of the all-reduce was not reported by every rank")
        return
    for index, size in enumerate(sizes[0]):
        slowest = [max(repeat) for repeat in zip(*(row[index][1] for row in timed))]  # noqa: B905 - of 3.10
        part.add_metric(bus_bandwidth(_BUS % (size >> 20), slowest, float(size), world))
    part.details["bytes"] = int(sizes[0][-1])
    part.left_out = {_BUS % (size >> 20): str(why) for size, why in facts[0].get("left_out") or []}
    # That a larger size would have taken too long is what a broken link looks like: the largest measured one judges.
    largest, measured = sizes[0][-1] >> 20, "measured at %d MiB, %d MiB would have taken %s s"
    late = [(size >> 20, plain(float(took))) for size, took in facts[0].get("too_slow") or []]
    part.stands_for = {_BUS % size: (_BUS % largest, measured % (largest, size, took)) for size, took in late}
    part.stands_for[_BUS_LARGEST] = (_BUS % largest, measured % (largest, *late[0]) if late else "")
