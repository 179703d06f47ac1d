"""Everything known about a stack, for all forms of `explain`: findings, recipe, decisions, profiles. No markup."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from envbuild.catalog.loader import lock_command, lock_path, manifest_digest
from envbuild.catalog.patches import RecipeEffect, load_patch, recipe_effect
from envbuild.errors import EnvbuildError
from envbuild.explain.checks import CheckResult, Outcome
from envbuild.lock.files import read_lock
from envbuild.lock.variants import Plan, decided, variant_plans
from envbuild.model.facts import NodeFacts
from envbuild.model.finding import Finding, Severity
from envbuild.model.launch import ModelSize, Reference
from envbuild.model.lock import Lock, LockedInterpreter, LockedSource, Variant
from envbuild.model.patch import Patch, Recipe
from envbuild.model.plan import Decision, Resolution
from envbuild.model.stack import LockedConda, Profile, Source, Stack
from envbuild.model.target import Modules, Target
from envbuild.resolve.artifacts import dotted, flavour_cuda
from envbuild.resolve.compat import rows_like
from envbuild.resolve.engine import Resolver
from envbuild.resolve.request import capabilities
from envbuild.resolve.rules.gpu import holds_code
from envbuild.text import grouped, plural

if TYPE_CHECKING:
    from envbuild.catalog.loader import LoadedStack
    from envbuild.lock.readers.git import GitReader
    from envbuild.resolve.compat import Compat, Gpu


class RecipeRun(NamedTuple):
    """One edit that the document asks for, on the source that our `patch` edits instead.

    `effect` is None where the edit was not tried, or is described in prose; `problem` says why it could not be tried.
    """

    source: str
    commit: str
    patch: str
    does: str
    says: str
    file: str | None = None
    effect: RecipeEffect | None = None
    problem: str = ""

    @property
    def outcome(self) -> str:
        """The result in words; empty if it was not tried."""
        if self.problem:
            return f"not tried: {self.problem}"
        if self.effect is None or self.effect.hits is None:
            return ""
        if not self.effect.hits:
            return f"changes nothing in {self.file} at {self.commit[:8]}"
        lines = f"changes {plural(self.effect.hits, 'line')} of {self.file} at {self.commit[:8]}"
        return (
            lines
            + {None: "", True: ", which still compiles", False: ", which no longer compiles"}[self.effect.compiles]
        )

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        data = {"source": self.source, "commit": self.commit, "patch": self.patch, "says": self.says, "does": self.does}
        effect = {"hits": self.effect.hits, "compiles": self.effect.compiles} if self.effect else None
        more = {"file": self.file, "effect": effect, "problem": self.problem or None}
        return data | {key: value for key, value in more.items() if value is not None}


def document_recipes(stack: Stack, profile: str, git: GitReader | None = None) -> tuple[RecipeRun, ...]:
    """What the document says to edit in the sources that a profile patches, tried where `git` can read the files."""
    return tuple(
        _run(source, patch, recipe, git)
        for source in stack.profiles[profile].pinned_sources
        for patch in map(load_patch, source.patches)
        for recipe in patch.replaces
        if recipe.stack == stack.name
    )


def _run(source: Source, patch: Patch, recipe: Recipe, git: GitReader | None) -> RecipeRun:
    effect, problem = None, ""
    if git is not None and recipe.file is not None:
        try:
            text = git.read(source.git, source.commit, recipe.file)
            effect = recipe_effect(recipe, text.encode()) if text is not None else None
            problem = "" if text is not None else f"there is no {recipe.file}"
        except EnvbuildError as error:
            problem = error.what
    return RecipeRun(source.name, source.commit, patch.name, patch.summary, recipe.says, recipe.file, effect, problem)


class LeastNodes(NamedTuple):
    """`nodes` for `model`; `needed_gb` and `node_gb` in 10^9 bytes, `source` says what the model rests on."""

    model: str
    nodes: int
    parameters: int
    needed_gb: float
    node_gb: float
    source: str


def parameters(size: ModelSize) -> int:
    """Weights of a GPT of that size: 12 h² a layer with its biases and norms (13 h), embeddings and positions."""
    hidden = size.hidden
    layers = size.layers * (12 * hidden * hidden + 13 * hidden)
    return layers + ((size.vocabulary or 0) + (size.sequence or 0)) * hidden + 2 * hidden


def least_nodes(reference: Reference | None) -> LeastNodes | None:
    """The answer for the model that the memory model names, None when the stack has no memory model."""
    memory = reference.memory if reference else None
    size = next((m for m in reference.models if memory and m.name == memory.model), None) if reference else None
    if memory is None or size is None:
        return None
    count = parameters(size)
    needed = count * memory.bytes_per_parameter / 1e9
    node = memory.gpu_gb * memory.gpus_per_node * memory.usable
    return LeastNodes(memory.model, max(1, math.ceil(needed / node)), count, needed, node, memory.source)


SEVERITIES: tuple[Severity, ...] = ("wrong", "stale", "unpinned", "trap", "note")


class Explained(NamedTuple):
    """One finding with the results of its checks; `outcome` is None when it has none or they were not asked for."""

    finding: Finding
    results: tuple[CheckResult, ...] = ()

    @property
    def outcome(self) -> Outcome | None:
        """One word for all results: the worst one."""
        outcomes: tuple[Outcome, ...] = ("broken", "not-run", "holds")
        return next((word for word in outcomes if word in {result.outcome for result in self.results}), None)

    def as_dict(self) -> dict[str, Any]:
        """The finding as its file says it, with the outcome of each check."""
        data = self.finding.to_json_dict()
        data["outcome"] = self.outcome
        if self.results:
            data["check_results"] = [result.as_dict() for result in self.results]
        return data


class OtherProfile(NamedTuple):
    """Another profile of the stack on the same nodes: whether it fits them all, else the first refusal of each kind."""

    name: str
    fits: bool
    why: str = ""


class Decided(NamedTuple):
    """One resolution a node.

    `note` says what they rest on when that is no lock, or why there are none; `others` are the other profiles, asked
    for only where this one does not fit; `rules`: what those say of the lock that need no node.
    """

    resolutions: tuple[Resolution, ...] = ()
    note: str = ""
    others: tuple[OtherProfile, ...] = ()
    rules: tuple[str, ...] = ()


class Explanation(NamedTuple):
    """Everything `explain` says of a stack and profile.

    `recipes` are the document's own edits beside the patches; `profile_why` says why this profile, where nobody asked
    for it and it is not the default.
    """

    stack: Stack
    profile: str
    findings: tuple[Explained, ...]
    decided: Decided
    recipes: tuple[RecipeRun, ...]
    profile_why: str

    @property
    def contents(self) -> Profile:
        """The profile that is explained."""
        return self.stack.profiles[self.profile]

    @property
    def least_nodes(self) -> LeastNodes | None:
        """How many nodes the largest model of the document needs."""
        return least_nodes(self.stack.reference)

    def of(self, severity: Severity) -> tuple[Explained, ...]:
        """Findings of one severity, in the order of the file."""
        return tuple(item for item in self.findings if item.finding.severity == severity)

    def results(self) -> tuple[CheckResult, ...]:
        """All check results."""
        return tuple(result for item in self.findings for result in item.results)

    def as_dict(self) -> dict[str, Any]:
        """For `--json`: `findings`, `decisions` and `deviations` are lists."""
        decided = self.decided
        data: dict[str, Any] = {
            "stack": self.stack.name,
            "summary": self.stack.summary,
            "profile": self.profile,
            "document": self.stack.document.to_json_dict() if self.stack.document else None,
            "findings": [item.as_dict() for item in self.findings],
            "decisions": [row for resolution in decided.resolutions for row in _decision_rows(resolution)],
            "deviations": list(self.contents.deviations),
            "sources": [source.to_json_dict() for source in self.contents.sources],
        }
        more = {
            "profile_why": self.profile_why,
            "recipes": [run.as_dict() for run in self.recipes],
            "least_nodes": self.least_nodes and self.least_nodes._asdict(),
            "decided_from" if decided.resolutions else "why_no_decisions": decided.note,
            "rules": list(decided.rules),
            "other_profiles": [other._asdict() for other in decided.others],
        }
        return data | {key: value for key, value in more.items() if value}


def explain(
    stack: Stack,
    profile: str,
    *,
    results: Iterable[CheckResult] = (),
    decided: Decided | None = None,
    recipes: tuple[RecipeRun, ...] = (),
    profile_why: str = "",
) -> Explanation:
    """Join what is known of a stack and one of its profiles."""
    by_finding = grouped(results, lambda result: result.finding)
    findings = tuple(Explained(f, tuple(by_finding.get(f.id, ()))) for f in stack.findings)
    return Explanation(stack, profile, findings, decided or Decided(), recipes, profile_why)


def _decision_rows(resolution: Resolution) -> list[dict[str, Any]]:
    """The decisions on the variant that was chosen, then those on each of the others."""
    rows: list[tuple[bool, dict[str, str], Decision]] = [(True, {}, decision) for decision in resolution.decisions]
    for other in (candidate for candidate in resolution.candidates if not candidate.chosen):
        rows += [(False, {"variant": other.variant_id}, decision) for decision in other.decisions]
    return [
        {"node": resolution.node, "chosen": chosen, **variant, **decision.to_json_dict()}
        for chosen, variant, decision in rows
    ]


# What they compare comes from the packages of a lock, which an outline does not have.
_NEED_A_LOCK = ("conda-unrecorded", "disk-space", "disk-inodes", "cuda-without-gpu", "no-fitting-file")


def outline(stack: Stack, name: str) -> Lock:
    """The variants that a lock of this profile would have, without packages; it is only good for deciding."""
    profile = stack.profiles[name]
    from envbuild.lock.create import standalone_interpreters  # it brings what locks are made with

    # A Python that has no pinned standalone build yet gets a stand-in, because only its version matters.
    stand_in = LockedInterpreter(kind="standalone", name="not pinned yet", sha256="0" * 64)
    plans = variant_plans(profile, {**dict.fromkeys(profile.python, stand_in), **standalone_interpreters()})
    variants = tuple(_variant(stack.name, name, profile, plan) for plan in plans)
    return Lock(stack=stack.name, profile=name, manifest_digest=manifest_digest(stack, name), variants=variants)


def _variant(stack: str, name: str, profile: Profile, plan: Plan) -> Variant:
    sources = tuple(
        LockedSource(
            name=source.name, git=source.git, commit=source.commit, tree=source.tree or "0" * 40,
            install=source.install, path=source.path, build=source.build, patches=source.patches,
        )
        for source in profile.pinned_sources
    )  # fmt: skip
    draft = Variant(
        id=plan.id,
        digest="0" * 64,
        interpreter=plan.interpreter,
        conda=LockedConda(unrecorded="no lock is made yet") if plan.engine == "conda" else None,
        sources=sources,
        **decided(profile, plan),
    )
    return draft.with_fields(stack, name)


def without_facts(loaded: LoadedStack, profile: str) -> tuple[str, ...]:
    """What rules that need no node say of a profile, and of its lock where it has one."""
    from envbuild.resolve.compat_read import load_compat
    from envbuild.resolve.profile import findings, unlocked

    path, compat = lock_path(loaded, profile), load_compat()
    incomplete = dict.fromkeys(unlocked(loaded.stack.profiles[profile], compat))
    return tuple(incomplete | dict.fromkeys(findings(read_lock(path), compat) if path.is_file() else ()))


# What a rule can say that knows a target and nothing of its nodes, and what one can that knows their GPUs too.
_OF_THE_TARGET = frozenset({"engine-fits", "base-module", "base-asked"})
_OF_THE_GPU = _OF_THE_TARGET | {"gpu-arch", "image-gpu"}


class Candidates(NamedTuple):
    """The profiles of a stack, to be judged for these nodes of a target; `interpreter` as asked for.

    `tool_bytes`: the disk space of the tools that nodes need for a lock, as `Resolver` takes it.
    """

    loaded: LoadedStack
    facts: Mapping[str, NodeFacts]
    target: Target
    compat: Compat
    interpreter: str | None = None
    tool_bytes: Callable[[Lock, Target], Mapping[str, int]] | None = None

    def resolve(self, profile: str) -> tuple[Resolution, ...]:
        """The nodes judged for one profile; without a lock from its outline, and without what rests on packages."""
        path = lock_path(self.loaded, profile)
        if not path.is_file():
            return self._unlocked(self.loaded.stack, profile)
        lock, reference = read_lock(path), self.loaded.ref
        tools = self.tool_bytes(lock, self.target) if self.tool_bytes else None
        resolver = Resolver(
            lock, self.target, self.compat, interpreter=self.interpreter, reference=reference, tool_bytes=tools
        )
        return tuple(resolver.fleet(self.facts).values())

    def _unlocked(self, stack: Stack, profile: str) -> tuple[Resolution, ...]:
        resolver = Resolver(outline(stack, profile), self.target, self.compat, interpreter=self.interpreter)
        return tuple(_without_packages(resolution) for resolution in resolver.fleet(self.facts).values())

    def decide(self, profile: str) -> Decided:
        """Decide for every node; without a lock from what the stack file says of torch, Python, base and sources."""
        path, note, resolutions = lock_path(self.loaded, profile), "", self.resolve(profile)
        if not path.is_file():
            note = (
                f"decided from the stack file alone, because the profile {profile} has no lock yet ({path.name}); "
                f"{lock_command(self.loaded, profile)} makes it"
            )
        refused = any(resolution.refused for resolution in resolutions)
        return Decided(resolutions, note, self.others(profile) if refused else ())

    def others(self, profile: str = "") -> tuple[OtherProfile, ...]:
        """Every profile but one on these nodes: whether it fits them all, and why not."""
        return tuple(_judged(name, self.resolve(name)) for name in self.loaded.stack.profiles if name != profile)

    def fits(self) -> dict[str, OtherProfile]:
        """Every profile on these nodes; without facts, as far as the target and the GPUs that it expects decide."""
        if self.facts:
            return {profile.name: profile for profile in self.others()}
        gpus = {row.model: _bare(row) for row in rows_like(self.target.expects.gpu, self.compat)}
        rules = _OF_THE_GPU if gpus else _OF_THE_TARGET
        bare = self._replace(facts=gpus or {"node": _bare(None)})
        return {name: _judged(name, bare.resolve(name), rules) for name in self.loaded.stack.profiles}

    def with_module(self) -> str:
        """A profile that fits once jobs of the target load its module, and how they do; empty if none does."""
        if self.target.connection.kind != "job":
            return ""
        scheduler = self.target.scheduler
        loads = scheduler.modules or Modules()
        for name, profile in self.loaded.stack.profiles.items():
            for module in (base.module for base in profile.bases if base.module and base.module not in loads.load):
                more = loads.model_copy(update={"load": (*loads.load, module)})
                update = {"scheduler": scheduler.model_copy(update={"modules": more})}
                if _judged(name, self._replace(target=self.target.model_copy(update=update)).resolve(name)).fits:
                    line = f"`scheduler: {{modules: {{load: [{', '.join(more.load)}]}}}}` in the target"
                    profile_fits = offered(self.loaded.stack, name)
                    return f"{profile_fits} with the module {module}, which the facts show: {line}"
        return ""

    def with_torch(self, name: str) -> str:
        """The profile with torch in the newest other flavour with which no rule refuses these nodes; empty if none.

        Nobody has locked or built it.
        """
        profile = self.loaded.stack.profiles[name]
        release = self.compat.torch.get(profile.torch.version) if profile.torch else None
        asked = {capability for node in self.facts.values() for _, capability in capabilities(node)}
        if profile.torch is None or release is None or profile.conda or not asked:
            return ""
        able = {flavour for flavour, build in release.builds.items() if all(holds_code(build, c) for c in asked)}
        for flavour in sorted(able - set(profile.torch.flavours), key=flavour_cuda, reverse=True):
            torch = profile.torch.model_copy(update={"flavours": (flavour,)})
            made = {**self.loaded.stack.profiles, name: profile.model_copy(update={"torch": torch})}
            stack = self.loaded.stack.model_copy(update={"profiles": made})
            if _judged(name, self._unlocked(stack, name)).fits:
                return f"torch {torch.version}+{flavour} in a profile of your own would (docs/troubleshooting.md)"
        return ""


def fitting(loaded: LoadedStack, judged: Mapping[str, OtherProfile]) -> str | None:
    """The first profile that fits, preferring one that runs the benchmark; None if none fits."""
    profiles = loaded.stack.profiles
    able = [name for name in profiles if name in judged and judged[name].fits]
    return min(able, key=lambda name: profiles[name].runs != "benchmark", default=None)


def offered(stack: Stack, name: str) -> str:
    """A profile that fits as an option, with what it cannot do."""
    profile = stack.profiles[name]
    limits = [f"it says `runs: {profile.runs}`"] * (profile.runs != "benchmark")
    limits += ["its MPI serves one node"] * profile.mpi_for_one_node
    return f"`--profile {name}` fits" + (f" ({'; '.join(limits)})" if limits else "")


def _bare(gpu: Gpu | None) -> NodeFacts:
    """Facts of a node of which nothing but its GPU is known, or not even that."""
    gpus = [{"index": 0, "name": f"NVIDIA {gpu.name}", "compute_capability": dotted(gpu.capability)}] if gpu else []
    return NodeFacts.from_plain(
        {
            **dict.fromkeys(("hostname", "user", "probed_at"), ""),
            **{"protocol": 1, "node": gpu.model if gpu else "node", "os": {"arch": "x86_64"}, "libc": {}},
            **{"prefix": {"path": "/"}, "gpus": gpus},
        }
    )


def _judged(name: str, resolutions: tuple[Resolution, ...], rules: frozenset[str] | None = None) -> OtherProfile:
    """Whether a profile fits all nodes, by these rules alone."""

    def refusals_of(decisions: Iterable[Decision]) -> list[Decision]:
        return [d for d in decisions if d.verdict == "refuse" and (rules is None or d.rule in rules)]

    # A variant without a refusal by these rules may fit, also where the nearest one has such a refusal.
    refused = [r for r in resolutions if r.refused and all(refusals_of(one.decisions) for one in r.candidates)]
    reasons = dict.fromkeys(f"{d.what} ({d.rule})" for r in refused for d in refusals_of(r.decisions))
    return OtherProfile(name, not reasons, "; ".join(list(reasons)[:3]))


def _without_packages(resolution: Resolution) -> Resolution:
    """The resolution less the decisions that rest on the packages of a lock."""

    def rest(decisions: Iterable[Decision]) -> dict[str, Any]:
        return {"decisions": tuple(decision for decision in decisions if decision.rule not in _NEED_A_LOCK)}

    candidates = tuple(one.model_copy(update=rest(one.decisions)) for one in resolution.candidates)
    return resolution.model_copy(update={**rest(resolution.decisions), "candidates": candidates})
