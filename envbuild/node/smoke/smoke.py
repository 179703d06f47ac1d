"""Verb `smoke`: short benchmarks inside an environment, each of which can fail in a way that says what is wrong.

`sound`: every import comes from the locked place at the locked version, and what the code of the sources imports is
there. `machine`: matrix products and an all-reduce against their expected results. `training`: a small GPT must learn.
`extensions`: compiled extensions compute what plain torch computes. `step`: the stack's own training script takes a few
steps. A failing check is a result, not an error: the answer has `ok` false and `exit` 1, or 6 when only floors were
missed. Nothing that the root covers is written into the environment; beside the stamp is noted what failed, which
modules are missing, and which code was tested.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable
from concurrent import futures

from envbuild.node import git_source, lease, paths, proc
from envbuild.node.env import stamp
from envbuild.node.packages import installed
from envbuild.node.probe import system
from envbuild.node.protocol import Exit, Json, NodeError, few, log, utc_time
from envbuild.node.smoke import extensions, gpu_state, machine, step
from envbuild.node.smoke.check import Part, Spec, Work, plain, plural
from envbuild.node.smoke.only import chosen, gaps, known, unknown
from envbuild.node.smoke.runner import Scratch

__all__ = ["Spec", "apply_floors", "run", "smoke_items", "summary"]

_ITEMS = ("sound", "machine", "training", "extensions", "step")
_IN_WORKERS = ("machine", "training", "extensions")
_UNTIMED = ("sound", "extensions", "step")
_TIMED = ("machine", "training")


def run(request: Json) -> tuple[bool, Json]:
    """Entry point of the verb; args and result are in docs/dev/node-verbs.md. Raises NodeError for a bad request."""
    args = request["args"]
    environment = str(args.get("environment") or "")

    def work() -> Json:
        check_there(environment)
        spec = Spec(
            environment,
            dict(args.get("variant") or {}),
            bool(args.get("cuda")),
            only=tuple(args.get("only") or ()),
            gpus=int(args.get("gpus") or 0),
            peaks=dict(args.get("peaks") or {}),
            links=dict(args.get("links") or {}),
            image=bool(args.get("image")),
        )
        trees = {} if spec.image else {tree["name"]: tree["at"] for tree in spec.variant.get("trees") or []}
        code = {name: git_source.code_digests(place, environment) for name, place in trees.items()}
        before = stamp.noted_test(environment)["failed"]
        checks = smoke_items(spec, list(args.get("items") or []), args.get("tmp"))
        if not spec.image:
            _note(prefix, environment, code, checks, [] if spec.only else list(before))
        return summary(checks)

    prefix, name = str(request.get("prefix") or ""), request.get("run")
    owner = lease.read(prefix) if prefix and name else None
    if owner is None or owner.get("run") != name:
        # An environment in use is looked at; nobody changes the prefix for that. Other nodes may want to meet this one.
        own = [address for nic in system.nic_facts() for address in nic.get("addresses", ())]
        return False, dict(work(), addresses=own)
    environment = paths.checked_environment(prefix, environment)
    # The heartbeat of the run's lease goes on; where the test fails, no step follows and the run ends here.
    held, result = lease.acquire(prefix, str(name), None, 0), {"ok": False}
    try:
        with held:
            result = work()
    finally:
        if not result["ok"]:
            held.release()
    return False, result


def _note(prefix: str, environment: str, code: Json, checks: list[Json], repeated: list[str]) -> None:
    """Note for those who test nothing what a test has read: which code, which modules it imports in vain, what failed.

    Gone are the failures of the checks that passed now or were `repeated`; those of other nodes meanwhile stay. The
    code to compare with is that of the last test without any.
    """
    passed = {check["name"]: check for check in checks if check["status"] == "passed"}
    now, noted = utc_time(), stamp.noted_test(environment)
    failed = {name: row for name, row in noted["failed"].items() if name not in passed and name not in repeated}
    failed.update({check["name"]: [now, check["says"]] for check in checks if check["status"] == "failed"})
    note = dict(noted, failed=failed)
    if read := passed.get("smoke/sound/closure"):
        note.update(at=now, open=read["details"]["open"], unimported=bool(read["details"].get("unimported")))
        note.update({} if failed else {"good": now, "code": code})
    if note != noted:
        # Who may only read the environment leaves no note.
        with contextlib.suppress(OSError, NodeError):
            paths.set_umask(prefix)
            paths.write_json(paths.meta(environment, stamp.TESTED), note)


def check_there(environment: str) -> None:
    """Raise NodeError `environment-missing` (exit 1) where the path (it may be empty) is not one of an environment."""
    if not os.path.isabs(environment) or not os.path.exists(os.path.join(environment, "bin", "python")):
        raise NodeError(
            "environment-missing",
            f"there is no environment at {environment or '(no path given)'}",
            why="it has no bin/python",
            hint="run `envbuild provision`",
        )


def summary(checks: list[Json]) -> Json:
    """The result of the verb: `checks`, `ok`, and `exit` (0, 1, or 6 when all failures are missed floors)."""
    failed = [check for check in checks if check["status"] == "failed"]
    code = Exit.OK
    if failed:
        only_floors = all(check["details"].get("only_floors") for check in failed)
        code = Exit.BELOW_FLOOR if only_floors else Exit.CHECK_FAILED
    return {"checks": checks, "ok": not failed, "exit": int(code)}


def smoke_items(spec: Spec, items: list[Json], tmp: str | None, programs: dict[str, str] | None = None) -> list[Json]:
    """Run the items in order; Check JSON for each part. `programs` replaces program texts (for tests of faults)."""
    checks: list[Json] = []
    names = [str(item.get("name")) for item in items]
    for name in [name for name in names if name not in _ITEMS] + unknown(spec.only, names + ["nodes"]):
        raise NodeError("smoke-unknown", f"there is no smoke item {name!r}", hint=f"known: {', '.join(known(_ITEMS))}")
    items = [item for item in items if chosen(spec.only, str(item["name"]))]
    # What runs is ended before the threads that wait for it are waited for; the folder goes last.
    pool = futures.ThreadPoolExecutor(len(_UNTIMED))
    with Scratch(spec.environment, spec.variables, tmp, programs) as scratch, pool, contextlib.closing(scratch):
        # Before anything of ours is on a GPU, and beside what needs none.
        timed = spec.cuda and any(item["name"] in _TIMED for item in items)
        others = pool.submit(gpu_state.in_use, gpu_state.visible(spec.variables)) if timed else None
        if any(item["name"] in _IN_WORKERS for item in items):
            with proc.starting():
                scratch.worker(0)
        spec.in_use = others.result() if others else []
        work = functools.partial(_item, spec, scratch)
        # With GPUs, what measures no speed goes first and at once: it mostly imports and waits.
        beside = {id(item): pool.submit(work, item) for item in items if spec.cuda and item["name"] in _UNTIMED}
        futures.wait(beside.values())
        for item in items:
            checks.extend(beside[id(item)].result() if id(item) in beside else work(item))
    return checks + gaps(spec, items, checks)


def _item(spec: Spec, scratch: Scratch, item: Json) -> list[Json]:
    log(f"smoke: {item['name']}")
    if item["name"] == "step" and not spec.cuda:
        return []  # said by `gaps`
    work = Work(spec, scratch, float(item.get("deadline", 600.0)))
    floors = {str(name): float(value) for name, value in (item.get("floors") or {}).items()}
    parts = [step.run(work, item["step"])] if item["name"] == "step" else _RUNS[item["name"]](work)
    for part in parts:
        if spec.in_use and part.metrics:
            part.details["gpus_in_use"] = gpu_state.in_words(spec.in_use)
    apply_floors(parts, floors, whole=not spec.only or item["name"] in spec.only)
    return [part.check() for part in parts]


def apply_floors(parts: list[Part], floors: dict[str, float], whole: bool = True) -> None:
    """Compare medians with floors by name; of a `whole` item a floor without its metric is a failure of the last part.

    Other checks of the item may have it. What there is no memory for is told in the details of its part.
    """
    for given, floor in sorted(floors.items()):
        name, note = next((part.stands_for[given] for part in parts if given in part.stands_for), (given, ""))
        unable = [part for part in parts if name in part.left_out]
        for part in unable:
            part.details.setdefault("floors_not_checked", {})[name] = part.left_out[name]
        holders = [(part, metric) for part in parts for metric in part.metrics if metric["name"] == name]
        if not holders and not unable and whole:
            parts[-1].failures.append(f"the floor {name} has no metric of that name")
        for part, metric in holders:
            metric["floor"] = max(floor, metric.get("floor", floor))
            if not metric["median"] >= floor:
                unit = metric["unit"] + part.whose.get(name, "")
                median = metric["median"]
                text = f"{name} is {plain(median, floor)} {unit}, below its floor {plain(floor, median)}"
                others = part.details.get("gpus_in_use") or []
                more = [f"and {plural(len(others) - 1, 'more GPU')} in use too"] if others[1:] else []
                part.missed.append("; ".join(filter(None, [text, note] + others[:1] + more)))
            elif note:
                part.says += f"; floor {plain(floor)} of {given}: {note}"


def _sound(work: Work) -> list[Part]:
    only = set(work.spec.only)
    parts = [] if only and only <= {"sound/closure"} else [_imports(work)]
    trees = _trees(work.spec)
    return [*parts, _closure(work, trees)] if trees or not parts else parts


def _trees(spec: Spec) -> dict[str, str]:
    """The folders of code that Python reads where it lies, by source; of several sources in one repository once."""
    variant = spec.variant
    places: dict[str, str] = {}
    read = [source for source in variant.get("sources") or [] if source.get("install", "wheel") != "wheel"]
    named = {(str(source["git"]), str(source["commit"])): str(source["name"]) for source in read}
    for name in [*named.values(), *(str(source["name"]) for source in variant.get("trees") or [])]:
        place = os.path.realpath(os.path.join(spec.environment, "src", name))
        if os.path.isdir(place):
            places[name] = place
    return places


def _closure(work: Work, trees: dict[str, str]) -> Part:
    """Modules that the code imports and nothing resolves: a deviation, as code that nobody runs imports modules too.

    Where the smoke test has the stack's own first steps, they are `beside` what it is for, and not `open`. If the stack
    imports nothing but torch, no check has imported the code; the text of the check then adds that.
    """
    part = Part("smoke/sound/closure")
    if not trees:
        part.skipped = "no source lies in this environment as code"
        return part.stop()
    files = {name: git_source.code_files(place, work.spec.environment) for name, place in trees.items()}
    request = {"environment": work.spec.environment, "trees": trees, "files": files}
    outcome = work.run("closure", request, alone=True)
    part.take(outcome, work.deadline, "python")
    part.details.update(outcome.facts())
    lost, absent = dict(part.details.get("open") or {}), dict(part.details.get("optional") or {})
    good = len(part.details.get("resolved") or ())
    count, are = f"{good} of " if lost else "", "is" if good + len(lost) == 1 else "are"
    part.says = f"{count}{plural(good + len(lost), 'module')} that the code imports {are} there"
    steps = any(item.get("name") == "step" for item in work.spec.variant.get("smoke") or ())
    if lost:
        part.details["deviation"] = "imports-open"
        whose = ", in code that the stack's first training steps do without" if steps else ""
        part.says += f"; missing{whose}: {few([f'{name} ({place})' for name, place in sorted(lost.items())])}"
    if lost and steps:
        part.details.update(open={}, beside=lost)
    if absent:
        part.says += f"; {plural(len(absent), 'optional one')} missing: {few(sorted(absent))}"
    if lost and {*work.spec.variant.get("imports", ())} <= {"torch"}:
        part.details["unimported"] = True
        part.says += "; none of the code was imported: name what brings them under `packages:` of the stack file, or "
        part.says += "under `imports:` the modules that work without"
    return part.stop()


def _imports(work: Work) -> Part:
    part, spec = Part("smoke/sound"), work.spec
    variant = spec.variant
    imports = [str(name) for name in variant.get("imports") or []]
    packages = {str(package["name"]): str(package["version"]) for package in variant.get("packages") or []}
    if (variant.get("torch") or "torch" in packages) and "torch" not in imports:
        imports.insert(0, "torch")
    kept = stamp.kept_of_base(stamp.of_image(spec.environment, variant) if spec.image else None)
    packages = {name: version for name, version in packages.items() if installed.normal_name(name) not in kept}
    provided = dict({str(name): str(version) for name, version in (variant.get("provided") or {}).items()}, **kept)
    request = {
        "environment": spec.environment,
        "packages": packages,
        "provided": provided,
        "base": spec.base,
        "trees": [tree["at"] for tree in variant.get("trees") or []],
        **{key: variant.get(key) for key in ("python", "torch", "flavour")},
    }
    todo, first = list(imports), True
    modules: list[Json] = []
    while first or todo:
        outcome = work.run("imports", dict(request, imports=todo, first=first), alone=True)
        part.take(outcome, work.deadline, "python")
        part.details.update(outcome.facts())
        modules += [{key: event[key] for key in event if key != "kind"} for event in outcome.of("imported")]
        begun = [str(event.get("module")) for event in outcome.of("importing")]
        if outcome.of("done") or outcome.timed_out or not begun:
            todo = todo if not outcome.of("done") else []
            break
        todo, first = todo[todo.index(begun[-1]) + 1 :], False  # a crash: go on after the module that crashed
    part.details["modules"] = modules
    if todo:
        part.details["not_run"] = todo
    count = plural(len(packages) + len(provided), "package")
    part.says = f"{plural(len(imports), 'module')} imported from the locked place, {count} found at the locked version"
    return part.stop()


def _training(work: Work) -> list[Part]:
    part = Part("smoke/training")
    outcome = work.run("training", {"cuda": work.spec.cuda})
    part.take(outcome, work.deadline, "the training program")
    part.demand(outcome, "training_tokens_per_second")
    facts = part.details
    if all(isinstance(facts.get(key), (int, float)) for key in ("loss_first", "loss_last", "steps_done")):
        part.says = "the loss fell from {loss_first:.4g} to {loss_last:.4g} in {steps_done} steps".format(**facts)
    elif not part.failures:
        part.failures.append("the losses were not reported")
    return [part.stop()]


_RUNS: dict[str, Callable[[Work], list[Part]]] = {
    "sound": _sound,
    "machine": machine.run,
    "training": _training,
    "extensions": extensions.run,
}
