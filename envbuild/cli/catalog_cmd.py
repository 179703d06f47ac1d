"""What is described: `envbuild stack`, `target` and `patch`, shipped and of files; `first_target` is for `init`."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envbuild.cli import begin, names
from envbuild.cli.choose import Count, stack_argument, usual_stack
from envbuild.cli.output import Ui, columns, common_options, each_checked, named
from envbuild.cli.verbs import Group
from envbuild.config import load_config
from envbuild.errors import EnvbuildError, ExitCode
from envbuild.node.build.patch_sources import apply
from envbuild.node.probe.gpus import gpu_facts
from envbuild.node.protocol import NodeError
from envbuild.node.read_text import search_path
from envbuild.node.redact import redact_data
from envbuild.text import did_you_mean, few, plural

if TYPE_CHECKING:
    from envbuild.catalog.loader import LoadedStack
    from envbuild.catalog.target_file import Answers
    from envbuild.model.facts import NodeFacts
    from envbuild.model.patch import Patch
    from envbuild.model.stack import CondaSpec, Profile
    from envbuild.model.target import Target

_HOSTS = {"ssh": "Hosts, as gpu[01-04]", "slurm": "Slurm partition", "pbs": "PBS queue"}


@click.group("stack", cls=Group)
def stack() -> None:
    """Stacks: the systems that can be reproduced."""


@stack.command("list")
@common_options
def stack_list(ui: Ui) -> None:
    """List the shipped stacks."""
    from envbuild.catalog.loader import list_stacks, load_stack

    rows = []
    for name in list_stacks():
        loaded = load_stack(name)
        rows.append({"name": name, "summary": loaded.stack.summary, "profiles": list(loaded.stack.profiles)})
    table = [(str(row["name"]), [str(row["summary"]), f"profiles: {', '.join(row['profiles'])}"]) for row in rows]
    ui.result({"stacks": rows}, lambda: named(table))


@stack.command("show")
@stack_argument()
@common_options
def stack_show(ui: Ui, stack: str | None) -> None:
    """Show STACK: a shipped name or a file (default: the configured one)."""
    from envbuild.catalog.loader import load_stack

    loaded = load_stack(stack or _configured())
    data = {"path": str(loaded.path), "shipped": loaded.shipped, "locks": _locks(loaded)}
    ui.result({**data, "stack": loaded.stack.to_json_dict()}, lambda: _described(loaded))


@stack.command("check")
@click.argument("stacks", nargs=-1, required=True, shell_complete=names.stacks)
@common_options
def stack_check(ui: Ui, stacks: tuple[str, ...]) -> int:
    """Check each of STACKS: names or files.

    The exit code is that of the first refused one.
    """
    from envbuild.catalog.loader import load_stack
    from envbuild.resolve.compat_read import load_compat
    from envbuild.resolve.profile import refuse, unlocked

    compat = load_compat()

    def load(reference: str) -> dict[str, Any]:
        stack = load_stack(reference).stack
        for name, profile in stack.profiles.items():
            refuse(profile, compat)
            for text in unlocked(profile, compat):
                ui.warn(f"{stack.name}, profile {name}: {text}")
        return {"name": stack.name}

    return each_checked(ui, "stack", stacks, load)


def _configured() -> str:
    """The stack of the configuration, else that of its target."""
    return usual_stack(None, load_config()) or "torch-smoke"


def _locks(loaded: LoadedStack) -> dict[str, dict[str, Any]]:
    from envbuild.catalog.loader import lock_path

    paths = {profile: lock_path(loaded, profile) for profile in loaded.stack.profiles}
    return {profile: {"path": str(path), "exists": path.is_file()} for profile, path in paths.items()}


def _described(loaded: LoadedStack) -> str:
    stack = loaded.stack
    lines = [f"{stack.name}: {stack.summary}", f"file      {loaded.path}"]
    if stack.document:
        lines.append(f"document  {stack.document.title} <{stack.document.url}>")
    locks = _locks(loaded)
    for name, profile in stack.profiles.items():
        lines += ["", f"profile {name}" + (" (default)" if name == stack.default_profile else "")]
        lines += [
            f"  {label:12}{text}" for label, text in _profile_lines(profile, stack.built_on.get(name, "")) if text
        ]
        lines.append(f"  {'lock':12}{locks[name]['path']}" + ("" if locks[name]["exists"] else " (not there yet)"))
    for finding in stack.findings:
        mark = ", unverified" * finding.unverified
        lines += ["", f"finding {finding.id} ({finding.severity}{mark})", f"  says   {finding.says}"]
        lines += [f"  truth  {finding.truth}", f"  does   {finding.does}"]
    return "\n".join(lines)


def _conda_line(conda: CondaSpec) -> str:
    """What conda installs and from where, and what of pip's it installs instead."""
    instead = f"; instead of wheels: {', '.join(conda.provides)}" if conda.provides else ""
    channels = ", ".join(channel.name for channel in conda.channels)
    return f"{', '.join(conda.packages) or 'Python'} from {channels}{instead}"


def _needs(profile: Profile, built_on: str) -> str:
    """What the profile needs of a node, and the GPUs on which it was built, as far as they are known."""
    from envbuild.model.finding import package_name
    from envbuild.resolve.artifacts import flavour_cuda
    from envbuild.resolve.variant_checks import needs_nvcc

    compiles = any(source.build and needs_nvcc(source.build) for source in profile.pinned_sources)
    versions = [flavour_cuda(flavour) for flavour in profile.torch.flavours] if profile.torch and compiles else []
    nvcc = " or ".join(dict.fromkeys(str(version[0]) for version in versions if version))
    needs = [f"nvcc of CUDA {nvcc}"] * bool(nvcc) + ["nvcc of its torch's CUDA"] * (compiles and not nvcc)
    needs.append(f"Python {' or '.join(profile.python)}")
    if profile.mpi_for_one_node:
        needs.append("no MPI of the site (MPICH of a wheel, for one node)")
    elif "mpi4py" in {source.name for source in profile.sources}:
        needs.append("the site's MPI")
    elif "mpi4py" in (package_name(text) for base in profile.bases for text in base.provides):
        needs.append("the MPI of its base")
    return "; ".join(needs) + (f"; built on {built_on}" if built_on else "")


def _profile_lines(profile: Profile, built_on: str) -> list[tuple[str, str]]:
    torch = f"{profile.torch.version} ({', '.join(profile.torch.flavours)})" if profile.torch else ""
    values = {name: value if isinstance(value, str) else f"{value.path} (if it exists)"
              for name, value in profile.environment.items()}  # fmt: skip
    sources = [f"{s.name} {s.commit[:12]} ({s.install})" for s in profile.pinned_sources]
    sources += [f"{tree.name} {tree.path} ({tree.install})" for tree in profile.working_trees]
    return [
        ("needs", _needs(profile, built_on)),
        ("python", f"{', '.join(profile.python)} ({', '.join(profile.interpreters)})"),
        ("torch", torch),
        ("conda", _conda_line(profile.conda) if profile.conda else ""),
        ("bases", ", ".join(base.kind for base in profile.bases)),
        ("packages", ", ".join(profile.packages)),
        ("sources", ", ".join(sources)),
        ("variables", ", ".join(f"{name}={value}" for name, value in values.items())),
        ("smoke", ", ".join(item.name for item in profile.smoke_items)),
        ("runs", profile.runs),
    ]


@click.group("target", cls=Group)
def target() -> None:
    """Targets: where environments are built."""


@target.command("list")
@common_options
def target_list(ui: Ui) -> None:
    """List the shipped targets."""
    from envbuild.catalog.loader import is_template, list_targets, load_target

    rows = []
    for name in list_targets():
        shipped = load_target(name, template=True).target
        rows.append({"name": name, "summary": shipped.summary, "template": is_template(shipped)})
    ui.result({"targets": rows}, lambda: named([(str(row["name"]), [str(row["summary"])]) for row in rows]))


@target.command("check")
@click.argument("targets", nargs=-1, required=True, shell_complete=names.targets)
@common_options
def target_check(ui: Ui, targets: tuple[str, ...]) -> int:
    """Check each of TARGETS: names or files.

    The exit code is that of the first refused one. Looks up the stack that a target names; contacts no host.
    A shipped template may leave values open; your own file must give them all.
    """
    from envbuild.catalog.loader import is_template, pick_profile
    from envbuild.provision.survey.hosts import unsupported

    def load(reference: str) -> dict[str, Any]:
        target, stack = _valid(reference, whole=True)
        if stack is not None:
            able, why = _fit(stack, pick_profile(stack, target.profile), target)
            if why:
                ui.warn(f"{reference}: {why}" + (f"; `profile: {able}` fits" if able else ""))
        for doubt in target.doubts:
            ui.warn(f"{reference}: {doubt}")
        for missing, instead in unsupported(target).items():
            ui.warn(
                f"{reference}: `provision` does not support {missing} yet; write `{instead}`, or see a plan with "
                "`plan --facts`"
            )
        if target.expects.gpu and (unknown := _unknown_gpu(target.expects.gpu)):
            ui.warn(f"{reference}: expects.gpu: {unknown}")
        elif several := _several_models(target.expects.gpu):
            ui.warn(f"{reference}: expects.gpu: {several}")
        return {"name": target.name, "template": is_template(target)}

    return each_checked(ui, "target", targets, load)


def _fit(
    loaded: LoadedStack, usual: str, target: Target, nodes: Mapping[str, NodeFacts] | None = None
) -> tuple[str | None, str]:
    """The profile that fits, None where none does, and why it is not the usual one.

    Judged are the nodes; without facts, the target and its GPUs if these are known.
    """
    from envbuild.explain.view import Candidates, fitting
    from envbuild.provision.survey.ask import rules

    judged = Candidates(loaded, nodes or {}, target, rules()).fits()
    if judged[usual].fits:
        return usual, ""
    able = fitting(loaded, judged)
    if able is not None:
        return able, f"{usual} does not fit: {judged[usual].why}"
    reasons = "; ".join(f"{judgement.name}: {judgement.why}" for judgement in judged.values())
    return None, f"no profile of {loaded.stack.name} fits: {reasons}"


def _valid(reference: str, *, whole: bool = False) -> tuple[Target, LoadedStack | None]:
    """A target or template whose stack and profile are there, and the stack; `whole`: an own file is no template."""
    from envbuild.catalog.loader import load_stack, load_target, pick_profile, refuse_template

    loaded = load_target(reference, template=True)
    if whole:
        refuse_template(loaded, contacted=False)
    name = loaded.target.stack
    stack = load_stack(name) if name else None
    if stack is not None:
        pick_profile(stack, loaded.target.profile)
    return loaded.target, stack


@target.command("show")
@click.argument("target", required=False, shell_complete=names.targets)
@common_options
def target_show(ui: Ui, target: str | None) -> None:
    """Show TARGET, a name or a file, with what its `extends:` adds.

    Without TARGET, the configured one.
    """
    from envbuild.catalog.loader import is_template, load_target

    loaded = load_target(target or load_config().target, template=True)
    data = loaded.target.to_json_dict()
    template = is_template(loaded.target)
    files = [str(path) for path in loaded.files]
    if template:
        ui.note("this is a template: extend it and say what stands in <angle brackets>")
    result = {"path": str(loaded.path), "files": files, "shipped": loaded.shipped, "template": template, "target": data}
    ui.result(result, lambda: "".join([*(f"# from {path}\n" for path in files), _as_file(redact_data(data))]))


def first_target(ui: Ui, file: Path, facts: str | None, extends: str | None, stack: str | None, *, yes: bool) -> None:
    """Write a first target file with comments, from twelve answers at most, or from recorded facts of its nodes.

    `extends`: the shipped target that is like it; `stack`: what is built there; `yes`: take defaults, ask nothing.
    """
    from envbuild.catalog import target_file
    from envbuild.catalog.loader import is_template, load_target
    from envbuild.catalog.node_facts import load_facts, of_example

    if file.suffix not in (".yaml", ".yml"):
        raise click.UsageError(f"a target file ends in .yaml: {file}.yaml")
    if file.exists():
        raise _unwritable(file, "a file of that name is there", "name another file: envbuild replaces none")
    base = load_target(extends, template=True).target if extends else None
    if stack:
        _stack_beside(file, stack)  # a wrong name is refused before any question
    nodes = load_facts(facts) if facts else {}
    answers = _of_facts(nodes, base, stack) if nodes else _asked(file, base, stack, yes=yes)
    extended = load_target(answers.extends or answers.kind, template=True).target
    if answers.kind in ("slurm", "pbs") and not answers.nodes and extended.scheduler.nodes is None:
        answers = replace(answers, nodes=1)  # a job without a number takes every node
    if facts and (example := of_example(facts, extended)):
        ui.note(example)
    answers = _with_profile(ui, answers, file, nodes)
    name = re.sub(r"[^a-z0-9._-]+", "-", file.stem.lower()).strip("-.") or "mine"
    usual = load_target(answers.kind, template=True).target
    values, template = (
        item.model_dump(mode="json", by_alias=True, exclude_defaults=True) for item in (extended, usual)
    )
    text, kept = target_file.text(name, answers, target_file.difference(values, template))
    try:
        with file.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        raise _unwritable(file, error.strerror or str(error), "name a file in a folder that you can write") from None
    if several := _several_models(answers.gpu, extended.expects.gpu or ""):
        ui.note(f"expects.gpu: {several}")
    try:
        made, _ = _valid(str(file))
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
    from envbuild.catalog.loader import is_template, placeholders
    from envbuild.model.target import proxies

    if kept:
        # Some of `expects` was asked.
        names = [key if key.startswith("expects.") else key.partition(".")[0] for key in kept]
        keys = few([f"`{key}`" for key in dict.fromkeys(names)], 8)
        ui.note(f"not asked, and as in {base}: {keys}; the end of {file} shows the values")
    for doubt in made.doubts:
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
    from envbuild.catalog import target_file

    observed = target_file.of_facts(nodes)
    if base is None:
        return replace(observed, stack=stack or _stack_of(observed.kind))
    own = observed.prefix if _kind_of(base) == "local" else ""  # of a cluster, the prefix that its nodes share is known
    return replace(observed, extends=base.name, kind=_kind_of(base), stack=stack or "", prefix=own)


def _asked(file: Path, base: Target | None, stack: str | None, *, yes: bool) -> Answers:
    """Answers at the terminal, or one a line on standard input; an empty line takes what stands in brackets.

    `yes` takes all of these and asks nothing.
    """
    from envbuild.catalog.loader import is_template, list_targets, load_target, placeholders
    from envbuild.catalog.target_file import KINDS, LISTED_HOST, Answers
    from envbuild.model.target import Host, Requested

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
        stack = stack or ask(
            "stack", "Which stack is built there (a name of `envbuild stack list`, or a file)", _stack_of(base.name)
        )
        loaded = _stack_beside(file, stack)
        taken = usual if usual in there else next(iter(there), usual)
        first = taken or (None if required & {"hosts", "scheduler.queue"} else "")
        offered = f" ({few(list(there), 8)})" if len(there) > 1 else ""
        key, of_hosts = {
            "ssh": ("hosts", _each(Host, LISTED_HOST)),
            "slurm": ("HostSource.slurm", _each(Requested)),
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
        text = f"Folder for environments{', which all nodes share' if job else ''}"
        prefix = ask("prefix", text, usual, _prefix)
        model, count = there.get(hosts, ("", 0)) if job else _gpus_here() if kind == "local" else ("", 0)
        usual = model or base.expects.gpu or ""
        text = f"GPU model, which chooses the profile{'' if usual else ', as A100-SXM4-80GB (empty: any)'}"
        gpu = ask("Expectation.gpu", text, usual, lambda text: _model(text, usual))
        if gpu or job:
            text = "GPUs of a node (empty: `bench` and `launch` will ask)"
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
    from envbuild.catalog.target_file import LISTED_NAME
    from envbuild.model.common import Name
    from envbuild.model.target import Duration, Requested

    must, usual = "scheduler.account" in required, base.scheduler
    text = f"Account that jobs are charged to{'' if must else ' (empty: none)'}"
    answers = {"account": ask("Scheduler.account", text, None if must else "", _each(Requested))}
    text = f"Nodes of a job{_published(loaded)}"
    answers["nodes"] = ask("Scheduler.nodes", text, usual.nodes or 1, Count(1, 20000))
    text = f"Longest time of a job, as 2h{'' if usual.time_limit else ' (empty: 30 minutes or more, estimated)'}"
    answers["time_limit"] = ask("Scheduler.time_limit", text, usual.time_limit or "", _each(Duration))
    if usual.kind == "pbs":
        text = "File systems that a job names, as home,eagle (empty: none)"
        names_of_jobs = _each(Name, LISTED_NAME)
        answers["filesystems"] = ask("Scheduler.filesystems", text, ",".join(usual.filesystems), names_of_jobs)
    return answers


def _prompted(key: str, question: str, default: Any, kind: Any) -> Any:
    """The answer to one question, `?` with what its key means; None as default asks again until there is one."""

    def read(text: Any) -> Any:
        typed = str(text).strip()
        if typed == "?":
            return typed
        if default is None and not typed:
            raise click.BadParameter("may not be empty; what you do not know yet, you can correct in the file")
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
    from envbuild.catalog.loader import is_path, load_stack

    return load_stack(str(file.parent / Path(stack).expanduser()) if is_path(stack) else stack)


def _published(loaded: LoadedStack) -> str:
    """That one is enough to build, and the machines of the figure that `bench` compares with; empty without one."""
    reference = loaded.stack.reference
    named = reference.bench.figure if reference and reference.bench else None
    where = next((figure.where for figure in reference.figures if figure.name == named), "") if reference else ""
    return f" (one is enough to build; the published figure is of {where})" if where else ""


def _each(kind: Any, parts: str = ".+") -> Callable[[str], str]:
    """For answers of values of a target, or none. Raises click.BadParameter, and the question is asked again."""

    def read(text: str) -> str:
        for part in re.findall(parts, text.strip()):
            _of_type(kind, part)
        return text.strip()

    return read


def _login(text: str) -> str:
    """An answer that is a host, `user@host` or empty. Raises click.BadParameter, and the question is asked again."""
    from envbuild.model.target import Login

    user, at, host = text.strip().rpartition("@")
    try:
        if text.strip():
            Login(host=host, user=user if at else None)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no host, as login1 or me@login1") from None
    return text.strip()


def _user(text: str) -> str:
    """An answer that is a login name, or empty. Raises click.BadParameter, and the question is asked again."""
    from envbuild.model.target import Login

    try:
        if text.strip():
            Login(host="host", user=text.strip())
    except ValueError:
        raise click.BadParameter(f"{text!r} is no login name") from None
    return text.strip()


def _model(text: str, usual: str) -> str:
    """An answer that is `usual`, empty or a known GPU. Raises click.BadParameter, and the question is asked again."""
    if text not in ("", usual) and (unknown := _unknown_gpu(text)):
        raise click.BadParameter(f"{unknown}; without yours, leave it empty")
    return text


def _unknown_gpu(model: str) -> str:
    """That a GPU model is not in our tables, with the nearest that is; empty where it is."""
    from envbuild.provision.survey.ask import rules
    from envbuild.resolve.compat import rows_like

    near = did_you_mean(model.upper(), [gpu.name for gpu in rules().gpus.values()])
    known = rows_like(model.removeprefix("NVIDIA "), rules())
    return "" if known else f"{model!r} is no GPU model that envbuild knows; {near}"


def _several_models(name: str | None, usual: str = "") -> str:
    """That a GPU's name fits several models, those first that `usual` fits too; empty where it fits one."""
    from envbuild.provision.survey.ask import rules
    from envbuild.resolve.compat import is_model, rows_like

    models = sorted(
        (gpu.name for gpu in rows_like(name, rules())), key=lambda model: not (usual and is_model(usual, model))
    )
    return f"{name} fits {', '.join(models)}; name the one that `nvidia-smi -L` prints" if len(models) > 1 else ""


def _prefix(text: str) -> str:
    """An answer that is a prefix. Raises click.BadParameter, and the question is asked again."""
    from envbuild.model.target import PrefixTemplate
    from envbuild.node.protocol import expand_prefix
    from envbuild.node.trust import home_problem

    prefix = text.strip()
    _of_type(PrefixTemplate, prefix)
    with contextlib.suppress(NodeError):  # the node says so
        if why := home_problem(expand_prefix(prefix)):
            raise click.BadParameter(why)
    return prefix


def _of_type(kind: Any, text: str) -> None:
    """Check an answer as a value of a target. Raises click.BadParameter with what to write where that is known."""
    from pydantic import TypeAdapter, ValidationError

    from envbuild.model.common import first_mistake, refusal_of

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
    from envbuild.catalog.loader import load_target

    return load_config().stack or load_target(target, template=True).target.stack or "torch-smoke"


def partitions() -> dict[str, tuple[str, int]]:
    """The partitions of the Slurm that is here, the default one first: model and number of a node's GPUs.

    The model is empty where Slurm's name of it is none that we know.
    """
    from envbuild.provision.survey.ask import rules
    from envbuild.resolve.compat import rows_like
    from envbuild.schedule.slurm import parse_gres

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
    from envbuild.schedule.pbs import parse_queues

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
    from envbuild.catalog.loader import load_target
    from envbuild.explain.view import Candidates
    from envbuild.lock.agreement import choose_profile
    from envbuild.provision.survey.ask import rules

    expects = {"gpu": answers.gpu or None}
    base = load_target(answers.extends or answers.kind, {"expects": expects}, template=True).target
    stack = answers.stack or base.stack or "torch-smoke"
    loaded = _stack_beside(file, stack)
    if stack == base.stack:
        answers = replace(answers, stack="" if base.profile else stack)
    usual = choose_profile(loaded, None, base).name
    able, why = _fit(loaded, usual, base, nodes)
    if able is None:
        ui.warn(why)
        return answers
    if why:
        ui.note(f"profile: {able}; {why}")
        return replace(answers, stack=stack, profile=able, why=why)
    judged = Candidates(loaded, nodes, base, rules()).fits()
    if others := [name for name in loaded.stack.profiles if name != usual and judged[name].fits]:
        ui.note(f"profile: {usual}; for another, add `profile:` to the file: {', '.join(others)}")
    return answers


def _as_file(data: dict[str, Any]) -> str:
    """As a target file says it that extends no other."""
    import yaml

    plain = _plain({key: value for key, value in data.items() if key != "extends"})
    return str(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, default_flow_style=None, width=100))


def _plain(value: Any) -> Any:
    """A value without its empty parts."""
    if not isinstance(value, dict):
        return [_plain(item) for item in value] if isinstance(value, list) else value
    plain = {key: _plain(item) for key, item in value.items()}
    return {key: item for key, item in plain.items() if item not in (None, {}, [], "")}


@click.group("patch", cls=Group)
def patch() -> None:
    """Patches: edits of pinned sources, counted and checked."""


@patch.command("list")
@common_options
def patch_list(ui: Ui) -> None:
    """List every patch, and how many commits it was tried on."""
    from envbuild.catalog.patches import digest_of, load_patches

    patches = load_patches()
    data = {"patches": [{**one.to_json_dict(), "digest": digest_of(name)} for name, one in patches.items()]}
    ui.result(data, lambda: _table(list(patches.values())))


def _table(patches: list[Patch]) -> str:
    return columns([("patch", "commits", "what it does"), *((p.name, str(len(p.tried)), p.summary) for p in patches)])


@patch.command("apply")
@click.argument("name", shell_complete=names.patches)
@click.argument("directory", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--check", is_flag=True, help="Write nothing; exit 1 when the patch is not applied yet.")
@click.option("--diff", is_flag=True, help="Print the unified diff.")
@click.option(
    "--commit",
    metavar="HASH",
    help="Commit of DIRECTORY; where the patch was tried on it, the number of hits must be exact.",
)
@click.option("--digest", metavar="SHA256", help="Refuse a patch that changed after it was locked.")
@common_options
def patch_apply(
    ui: Ui, /, name: str, directory: Path, check: bool, diff: bool, commit: str | None, digest: str | None
) -> int:
    """Apply the patch NAME to the checkout DIRECTORY.

    --check changes nothing and prints what would change. Changes all files or none. A patch that is
    already applied is reported, and changes nothing.
    """
    from envbuild.catalog.patches import digest_of, load_patch

    patch = load_patch(name)
    if digest is not None and digest_of(name) != digest:
        raise EnvbuildError(
            "patch-changed",
            f"the patch {name} is not the one that was locked",
            why=f"it has digest {digest_of(name)[:12]}, wanted is {digest[:12]}",
            hint="find out why it differs; then `envbuild lock create STACK` locks the patch as it is now",
        )
    try:
        (result,) = apply(str(directory), [patch.spec(patch.expected(commit))], check=check)
    except NodeError as error:
        raise EnvbuildError.from_dict(error.as_dict()) from None
    ui.result({"ok": True, **result}, lambda: _applied(result, diff=diff))
    return ExitCode.CHECK_FAILED if check and not result["already"] else ExitCode.OK


def _applied(result: dict[str, Any], *, diff: bool) -> str:
    done = "already applied" if result["already"] else "would be applied" if result["check"] else "applied"
    lines = [f"{result['name']}: {done}, {plural(result['hits'], 'place')}"]
    for row in result["files"]:
        before, after = row["sha256_before"][:12], row["sha256_after"][:12]
        lines.append(f"  {row['path']}: {row['hits']}, {before if before == after else f'{before} -> {after}'}")
    return "\n".join(lines) + "\n" + (result["diff"] if diff else "")
