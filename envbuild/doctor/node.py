"""Reads the answer of the node verb `doctor`, for somebody who is new to a cluster. Pure.

Every line ends in a consequence: what works there, what does not, and which setting of a target follows.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from envbuild.catalog.indexes import DEFAULT_INDEX, load_indexes
from envbuild.doctor.controller import Diagnosis, Level
from envbuild.model.facts import DiskFacts, NodeFacts
from envbuild.model.target import Target, proxies
from envbuild.resolve.health import health
from envbuild.resolve.node_classes import gpu_fault
from envbuild.schedule.slurm import Partition, node_names, parse_partition
from envbuild.text import few, visible

# An environment with torch is some 6 GB and 60,000 files.
LEAST_BYTES = 10e9
LEAST_INODES = 100_000
# Where file systems are mounted: a folder that is missing there may be a mount that is missing.
_MOUNTS_IN = ("/", "/mnt", "/media")
_OTHER_PREFIX = "write another `prefix:` into the target"
NAMES = ("docker", "podman", "apptainer", "singularity", "enroot", "buildah")
_SHOWN = 6
NO_LOGIN = "if this is not the login node, name it: `connection: {kind: job, login: {host: ...}}`"
_PROGRAMS = {"slurm": "sinfo or sbatch", "pbs": "qstat", "none": "scheduler"}


def diagnose_node(facts: NodeFacts, site: Mapping[str, Any], target: Target) -> list[Diagnosis]:
    """The lines of one host. `site` as the node verb `doctor` gives it."""
    parts: tuple[Callable[[NodeFacts, Mapping[str, Any], Target], list[Diagnosis]], ...] = (
        _role, _scheduler, _gpus, _prefix, _temporary, _network, _containers, _modules, _conda,
    )  # fmt: skip
    return [line for part in parts for line in part(facts, site, target)]


def diagnose_without_python(findings: Mapping[str, str], target: Target) -> list[Diagnosis]:
    """The lines of a host without Python 3.6, from what sh alone found."""
    scheduler = findings.get("scheduler", "none")
    prefix, writable = findings.get("prefix", target.prefix), findings.get("prefix_writable") == "yes"
    unknown = "everything else could not be found out; `envbuild provision` brings one into the prefix"
    unusable = _line("prefix", "missing", f"{prefix}, not writable", "nothing can be built there", _OTHER_PREFIX)
    return [
        _line("python", "warning", "none of 3.6 or newer", unknown),
        _line("scheduler", "ok", scheduler, ""),
        _line("prefix", "ok", prefix, "") if writable else unusable,
    ]


def _line(name: str, level: Level, state: str, consequence: str, hint: str = "") -> Diagnosis:
    return Diagnosis(name, level, state, "", consequence, hint)


def _output(site: Mapping[str, Any], question: str) -> str:
    """What a program of the scheduler printed, empty when it failed."""
    answer = site["programs"].get(question) or {}
    return str(answer.get("out") or "") if answer.get("rc") == 0 else ""


# Login or compute


def is_compute(facts: NodeFacts, site: Mapping[str, Any]) -> bool:
    """Whether the scheduler gives this host to jobs, or this process is inside a job."""
    if facts.scheduler.job:
        return True
    names = {name for text in _output(site, "names").split() for name in node_names(text)}
    lines = [line.split() for line in _output(site, "nodes").splitlines()] if facts.scheduler.kind == "pbs" else []
    names |= {words[0] for words in lines if words}
    short = facts.hostname.partition(".")[0]
    return short in {name.partition(".")[0] for name in names}


def _role(facts: NodeFacts, site: Mapping[str, Any], target: Target) -> list[Diagnosis]:
    kind = facts.scheduler.kind
    shown = f"{facts.hostname}, {facts.os.id} {facts.os.version}"
    if kind == "none":
        return [_line("host", "ok", f"{shown}: no scheduler", "connection: local or ssh")]
    if job := facts.scheduler.job:
        return [_line("host", "ok", f"{shown}: inside job {job} of {kind}", "connection: local, in this job")]
    if is_compute(facts, site):
        return [_line("host", "ok", f"{shown}: a compute node of {kind}, outside a job", "connection: ssh works now")]
    if not _output(site, "nodes") and not _output(site, "queues"):
        # The line `scheduler` says that it does not answer, and why.
        jobs = target.connection.kind == "job"
        consequence = "whether it is a login node is unknown" if jobs else "connection: local or ssh"
        return [_line("host", "ok", f"{shown}: {kind} is installed here", consequence)]
    more = "" if facts.gpus else ", no GPU here"
    consequence = f"connection: job{more}: smoke tests and CUDA builds run in a job" if more else "connection: job"
    level: Level = "ok" if target.connection.kind == "job" else "warning"
    hint = "" if level == "ok" else f"extend `{kind}`: connection: {{kind: job}}, scheduler: {{kind: {kind}}}"
    return [_line("host", level, f"{shown}: a login node of {kind}", consequence, hint)]


# The scheduler, its rights and its GPUs


def _scheduler(facts: NodeFacts, site: Mapping[str, Any], target: Target) -> list[Diagnosis]:
    kind = facts.scheduler.kind
    if kind == "none":
        if target.connection.kind != "job":
            return []
        return [
            _line("scheduler", "missing", f"no {_PROGRAMS[target.scheduler.kind]}", "no job can be submitted from here",
                  NO_LOGIN)
        ]  # fmt: skip
    if target.connection.kind == "job" and kind != target.scheduler.kind:
        return [
            _line("scheduler", "missing", f"{kind} is here, and the target wants {target.scheduler.kind}",
                  "no job can be submitted", f"extend `{kind}`, or name a login node of that cluster")
        ]  # fmt: skip
    question = "queues" if kind == "pbs" else "nodes"
    if not _output(site, question):
        why = _last((site["programs"].get(question) or {}).get("err", "")) or "it said nothing"
        level: Level = "missing" if target.connection.kind == "job" else "warning"
        hint = "" if target.connection.login or level != "missing" else NO_LOGIN
        return [_line("scheduler", level, f"{kind} does not answer: {why}", "no job can be submitted now", hint)]
    if kind == "pbs":
        queues = [line.split()[0] for line in _output(site, "queues").splitlines()[2:] if line.split()]
        state = f"pbs {facts.scheduler.version or ''}, queues {_few(queues)}"
        return [_line("scheduler", "ok" if queues else "warning", state, "jobs can be submitted")]
    state = f"{facts.scheduler.version or 'slurm'}, partitions {_few(partition_names(site))}"
    lines = [_line("scheduler", "ok", state, "jobs can be submitted")]
    return lines + _rights(site, target)


def partition_names(site: Mapping[str, Any]) -> list[str]:
    """The partitions that `sinfo` shows, each once."""
    return list(dict.fromkeys(line.partition("|")[0] for line in _output(site, "nodes").splitlines() if "|" in line))


def _rights(site: Mapping[str, Any], target: Target) -> list[Diagnosis]:
    """May this user submit there: tried without submitting, and what accounting says."""
    tried = site["programs"].get("try")
    accounts = sorted({row["account"] for row in site.get("accounts") or () if row.get("account")})
    known = f"accounts {_few(accounts)}" if accounts else "no account is known"
    wanted = target.partition
    if tried is None or wanted is None:
        return [_line("rights", "ok", known, "name a partition to have a job tried: hosts: {slurm: PARTITION}")]
    if tried.get("rc") == 0:
        return [_line("rights", "ok", f"a job on {wanted} would be accepted; {known}", "provision can submit")]
    why = _last(tried.get("err", "")) or "it said nothing"
    others = [name for name in partition_names(site) if name != wanted]
    hint = f"account, partition and constraints are in the target file; partitions here: {_few([wanted, *others])}"
    if wanted not in partition_names(site):
        hint = f"partitions here: {_few(others)}"
    return [_line("rights", "missing", f"a job on {wanted} would be refused: {why}", "provision cannot submit", hint)]


def partition_of(site: Mapping[str, Any], name: str) -> Partition | None:
    """A partition from recorded answers of `sinfo` and `scontrol`; None if they lack it."""
    shown = next((line for line in _output(site, "partitions").splitlines() if f"PartitionName={name} " in line), "")
    nodes = "\n".join(line for line in _output(site, "nodes").splitlines() if line.partition("|")[0] == name)
    return parse_partition(name, shown, nodes, _output(site, "config"))


def gpu_line(facts: NodeFacts, *, exclusive: bool, elsewhere: bool = False) -> Diagnosis:
    """The GPUs of a host, what is wrong with them, and what helps; `elsewhere`: jobs run on other hosts."""
    names = sorted({gpu.name for gpu in facts.gpus})
    here = f"{len(facts.gpus)} × {', '.join(names)}" if names else "none on this host"
    if facts.gpus and facts.gpus_physical and len(facts.gpus) < facts.gpus_physical:
        here += f" of {facts.gpus_physical} in it"
    fault, helps = gpu_fault(facts, exclusive=exclusive)
    none = "it runs no jobs; their nodes may have GPUs" if elsewhere else "only CPU work runs on this host"
    so = f"driver {facts.driver.version}" if facts.driver.version else none
    if fault and not health(facts).usable:
        so = f"no CUDA program runs here; {so}"
    return _line("gpus", "warning" if fault else "ok", f"{here}; {fault}" if fault else here, so, helps)


def _gpus(facts: NodeFacts, site: Mapping[str, Any], target: Target) -> list[Diagnosis]:
    elsewhere = target.connection.kind == "job" and not is_compute(facts, site)
    lines = [gpu_line(facts, exclusive=target.scheduler.exclusive, elsewhere=elsewhere)]
    if facts.scheduler.kind == "slurm":
        wanted = [target.partition] if target.partition else partition_names(site)
        lines += [_asked_for(partition) for name in wanted[:_SHOWN] if name and (partition := partition_of(site, name))]
    return lines


def _asked_for(partition: Partition) -> Diagnosis:
    """How a job asks for GPUs on a partition."""
    name, gres = f"gpus in jobs of {partition.name}", partition.gres()
    if gres is None:
        return _line(name, "warning", "no GRES: Slurm knows of no GPUs there",
                     "whole nodes are asked for (--exclusive), and Slurm cannot say how many GPUs a node has",
                     "say it in the target: expects: {gpus_per_node: N}")  # fmt: skip
    types = ", ".join(f"{kind or key}: {count}" for (key, kind), count in partition.gpus.items())
    form = f"--gres=gpu:{gres.type + ':' if gres.type else ''}{partition.gpus_per_node or 'N'}"
    state = f"{types or 'not shown'} a node, {partition.nodes} nodes"
    if partition.hidden:
        state += f", {partition.hidden} of them powered down and not shown"
    return _line(name, "ok", state, f"asked for with {form}")


# Space, folders, network, containers, modules


def _prefix(facts: NodeFacts, site: Mapping[str, Any], target: Target) -> list[Diagnosis]:
    so = f"placement: {target.placement}"
    if target.connection.kind == "job" and target.placement == "shared" and not facts.scheduler.job:
        so += "; whether the nodes see this folder is not checked here: only a job tells"
    return [prefix_line(facts.prefix, site.get("prefix_in") or "", so, _OTHER_PREFIX)]


def prefix_line(disk: DiskFacts, inside: str, so: str = "", choose: str = "choose another `--prefix`") -> Diagnosis:
    """Whether an environment has room there and can run; `inside`: as `prefix_in` of the node has it."""
    state = f"{disk.path}, {disk.filesystem or 'unknown file system'}, {_room(disk)}"
    if disk.writable is False:
        return _line("prefix", "missing", f"{state}; {disk.reason}", "nothing can be built there", choose)
    if disk.noexec:
        return _line("prefix", "missing", f"{state}, noexec", "no program of an environment could run", choose)
    if inside in _MOUNTS_IN and disk.path != inside:
        top = posixpath.join(inside, PurePosixPath(disk.path).relative_to(inside).parts[0])
        return _line("prefix", "warning", f"{state}; there is no {top}", f"{top} would be a new folder below {inside}",
                     f"if {top} is a mount, mount it; else {choose}")  # fmt: skip
    short = [word for word, value, least in (("space", disk.free_bytes, LEAST_BYTES),
                                             ("inodes", disk.free_inodes, LEAST_INODES))
             if value is not None and value < least]  # fmt: skip
    if short:
        so = f"too little of {' and '.join(short)} for an environment with torch"
    return _line("prefix", "warning" if short else "ok", state, so)


def _room(disk: DiskFacts) -> str:
    room = "free space unknown" if disk.free_bytes is None else f"{disk.free_bytes / 1e9:.0f} GB free"
    room += "" if disk.free_inodes is None else f", {disk.free_inodes:,} inodes free"
    if disk.quota_bytes:
        room += f", quota {disk.quota_bytes / 1e9:.0f} GB"
    return room + (f", quota {disk.quota_inodes:,} inodes" if disk.quota_inodes else "")


def _temporary(facts: NodeFacts, site: Mapping[str, Any], target: Target) -> list[Diagnosis]:
    folders = [DiskFacts.model_validate(row) for row in site["temporary"]]
    usable = [disk for disk in folders if disk.writable and not disk.noexec]
    states = [f"{disk.path} ({_use(disk)})" for disk in folders]
    noexec = [disk.path for disk in folders if disk.noexec]
    so = f"builds use {usable[0].path}" if usable else "nothing can be compiled in a temporary folder"
    if target.tmp:
        lacks = _lacks(facts.tmp, site.get("tmp_in"))
        elsewhere = "; whether the nodes can use it is not checked here" if target.connection.kind == "job" else ""
        so = f"the target says tmp: {target.tmp}" + (f", and {lacks}{elsewhere}" if lacks else "")
        hint = "where a node lacks it, write another `tmp:` into the target, or `tmp: null`" if lacks else ""
        return [_line("temporary folders", "warning" if lacks else "ok", ", ".join(states), so, hint)]
    if noexec and usable:
        so = f"programs cannot run in {', '.join(noexec)}: say tmp: {usable[0].path}"
    bad = not usable or bool(noexec)
    hint = "" if usable else "`tmp:` in the target, a folder whose file system lets programs run"
    return [_line("temporary folders", "warning" if bad else "ok", ", ".join(states), so, hint)]


def _lacks(tmp: DiskFacts | None, inside: str | None) -> str:
    """Why this host cannot use the target's temporary folder as it is; `inside`: the nearest folder that is there."""
    if tmp is None or inside is None:
        return ""
    top = posixpath.dirname(tmp.path)
    if inside not in (tmp.path, top):
        return f"this host has no {top}"
    return "" if tmp.writable and not tmp.noexec else f"this host cannot use it: {tmp.reason or 'noexec'}"


def _use(disk: DiskFacts) -> str:
    """How much room a folder for temporary files has, or why a build cannot use it."""
    if not disk.writable:
        return "not writable"
    if disk.noexec:
        return "noexec"
    return "writable" if disk.free_bytes is None else f"{disk.free_bytes / 1e9:.0f} GB"


_BRING = (
    "a proxy, or a mirror in the configuration of pip or uv and git; or `envbuild bundle create STACK -o FILE` "
    "on a machine with a network and `envbuild provision --bundle FILE`; docs/offline.md"
)


def _network(facts: NodeFacts, site: Mapping[str, Any], target: Target) -> list[Diagnosis]:
    reached, missed = (", ".join(hosts) for hosts in _hosts(facts.reachable))
    through = ", ".join(f"{scheme} through {host}" for scheme, host in sorted(site["proxies"].items()))
    own = ", ".join(
        sorted({urlsplit(url).netloc.rpartition("@")[2] or url for url in proxies(target.environment).values()})
    )
    parts = [f"{how}: {hosts}" for how, hosts in (("reached", reached), ("not reached", missed)) if hosts]
    if DEFAULT_INDEX not in facts.reachable:
        parts.append("not asked: the default index, which the configuration here turns off")
    network = "; ".join(parts)
    network += f"; proxy: {through}" if through else "; no proxy set here"
    network += f"; the target sets the proxy {own}" if own else ""
    if not reached and facts.reachable:
        if target.connection.kind == "local":
            return [_line("network", "warning", network, "only caches, mirrors and bundles give files", _BRING)]
        return [_line("network", "warning", network, "this machine fetches and sends, where it can",
                      "take `delivery: node` out of the target" if target.delivery == "node" else _BRING)]  # fmt: skip
    jobs = "; nodes in jobs may have none: only a job tells" if target.connection.kind == "job" else ""
    but = f", but not what is on {missed}" if missed else ""
    so = f"this host can fetch for itself{but}{jobs}"
    return [_line("network", "warning" if missed else "ok", network, so, _BRING if missed else "")]


def _hosts(reachable: Mapping[str, bool]) -> tuple[list[str], list[str]]:
    """The hosts of indexes and repositories that were reached and those that were not; many indexes are one host."""
    indexes = load_indexes()
    hosts: dict[str, bool] = {}
    for name, good in reachable.items():
        url = indexes[name].url if name in indexes else name
        host = urlsplit(url).hostname or ("the default index" if name == DEFAULT_INDEX else name)
        hosts[host] = hosts.get(host, False) or good
    return sorted(host for host, good in hosts.items() if good), sorted(h for h, good in hosts.items() if not good)


def _containers(facts: NodeFacts, site: Mapping[str, Any], target: Target) -> list[Diagnosis]:
    spaces = site["user_namespaces"]
    works = bool(spaces.get("works"))
    why = _last(str(spaces.get("why") or ""))
    lines = [_line("user namespaces", "ok" if works else "warning", "yes" if works else f"no: {why}",
                   "rootless containers run" if works else "no rootless podman, buildah or enroot")]  # fmt: skip
    have = [name for name in NAMES if name in facts.containers]
    usable = [name for name in have if _runs(name, works=works, docker=bool(site.get("docker_socket")))]
    needed: Level = "missing" if target.engine == "container" else "ok"
    connection = f"connection: {target.connection.kind}"
    if not have:
        none = "no podman, docker, apptainer or enroot"
        return [*lines, _line("containers", needed, none, f"engine container: no: {none}; {connection}")]
    if not usable:
        state = f"{', '.join(have)}, and none that this user can run"
        return [*lines, _line("containers", needed, state, f"engine container: no: {state}; {connection}")]
    so = f"engine container: yes, with {usable[0]}; {connection}"
    if "podman" in usable and not site.get("subordinate_ids"):
        so += "; podman unpacks only images whose files have one owner: the user has no line in /etc/subuid"
    return [*lines, _line("containers", "ok", ", ".join(have), so)]


def _runs(name: str, *, works: bool, docker: bool) -> bool:
    # Apptainer may be installed setuid, which no user namespace is needed for.
    return docker if name == "docker" else works or name in ("apptainer", "singularity")


def _modules(facts: NodeFacts, site: Mapping[str, Any], target: Target) -> list[Diagnosis]:
    if facts.modules is None:
        bad = target.base == "module"
        return [_line("modules", "missing" if bad else "ok", "none", "base: module cannot be used")]
    if absent := ", ".join(site.get("modules_absent") or ()):
        hint = f"correct `modules:` of the target, if nodes have no {absent} either: `module avail` lists the names"
        return [_line("modules", "warning", f"{facts.modules}, without {absent}", "nodes may have it", hint)]
    return [_line("modules", "ok", facts.modules, "environments can be loaded with `module load`")]


def _conda(facts: NodeFacts, site: Mapping[str, Any], target: Target) -> list[Diagnosis]:
    """Whose conda is there; nothing where none is and nobody asks for one."""
    installed = site.get("conda") or ()
    if not installed:
        return [_line("conda", "ok", "none", "engine: conda works without")] if target.installer == "conda" else []
    whose = {facts.user: "yours", "root": "the site's"}
    state = ", ".join(f"{conda['path']} ({whose.get(conda['owner'], conda['owner'])})" for conda in installed)
    so = "engine: conda does not use it: locked packages are installed by py-rattler"
    anaconda = any(part in conda["path"] for conda in installed for part in ("/anaconda3/", "/miniconda3/"))
    if anaconda:
        so += "; the channel `defaults` of such an installation needs a licence in larger organisations"
    return [_line("conda", "ok", state, so)]


def _few(names: list[str]) -> str:
    return few(names, _SHOWN) or "none"


def _last(text: str) -> str:
    """The last line that is not empty, with control characters escaped."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    message = re.sub(r"\A\w+: (error: )?", "", lines[-1])[:300] if lines else ""
    return visible(message)
