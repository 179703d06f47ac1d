"""A first target file, from answers or from recorded facts of its nodes: pure text, with a comment for every key."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass

from envbuild.model.facts import NodeFacts
from envbuild.model.target import module_names

_WHO = "who logs in; keys and jumps are those of ssh's own configuration"
_HERE = "you type envbuild on the login node; from a laptop, `login: {host: login1}`"
KINDS = ("local", "ssh", "slurm", "pbs")
LISTED_HOST = r"(?:[^\s,\[]|\[[^\]]*\]?)+"
LISTED_NAME = r"[^\s,:]+"


@dataclass(frozen=True)
class Answers:
    """What somebody says of a target; an empty text leaves it to the shipped target `extends`, of the kind `kind`.

    `hosts`: host lists (ssh), the partition (slurm) or the queue (pbs). `login`: where jobs are submitted, when not on
    this machine. `user`: None is as ssh says, though the shipped target names one. `nodes`, `time_limit`: of a job.
    `filesystems`: of a PBS job, parted by commas. `modules`: what a job loads. `why`: why this profile.
    """

    kind: str
    extends: str = ""
    stack: str = ""
    profile: str = ""
    why: str = ""
    hosts: str = ""
    user: str | None = ""
    login: str = ""
    account: str = ""
    nodes: int = 0
    time_limit: str = ""
    filesystems: str = ""
    modules: str = ""
    prefix: str = ""
    gpu: str = ""
    gpus_per_node: int = 0

    @property
    def loads(self) -> dict[str, object]:
        """What `scheduler` says of modules; empty without any."""
        names = module_names(self.modules)
        return {"modules": {"load": names}} if names else {}


def of_facts(nodes: Mapping[str, NodeFacts]) -> Answers:
    """What the recorded facts of at least one node say; a partition or queue they do not know."""
    first = next(iter(nodes.values()))
    kind = first.scheduler.kind if first.scheduler.kind in KINDS else "local" if [*nodes] == ["localhost"] else "ssh"
    models = {gpu.name.removeprefix("NVIDIA ") for node in nodes.values() for gpu in node.gpus}
    counts = {len(node.gpus) for node in nodes.values()}
    prefix = first.prefix.path
    if first.home and prefix.startswith(f"{first.home}/"):
        prefix = "{home}" + prefix[len(first.home) :]
    return Answers(
        kind,
        hosts=",".join(nodes) if kind == "ssh" else "",
        prefix=re.sub(rf"/{re.escape(first.user)}(?=/|$)", "/{user}", prefix) if first.user else prefix,
        gpu=models.pop() if len(models) == 1 else "",
        gpus_per_node=counts.pop() if len(counts) == 1 else 0,
    )


def text(
    name: str, answers: Answers, extended: Mapping[str, object], usual: Mapping[str, object]
) -> tuple[str, tuple[str, ...]]:
    """The file of the target `name`, and the dotted keys that it has from the extended target, not asked.

    Its last comments show the values. What the template `usual` of its kind says too is not among them.
    """
    inherited, template = _flat(extended), _flat(usual)
    if answers.stack not in ("", inherited.get("stack")):
        inherited.pop("profile", None)  # that of another stack
    expects = {"gpu": answers.gpu, "gpus_per_node": answers.gpus_per_node}
    user = {"user": answers.user} if answers.user != "" else {}
    login = {"host": answers.login, **user} if answers.login else None
    job = answers.kind in ("slurm", "pbs")
    connection = {"kind": "job", "login": login} if job or login else user
    keys: list[tuple[str, str, object]] = [
        ("", "name", name),
        ("what is not said here is as in this shipped target", "extends", answers.extends or answers.kind),
        ("what is built when no stack is named", "stack", answers.stack),
        (answers.why, "profile", answers.profile),
        *_hosts(answers, inherited),
        (_WHO if login or not job else _HERE, "connection", connection),
        (
            "where environments live; the node fills in {user}, {data} and {home} (your home there)",
            "prefix",
            answers.prefix,
        ),
        ("the hardware; jobs ask for `gpus_per_node` GPUs; what differs is a warning", "expects", _given(expects)),
    ]
    lines = ["---", "# Written by `envbuild init`; docs/reference/files.md has every key."]
    for comment, key, value in keys:
        if value:
            lines += textwrap.wrap(comment, 80, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)
            line = f"{key}: {json.dumps(value, ensure_ascii=False)}"
            wide = value if isinstance(value, dict) and len(line) > 80 else {}
            lines.append(f"{key}:" if wide else line)
            lines += [f"  {name}: {json.dumps(part, ensure_ascii=False)}" for name, part in wide.items()]
    answered = _flat({key: value for _, key, value in keys if value})
    beyond = {key: value for key, value in inherited.items() if template.get(key) != value}
    asked = {*answered, "name", "summary", "extends"}
    kept = {key: value for key, value in beyond.items() if not any(f"{key}.".startswith(f"{own}.") for own in asked)}
    if kept:
        lines.append(f"# Also from {answers.extends}, not asked. Another value replaces one, null removes it:")
    for key, value in kept.items():
        line = f"{key}: {json.dumps(value, ensure_ascii=False)}"
        lines += textwrap.wrap(line, 80, initial_indent="#   ", subsequent_indent="#     ", break_on_hyphens=False)
    if any(key.startswith("floors.") for key in kept):
        lines.append("# A figure below its floor fails the smoke test (exit 6): the build is not used.")
    return "\n".join([*lines, ""]), tuple(kept)


def _flat(value: Mapping[str, object], before: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, part in value.items():
        flat |= _flat(part, f"{before}{key}.") if isinstance(part, Mapping) and part else {f"{before}{key}": part}
    return flat


def _hosts(answers: Answers, inherited: Mapping[str, object]) -> list[tuple[str, str, object]]:
    """Which nodes: their names, or the partition or queue that gives them; `inherited`: keys of the extended target."""
    if answers.kind == "ssh":
        hosts = re.findall(LISTED_HOST, answers.hosts)
        return [("host lists as clusters write them: gpu[01-04]", "hosts", hosts)]
    job: dict[str, object] = {"account": answers.account, "nodes": answers.nodes, "time_limit": answers.time_limit}
    job |= answers.loads
    how = "how a job is asked for; `modules: {load: [NAME]}` loads modules first"
    if not answers.time_limit and "scheduler.time_limit" not in inherited:
        how += "; without `time_limit: 2h`, a build's is estimated and `launch --submit` needs `--time-limit 2h`"
    if answers.kind == "slurm":
        partition = {"slurm": answers.hosts} if answers.hosts else {}
        how += "" if "scheduler.nodes" in inherited else "; without `nodes` it takes all of the partition"
        return [("the partition", "hosts", partition), (how, "scheduler", _given(job))]
    names = re.findall(LISTED_NAME, answers.filesystems)
    return [(how, "scheduler", _given({"queue": answers.hosts, **job, "filesystems": names}))]


def _given(values: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in values.items() if value}
