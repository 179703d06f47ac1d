"""Smoke item `extensions`: runs its program, starts it again behind a step that crashed, and makes a check of each."""

from __future__ import annotations

from envbuild.node.build import kernels
from envbuild.node.protocol import Json, NodeError
from envbuild.node.smoke.check import Part, Work, plural
from envbuild.node.smoke.runner import Outcome, how_it_ended

_TOP = "smoke/extensions"


def expected(variant: Json) -> list[str]:
    """Import names that the lock's sources promise (`build.extensions`, and the kernels that are built ahead)."""
    names: list[str] = []
    for source in variant.get("sources") or []:
        build = source.get("build") or {}
        names += [*map(str, build.get("extensions") or []), *kernels.extensions(build)]
    return list(dict.fromkeys(names))


def run(work: Work) -> list[Part]:
    """The check of the imports first, then one for each extension that is installed and known."""
    spec, imports = work.spec, Part(_TOP + "/imports")
    wanted = expected(spec.variant)
    parts: list[Part] = []
    todo: list[str] | None = None
    facts: Json = {}
    only = [name.partition("/")[2] for name in spec.only if name.startswith("extensions/")]
    while True:
        outcome = work.run("extensions", {"cuda": spec.cuda, "expected": wanted, "todo": todo, "only": only})
        imports.failures.extend(str(event.get("what")) for event in outcome.of("failure"))
        facts.update(outcome.facts())
        for event in outcome.of("ended"):
            _take(imports, parts, event)
        todo = _rest(imports, parts, outcome, list(facts.get("steps") or []) if todo is None else todo, work.deadline)
        if not todo:
            break
    _found(only, facts)
    _say(imports, parts, facts, wanted)
    if only and "imports" not in only and not imports.failures:
        return parts
    own = work.spent() - sum(part.seconds for part in parts)
    return [imports.stop(max(0.0, own))] + parts


def _found(only: list[str], facts: Json) -> None:
    """Raise NodeError where a check was asked for that this environment does not have."""
    there = [str(name) for name in facts.get("checks") or []]
    missing = [name for name in only if name not in there]
    if there and missing:
        raise NodeError(
            "smoke-unknown",
            f"there is no smoke check 'extensions/{missing[0]}' in this environment",
            hint="known: %s" % ", ".join(f"extensions/{name}" for name in there),
        )


def _rest(imports: Part, parts: list[Part], outcome: Outcome, planned: list[str], deadline: float) -> list[str]:
    """The steps still to do, in a new process; none when the item is over. A step that crashed is a failed check."""
    ended = {str(event.get("step")) for event in outcome.of("ended")}
    begun = [str(event.get("step")) for event in outcome.of("begun")]
    left = [step for step in planned if step not in ended]
    how = how_it_ended(outcome, deadline)
    if how is None:
        return left if outcome.of("again") else []
    crashed = [step for step in begun if step not in ended][-1:]
    if not crashed:
        imports.failures.append(f"the program {how}")
        imports.details["output"] = outcome.stderr
        return []
    part = imports if crashed[0].startswith("import ") else Part(f"{_TOP}/{crashed[0]}")
    part.failures.append(f"the check {how}")
    part.details["output"] = outcome.stderr
    if part is not imports:
        parts.append(part.stop())
    left = [step for step in left if step not in crashed]
    if outcome.timed_out and left:
        imports.details["not_run"] = left
        return []
    return left


def _take(imports: Part, parts: list[Part], event: Json) -> None:
    """One finished step: an import belongs to the check of imports, everything else is a check of its own."""
    step = str(event.get("step"))
    failures = [str(text) for text in event.get("failures") or []]
    if step.startswith("import "):
        imports.failures.extend(failures)
        kind = "skipped" if event.get("skipped") else "imported"
        if not failures:
            imports.details.setdefault(kind, []).append(str(event.get("module")))
        return
    part = Part(f"{_TOP}/{step}")
    part.failures.extend(failures)
    part.skipped = str(event.get("skipped") or "")
    kept = ("module", "api", "compared", "dtypes", "unsupported", "used", "failure_count")
    part.details.update({key: event[key] for key in kept if event.get(key)})
    part.says = _passed(event)
    parts.append(part.stop(float(event.get("seconds") or 0.0)))


def _passed(event: Json) -> str:
    """`FusedAdam(adam_w_mode): 6 comparisons in float32, float16, at most 12 % of the tolerance`."""
    dtypes = ", ".join(str(name) for name in event.get("dtypes") or [])
    used = [float(part) for part in (event.get("used") or {}).values()]
    text = f"{event.get('api') or event.get('module')}: {plural(int(event.get('compared') or 0), 'comparison')}"
    text += f" in {dtypes}" if dtypes else ""
    text += f", at most {100 * max(used):.2g} % of the tolerance used" if used else ""
    for name, why in sorted((event.get("unsupported") or {}).items()):
        text += f"; not {name}: {why}"
    return text


def _say(imports: Part, parts: list[Part], facts: Json, wanted: list[str]) -> None:
    """What the check of imports says, and that there was nothing to check where there was nothing."""
    imports.details.update({key: facts[key] for key in ("torch", "gpu", "not_there") if facts.get(key)})
    modules = {str(part.details.get("module")) for part in parts if part.details.get("module")}
    modules.update(imports.details.get("imported") or [])
    needing_driver = [str(name) for name in imports.details.get("skipped") or []]
    if not modules and not wanted and not parts:
        imports.skipped = "no compiled extension that is known here is installed"
    imports.says = "%s: %s" % (
        f"{plural(len(modules), 'compiled extension')} imported",
        ", ".join(sorted(modules)) or "none",
    )
    if needing_driver:
        imports.says += f"; not without the NVIDIA driver: {', '.join(needing_driver)}"
    if wanted:
        promised = len([name for name in wanted if name in modules])
        imports.says += f"; {promised} of {len(wanted)} that the lock names"
