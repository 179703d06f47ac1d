"""The nodes of a target: listed by whoever its file names, and narrowed; what of it is not supported.

Also what a target runs on this machine, and whether this user has allowed it: a target file is code on the controller.
Nobody is asked about a target that the user names. One that the current folder's project file names comes with the
folder, which may be a clone of anything: what it runs is shown and asked for once, and again when it changes.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from envbuild.catalog.loader import LoadedTarget, load_target, refuse_template
from envbuild.errors import EnvbuildError
from envbuild.hostlist import MAX_HOSTS, expand_hosts, fold_hosts
from envbuild.model.target import NODE_FILE, HostAddress, HostSource, Target
from envbuild.node import proc
from envbuild.node.proc import clean_env
from envbuild.node.protocol import NodeError, expand_prefix
from envbuild.node.variables import is_of_stacks
from envbuild.provision.run.context import Narrowing, Selection
from envbuild.regular_file import read_file, unreadable
from envbuild.text import last_lines, nearest, plural

# Cloud tools page through an interface; longer than this is one that waits for an answer.
COMMAND_DEADLINE = 30.0
# 20,000 names of 63 letters and their domains; more is no list of hosts.
COMMAND_LIMIT = 4 * 1024 * 1024


def reach(
    ref: str, overrides: Mapping[str, Any], narrowing: Narrowing, *, jobs: bool | Callable[[Target], bool] | None
) -> tuple[Target, Selection | None]:
    """Load a target whose nodes a verb will ask, and list them.

    `jobs` as for `refuse_unsupported`; None: nothing is refused, the verb says itself what works.
    Raises EnvbuildError as `load_target`, `refuse_unsupported` and `settle_hosts` do.
    """
    loaded = load_target(ref, overrides, template=True)
    if jobs is not None:
        through_jobs = jobs(loaded.target) if callable(jobs) else jobs
        refuse_unsupported(loaded.target, only_ask=True, jobs=through_jobs)
    refuse_template(loaded)
    return settle_hosts(loaded, narrowing)


def settle_hosts(loaded: LoadedTarget, narrowing: Narrowing) -> tuple[Target, Selection | None]:
    """The target with its hosts as plain names, and what `--limit` and `--exclude` made of them (None: all are meant).

    A target whose scheduler gives the nodes stays as it is. Raises EnvbuildError, exit 2: `hosts-file-missing`,
    `hosts-invalid`, `hosts-command-failed`, `hosts-none`, `hosts-invalid`, `hosts-too-many`, `host-invalid`,
    `host-unknown`, `option-does-not-fit`.
    """
    target = loaded.target
    if target.connection.kind == "job":
        if narrowing.options:
            raise EnvbuildError(
                "option-does-not-fit",
                f"{' and '.join(narrowing.options)} cannot choose among the nodes of {target.name}",
                why="the scheduler gives its jobs their nodes",
                hint="`scheduler: {nodes: N, constraints: FEATURE}` in the target file sets how many and which",
            )
        return target, None
    names, addresses = list_hosts(target.hosts, folder_of(loaded))
    chosen, selection = narrow(names, narrowing, f"the target {target.name}")
    hosts = {**addresses, **target.connection.hosts}
    connection = target.connection.model_copy(update={"hosts": {name: hosts[name] for name in chosen if name in hosts}})
    return target.model_copy(update={"hosts": tuple(chosen), "connection": connection}), selection


def folder_of(loaded: LoadedTarget) -> Path:
    """The folder of the file that names the hosts: relative paths in it are meant from there."""
    named = [Path(document.name) for document in loaded.documents if "hosts" in document.data]
    return (named[0] if named else loaded.path).absolute().parent


def list_hosts(hosts: Sequence[str] | HostSource, folder: Path) -> tuple[list[str], dict[str, HostAddress]]:
    """Names, each once and in order, and how those are reached that are not reached by their name.

    `folder` is what relative paths are relative to. Raises EnvbuildError as `settle_hosts` does.
    """
    addresses: dict[str, HostAddress] = {}
    if not isinstance(hosts, HostSource):
        names = expand_hosts(hosts)
    elif hosts.command is not None:
        names = _by_command(hosts.command, folder)
    elif hosts.inventory is not None:
        from envbuild.provision.ansible.inventory_hosts import read_inventory

        addresses = read_inventory(folder / Path(hosts.inventory).expanduser())
        names = list(addresses)
    elif hosts.pbs is not None:
        names = _by_node_file(hosts.pbs, folder)
    else:
        names = expand_hosts(hosts)  # who else can name hosts is refused there
    if not names:
        named = (
            ", ".join(f"{key}: {value}" for key, value in hosts.given.items()) if isinstance(hosts, HostSource) else ""
        )
        raise EnvbuildError(
            "hosts-none",
            "the target has no hosts",
            why=f"{named} names none" if named else "",
            hint="check where the target gets its hosts from",
        )
    if len(names) > MAX_HOSTS:
        raise EnvbuildError(
            "hosts-too-many", f"the target has {len(names)} hosts", why=f"at most {MAX_HOSTS} can be reached at once",
            hint="split the target",
        )  # fmt: skip
    return names, {name: address for name, address in addresses.items() if address != HostAddress()}


def _by_node_file(named: str, folder: Path) -> list[str]:
    """The hosts of a PBS job: those of its node file, or of the file that the target names; each once.

    Raises EnvbuildError `hosts-outside-job` and `hosts-file-missing` (exit 2).
    """
    path = Path(os.environ.get("PBS_NODEFILE", "")) if named == NODE_FILE else folder / Path(named).expanduser()
    if named == NODE_FILE and not os.environ.get("PBS_NODEFILE"):
        raise EnvbuildError(
            "hosts-outside-job",
            "the target's hosts come from a PBS job, and this shell is not in one",
            why="PBS_NODEFILE is not set",
            hint="run envbuild in a job (`qsub -I`), or let it submit one: `connection: {kind: job}`",
        )
    try:
        names = read_file(path).decode("utf-8", "replace").split()
    except OSError as error:
        raise EnvbuildError(
            "hosts-file-missing", f"the node file {path} cannot be read", why=error.strerror or str(error),
            hint="name another file: `hosts: {pbs: PATH}`",
        ) from error  # fmt: skip
    return expand_hosts(names)


def _by_command(command: Sequence[str], folder: Path) -> list[str]:
    """The hosts that a program prints: host lists, one or several a line, separated by spaces."""
    # A program of the target's own folder is found from there: `./my-hosts`.
    first = str(folder / command[0]) if "/" in command[0] else command[0]
    done = proc.run(
        [first, *command[1:]], timeout=COMMAND_DEADLINE, env=clean_env(), cwd=str(folder), limit=COMMAND_LIMIT
    )
    shown = shlex.join(command)
    why = ""
    if done.missing:
        why = "there is no such program, or it cannot be run"
    elif done.truncated:
        why = f"it prints more than {COMMAND_LIMIT >> 20} MiB"
    elif done.timed_out:
        why = f"it did not end within {COMMAND_DEADLINE:g} s"
    elif done.rc != 0:
        why = f"exit {done.rc}: {last_lines(done.err)}" if done.err.strip() else f"exit {done.rc}"
    if why:
        raise EnvbuildError(
            "hosts-command-failed", f"`{shown}` did not list the hosts", why=why,
            hint=f"run it by hand in {folder}; it must print host names and exit with 0",
        )  # fmt: skip
    try:
        return expand_hosts(done.out.split())
    except EnvbuildError as error:
        error.why = f"`{shown}` printed it; {error.why}"
        raise


def narrow(names: Sequence[str], narrowing: Narrowing, whose: str) -> tuple[list[str], Selection | None]:
    """Those of `names` that are meant, in their order. `whose` hosts these are, for people.

    Raises EnvbuildError `host-unknown` and `hosts-none` (exit 2), and as `expand_hosts` does.
    """
    if not narrowing.options:
        return list(names), None
    wanted = _known(narrowing.limit, names, "--limit", whose) if narrowing.limit else set(names)
    without = _known(narrowing.exclude, names, "--exclude", whose)
    chosen = [name for name in names if name in wanted and name not in without]
    if not chosen:
        raise EnvbuildError(
            "hosts-none",
            f"{' and '.join(narrowing.options)} leave no host",
            why=f"{whose} has {len(names)}",
            hint="name other hosts",
        )
    return chosen, Selection(len(chosen), len(names), narrowing.options)


def _known(lists: Sequence[str], names: Sequence[str], option: str, whose: str) -> set[str]:
    named, known = expand_hosts(lists), set(names)
    unknown = [name for name in named if name not in known]
    if unknown:
        near = nearest(unknown[0], names)
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        raise EnvbuildError(
            "host-unknown",
            f"`{option}` names {unknown[0]}{more}, which {'are' if more else 'is'} not of {whose}",
            why=f"its {plural(len(names), 'host')}: {fold_hosts(names)}",
            hint=f"did you mean `{near}`?" if near else "",
        )
    return set(named)


CODE = "not-yet-supported"


def unsupported(target: Target, *, only_ask: bool = False, jobs: bool = True) -> dict[str, str]:
    """What of a target envbuild can plan for but not carry out, each with the setting that it can.

    `only_ask`: nodes are asked and not changed, so only how they are reached matters. `jobs`: the verb can work through
    jobs.
    """
    job = target.connection.kind == "job"
    missing = {}
    if job and not jobs:
        missing[f"connection: job (a job of {target.scheduler.kind})"] = "connection: {kind: ssh}"
    elif job and target.base == "image":
        missing["connection: job with base: image"] = "base: none"
    # The node file of PBS is there inside a job; a partition of Slurm is no list of nodes that take SSH.
    if isinstance(target.hosts, HostSource) and target.hosts.slurm and not (job and jobs):
        named = f"hosts named by slurm: {target.hosts.slurm}"
        missing[named] = "hosts: [...]" if job else "connection: {kind: job, login: {host: …}}"
    if only_ask:
        return missing
    if target.privilege == "sudo":
        missing["privilege: sudo (envbuild installs no system packages)"] = "privilege: none"
    runtime = target.container.runtime if target.container is not None else "auto"
    if target.engine == "container" and runtime == "pyxis" and not (job and target.scheduler.kind == "slurm"):
        missing["container: {runtime: pyxis} without jobs of Slurm"] = "container: {runtime: enroot}"
    return missing


def refuse_unsupported(target: Target, *, only_ask: bool = False, jobs: bool = False) -> None:
    """Raises EnvbuildError `not-yet-supported` (exit 7) for a target that `unsupported` says something of."""
    missing = unsupported(target, only_ask=only_ask, jobs=jobs)
    if missing:
        raise EnvbuildError(
            CODE,
            f"the target {target.name} asks for what envbuild does not support yet",
            why="; ".join(missing),
            hint=f"`envbuild plan --target {target.name} --facts FILE` shows from recorded facts what would be built; "
            f"what works today, in a file that extends it: {', '.join(f'`{setting}`' for setting in missing.values())}",
            details={"missing": list(missing)},
        )


class Question(NamedTuple):
    """`runs`: a line for each thing that the target runs here; `lets`: for what other programs are made to do by it.

    `digest`: sha256 (hex) of what decides all this.
    """

    target: Path
    runs: tuple[str, ...]
    lets: tuple[str, ...]
    digest: str


def trust_question(loaded: LoadedTarget, brought: str = "") -> Question | None:
    """What to ask about a target; None where it runs nothing of its own. `brought`: as `brought_prefix` has it."""
    runs, lets = (*filter(None, [brought]), *_runs(loaded)), tuple(_lets(loaded))
    return Question(loaded.path, runs, lets, _digest(loaded, (*runs, *lets))) if runs or lets else None


def brought_prefix(target: Target, prefix: str, project: Path) -> str:
    """What to say of a prefix on this machine that came with the folder of the project file; empty for any other."""
    try:
        place = Path(expand_prefix(prefix)).resolve()
    except NodeError:  # the node says so
        return ""
    there = any((place / name).exists() for name in ("tools", "envs", "current"))
    came = target.connection.kind == "local" and place.is_relative_to(project.parent.resolve()) and there
    return f"runs the programs that lie in {place}" if came else ""


def _runs(loaded: LoadedTarget) -> Iterator[str]:
    target = loaded.target
    if isinstance(target.hosts, HostSource) and target.hosts.command is not None:
        yield f"runs `{shlex.join(target.hosts.command)}` to list the hosts"
    if target.connection.config is not None:
        yield f"lets ssh read {target.connection.config}, whose ProxyCommand and Match exec run programs"
    for interpreter in filter(None, (target.interpreter, target.base_python)):
        yield f"runs the interpreter {interpreter}"


def _lets(loaded: LoadedTarget) -> Iterator[str]:
    target = loaded.target
    if target.container is not None and (target.container.options or target.container.mounts):
        yield f"starts containers with {shlex.join([*target.container.options, *target.container.mounts])}"
    if target.container is not None and target.container.gitconfig is not None:
        yield f"lets git read {target.container.gitconfig}"
    names = sorted(name for name in target.environment if not is_of_stacks(name))
    if names:
        yield f"sets {', '.join(names)} in your shell"


def _digest(loaded: LoadedTarget, runs: tuple[str, ...]) -> str:
    """The files of the target, where they lie, and every file that it names and that is there.

    Raises EnvbuildError `file-unreadable` (exit 2).
    """
    target, folder = loaded.target, folder_of(loaded)
    words = list(target.hosts.command or ()) if isinstance(target.hosts, HostSource) else []
    gitconfig = target.container.gitconfig if target.container else None
    words += filter(None, (target.connection.config, target.interpreter, target.base_python, gitconfig))
    named = [folder / Path(word).expanduser() for word in words if not word.startswith("-")]
    made = hashlib.sha256("\0".join(runs).encode())
    for path in (*loaded.files, *named):
        if path.is_file():
            made.update(f"\0{path.resolve()}\0".encode("utf-8", "surrogateescape"))
            try:
                made.update(hashlib.sha256(read_file(path)).digest())
            except OSError as error:
                raise unreadable(path, error) from error
    return made.hexdigest()


def is_trusted(asked: Question) -> bool:
    """Whether this user has said yes to exactly this before."""
    try:
        return asked.digest.encode() in read_file(_record()).split()
    except (OSError, ValueError):
        return False


def trust(asked: Question) -> None:
    """Remember the yes of this user, by content. Raises OSError."""
    path = _record()
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "w", encoding="ascii") as stream:
        stream.write(f"{asked.digest}\n")


def untrusted(asked: Question, project: Path) -> EnvbuildError:
    """`target-untrusted` (exit 7): nobody has allowed what the target runs."""
    return EnvbuildError(
        "target-untrusted",
        f"{asked.target} runs a program on this machine that you have not allowed",
        why=f"{project} names this target, which {'; '.join((*asked.runs, *asked.lets))}",
        hint=f"read {asked.target}, then add `--trust`; on a terminal envbuild asks, and remembers your answer",
    )


def _record() -> Path:
    import platformdirs

    return platformdirs.user_state_path("envbuild") / "allowed-targets"
