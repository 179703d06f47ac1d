"""`doctor`: what somebody new to a cluster has to know of this host, in one answer. Nothing is changed or submitted."""

import os
from collections.abc import Callable
from functools import partial

from envbuild.node import facts, paths, pip_config, proc, protocol
from envbuild.node.probe import disks, prefix
from envbuild.node.protocol import Json, NodeError
from envbuild.node.read_text import read, search_path, which

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# A scheduler that is busy answers late; all questions together have to fit in half a minute.
DEADLINE = 12.0
# A cluster of thousands of nodes prints some hundred kilobytes.
LIMIT = 1024 * 1024
CONDA_HOMES = ("conda", "miniconda3", "anaconda3", "miniforge3", "mambaforge")
TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - looked at, not used
# `%R|%D|%T|%G` is what `schedule/slurm.py` reads.
_SLURM = {
    "nodes": ["sinfo", "-h", "-o", "%R|%D|%T|%G"],
    "names": ["sinfo", "-h", "-N", "-o", "%N"],
    "partitions": ["scontrol", "show", "partition", "--oneliner"],
    "config": ["scontrol", "show", "config"],
}
# Old versions have no `is-avail`, and list on stderr. One module may lead to the next, so each is loaded in this shell.
_ABSENT = """
command -v module >/dev/null || exit 0
while [ "$1" != -- ]; do module use "$1"; shift; done >/dev/null 2>&1
shift
for name; do
    module is-avail "$name" >/dev/null 2>&1 || module -t avail "$name" 2>&1 | awk -v name="$name/" '
        { sub(/[(].*/, ""); found += index($0 "/", name) == 1 } END { exit !found }' || echo "absent $name"
    module load "$name" >/dev/null 2>&1
done
"""
_PBS = {"queues": ["qstat", "-Q"], "nodes": ["pbsnodes", "-a", "-S"]}


def run(request: Json) -> "tuple[bool, Json]":
    """`args`: those of `probe`, `submit` (arguments of sbatch for a job that is only tried, list; none: no try), and
    `modules` (names that jobs load, list) with `modules_in` (folders of modulefiles, list).

    The result is `facts` (as `probe` gives them) and `site`. Raises NodeError for a bad request.
    """
    submit = protocol.argument(request["args"], "submit", "a list of text", None)
    modules = [protocol.argument(request["args"], name, "a list of text", []) for name in ("modules", "modules_in")]
    folders = search_path()
    questions: list[Callable[[], Any]] = [
        partial(facts.run, request),
        partial(_scheduler, folders, submit),
        partial(_user_namespaces, folders),
        partial(_accounts, folders),
        partial(_modules_absent, *modules),
    ]
    answers = proc.parallel(questions)
    if answers[0] is None:
        facts.run(request)  # once more, for its error
        raise NodeError("probe-failed", "the facts of this host could not be read")
    if not prefix.configured_index(pip_config.NORMAL_INDEX):  # its configuration turns the index off: nothing to reach
        answers[0][1].get("reachable", {}).pop(pip_config.NORMAL_INDEX, None)
    tmp = answers[0][1].get("tmp")
    # Whether rootless podman and buildah may map more than one user id.
    names = (protocol.user_name(), str(os.getuid()))
    site: Json = {
        "programs": answers[1] or {},
        "user_namespaces": answers[2] or {"works": False, "why": "not found out"},
        "accounts": answers[3],
        "modules_absent": answers[4] or [],
        "groups": _groups(),
        "proxies": _proxies(),
        "prefix_in": prefix_in(answers[0][1]["prefix"]["path"]),
        "tmp_in": paths.existing_parent(tmp["path"]) if tmp else None,
        "temporary": [disks.disk_facts(path, {}) for path in _temporary()],
        "docker_socket": os.access("/var/run/docker.sock", os.R_OK | os.W_OK),
        "subordinate_ids": any(line.split(":")[0] in names for line in read("/etc/subuid").splitlines()),
        "conda": _conda(folders),
    }
    return False, {"facts": answers[0][1], "site": site}


def prefix_in(path: str) -> str:
    """The nearest folder that exists; empty where it is a mount.

    A mount has folders of its own; below another folder a mount may be missing.
    """
    parent = paths.existing_parent(path)
    return "" if parent != "/" and os.path.ismount(parent) else parent


def _scheduler(folders: "list[str]", submit: "list[str] | None") -> "dict[str, Json]":
    """What the scheduler's programs say, by question; empty where there are none."""
    if which("sinfo", folders) or which("sbatch", folders):
        questions = dict(_SLURM)
        if submit is not None:
            # `--test-only` asks for a place and submits nothing.
            questions["try"] = ["sbatch", "--test-only", *submit]
    elif which("qstat", folders):
        questions = dict(_PBS)
    else:
        return {}
    answers = proc.by_name({name: partial(_ask, folders, command) for name, command in questions.items()})
    return {name: answer for name, answer in answers.items() if answer}


def _ask(folders: "list[str]", command: "list[str]") -> Json:
    tool = which(command[0], folders)
    if tool is None:
        return {"rc": None, "out": "", "err": "there is no %s" % command[0]}
    script = b"#!/bin/sh\ntrue\n" if command[0] == "sbatch" else None
    done = proc.run([tool] + command[1:], timeout=DEADLINE, stdin=script, limit=LIMIT)
    err = "no answer within %d s" % DEADLINE if done.timed_out else done.err[-2000:]
    return {"rc": done.rc, "out": done.out, "err": err}


def _accounts(folders: "list[str]") -> "list[dict[str, str]] | None":
    """Account, partition and QOS that this user may use, as accounting says; None where there is none."""
    tool = which("sacctmgr", folders)
    if tool is None:
        return None
    columns = ("account", "partition", "qos")
    argv = [tool, "-n", "-P", "show", "assoc", "user=" + protocol.user_name(), "format=" + ",".join(columns)]
    done = proc.run(argv, timeout=DEADLINE, limit=LIMIT)
    if not done.ok:
        return None
    rows = [line.split("|") for line in done.out.splitlines() if line.count("|") == len(columns) - 1]
    return [dict(zip(columns, row)) for row in rows]  # noqa: B905 - of Python 3.10


def _modules_absent(names: "list[str]", folders: "list[str]") -> "list[str]":
    """Those of the modules that a login shell of this host does not have; empty where it has no `module` to ask."""
    if not names:
        return []
    done = proc.run(["bash", "-l", "-c", _ABSENT, "modules", *folders, "--", *names], timeout=DEADLINE, limit=LIMIT)
    absent = {line.partition(" ")[2] for line in done.out.splitlines() if line.startswith("absent ")}
    return [name for name in names if name in absent]


def _user_namespaces(folders: "list[str]") -> Json:
    """Whether this user can make one: tried, because distributions forbid it in four different places."""
    tool = which("unshare", folders)
    if tool is None:
        most = read("/proc/sys/user/max_user_namespaces")
        allowed = bool(most) and most.strip() != "0"
        return {"works": allowed, "why": "there is no `unshare` to try it; the kernel's limit is %s" % most.strip()}
    done = proc.run([tool, "--user", "--map-root-user", "true"], timeout=5.0)
    return {"works": done.ok, "why": "" if done.ok else (done.err.strip().splitlines() or ["exit %s" % done.rc])[-1]}


def _groups() -> "list[str]":
    import grp

    groups = []
    for number in os.getgroups():
        try:
            groups.append(grp.getgrgid(number).gr_name)
        except KeyError:
            groups.append(str(number))
    return groups


def _proxies() -> "dict[str, str]":
    """Scheme -> host and port of the proxy; who logs in there is nobody's business."""
    from urllib.parse import urlsplit
    from urllib.request import getproxies

    proxies = {}
    for scheme, address in getproxies().items():
        if scheme == "no":
            continue
        try:
            parts = urlsplit(address if "://" in address else "http://" + address)
            proxies[scheme] = "%s%s" % (parts.hostname or "?", ":%d" % parts.port if parts.port else "")
        except ValueError:
            proxies[scheme] = "?"
    return proxies


def _temporary() -> "list[str]":
    own = os.environ.get("TMPDIR", "")
    named = ([os.path.abspath(own)] if own.startswith("/") else []) + list(TEMPORARY)
    return [path for path in dict.fromkeys(named) if os.path.isdir(path)]


def _conda(folders: "list[str]") -> "list[dict[str, str]]":
    """The conda, mamba and micromamba that are there: `program`, `path` and `owner` of the file."""
    home = os.path.expanduser("~")
    homes = [os.path.join(top, name, "bin") for top in (home, "/opt") for name in CONDA_HOMES]
    named = [os.path.dirname(os.environ.get(name, "")) for name in ("CONDA_EXE", "MAMBA_EXE")]
    programs = []
    for program in ("conda", "mamba", "micromamba"):
        path = which(program, folders + [folder for folder in named if folder] + homes)
        if path is not None:
            programs.append({"program": program, "path": path, "owner": protocol.user_name(os.stat(path).st_uid)})
    return programs
