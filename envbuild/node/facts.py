"""`probe`: read the facts of this node, in the shape of `model/facts.py`. A missing tool is a fact, never an error."""

import os
import sys
from collections.abc import Callable
from functools import partial

from envbuild.node import lease, paths, pip_config, proc, protocol, trust
from envbuild.node.probe import disks, gpus, inventory, system
from envbuild.node.probe import prefix as probe_prefix
from envbuild.node.protocol import Json, NodeError, argument, utc_time
from envbuild.node.read_text import search_path, which

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def run(request: Json) -> "tuple[bool, Json]":
    """Probe this node; `request` as in docs/dev/node-verbs.md. Changes nothing. Raises NodeError for a bad request."""
    args = request["args"]
    prefix = request["prefix"]
    folders = search_path()
    environments = _environments(args, prefix)
    in_use = any(environment["current"] and environment.get("checks") for environment in environments)
    if args.get("brief") or (args.get("unless_in_use") and in_use):
        # What shows that nothing has to be done: system, GPUs, prefix and environments; other programs are not asked.
        brief = _quick(args, prefix, folders, environments)
        brief.update(gpus.gpu_facts(folders), libc=system.libc_facts(folders), brief=True)
        return False, dict(brief, prefix=_prefix(prefix, {}), trees=_trees(args))
    from envbuild.node.probe import programs

    lists = ("files", "interpreters", "repositories", "system_packages")
    files, interpreters, repositories, packages = (argument(args, name, "a list of text", []) for name in lists)
    reach = dict(argument(args, "reach", "an object of text", {}))
    if pip_config.NORMAL_INDEX in reach:
        reach[pip_config.NORMAL_INDEX] = probe_prefix.configured_index(reach[pip_config.NORMAL_INDEX])
    modules = system.modules_system()
    asked: dict[str, Callable[[], Any]] = {
        "gpu": partial(gpus.gpu_facts, folders),
        "pythons": partial(programs.python_facts, folders, prefix, bool(args.get("base_packages")), interpreters),
        "compilers": partial(programs.compiler_facts, folders),
        "tools": partial(programs.tool_facts, folders, modules),
        "nvcc": partial(gpus.nvcc_facts, folders),
        "quota": partial(disks.quotas, folders),
        "scheduler": partial(system.scheduler_facts, folders),
        "libc": partial(system.libc_facts, folders),
        "reachable": partial(probe_prefix.reachable, reach, repositories),
        "trees": partial(_trees, args),
    }
    answers, warnings = _together(asked)
    quota = answers.pop("quota") or {}
    facts = _quick(args, prefix, folders, environments)
    facts["system_packages"] = system.debian_packages(packages)
    facts.update(modules=modules, files_found=probe_prefix.files_found(files), **(answers.pop("gpu") or {}))
    facts.update({name: answer for name, answer in answers.items() if answer is not None})
    facts["prefix"] = _prefix(prefix, quota)
    if args.get("tmp"):
        facts["tmp"] = disks.disk_facts(protocol.expand_prefix(str(args["tmp"])), quota)
    facts["warnings"] = warnings + _observations(facts)
    return False, facts


def _trees(args: Json) -> "dict[str, Json]":
    """The state of working trees: name -> absolute path in, name -> `TreeFacts` out."""
    places: dict[str, str] = argument(args, "trees", "an object of text", {})
    if not places:
        return {}
    from envbuild.node import git_source

    return {name: git_source.tree_state(place) for name, place in places.items()}


def _quick(args: Json, prefix: str, folders: "list[str]", environments: "list[Json]") -> Json:
    """Everything that starts no other program."""
    hostname = os.uname().nodename
    return {
        "protocol": protocol.PROTOCOL,
        "node": str(args.get("node") or hostname),
        "hostname": hostname,
        "user": protocol.user_name(),
        "home": os.path.expanduser("~"),
        "probed_at": utc_time(),
        "os": system.os_facts(),
        "libc": {},
        "product": system.product(),
        "cpu": system.cpu_facts(),
        "cpus": system.cpu_count(),
        "memory_bytes": system.memory_bytes(),
        "nics": system.nic_facts(),
        "modules": None,
        "containers": [name for name in system.CONTAINERS if which(name, folders)],
        "umask": "%04o" % paths.umask(),
        "limits": system.limit_facts(),
        "environments": environments,
        "toolchain": probe_prefix.toolchain_names(prefix),
        "files_found": {},
        "busy": lease.read(prefix),
    }


def _prefix(prefix: str, quota: "disks.Quotas") -> Json:
    fact = disks.disk_facts(prefix, quota)
    why = trust.prefix_problem(prefix)
    return dict(fact, writable=False, reason=fact["reason"] or why) if why else fact


def _environments(args: Json, prefix: str) -> "list[Json]":
    """Environments under the prefix; with `verify`, the fast checks of the one in use for `stack` (Python >= 3.8).

    With `published`: the one that every node gets for `stack`.
    """
    if trust.prefix_problem(prefix):
        return []  # what somebody else could have put there is neither read nor run
    if args.get("published"):
        from envbuild.node.env import published

        return published.facts(prefix, str(args.get("stack")))
    environments = inventory.facts(prefix)
    if not args.get("verify") or sys.version_info < (3, 8):
        return environments
    from envbuild.node.env import verify

    for environment in environments:
        if environment["current"] and environment["stamp"] and environment["stack"] == args.get("stack"):
            request = {"prefix": prefix, "args": {"stack": environment["stack"]}}
            try:
                environment["checks"] = verify.run(request)[1]["checks"]
            except NodeError as error:
                protocol.log(str(error))
    return environments


def _together(asked: "dict[str, Callable[[], Any]]") -> "tuple[Json, list[str]]":
    """Ask at once what starts other programs; a fact that could not be read is a warning that names it."""
    warnings: list[str] = []

    def guarded(name: str) -> "Any":
        try:
            return asked[name]()
        except Exception as error:  # noqa: BLE001 - one strange node must not cost all its other facts
            warnings.append("%s could not be read: %s: %s" % (name, type(error).__name__, str(error)[:200]))
            return None

    return proc.by_name({name: partial(guarded, name) for name in asked}), sorted(warnings)


def _observations(facts: Json) -> "list[str]":
    """What stands out and belongs to no fact of its own."""
    notes = []
    if facts["umask"][-1] in "0145":
        notes.append("umask %s lets everybody change new files" % facts["umask"])
    foreign = disks.foreign_owner(facts["prefix"]["path"])
    if foreign:
        notes.append(foreign)
    strange = inventory.strangers(facts["prefix"]["path"]) if facts["prefix"]["writable"] else []
    if strange:
        says = "%s has files that are not envbuild's (%s); they stay, but a new folder is easier to delete as a whole"
        notes.append(says % (facts["prefix"]["path"], protocol.few(strange)))
    half = sum(1 for environment in facts["environments"] if environment["stamp"] is None)
    if half:
        notes.append("%d environment(s) without a stamp under the prefix" % half)
    return notes
