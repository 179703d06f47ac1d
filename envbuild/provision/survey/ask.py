"""Ask the nodes once, then decide: facts and resolutions of one run; and which environment is in use on a node.

A node that has an environment of the stack in use answers briefly, for often nothing has to be done. Only where
something has to be chosen there after all is it asked again, with the questions that cost time.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any

from envbuild import resources
from envbuild.catalog.indexes import DEFAULT_INDEX, load_indexes
from envbuild.errors import EnvbuildError, ExitCode
from envbuild.hostlist import expand_hosts
from envbuild.model.facts import NodeFacts
from envbuild.model.lock import Lock, Variant, digest_here
from envbuild.model.plan import Decision, NodePlan, Resolution
from envbuild.model.target import Target
from envbuild.plan.source_builds import bundle_name, bundles
from envbuild.provision.contact.first_contact import ContactResult, contact, node_request
from envbuild.provision.run.context import Choice, Prepared, Survey
from envbuild.provision.run.run_dir import RunDir
from envbuild.resolve.estimate import Supply, channel_key, channels_needed, indexes_needed, sources_needed
from envbuild.text import few, first_hint

if TYPE_CHECKING:
    from envbuild.resolve.compat import Compat

_CLOCKS_DIFFER = 300.0  # seconds; more than a contact may take
# What they say is of the place, not of the variants: it comes first.
_OF_THE_PREFIX = frozenset({"prefix-usable", "disk-space", "disk-inodes"})


def refusal(resolution: Resolution, fits: str = "") -> EnvbuildError:
    """Nothing fits a node: the error carries the rules that were against it. `fits`: what was tried, in words."""
    against = [decision for decision in resolution.decisions if decision.verdict == "refuse"]

    def is_named(decision: Decision) -> bool:
        """Whether what fits is the module that is missing."""
        return decision.rule == "base-module" and (decision.compared or ("?",))[0] in fits

    # Each of them has to go: what to do about one alone would lead to the next, or to one that nothing cures.
    cures = [item.instead or "" for item in against if not is_named(item)]
    instead = "; and ".join(dict.fromkeys(cures[:4])) if all(cures) else ""
    what = f"{resolution.node}: no variant of {resolution.stack} fits this node"
    why = "; ".join(map(_in_words, against[:4]))
    if against and {decision.rule for decision in against} <= _OF_THE_PREFIX:
        what = f"{resolution.node}: {against[0].what}"
        why = "; ".join(
            [*map(_in_words, against[1:4]), f"{resolution.nearest} of {resolution.stack} would fit otherwise"]
        )
    between = "; or " if fits.startswith("`") else "; instead: "
    return EnvbuildError(
        against[0].rule if against else "nothing-fits",
        what,
        why=why,
        hint=between.join(filter(None, (fits, instead))) or "`envbuild plan --json` has every rule that was applied",
        exit_code=ExitCode.REFUSED,
        details={"node": resolution.node},
    )


def python_broken(node: str, path: str) -> EnvbuildError:
    """A node is without a Python after one was brought to `path`."""
    return EnvbuildError(
        "toolchain-python-broken",
        f"{node}: the standalone Python does not run on this node",
        why=f"{path} does not run; it may be built for another processor or libc",
        hint=f"try `{path} --version` on {node}; name a toolchain file with a fitting build (config key `toolchain`)",
        details={"node": node},
    )


def _in_words(decision: Decision) -> str:
    """What a rule says, and what is there instead where it knows."""
    other = decision.compared[1] if decision.compared else ""
    return f"{decision.what} ({other})" if other.startswith("there: ") else decision.what


def ask(nodes: Iterable[str], prepared: Prepared, run: RunDir, args: Mapping[str, Any], survey: Survey) -> None:
    """Probe nodes and put facts or errors into the survey."""
    target = prepared.target
    requests = {node: node_request("probe", target.prefix, {"node": node, **args}, run.id) for node in nodes}
    for node, answer in contact(requests, target.connection, run=run).items():
        survey.take(node, answer)
        if node in survey.facts:
            survey.facts[node] = with_clock(survey.facts[node], datetime.now(UTC))


def with_clock(facts: NodeFacts, now: datetime) -> NodeFacts:
    """The facts with how far the node's clock is from this machine's, where that is more than an answer takes."""
    try:
        ahead = (datetime.fromisoformat(facts.probed_at) - now).total_seconds()
    except (TypeError, ValueError):
        return facts
    if abs(ahead) < _CLOCKS_DIFFER:
        return facts
    clock = f"{abs(ahead) / 60:.0f} min {'ahead of' if ahead > 0 else 'behind'}"
    return facts.model_copy(update={"limits": {**facts.limits, "clock": clock}})


def survey_nodes(nodes: list[str], prepared: Prepared, run: RunDir, *, keep: bool = False) -> Survey:
    """Facts and resolutions of all nodes. Errors are kept per node, nothing is raised for one node.

    `keep`: nothing is decided for nodes whose environment in use shows that all is done.
    """
    survey, args = Survey(), probe_args(prepared)
    keep = keep and can_keep(prepared.choice, prepared.target.base)
    ask(nodes, prepared, run, {**args, "unless_in_use": keep}, survey)
    if keep:
        keep_in_use(prepared, survey)
    changed = [node for node in survey.undecided if survey.facts[node].brief]
    if changed:
        ask(changed, prepared, run, args, survey)
    decide_rest(prepared, survey)
    return survey


def keep_in_use(prepared: Prepared, survey: Survey) -> None:
    """Nothing is decided for nodes whose environment in use shows that all is done."""
    if can_keep(prepared.choice, prepared.target.base):
        plans = {node: kept(facts, prepared) for node, facts in survey.facts.items()}
        survey.kept = {node: plan for node, plan in plans.items() if plan is not None}


def decide_rest(prepared: Prepared, survey: Survey) -> None:
    """Decide for the others, and who delivers: this machine is asked what it could where a node does not reach all."""
    if not survey.undecided:
        return
    every_job = prepared.target.connection.kind == "job" and prepared.target.placement == "node-local"
    nodes = survey.facts.values()
    short = next((facts for facts in nodes if every_job or not all(facts.reachable.values())), None)
    if short is not None and survey.supply is None and prepared.target.delivery == "auto":
        # This machine as a node has been asked, with uv's configuration and not with pip's.
        known = short.reachable if prepared.target.connection.kind == "local" else None
        survey.supply = controller_supply(prepared.lock, _channel_addresses(prepared), known)
    decide(prepared, survey, survey.undecided)


def probe_args(prepared: Prepared) -> dict[str, Any]:
    """The arguments of a full probe: what a base has is a part of the answer where a variant may stand on one."""
    from envbuild.resolve.compat_read import load_compat
    from envbuild.resolve.rules.packages import system_needs

    variants = prepared.lock.variants
    needs = [system_needs(variant, load_compat()) for variant in variants]
    trees = {tree.name: tree.at for variant in variants for tree in variant.trees if tree.at}
    args: dict[str, Any] = {
        "stack": prepared.stack.name,
        "verify": True,
        **({"trees": trees} if trees else {}),
        "files": sorted({file.file for variant in variants for file in variant.files}),
        "system_packages": sorted(set().union(*needs)),
        "base_packages": prepared.target.base not in (None, "none") or any(v.base.kind != "none" for v in variants),
        "interpreters": _asked_interpreters(prepared),
    }
    if prepared.target.tmp:
        args["tmp"] = prepared.target.tmp
    if prepared.target.delivery != "controller" and prepared.target.engine != "container":
        args.update(_places(prepared))
    return args


def _places(prepared: Prepared) -> dict[str, Any]:
    """Where a node would fetch from, as arguments of a probe."""
    reach = index_addresses(prepared.lock) | _channel_addresses(prepared)
    return {"reach": reach, "repositories": sources_needed(prepared.lock)}


def index_addresses(lock: Lock) -> dict[str, str]:
    """The address of every index that the lock names; of the default one, that which no configuration replaces."""
    # pip has the one address that the catalog leaves to the configuration of a machine.
    from pip._internal.models.index import PyPI

    known = load_indexes()
    needed = ((name, known[name].url) for name in indexes_needed(lock) if name in known)
    return {name: url or PyPI.simple_url for name, url in needed if url or name == DEFAULT_INDEX}


def _channel_addresses(prepared: Prepared) -> dict[str, str]:
    """The first address of every conda channel that the lock names, by `channel_key`."""
    channels = prepared.channels
    return {channel_key(name): channels[name][0] for name in channels_needed(prepared.lock) if channels.get(name)}


def is_reach_known(prepared: Prepared, survey: Survey) -> bool:
    """Whether every node was asked for all places that it would fetch from, where that is to decide who fetches."""
    if prepared.target.delivery != "auto":
        return True
    asked = {name for names in _places(prepared).values() for name in names}
    return all(asked <= set(facts.reachable) for facts in survey.facts.values())


def controller_supply(lock: Lock, channels: Mapping[str, str], known: Mapping[str, bool] | None = None) -> Supply:
    """What this machine could deliver: reached, kept from an earlier delivery, or in pip's find-links folders.

    `channels`: addresses. `known`: what it reaches, where it was asked as a node already.
    """
    from envbuild.node.probe import prefix

    cache = resources.artifact_cache()
    reachable = dict(known) if known is not None else _reached(lock, channels)
    names = {
        file.file: file.sha256 for variant in lock.variants for package in variant.packages for file in package.files
    }
    cached = {name: resources.artifact(sha256, name, cache) for name, sha256 in names.items()}
    sources = (source for variant in lock.variants for source in bundles(variant).items())
    kept = {source.git for name, source in sources if (cache / "sources" / bundle_name(name, source)).exists()}
    reachable.update(dict.fromkeys(kept, True))
    files = {name: str(path) for name, path in cached.items() if path.exists()}
    return Supply(reachable, {**prefix.files_found(list(names)), **files})


def _reached(lock: Lock, channels: Mapping[str, str]) -> dict[str, bool]:
    """What pip, conda and git reach from here."""
    from envbuild.node import pip_config
    from envbuild.node.probe import prefix

    config, indexes = pip_config.read(os.environ), index_addresses(lock)
    own = {DEFAULT_INDEX: config.index_url} if DEFAULT_INDEX in indexes and config.index_url else {}
    asked = {**({} if config.no_index else {**indexes, **own}), **channels}
    return dict.fromkeys(indexes, False) | prefix.reachable(asked, sources_needed(lock))


def _asked_interpreters(prepared: Prepared) -> list[str]:
    """Interpreters that somebody named, which may lie where no probe would look; of a module, what PATH gives."""
    from envbuild.resolve.variant_checks import MODULE_PYTHON

    named = (prepared.choice.interpreter, prepared.target.interpreter, prepared.target.base_python)
    paths = {name for name in named if name and "/" in name}
    on_module = any(variant.base.kind == "module" for variant in prepared.lock.variants)
    return sorted(paths | ({MODULE_PYTHON} if on_module else set()))


def decide(prepared: Prepared, survey: Survey, nodes: Iterable[str]) -> None:
    """Resolve nodes from the facts in the survey, what equal nodes share only once."""
    from envbuild.provision.contact.toolchain import bytes_before
    from envbuild.resolve.engine import Resolver

    facts = {node: survey.facts[node] for node in nodes if node in survey.facts and node not in survey.errors}
    resolver = Resolver(
        prepared.lock,
        prepared.target,
        rules(),
        survey.supply,
        variant=prepared.choice.variant,
        interpreter=prepared.choice.interpreter or prepared.target.interpreter,
        reference=prepared.reference,
        tool_bytes=bytes_before(prepared.lock, prepared.target),
    )
    resolutions = resolver.fleet(facts)
    from envbuild.plan.planner import ChosenVariants

    chosen = ChosenVariants(prepared.lock)
    for node, resolution in resolutions.items():
        survey.resolutions[node] = resolution
        if resolution.variant_id is not None:
            survey.variants[node] = chosen.of(resolution, facts[node])


def note_refusals(prepared: Prepared, survey: Survey, again: str = "") -> None:
    """Make an error of every refusal that has none yet, with what of the stack was tried and fits those nodes.

    `again`: what asks a node again that was not asked now, but by an earlier job.
    """
    refused = {
        node: resolution
        for node, resolution in survey.resolutions.items()
        if resolution.refused and node not in survey.errors
    }
    if refused:
        fits = _what_fits(prepared, {node: survey.facts[node] for node in refused})
        for node, resolution in refused.items():
            survey.errors[node] = error = refusal(resolution, fits)
            error.hint = first_hint(prepared.choice.unnamed, error.hint)
            if again and node not in survey.contacts:
                error.hint += f"; this is of {survey.facts[node].probed_at[:10]}: after a change of the node, {again}"


def _what_fits(prepared: Prepared, facts: Mapping[str, NodeFacts]) -> str:
    """The variant of the lock or the profile that fits all of these nodes, as an option; else that none does."""
    from envbuild.catalog.loader import load_stack
    from envbuild.explain.view import Candidates, fitting, offered
    from envbuild.provision.contact.toolchain import bytes_before
    from envbuild.resolve.engine import Resolver

    interpreter = prepared.choice.interpreter or prepared.target.interpreter
    if prepared.choice.variant is not None:
        tools = bytes_before(prepared.lock, prepared.target)
        resolver = Resolver(prepared.lock, prepared.target, rules(), interpreter=interpreter, tool_bytes=tools)
        variants = {resolution.variant_id for resolution in resolver.fleet(facts).values()}
        if len(variants) == 1 and None not in variants:
            return f"`--variant {variants.pop()}` fits"
    if not prepared.reference:
        return ""
    loaded = load_stack(prepared.reference)
    candidates = Candidates(loaded, facts, prepared.target, rules(), interpreter, bytes_before)
    others = candidates.others(prepared.profile)
    able = fitting(loaded, {profile.name: profile for profile in others})
    if able:
        return offered(loaded.stack, able)
    if shown := candidates.with_module():
        return shown
    nodes = "it" if len(facts) == 1 else "all of them"
    none = f"no other profile of {loaded.stack.name} fits {nodes}" if others else ""
    return "; ".join(filter(None, (none, candidates.with_torch(prepared.profile))))


@cache
def rules() -> Compat:
    """The compatibility data, read once, and the resolver's modules with it."""
    from envbuild.resolve import engine
    from envbuild.resolve.compat_read import load_compat

    del engine
    return load_compat()


def probe_nodes(target: Target, deadline: float) -> tuple[dict[str, NodeFacts], dict[str, EnvbuildError]]:
    """Facts of every node of a target, and the errors of those that gave none within `deadline` seconds."""
    requests = {node: node_request("probe", target.prefix, {"node": node}) for node in expand_hosts(target.hosts)}
    limit = min(target.connection.connect_timeout, deadline)
    connection = target.connection.model_copy(update={"connect_timeout": limit})
    return told_facts(contact(requests, connection, deadline))


def told_facts(answers: Mapping[str, ContactResult]) -> tuple[dict[str, NodeFacts], dict[str, EnvbuildError]]:
    """The facts in the answers to a probe, and the errors of nodes that gave none."""
    survey = Survey()
    for node, answer in answers.items():
        survey.take(node, answer)
    bare = {node: error for node in survey.without_python if (error := answers[node].failure)}
    return survey.facts, survey.errors | bare


RULE = "in-use"


def can_keep(choice: Choice, base: str | None) -> bool:
    """Whether what is in use may simply be kept: the user asked for nothing in particular, and it stands on nothing.

    What a base provides is part of a variant's digest and has to be asked.
    """
    return choice.variant is None and choice.interpreter is None and base in (None, "none")


def kept(facts: NodeFacts, prepared: Prepared) -> NodePlan | None:
    """The plan of a node whose environment in use is of this lock, was checked, and still fits; None for any other.

    Driver and GPUs must be those it was chosen for, and its variables those of stack and target; then every rule would
    say what it said when the environment was built.
    """
    for stamp in facts.environments:
        if not (stamp.current and stamp.checks and stamp.stack == prepared.stack.name):
            continue
        written: Mapping[str, Any] = stamp.stamp or {}
        variant = matching_variant(prepared.lock, {**written, "variant_digest": stamp.variant_digest})
        if (
            variant is None
            or variant.base.kind != "none"
            or variant.engine != prepared.target.installer
            or (written.get("evidence") or {}).get("hardware") != facts.hardware()
            # Compiled for what the target expected then; what it expects now is for the rules to say.
            or (variant.arch_list is not None and not facts.gpus)
            or written.get("variables") != variant.variables(prepared.target.environment)
        ):
            return None
        interpreter, digest = written.get("interpreter"), variant.digest
        python = interpreter if isinstance(interpreter, str) else None
        decision = Decision(
            rule=RULE,
            verdict="allow",
            what="the environment in use is of this lock, and driver and GPUs are those it was chosen for",
            compared=(digest[:12], digest[:12]),
            source="its stamp",
        )
        resolution = Resolution(
            node=facts.node,
            stack=prepared.lock.stack,
            profile=prepared.lock.profile,
            variant_id=variant.id,
            variant_digest=digest,
            interpreter=python,
            arch_list=variant.arch_list,
            decisions=(decision,),
            candidates=(),
        )
        return NodePlan(
            node=facts.node, environment=stamp.path, variant_digest=digest, python=python, steps=(),
            resolution=resolution,
        )  # fmt: skip
    return None


# Where it is, the variant it was built from, and its stamp.
Current = tuple[str, Variant, dict[str, Any]]


def matching_variant(lock: Lock, stamp: Mapping[str, Any]) -> Variant | None:
    """The variant of the lock that a stamp was built from.

    What the base provided then, the GPUs that sources were compiled for, and the places of working trees are part of
    the comparison.
    """
    archs = stamp.get("arch_list")
    here = digest_here(str(stamp.get("variant_digest")), stamp.get("trees") or ())
    for locked in lock.variants:
        variant = locked.with_arch_list(lock.stack, lock.profile, None if archs is None else tuple(archs))
        if variant.base.kind != "none":
            variant = variant.with_provided(lock.stack, lock.profile, dict(stamp.get("base_packages") or {}))
        if variant.here == here:
            return variant
    return None


def made_by(item: Mapping[str, Any]) -> str:
    """The engine of a listed environment (`StampFacts` as JSON)."""
    return "conda" if (item.get("stamp") or {}).get("conda") else "venv"


def of_stack(items: Iterable[dict[str, Any]], stack: str | None, engine: str | None) -> dict[str, Any] | None:
    """The environment in use for a stack; of an `engine` that was asked for the one in use, else the last finished."""
    mine = [item for item in items if item.get("stack") == stack and item.get("stamp")]
    if engine is None:
        return next((item for item in mine if item.get("current")), None)
    theirs = [item for item in mine if made_by(item) == engine]
    return max(theirs, key=lambda item: (bool(item.get("current")), str(item["stamp"].get("stamped_at"))), default=None)


def current_of(prepared: Prepared, node: str, listed: list[dict[str, Any]] | EnvbuildError) -> Current | EnvbuildError:
    """Path, variant and stamp of the environment that is asked for (`of_stack`), or why there is none."""
    if isinstance(listed, EnvbuildError):
        return listed
    stack, engine = prepared.stack.name, prepared.choice.engine
    place = f"{prepared.reference or stack} --target {prepared.choice.target}"
    asked = f"{place} --profile {prepared.choice.profile}" if prepared.choice.profile else place
    item = of_stack(listed, stack, engine)
    if item is None:
        error = EnvbuildError(
            "environment-unknown",
            f"{node}: no environment of {stack} is {f'of the engine {engine}' if engine else 'in use'}",
            hint=f"`envbuild plan {asked}` says whether it can be built there, and `envbuild provision {asked}` builds "
            f"it; `envbuild status --all --target {prepared.choice.target}` lists the environments",
            exit_code=ExitCode.CHECK_FAILED,
        )
        error.hint = first_hint(prepared.choice.unnamed, error.hint)
        return error
    stamp = item.get("stamp") or {}
    variant = matching_variant(prepared.lock, stamp)
    if variant is not None:
        return str(item["path"]), variant, stamp
    profile, builds = stamp.get("profile"), f"`envbuild provision {place} --profile {prepared.profile}` builds"
    if profile != prepared.profile:
        return EnvbuildError(
            "environment-not-of-lock",
            f"{node}: the environment in use is of the profile {profile}, not {prepared.profile}",
            hint=f"`--profile {profile}` asks about the one in use; {builds} the other",
        )
    trees = few([str(tree["at"]) for tree in stamp.get("trees") or ()])
    code = f", with the code in {trees}" if trees else ""
    return EnvbuildError(
        "environment-not-of-lock",
        f"{node}: the environment in use matches no variant of {prepared.lock_file.name}",
        why=f"its stamp says variant {str(item.get('variant_digest'))[:12]}{code}",
        hint=f"{builds} what the lock says now; the old environment stays until removed",
    )
