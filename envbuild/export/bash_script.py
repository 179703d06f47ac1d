"""A plan as one readable bash file that does the same with uv and git; only patches are made by envbuild even then.

Every value that comes from a lock, a target or a node is quoted; here-documents are quoted too, so nothing expands.
"""

from __future__ import annotations

import inspect
import posixpath
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from envbuild.catalog.toolchain import load_toolchain
from envbuild.errors import EnvbuildError
from envbuild.export import steps
from envbuild.export.bash_sources import block, needs_of, part, quote, sources
from envbuild.model.lock import Lock, Variant
from envbuild.model.plan import NodePlan, Plan
from envbuild.model.target import proxies
from envbuild.node import read_text
from envbuild.node.packages import installed
from envbuild.node.paths import EPOCH
from envbuild.node.redact import secrets_of
from envbuild.resolve.variant_checks import record_command
from envbuild.schedule.script import exports
from envbuild.text import comment, grouped, plural, visible

_REQUIRED = (
    *(read_text.names, read_text.opened, installed.normal_name, installed.required_name, installed.site_packages),
    *(installed.dist_infos, installed.headers, installed._metadata, installed.requires, installed.unwanted),
)


def function() -> str:
    """The bash function `required`: functions of the node program, run by the interpreter below the environment."""
    return part("required", PARTS="\n\n".join(inspect.getsource(one) for one in _REQUIRED))


def render_script(
    plan: Plan, lock: Lock, errors: Mapping[str, EnvbuildError] | None = None, *, chosen: Sequence[str] = ()
) -> str:
    """The plan as bash. Nodes that get different environments become cases of its first argument, the node's name.

    `errors`: why nodes are left out, in comments. `chosen`: stack, profile, target and facts, as words of a command.

    Raises EnvbuildError `hash-unrecorded` (exit 5), `version-unusable` (exit 2) and `script-impossible` (exit 7).
    """
    title = visible(f"{plan.stack} ({plan.profile}) on {plan.target}")
    reasons = [_reason(error) for error in (errors or {}).values()]
    left = "".join(f"{comment(f'Left out, {reason}')}\n" for reason in reasons)
    groups = list(grouped(plan.nodes, lambda node: node.environment).values())
    firsts = [node for node in map(_first, groups) if _args(node)]
    built = [_variant(node) for node in firsts]
    for variant in built:
        steps.refuse_conda(variant)
    needs, check, helpers = needs_of(built) if groups else ("", "", [])
    pythons = sorted({str(node.python) for node in firsts})
    taken = sorted({name for nodes in groups for name in secrets_of(_variables(_first(nodes)))})
    needs = "".join(f", the interpreter {visible(path)}" for path in pythons) + needs
    needs = (f", {', '.join(taken)} exported" if taken else "") + needs
    ways = dict.fromkeys(way for node in firsts for way in _brings(_variant(node), str(node.python)))
    named = {name: index["url"] for node in firsts for name, index in _indexes(node).items()}
    notes = [*ways, *(f"The index {name} is {url}" for name, url in sorted(named.items()))]
    indexes = "".join(f"{comment(text)}\n" for text in notes)
    check += "".join(dict.fromkeys(text for node in firsts for text in _tmp(node)))
    parts = [part("head", EPOCH=str(EPOCH), TITLE=title, NEEDS=needs, INDEXES=indexes, CHECK=check) + left]
    if not groups:
        says = quote("; ".join(("no node of this plan has anything that fits", *reasons)))
        return f"{parts[0]}\nfail {says} 7\n"
    parts += [function(), *helpers] if built else helpers
    for number, nodes in enumerate(groups, 1):
        parts.append(_function(f"build_{number}", nodes, lock, chosen or (lock.stack, "--profile", lock.profile)))
    parts.append(_dispatch(groups))
    return "\n".join(parts)


def _reason(error: EnvbuildError) -> str:
    return " ".join(visible(f"{error.what} ({error.code}): {error.why}").split())


def _args(node: NodePlan) -> Mapping[str, Any]:
    """What the node is asked to install, and how; empty where it has nothing to install."""
    requests = (step.request for step in node.steps if step.kind == "install" and step.request is not None)
    return next((request["args"] for request in requests), {})


def _variables(node: NodePlan) -> Mapping[str, Any]:
    """The variables of its environment; empty where that is in use already."""
    requests = (step.request for step in node.steps if step.kind == "activate" and step.request is not None)
    return next((request["args"]["variables"] for request in requests), {})


def _variant(node: NodePlan) -> Variant:
    """The variant as this node builds it: without what its base has, compiled for its GPUs."""
    return Variant.from_plain(_args(node)["variant"])


def _indexes(node: NodePlan) -> Mapping[str, Mapping[str, str]]:
    """Address and kind of the indexes that the lock names and this node asks, by name."""
    return _args(node)["artifacts"].get("indexes") or {}


def _brings(variant: Variant, python: str) -> list[str]:
    """How a standalone interpreter comes to its place: nothing that only prints puts it there."""
    if variant.interpreter.kind != "standalone":
        return []
    top, lines = quote(python.removesuffix("/python/bin/python3")), ["`envbuild provision` brings the interpreter."]
    for build in load_toolchain().builds:
        if build.name == variant.interpreter.name:
            lines += ["Without it, where the internet is reached:", f"curl -fL -o python.tar.gz {quote(build.url)} &&"]
            lines.append(f"echo '{build.sha256} *python.tar.gz' | sha256sum -c && mkdir -p {top} &&")
            lines.append(f"tar -xzf python.tar.gz -C {top}")
    return lines


def _tmp(node: NodePlan) -> list[str]:
    """Temporary files, where the target says; without that where the node's own shell has them."""
    tmp, (prefix, _, _) = str(_args(node)["tmp"]), node.environment.rpartition("/envs/")
    given = posixpath.dirname(tmp) != prefix
    return [f'export TMPDIR={quote(tmp)}  # of the target\nmkdir -p -- "$TMPDIR"\n'] * given


def _first(nodes: Sequence[NodePlan]) -> NodePlan:
    """The node whose steps say how the environment is made; others may take it over from that one."""
    return next((node for node in nodes if _args(node)), nodes[0])


def _dispatch(groups: Sequence[Sequence[NodePlan]]) -> str:
    if len(groups) == 1:
        return "build_1\n"
    lines = ['case "${1:?say for which node}" in']
    for number, nodes in enumerate(groups, 1):
        lines.append(f"  {' | '.join(quote(node.node) for node in nodes)}) build_{number} ;;")
    lines += ['  *) fail "the plan has no node $1" 2 ;;', "esac", ""]
    return "\n".join(lines)


def _function(name: str, nodes: Sequence[NodePlan], lock: Lock, chosen: Sequence[str]) -> str:
    first = _first(nodes)
    lines = [comment(f"For {', '.join(node.node for node in nodes)}"), f"{name}() {{"]
    if first.nothing_to_do:
        lines.append(f"  printf 'nothing to do: %s is there and in use\\n' {quote(first.environment)}")
        return "\n".join([*lines, "}", ""])
    prefix, _, _ = first.environment.rpartition("/envs/")
    lines += [f"  local prefix={quote(prefix)}", f"  environment={quote(first.environment)}"]
    variables = _variables(first)
    first_of_all = {name: variables[name] for name in secrets_of(variables)} | proxies(variables)
    lines += [f"  {line}" for line in exports(first_of_all, printed=True)]
    if args := _args(first):
        variant = _variant(first)
        bundle = args["artifacts"].get("bundle")
        folders = ",".join(args["artifacts"].get("find_links") or [])
        if bundle:  # each file of it needs a hash of the lock, or a commit and tree of it
            options = [*chosen, "--variant", variant.id, "--output", bundle["file"]]
            make = shlex.join(["envbuild", "bundle", "create", *options])
            lacking = f"{bundle['file']} is not there: where the internet is reached, run `{make}`"
            lines += block("bundle", FILE=quote(bundle["file"]), LACKING=quote(lacking))
        if folders:
            lines.append(f'  export UV_FIND_LINKS="${{UV_FIND_LINKS:-}}${{UV_FIND_LINKS:+,}}"{quote(folders)}')
        lines += _venv(variant, first, args)
        lines += _packages(variant, _indexes(first), record_command(lock.stack, lock.profile))
        if args.get("asked") is not None:  # before anything of the packages can run
            lines += ["", f"  required {shlex.join([variant.base.kind, *args['asked']])}"]
        lines += sources(lock.stack, variant, args.get("build") or {}, args["artifacts"].get("sources") or {})
    lines += _activation(lock.stack, variables)
    return "\n".join([*lines, "}", ""])


def _venv(variant: Variant, node: NodePlan, args: Mapping[str, Any]) -> list[str]:
    how, build, base, site = "", "", "", ""
    if variant.interpreter.kind == "standalone":
        how = ": the head of this file says how it comes there"
        named = visible(f"{variant.interpreter.name} (sha256 {variant.interpreter.sha256})")
        build = f"  # The interpreter is the standalone build {named}, unpacked under tools/.\n"
    if variant.base.kind != "none":
        base = "  # The environment stands on the interpreter's own packages, which are never replaced.\n"
        site = "--system-site-packages "
    return block(
        "venv", VARIANT=variant.id, DIGEST=node.variant_digest, PYTHON=quote(str(node.python)), HOW=how, BUILD=build,
        CACHE=quote(str(args["cache"])) if args.get("cache") else '"$work/cache"', VERSION=variant.python,
        NVCC=_nvcc(str((args.get("build") or {}).get("cuda_home") or "")), BASE=base, SITE=site,
    )  # fmt: skip


def _nvcc(cuda: str) -> str:
    """The nvcc of the facts has to be there; a module of the job may have brought another."""
    facts = "run `envbuild doctor --target TARGET --facts-out FILE`, and print with `--facts FILE`"
    absent = quote(f"there is no {cuda}/bin/nvcc, which the facts of the node have: {facts}")
    return part("nvcc", NVCC=quote(f"{cuda}/bin/nvcc"), ABSENT=absent) if cuda else ""


def _packages(variant: Variant, indexes: Mapping[str, Mapping[str, str]], record: str) -> list[str]:
    lines: list[str] = []
    for step in steps.package_steps(variant, indexes):
        if step.archive:
            (package,) = step.packages
            comment = f"{package.name} has no wheel: it is built with the packages above, not in isolation."
            options = f"--no-build-isolation --no-cache --no-binary {quote(package.name)}"
        else:
            where = f"the index {step.index}" if step.index else "the index that uv is configured with"
            count = plural(len(step.packages), "package")
            comment, options = f"{count} from {where}; each file must have one of these hashes.", "--no-build"
        lines += ["", f"  # {comment}", "  cat > \"$work/requirements.txt\" <<'EOF'"]
        lines += [*(steps.requirement(package, record) for package in step.packages), "EOF"]
        index = indexes.get(step.index)
        words = "--index-strategy unsafe-best-match"
        if index is not None and index.get("url"):
            option = "--no-index --find-links" if index.get("kind") == "find-links" else "--default-index"
            words += f" {option} {quote(index['url'])}"
        lines += [f"  index=({words})", f'  install "$work/requirements.txt" {options}']
    return lines


def _activation(stack: str, variables: Mapping[str, Any]) -> list[str]:
    """`.envbuild/activate.sh` for one shell, and the link that names the environment in use."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", stack):
        raise EnvbuildError("name-unusable", f"{stack!r} cannot be part of a path")
    secrets, body = secrets_of(variables), ""
    for name, value in sorted(variables.items()):
        if name in secrets:
            continue
        if isinstance(value, Mapping):
            path = quote(str(value["path"]))
            body += f"if [ -e {path} ]; then export {name}={path}; fi\n"
        else:
            body += f"export {name}={quote(str(value))}\n"
    printed = "".join(f"    printf 'export {name}=%q\\n' \"${name}\"\n" for name in secrets)
    return block("activation", STACK=stack, VARIABLES=body, SECRETS=printed)
