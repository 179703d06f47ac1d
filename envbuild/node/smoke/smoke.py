"""Verb `smoke`: short benchmarks inside an environment, each of which can fail in a way that says what is wrong.

`sound`: every import comes from the locked place at the locked version. `machine`: matrix products and an all-reduce
against their expected results. `training`: a small GPT must learn. `extensions`: compiled extensions compute what
plain torch computes. `step`: the stack's own training script takes a few steps. A failing check is a result, not an
error: the answer has `ok` false and `exit` 1, or 6 when only floors were missed. Nothing is written into the
environment.
"""

import contextlib
import functools
import os
from collections.abc import Callable
from concurrent import futures

from envbuild.node import lease, paths
from envbuild.node.env import backup
from envbuild.node.probe import system
from envbuild.node.protocol import Exit, Json, NodeError, log
from envbuild.node.smoke import extensions, step
from envbuild.node.smoke.check import Clock, Part, Spec, bus_bandwidth, plain, plural
from envbuild.node.smoke.gaps import gaps
from envbuild.node.smoke.runner import Scratch, run_programs

__all__ = ["Spec", "apply_floors", "judge_ranks", "run", "smoke_items", "summary"]

_CPU_GEMM = ("gemm_cpu_float32_tflops", "gemm_cpu_float64_tflops")
# The last one stands for the check: what training uses.
_CUDA_GEMM = ("gemm_cuda_float32_tflops", ("gemm_cuda_bf16_tflops", "gemm_cuda_fp16_tflops"))
_ITEMS = ("sound", "machine", "training", "extensions", "step")
_PRELOADED = ("machine", "training", "extensions")
_UNTIMED = ("sound", "extensions", "step")


def run(request: Json) -> "tuple[bool, Json]":
    """Entry point of the verb; args and result are in docs/node-verbs.md. Raises NodeError for a bad request."""
    args = request["args"]
    environment = str(args.get("environment") or "")

    def work() -> Json:
        if not os.path.isabs(environment) or not os.path.exists(os.path.join(environment, "bin", "python")):
            raise NodeError(
                "environment-missing",
                "there is no environment at %s" % (environment or "(no path given)"),
                why="it has no bin/python",
                hint="run `envbuild provision`",
                exit_code=Exit.CHECK_FAILED,
            )
        spec = Spec(environment, dict(args.get("variant") or {}), bool(args.get("cuda")), bool(args.get("cpu_trial")))
        spec.imported = tuple(args.get("imported") or ())
        return summary(smoke_items(spec, list(args.get("items") or []), args.get("tmp")))

    prefix, name = str(request.get("prefix") or ""), request.get("run")
    owner = lease.read(prefix) if prefix and name else None
    if owner is None or owner.get("run") != name:
        # An environment in use is looked at; nobody changes the prefix for that. Other nodes may want to meet this one.
        own = [address for nic in system.nic_facts() for address in nic.get("addresses", ())]
        return False, dict(work(), addresses=own)
    environment = paths.checked_environment(prefix, environment)
    return False, _under_lease(lease.resume(prefix, str(name)), environment, work)


def _under_lease(held: "lease.Lease", environment: str, work: "Callable[[], Json]") -> Json:
    """Keep the heartbeat of the run's lease going; where the test fails, no step follows and the run ends here."""
    good = False
    try:
        with held:
            result = work()
        good = bool(result["ok"])
        return result
    finally:
        if not good:
            backup.give_up(environment, held)


def summary(checks: "list[Json]") -> Json:
    """The result of the verb: `checks`, `ok`, and `exit` (0, 1, or 6 when all failures are missed floors)."""
    failed = [check for check in checks if check["status"] == "failed"]
    code = Exit.OK
    if failed:
        only_floors = all(check["details"].get("only_floors") for check in failed)
        code = Exit.BELOW_FLOOR if only_floors else Exit.CHECK_FAILED
    return {"checks": checks, "ok": not failed, "exit": int(code)}


def smoke_items(
    spec: "Spec", items: "list[Json]", tmp: "str | None", programs: "dict[str, str] | None" = None
) -> "list[Json]":
    """Run the items in order; Check JSON for each part. `programs` replaces program texts (for tests of faults)."""
    checks: list[Json] = []
    for item in items:
        if item.get("name") not in _ITEMS:
            raise NodeError(
                "smoke-unknown", "there is no smoke item %r" % (item.get("name"),), hint="known: %s" % ", ".join(_ITEMS)
            )
    # What runs is ended before the threads that wait for it are waited for; the folder goes last.
    pool = futures.ThreadPoolExecutor(len(_UNTIMED))
    with Scratch(tmp, programs) as scratch, pool, contextlib.closing(scratch):
        if any(item["name"] in _PRELOADED for item in items):
            scratch.preload(spec.environment, spec.variables)
        work = functools.partial(_item, spec, scratch)
        # With GPUs, what measures no speed goes first and at once: it mostly imports and waits.
        beside = {id(item): pool.submit(work, item) for item in items if spec.cuda and item["name"] in _UNTIMED}
        futures.wait(beside.values())
        for item in items:
            checks.extend(beside[id(item)].result() if id(item) in beside else work(item))
    return checks + gaps(spec, items, checks)


def _item(spec: "Spec", scratch: "Scratch", item: Json) -> "list[Json]":
    log("smoke: %s" % item["name"])
    clock = Clock(float(item.get("deadline", 600.0)))
    floors = {str(name): float(value) for name, value in (item.get("floors") or {}).items()}
    if item["name"] == "sound":
        parts = [_sound(spec, scratch, clock)]
    elif item["name"] == "training":
        parts = [_training(spec, scratch, clock)]
    elif item["name"] == "extensions":
        parts = extensions.run(spec, scratch, clock)
    elif item["name"] == "step":
        if not spec.cuda and not spec.trial:
            return []  # said by `gaps`
        parts = [step.run(spec, scratch, clock, dict(item["step"]))]
    else:
        gemm, gpus = _gemm(spec, scratch, clock)
        parts = [gemm, _all_reduce(spec, scratch, clock, gpus)]
    apply_floors(parts, floors)
    return [part.check() for part in parts]


def apply_floors(parts: "list[Part]", floors: "dict[str, float]") -> None:
    """Compare medians with floors by metric name; a floor without its metric is a failure of the last part."""
    for name, floor in sorted(floors.items()):
        holders = [(part, metric) for part in parts for metric in part.metrics if metric["name"] == name]
        if not holders:
            parts[-1].failures.append("the floor %s has no metric of that name" % name)
        for part, metric in holders:
            metric["floor"] = floor
            if not metric["median"] >= floor:
                text = "%s is %s %s, below its floor %s" % (name, plain(metric["median"]), metric["unit"], plain(floor))
                part.missed.append(text)


def _sound(spec: "Spec", scratch: "Scratch", clock: "Clock") -> "Part":
    part = Part("smoke/sound")
    variant = spec.variant
    imports = [str(name) for name in variant.get("imports") or []]
    packages = {str(each["name"]): str(each["version"]) for each in variant.get("packages") or []}
    if (variant.get("torch") or "torch" in packages) and "torch" not in imports:
        imports.insert(0, "torch")
    provided = {str(name): str(version) for name, version in (variant.get("provided") or {}).items()}
    before = [name for name in imports if name in spec.imported]
    imports = [name for name in imports if name not in before]
    todo, first = list(imports), True
    modules: list[Json] = []
    while first or todo:
        request = {
            "environment": spec.environment,
            "imports": todo,
            "first": first,
            "packages": packages,
            "provided": provided,
            "base": spec.base,
            "python": variant.get("python"),
            "torch": variant.get("torch"),
            "flavour": variant.get("flavour"),
        }
        left = clock.left()
        outcome = run_programs(scratch, spec.environment, spec.variables, "imports", [request], left, alone=True)[0]
        part.take(outcome, clock, "python")
        part.details.update(outcome.facts())
        modules.extend(_without_kind(event) for event in outcome.of("imported"))
        begun = [str(event.get("module")) for event in outcome.of("importing")]
        if outcome.of("done") or outcome.timed_out or not begun:
            todo = todo if not outcome.of("done") else []
            break
        todo, first = todo[todo.index(begun[-1]) + 1 :], False  # a crash: go on after the module that crashed
    part.details["modules"] = modules
    if todo:
        part.details["not_run"] = todo
    counts = (plural(len(imports), "module"), plural(len(packages) + len(provided), "package"))
    part.says = "%s imported from the locked place, %s found at the locked version" % counts
    if before:
        part.details["imported_before"] = before
        part.says += "; %s imported only when the layer of the packages was made" % ", ".join(before)
    return part.stop()


def _without_kind(event: Json) -> Json:
    return {key: value for key, value in event.items() if key != "kind"}


def _gemm(spec: "Spec", scratch: "Scratch", clock: "Clock") -> "tuple[Part, int | None]":
    part = Part("smoke/machine/gemm")
    request = {"cuda": spec.cuda}
    left = clock.left()
    outcome = run_programs(scratch, spec.environment, spec.variables, "gemm", [request], left)[0]
    part.take(outcome, clock, "the GEMM program")
    part.demand(outcome, _CPU_GEMM + (_CUDA_GEMM if spec.cuda else ()))
    part.details.update(outcome.facts())
    part.says = "matrix products equal their float64 reference on %s" % ("CPU and GPUs" if spec.cuda else "the CPU")
    gpus = part.details.get("gpus") if spec.cuda else 0
    return part.stop(), gpus if isinstance(gpus, int) else None


def _all_reduce(spec: "Spec", scratch: "Scratch", clock: "Clock", gpus: "int | None") -> "Part":
    part = Part("smoke/machine/all-reduce")
    if gpus is None:
        part.failures.append("the number of GPUs is not known, because the GEMM program did not say it")
        return part.stop()
    backend, world = ("nccl", gpus) if gpus > 1 else ("gloo", 2)
    note = "; NCCL needs a GPU for each rank and only one is visible" if gpus == 1 else ""
    store = scratch.fresh("store")
    requests = [{"rank": rank, "world": world, "backend": backend, "store": store} for rank in range(world)]
    left = clock.left()
    outcomes = run_programs(scratch, spec.environment, spec.variables, "allreduce", requests, left)
    for rank, outcome in enumerate(outcomes):
        part.take(outcome, clock, "rank %d of %d" % (rank, world))
    judge_ranks(part, [outcome.facts() for outcome in outcomes], world, backend)
    part.details.update({"backend": backend, "ranks": world})
    part.says = "the sum over %d ranks (%s) is exact in every size and dtype%s" % (world, backend, note)
    return part.stop()


def judge_ranks(part: "Part", facts: "list[Json]", world: int, backend: str) -> None:
    """Every rank must have been there; bus bandwidth from the slowest rank of each repeat, in GB/s."""
    ranks = sorted(fact.get("rank", -1) for fact in facts)
    present = [rank for rank in ranks if rank >= 0]
    if present != list(range(world)):
        part.failures.append("%d ranks were asked for and %d took part: %s" % (world, len(present), present))
    for fact in facts:
        if "rank" in fact and (fact.get("world") != world or fact.get("backend") != backend):
            said = (fact["rank"], fact.get("world"), fact.get("backend"))
            part.failures.append("rank %s says it is one of %s ranks with %s" % said)
    samples = [list(fact.get("seconds") or []) for fact in facts]
    sizes = {float(fact.get("bytes") or 0) for fact in facts}
    repeats = min(len(sample) for sample in samples)
    if repeats == 0 or len(sizes) != 1:
        part.failures.append("the metric all_reduce_busbw_gbps was not reported by every rank")
        return
    size = sizes.pop()
    slowest = [max(sample[repeat] for sample in samples) for repeat in range(repeats)]
    part.add_metric(bus_bandwidth("all_reduce_busbw_gbps", slowest, size, world))
    part.details["bytes"] = int(size)


def _training(spec: "Spec", scratch: "Scratch", clock: "Clock") -> "Part":
    part = Part("smoke/training")
    request = {"cuda": spec.cuda}
    left = clock.left()
    outcome = run_programs(scratch, spec.environment, spec.variables, "training", [request], left)[0]
    part.take(outcome, clock, "the training program")
    part.demand(outcome, ("training_tokens_per_second",))
    facts = outcome.facts()
    part.details.update(facts)
    if all(isinstance(facts.get(key), (int, float)) for key in ("loss_first", "loss_last", "steps_done")):
        part.says = "the loss fell from {loss_first:.3g} to {loss_last:.3g} in {steps_done} steps".format(**facts)
    elif not part.failures:
        part.failures.append("the losses were not reported")
    return part.stop()
