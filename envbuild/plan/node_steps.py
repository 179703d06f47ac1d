"""The steps of one node: what runs there, in which order, with which requests, and what it costs. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from envbuild.model.facts import NodeFacts, StampFacts
from envbuild.model.lock import Lock, Variant
from envbuild.model.plan import Resolution, Step
from envbuild.model.target import Target
from envbuild.node import paths
from envbuild.node.protocol import PROTOCOL
from envbuild.plan.source_builds import (
    build_request,
    compile_seconds,
    compile_text,
    delivered,
    patch_specs,
)
from envbuild.plan.tools import NodeTools, Tool
from envbuild.resolve import health
from envbuild.resolve.estimate import TOOL, Estimate, indexes_of
from envbuild.resolve.request import in_image
from envbuild.text import plural

if TYPE_CHECKING:
    from envbuild.model.patch import Patch

# Rough seconds of the smoke tests and of reading an environment once: between what two idle CPU cores took (sound 5,
# machine 4, training 1) and H200s (those together 14 to 17, all five 47 to 64). Other machines differ by some times.
SMOKE_SECONDS = {"sound": 5.0, "machine": 8.0, "extensions": 10.0, "training": 3.0, "step": 20.0}
HASH_BYTES_PER_SECOND = 400e6
TOOLCHAIN_SECONDS = 1.0


class Inputs(NamedTuple):
    """What steps need beside facts.

    `run`: the run id; `controller`: who changes the prefix (`node/identity.py`); `tools`: per node; `repair`: nodes
    that are built again although they have a stamp; `indexes`: address and kind by index name; `artifacts`: per node,
    instead of the planner's own; `tool_bytes`: size by tool folder; `undownloaded`: Pythons that are not here yet;
    `wait`: seconds for a busy prefix; `patches`: of the catalog, by the names that sources use; `jobs`: instead of
    the target's `build_jobs`; `check_rebuild`: build twice and compare; `asked`: packages that the lock has for
    themselves (None: unknown, not checked); `bundle`: given by the user; `channels`: base addresses by the name of
    a conda channel.
    """

    run: str
    controller: Mapping[str, Any]
    tools: Mapping[str, NodeTools]
    repair: Collection[str] = ()
    indexes: Mapping[str, Mapping[str, str]] = {}
    artifacts: Mapping[str, Mapping[str, Any]] = {}
    tool_bytes: Mapping[str, int] = {}
    undownloaded: Collection[Tool] = ()
    wait: float = 0.0
    patches: Mapping[str, Patch] = {}
    jobs: int | None = None
    check_rebuild: bool = False
    asked: Collection[str] | None = None
    bundle: str = ""
    channels: Mapping[str, Sequence[str]] = {}


def toolchain_words(tools: Iterable[Tool], prefix: str) -> str:
    """The toolchain step in words."""
    return f"put {', '.join(tool.name for tool in tools)} into {prefix}/tools"


@lru_cache
def environment_path(prefix: str, stack: str, profile: str, digest: str) -> str:
    """`<prefix>/envs/<stack>-<profile>-<first 12 of the digest>`."""
    return posixpath.join(prefix, "envs", f"{stack}-{profile}-{digest[:12]}")


class NodeSteps(NamedTuple):
    """One node while its steps are made.

    `plain`: the variant as requests carry it, `cost`: of building it, `environment`: its folder
    (`plan/generations.py`).
    """

    facts: NodeFacts
    target: Target
    lock: Lock
    variant: Variant
    plain: Mapping[str, Any]
    cost: Estimate
    inputs: Inputs
    resolution: Resolution
    environment: str

    @property
    def prefix(self) -> str:
        """Where environments live on the node."""
        return self.facts.prefix.path

    @property
    def tools(self) -> NodeTools:
        """The node's tools."""
        return self.inputs.tools[self.facts.node]

    @property
    def interpreter(self) -> str | None:
        """The path of the environment's interpreter."""
        return self.tools.interpreter or self.resolution.interpreter

    def steps(self, stamp: StampFacts | None) -> tuple[Step, ...]:
        """None for a finished environment in use; one link for a finished one that is not; otherwise all."""
        repaired = self.facts.node in self.inputs.repair
        if stamp is not None and not repaired:
            stamped = (stamp.stamp or {}).get("variables")
            if stamp.current and stamped in (None, self._variables()):
                return ()
            reason = "its variables have changed" if stamp.current else "another one is in use"
            return (*self._toolchain(), self._activate(f"the environment is there; {reason}", 0))
        if in_image(self.variant, self.target):
            return self._image()
        again = "you asked for a new build; it is made beside the environment in use"
        why = again if repaired and stamp is not None else "no finished environment of this variant is there"
        return (
            *self._toolchain(),
            *self._deliver(),
            self._install(why),
            self._smoke(),
            self._activate("stamped last, so that a half-built environment is never used", self.cost.disk_bytes),
        )

    def _image(self) -> tuple[Step, ...]:
        """What would be built for the engine `container`; no step is a call of the node program on this node."""
        base = self.variant.base.image or f"an image with Python {self.variant.python}"
        what = f"build an image on {base}: {self.cost.in_words()}, and {base} itself"
        why = "the target's engine is container"
        sums = {key: getattr(self.cost, key) for key in ("fetch_bytes", "disk_bytes", "inodes", "seconds", "rough")}
        build = Step(kind="install", what=what, why=why, unsized=(*self.cost.unsized, base), **sums)
        return (build, self._smoke().model_copy(update={"request": None}))

    def _request(self, verb: str, **args: Any) -> dict[str, Any]:
        return {
            "protocol": PROTOCOL,
            "verb": verb,
            "run": self.inputs.run,
            "prefix": self.prefix,
            "args": {"environment": self.environment, **args},
        }

    def _toolchain(self) -> tuple[Step, ...]:
        present = set(self.facts.toolchain)
        missing = [tool for tool in self.tools.tools if tool.folder not in present]
        if not missing:
            return ()
        fetched = ", and downloads python" if any(tool in self.inputs.undownloaded for tool in missing) else ""
        amount = sum(self.inputs.tool_bytes.get(tool.folder, 0) for tool in missing)
        step = Step(
            kind="toolchain",
            what=toolchain_words(missing, self.facts.stage_prefix),
            why=f"the node lacks them, or has other versions; this machine brings them{fetched}",
            unsized=tuple(f"{TOOL}{tool.name}" for tool in missing if tool in self.inputs.undownloaded),
            disk_bytes=amount,
            inodes=2 * len(missing),
            seconds=TOOLCHAIN_SECONDS,
        )
        return (step,)

    @property
    def _is_delivered(self) -> bool:
        return self.resolution.delivery.by == "controller"

    def _deliver(self) -> tuple[Step, ...]:
        if not self._is_delivered:
            return ()
        packages, sources = len(self.variant.packages) + len(self.variant.archives), len(self.variant.sources)
        store = paths.delivered(self.facts.stage_prefix, self.variant.digest)
        both = f"{plural(packages, 'file')} and {plural(sources, 'source')}"
        what = f"fetch {both} on this machine, where you type this, and bring them in a bundle to {store}"
        given, until = self.inputs.bundle, "stays for later jobs until `envbuild store clean` removes it"
        goes = until if self.facts.shared else "`activate` removes"
        step = Step(
            kind="deliver",
            what=f"{f'bring {both} in the bundle {given} to {store}' if given else what}, which {goes}",
            why="you gave this bundle, so nothing is fetched" if given else self.resolution.delivery.why,
            fetch_bytes=0 if given else self.cost.fetch_bytes,
            unsized=self.cost.unsized,
            beside_bytes=self.cost.fetch_bytes,
            seconds=round(self.cost.fetch_bytes / 40e6, 1),
        )
        return (step,)

    def _artifacts(self) -> dict[str, Any]:
        given = self.inputs.artifacts.get(self.facts.node)
        if given is not None:
            return dict(given)
        if self._is_delivered:
            return delivered(self.facts.stage_prefix, self.variant)
        named = indexes_of(self.variant)
        indexes = {name: dict(self.inputs.indexes[name]) for name in named if name in self.inputs.indexes}
        files = {file.file for file in self.variant.files} if self.facts.files_found else ()
        folders = {posixpath.dirname(path) for name, path in self.facts.files_found.items() if name in files}
        common = {"find_links": sorted(folders), "indexes": indexes, "offline": False, "sources": {}}
        used = {archive.channel for archive in self.variant.archives}
        channels = {name: list(self.inputs.channels.get(name, ())) for name in sorted(used)}
        return {**common, "conda": {"channels": channels}} if used else common

    def _programs(self) -> dict[str, str | None]:
        programs: dict[str, str | None] = {"uv": self.tools.uv}
        if self.tools.uv_sha256:
            programs["uv_sha256"] = self.tools.uv_sha256
        if self.variant.conda is not None:
            programs |= {"rattler": self.tools.rattler, "rattler_python": self.tools.rattler_python}
        return programs

    def _install(self, why: str) -> Step:
        args: dict[str, Any] = {
            "stack": self.lock.stack,
            "profile": self.lock.profile,
            "variant": self.plain,
            "interpreter": self.interpreter,
            "tools": self._programs(),
            "artifacts": self._artifacts(),
            "cache": self._place(self.target.cache),
            "tmp": self._place(self.target.tmp) or posixpath.join(self.prefix, "tmp"),
            "controller": dict(self.inputs.controller),
            "wait": self.inputs.wait,
        }
        if self.inputs.asked is not None:
            args["asked"] = list(self.inputs.asked)
        if not self.cost.rough:
            args["needed"] = {"bytes": self.cost.disk_bytes, "inodes": self.cost.inodes}
        if self.facts.shared:
            args.update(staged=posixpath.join(self.facts.shared, "tools"))
        args.update(self._source_args())
        fetched = not self._is_delivered
        words = self.cost.in_words(delivered=self._is_delivered)
        compiled = compile_text(self.variant, self._jobs)
        return Step(
            kind="install",
            what=f"build the environment on {self._standing()}: {words}{compiled and f'; {compiled}'}",
            why="; ".join(filter(None, (why, self.resolution.delivery.why if fetched else ""))),
            request=self._request("install", **args),
            fetch_bytes=self.cost.fetch_bytes if fetched else 0,
            unsized=self.cost.unsized,
            disk_bytes=self.cost.disk_bytes,
            beside_bytes=self.cost.beside_bytes(delivered=self._is_delivered),
            rough=self.cost.rough,
            inodes=self.cost.inodes,
            seconds=self.cost.seconds + compile_seconds(self.variant, self._jobs or self.facts.cpus),
        )

    @property
    def _jobs(self) -> int | None:
        return self.inputs.jobs or self.target.build_jobs

    def _source_args(self) -> dict[str, Any]:
        """`patches` and `build` of the request; nothing for a variant without sources."""
        if not self.variant.sources:
            return {}
        build = build_request(
            self.variant,
            self.facts,
            self.resolution,
            store=self._place(self.target.store),
            jobs=self._jobs,
            check_rebuild=self.inputs.check_rebuild,
        )
        specs = patch_specs(self.variant, self.inputs.patches)
        return {"patches": specs, "build": build} if specs else {"build": build}

    def _standing(self) -> str:
        python = f"Python {self.variant.python}"
        if self.variant.archives:
            channels = ", ".join(dict.fromkeys(archive.channel for archive in self.variant.archives))
            return f"{python} of {plural(len(self.variant.archives), 'conda package')} from {channels}"
        if self.variant.base.kind == "none":
            return f"{python} ({self.interpreter or self.variant.interpreter.name})"
        return f"{python} and its packages ({self.interpreter})"

    def _smoke(self) -> Step:
        return Step(
            kind="smoke",
            what=f"run the smoke test: {', '.join(item.name for item in self.variant.smoke) or 'nothing'}",
            why="an environment that fails this test is not stamped",
            request=self._request(
                "smoke",
                variant=self.plain,
                items=smoke_items(self.variant, self.target),
                cuda=uses_cuda(self.variant, self.facts),
                tmp=self._place(self.target.tmp) or posixpath.join(self.prefix, "tmp"),
            ),
            beside_bytes=self.cost.smoke_bytes(delivered=self._is_delivered),
            seconds=sum(SMOKE_SECONDS[item.name] for item in self.variant.smoke),
        )

    def _activate(self, why: str, read_bytes: int) -> Step:
        link = posixpath.join(self.prefix, "current", self.lock.stack)
        shared = self.target.placement == "shared" and self.target.connection.kind != "local"
        return Step(
            kind="activate",
            what=f"point {link} at {posixpath.basename(self.environment)}",
            why=why,
            request=self._request(
                "activate",
                stack=self.lock.stack,
                profile=self.lock.profile,
                variant=self.plain,
                variables=self._variables(),
                controller=dict(self.inputs.controller),
                wait=self.inputs.wait,
                evidence={
                    "target": self.target.name,
                    "not_plain": sorted({d.rule for d in self.resolution.decisions if d.verdict in ("patch", "warn")}),
                    "hardware": self.facts.hardware(),
                },
                **({"shared": True} if shared else {}),
            ),
            seconds=round(read_bytes / HASH_BYTES_PER_SECOND, 1),
        )

    def _variables(self) -> dict[str, Any]:
        return self.variant.variables(self.target.environment)

    def _place(self, template: str | None) -> str | None:
        """A path of the target with `{user}` and `{home}` filled in from the facts."""
        return None if template is None else self.facts.filled(template)


def smoke_items(variant: Variant, target: Target) -> list[dict[str, Any]]:
    """The smoke list with the target's floors: on the item that has the metric, else on the one that measures it."""
    items = [item.to_json_dict() for item in variant.smoke]
    for metric, least in target.node_floors.items():
        holders = [item for item in items if metric in item.get("floors", {})]
        training = [item for item in items if item["name"] == "training" and metric.startswith("training_")]
        for item in holders or training or [item for item in items if item["name"] == "machine"]:
            item["floors"] = {**item.get("floors", {}), metric: least}
    return items


def uses_cuda(variant: Variant, facts: NodeFacts) -> bool:
    """Whether the smoke test uses GPUs: the node sees one, and the environment's torch is a CUDA build."""
    return variant.uses_cuda and health.health(facts).usable
