"""The first target file of a user, for `envbuild init`: from answers, or from recorded facts of its nodes."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from pydantic import TypeAdapter, ValidationError

from envbuild.catalog import target_file
from envbuild.catalog.loader import (
    LoadedStack,
    is_path,
    is_template,
    list_targets,
    load_stack,
    load_target,
    placeholders,
)
from envbuild.catalog.node_facts import load_facts, of_example
from envbuild.catalog.target_file import KINDS, LISTED_HOST, LISTED_NAME, Answers
from envbuild.cli import begin
from envbuild.cli.catalog_cmd import fit, several_models, unknown_gpu, valid_target
from envbuild.cli.choose import Count
from envbuild.cli.output import Ui
from envbuild.config import load_config
from envbuild.errors import EnvbuildError
from envbuild.explain.view import Candidates
from envbuild.lock.agreement import choose_profile
from envbuild.model.common import Name, first_mistake, refusal_of
from envbuild.model.doubts import doubts
from envbuild.model.facts import NodeFacts
from envbuild.model.target import (
    Duration,
    Host,
    Login,
    ModuleName,
    Partition,
    PrefixTemplate,
    Requested,
    Target,
    module_names,
    proxies,
)
from envbuild.node.probe.gpus import gpu_facts
from envbuild.node.protocol import NodeError, expand_prefix
from envbuild.node.read_text import search_path
from envbuild.node.trust import home_problem
from envbuild.provision.survey.ask import rules
from envbuild.resolve.compat import rows_like
from envbuild.schedule.pbs import parse_queues
from envbuild.schedule.slurm import parse_gres
from envbuild.text import few

_NO_NAME = re.compile(r"\A[0-9]+[smhd]?\Z")  # a number or a time: the answer to another question
_HOSTS = {"ssh": "Hosts, as gpu[01-04]", "slurm": "Slurm partition", "pbs": "PBS queue"}


def first_target(ui: Ui, file: Path, facts: str | None, extends: str | None, stack: str | None, *, yes: bool) -> None:
    """Write a first target file with comments, from thirteen answers at most, or from recorded facts of its nodes.

    `extends`: the shipped target that is like it; `stack`: what is built there; `yes`: take defaults, ask nothing.
    """
    if file.suffix not in (".yaml", ".yml"):
        raise click.UsageError(f"a target file ends in .yaml or .yml: write `{file}.yaml`")
    base = load_target(extends, template=True).target if extends else None
    if stack:
        _stack_beside(file, stack)  # a wrong name is refused before any question
    nodes = load_facts(facts) if facts else {}
    if file.exists():
        raise _unwritable(
            file, "a file of that name is there", "edit it, remove it, or name another: envbuild replaces none"
        )
    if not nodes and not yes:
        ui.note("an empty answer takes what stands in brackets; `?` explains a question")
    answers = _of_facts(nodes, base, stack) if nodes else _asked(file, base, stack, yes=yes)
    extended = load_target(answers.extends or answers.kind, template=True).target
    if answers.kind in ("slurm", "pbs") and not answers.nodes and extended.scheduler.nodes is None:
        answers = replace(answers, nodes=1)  # a job without a number takes every node
    if facts and (example := of_example(facts, nodes, extended)):
        ui.note(example)
    answers = _with_profile(ui, answers, file, nodes)
    name = re.sub(r"[^a-z0-9._-]+", "-", file.stem.lower()).strip("-.") or "mine"
    usual = load_target(answers.kind, template=True).target
    values, template = (
        item.model_dump(mode="json", by_alias=True, exclude_defaults=True) for item in (extended, usual)
    )
    text, kept = target_file.text(name, answers, values, template)
    try:
        with file.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        raise _unwritable(file, error.strerror or str(error), "name a file in a folder that you can write") from None
    if several := several_models(answers.gpu, extended.expects.gpu or ""):
        ui.note(f"expects.gpu: {several}")
    try:
        made, _ = valid_target(str(file))
    except EnvbuildError:
        file.unlink()
        raise
    _comment(ui, file, made, extended.name, kept)
    elsewhere = made.connection.kind == "job" and made.connection.login is None and not begin.scheduler_here()
    following = f"next{', on the login node' if elsewhere else ''}: envbuild doctor --target {file}"
    message = f"wrote {file}\n{f'next: edit {file}' if is_template(made) else following}"
    ui.result({"path": str(file), "target": made.to_json_dict()}, lambda: message)


def _comment(ui: Ui, file: Path, made: Target, base: str, kept: Sequence[str]) -> None:
    """What to know of a target file that was just written; `kept`: keys that it has from `base`, not asked."""
    if kept:
        # Some of `expects` was asked.
        names = [key if key.startswith("expects.") else key.partition(".")[0] for key in kept]
        keys = few([f"`{key}`" for key in dict.fromkeys(names)], 8)
        ui.note(f"not asked, and as in {base}: {keys}; the end of {file} shows the values")
    for doubt in doubts(made):
        ui.warn(doubt)
    if made.connection.kind == "job" and not proxies(made.environment):
        ui.note("if nodes reach the internet only through a proxy, add `environment: {https_proxy: URL}` to the file")
    if is_template(made):
        open_fields = few([f"`{'.'.join(path)}`" for path, _ in placeholders(made)])
        ui.note(f"{file} is still a template: add {open_fields} to it; `envbuild target check {file}` says how")


def _unwritable(file: Path, why: str, hint: str) -> EnvbuildError:
    return EnvbuildError("output-unwritable", f"{file} was not written", why=why, hint=hint)


def _of_facts(nodes: Mapping[str, NodeFacts], base: Target | None, stack: str | None) -> Answers:
    """What facts of nodes say, of a target like `base`."""
    observed = target_file.of_facts(nodes)
    if base is None:
        return replace(observed, stack=stack or _stack_of(observed.kind))
    own = observed.prefix if _kind_of(base) == "local" else ""  # of a cluster, the prefix that its nodes share is known
    return replace(observed, extends=base.name, kind=_kind_of(base), stack=stack or "", prefix=own)


def _asked(file: Path, base: Target | None, stack: str | None, *, yes: bool) -> Answers:
    """Answers at the terminal, or one a line on standard input; an empty line takes what stands in brackets.

    `yes` takes all of these and asks nothing.
    """
    question = ""

    def ask(key: str, text: str, default: Any = "", kind: Any = str) -> Any:
        nonlocal question
        question = text if default is not None else f"{text} (required)"
        if yes:
            return "" if default is None else default
        return _prompted(key, question, default, kind)

    try:
        if base is None:
            names = click.Choice(list(dict.fromkeys([*KINDS, *list_targets()])))
            closest = ask("extends", "Which shipped target is closest", begin.scheduler_here().lower() or "ssh", names)
            base = load_target(closest, template=True).target
        kind, usual = _kind_of(base), "" if is_template(base) else base.partition or ""
        # An empty answer is asked again where the target has none of its own.
        required = {".".join(path) for path, _ in placeholders(base)}
        there = _OFFERED[kind]() if kind in _OFFERED and kind == begin.scheduler_here().lower() else {}
        text = "Which stack is built there (a name of `envbuild stack list`, or a file)"
        stack = stack or ask("stack", text, _stack_of(base.name), lambda text: _stack(file, text))
        loaded = _stack_beside(file, stack)
        taken = usual if usual in there else next(iter(there), usual)
        first = taken or (None if required & {"hosts", "scheduler.queue"} else "")
        offered = f" ({few(list(there), 8)})" if len(there) > 1 else ""
        key, of_hosts = {
            "ssh": ("hosts", _each(Host, re.compile(LISTED_HOST).findall)),
            "slurm": ("HostSource.slurm", _each(Partition)),
            "pbs": ("Scheduler.queue", _each(Requested)),
        }.get(kind, ("", str))
        hosts = ask(key, f"{_HOSTS[kind]}{offered}", first, of_hosts) if key else ""
        job = kind in ("slurm", "pbs")
        text = "Login node to reach over SSH (empty: you will type envbuild on it)"
        user, _, login = ask("Connection.login", text, "", _login).rpartition("@") if job else ("", "", "")
        if not user and (kind == "ssh" or login):
            user = ask("Connection.user", "Login name there (empty: as ssh says)", "", _user)
        of_job = _asked_of_jobs(ask, base, required, loaded) if job else {}
        where = "{home}/envbuild" if job else "{data}/envbuild"
        usual = where if is_template(base) or base.name == "local" else base.prefix
        theirs = " ({home}: your home there)" if "{home}" in usual else ""
        text = f"Folder for environments{f', which all nodes share{theirs}' if job else ''}"
        prefix = ask("prefix", text, usual, _prefix)
        model, count = there.get(hosts, ("", 0)) if job else _gpus_here() if kind == "local" else ("", 0)
        usual = model or base.expects.gpu or ""
        text = f"GPU model, which chooses the profile{'' if usual else ', as A100-SXM4-80GB (empty: any)'}"
        gpu = ask("Expectation.gpu", text, usual, lambda text: _model(text, usual))
        if gpu or job:
            text = "GPUs of a node (empty: `bench` and `launch` need it)"
            count = ask("Expectation.gpus_per_node", text, count or base.expects.gpus_per_node or 0, Count(0, 64))
    except click.Abort:
        if sys.stdin.isatty():
            raise
        raise click.UsageError(
            f"the answers on standard input ended at: {question}; `--yes` takes the defaults, `--facts` asks nothing"
        ) from None
    return Answers(
        kind,
        extends=base.name,
        stack=stack,
        hosts=hosts,
        user=user or (None if base.connection.user and kind == "ssh" else ""),
        login=login,
        **of_job,
        prefix=prefix,
        gpu=gpu.removeprefix("NVIDIA "),
        gpus_per_node=count,
    )


def _asked_of_jobs(ask: Callable[..., Any], base: Target, required: Set[str], loaded: LoadedStack) -> dict[str, Any]:
    """Answers on what a job requests."""
    must, usual = "scheduler.account" in required, base.scheduler
    text = f"Account that jobs are charged to{'' if must else ' (empty: none)'}"
    answers = {"account": ask("Scheduler.account", text, None if must else "", _each(Requested))}
    text = f"Nodes of a job{_published(loaded)}"
    answers["nodes"] = ask("Scheduler.nodes", text, usual.nodes or 1, Count(1, 20000))
    text = f"Longest time of a job, as 2h{'' if usual.time_limit else ' (empty: 30 minutes or more, estimated)'}"
    answers["time_limit"] = ask("Scheduler.time_limit", text, usual.time_limit or "", _each(Duration))
    if usual.kind == "pbs":
        text = "File systems that a job names, as home,eagle (empty: none)"
        names_of_jobs = _each(Name, re.compile(LISTED_NAME).findall)
        answers["filesystems"] = ask("Scheduler.filesystems", text, ",".join(usual.filesystems), names_of_jobs)
    if usual.modules is None:
        answers["modules"] = ask(
            "Modules.load", "Modules that a job loads, as cuda/11.6 (empty: none)", "", _each(ModuleName, module_names)
        )
    return answers


def _prompted(key: str, question: str, default: Any, kind: Any) -> Any:
    """The answer to one question, `?` with what its key means; None as default asks again until there is one."""

    def read(text: Any) -> Any:
        typed = str(text).strip()
        if typed == "?":
            return typed
        if default is None and not typed:
            raise click.BadParameter("may not be empty: type a guess, and correct it in the file")
        return click.types.convert_type(kind)(text)

    answer = "?"
    while answer == "?":
        usual = "" if default is None else default
        answer = click.prompt(question, usual, type=kind, value_proc=read, err=True, show_default=usual not in ("", 0))
        if not sys.stdin.isatty():
            click.echo(err=True)  # nobody typed the end of the line
        if answer == "?":
            from envbuild.cli.help_code import key_meaning

            click.echo(key_meaning(key), err=True)
    return answer


def _stack_beside(file: Path, stack: str) -> LoadedStack:
    """The stack of a name, or of a path from the folder of `file`."""
    return load_stack(str(file.parent / Path(stack).expanduser()) if is_path(stack) else stack)


def _stack(file: Path, text: str) -> str:
    """An answer that is a stack. Raises click.BadParameter, and the question is asked again."""
    try:
        _stack_beside(file, text.strip())
    except EnvbuildError as error:
        raise click.BadParameter("; ".join(filter(None, (error.what, error.hint)))) from None
    return text.strip()


def _published(loaded: LoadedStack) -> str:
    """That one is enough to build, and the machines of the figure that `bench` compares with; empty without one."""
    reference = loaded.stack.reference
    named = reference.bench.figure if reference and reference.bench else None
    where = next((figure.where for figure in reference.figures if figure.name == named), "") if reference else ""
    return f" (one is enough to build; the published figure is of {where})" if where else ""


def _each(kind: Any, parts: Callable[[str], Iterable[str]] = lambda text: [text]) -> Callable[[str], str]:
    """For answers of values of a target, or none. Raises click.BadParameter, and the question is asked again."""

    def read(text: str) -> str:
        answer = text.strip()
        for part in parts(answer) if answer else ():
            _of_type(kind, part)
        return answer

    return read


def _login(text: str) -> str:
    """An answer that is a host, `user@host` or empty. Raises click.BadParameter, and the question is asked again."""
    user, at, host = text.strip().rpartition("@")
    if host.lower() in ("y", "yes", "n", "no", "none") or _NO_NAME.fullmatch(host):
        raise click.BadParameter(f"{text!r} is no host: type its name, or nothing for this machine")
    try:
        if text.strip():
            Login(host=host, user=user if at else None)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no host, as login1 or me@login1") from None
    return text.strip()


def _user(text: str) -> str:
    """An answer that is a login name, or empty. Raises click.BadParameter, and the question is asked again."""
    user = text.strip()
    try:
        if user:
            Login(host="host", user=user)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no login name") from None
    if _NO_NAME.fullmatch(user):
        raise click.BadParameter(f"{text!r} is no login name")
    return user


def _model(text: str, usual: str) -> str:
    """An answer that is `usual`, empty or one known GPU. Raises click.BadParameter, and the question is asked again."""
    if text not in ("", usual) and (problem := unknown_gpu(text) or several_models(text, usual)):
        empty = f"an empty answer takes {usual}" if usual else "without yours, leave it empty"
        raise click.BadParameter(f"{problem}; {empty}")
    return text


def _prefix(text: str) -> str:
    """An answer that is a prefix. Raises click.BadParameter, and the question is asked again."""
    prefix = text.strip()
    _of_type(PrefixTemplate, prefix)
    with contextlib.suppress(NodeError):  # a prefix of the node alone, which the node judges
        if why := home_problem(expand_prefix(prefix)):
            raise click.BadParameter(why)
    return prefix


def _of_type(kind: Any, text: str) -> None:
    """Check an answer as a value of a target. Raises click.BadParameter with what to write where that is known."""
    try:
        TypeAdapter(kind).validate_python(text)
    except ValidationError as error:
        instead = refusal_of(error.errors()[0]).instead.strip('"')
        says = first_mistake(error).removeprefix("Value error, ")
        raise click.BadParameter(f"{says}; write {instead}" if instead else says) from None


def _kind_of(target: Target) -> str:
    """How its nodes are reached, as the kinds of target files have it."""
    return target.scheduler.kind if target.connection.kind == "job" else target.connection.kind


def _stack_of(target: str) -> str:
    """The stack of the configuration, else that of a shipped target."""
    return load_config().stack or load_target(target, template=True).target.stack or "torch-smoke"


def partitions() -> dict[str, tuple[str, int]]:
    """The partitions of the Slurm that is here, the default one first: model and number of a node's GPUs.

    The model is empty where Slurm's name of it is none that we know.
    """
    shown = _shown("sinfo", "-h", "-o", "%P|%G")
    best_of: dict[str, tuple[str, int]] = {}
    for line in sorted(shown.splitlines(), key=lambda line: not line.partition("|")[0].endswith("*")):
        name, _, gres = line.partition("|")
        gpus = {kind or "": count for (what, kind), count in parse_gres(gres) if what == "gpu"}
        model = next(iter(gpus), "").replace("_", " ").upper() if len(gpus) == 1 else ""
        best = model if rows_like(model, rules()) else "", sum(gpus.values())
        best_of[name.rstrip("*")] = max(best_of.get(name.rstrip("*"), ("", 0)), best, key=lambda row: row[1])
    return best_of


def queues() -> dict[str, tuple[str, int]]:
    """The queues of the PBS that is here which take jobs; PBS does not say which GPUs are behind one."""
    offered = parse_queues(_shown("qstat", "-Q", "-f"))
    return {name: ("", 0) for name, row in offered.items() if "False" not in (row.get("enabled"), row.get("started"))}


_OFFERED = {"slurm": partitions, "pbs": queues}


def _shown(*command: str) -> str:
    """What a program of the scheduler prints; empty where it does not answer."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _gpus_here() -> tuple[str, int]:
    """Model and number of this machine's GPUs, where they are all alike."""
    names = [gpu["name"] for gpu in gpu_facts(search_path())["gpus"]]
    return (names[0].removeprefix("NVIDIA "), len(names)) if len(set(names)) == 1 else ("", len(names))


def _with_profile(ui: Ui, answers: Answers, file: Path, nodes: Mapping[str, NodeFacts]) -> Answers:
    """With the profile that fits, where that is not the usual one; a warning where none does."""
    known = {"expects": {"gpu": answers.gpu or None}, **({"scheduler": answers.loads} if answers.loads else {})}
    base = load_target(answers.extends or answers.kind, known, template=True).target
    stack = answers.stack or base.stack or "torch-smoke"
    loaded = _stack_beside(file, stack)
    answers = replace(answers, stack=stack)
    usual = choose_profile(loaded, None, base).name
    able, why = fit(loaded, usual, base, nodes)
    if able is None:
        ui.warn(why)
        return answers
    if why:
        ui.note(f"profile: {able}; {why}")
        return replace(answers, profile=able, why=why)
    judged = Candidates(loaded, nodes, base, rules()).fits()
    if others := [name for name in loaded.stack.profiles if name != usual and judged[name].fits]:
        ui.note(f"profile: {usual}; for another, add `profile:` to the file: {', '.join(others)}")
    return answers
