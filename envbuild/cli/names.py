"""Names that can be typed here: of folders and lines of files alone, for nobody waits for libraries at the tab key.

What is offered is a help for who types; what a name means is decided where it is used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click
    from click.shell_completion import CompletionItem

    Completion = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

_CATALOG = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "catalog")
_MOST = 500
_ENDINGS = (".yaml", ".yml", ".json")


def setting(key: str, default: str = "") -> str:
    """One setting; files of the configuration are read only where there is one."""
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    system = os.environ.get("ENVBUILD_SYSTEM_CONFIG") or "/etc/envbuild/config.toml"
    if any(map(os.path.exists, ("envbuild.toml", os.path.join(config, "envbuild", "config.toml"), system))):
        from envbuild.config import load_config

        return str(load_config().settings[key].value or default)
    return os.environ.get(f"ENVBUILD_{key.upper()}") or default


def prefix() -> str:
    """Where environments of this machine live; empty where it cannot be."""
    from envbuild.node.protocol import NodeError, expand_prefix

    try:
        return expand_prefix(setting("prefix", "{data}/envbuild"))
    except NodeError:
        return ""


def in_use() -> list[str]:
    """The stacks with an environment in use on this machine, the last switched first."""
    from envbuild.node.paths import current_link
    from envbuild.node.probe.inventory import links

    top = prefix()
    there = [stack for stack, place in links(top).items() if os.path.exists(place)]
    return sorted(there, key=lambda stack: -os.lstat(current_link(top, stack)).st_mtime)


def shipped(folder: str) -> list[str]:
    """Names of a folder of the catalog."""
    files = _listed(os.path.join(_CATALOG, folder))
    return sorted(name.rpartition(".")[0] for name in files if name.endswith(_ENDINGS))


def _offered(found: Callable[[click.Context], Iterable[str]]) -> Completion:
    """What click asks for at the tab key: of the names those that begin as what is typed."""
    return lambda ctx, _, incomplete: _items(found(ctx), incomplete)


def _of_catalog(folder: str) -> Completion:
    """Names of a folder of the catalog and files of a user's; the shell's own files once a path is begun."""

    def complete(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        if "/" in incomplete or incomplete.startswith((".", "~")):
            return [CompletionItem(incomplete, type="file")]
        return _items([*shipped(folder), *(name for name in _listed(".") if name.endswith(_ENDINGS))], incomplete)

    return complete


stacks, targets, facts = map(_of_catalog, ("stacks", "targets", "facts"))


@_offered
def patches(_: click.Context) -> Iterable[str]:
    """Our own edits."""
    return shipped("patches")


@_offered
def profiles(ctx: click.Context) -> Iterable[str]:
    """The profiles of the stack that the line names, of the configured or of the target's one."""
    import re

    # While a value is awaited, click leaves words that stand for arguments unread.
    named = ctx.params.get("stack") or next(iter(ctx.args), "")
    of_target = re.search(r"^stack: *([^\s#]+)", _text(_file(_target(ctx), "targets")), re.MULTILINE)
    stack = named or setting("stack") or (of_target[1] if of_target else "torch-smoke")
    found = re.search(r"^profiles:.*\n((?:(?: .*)?\n|#.*\n)*)", _text(_file(stack, "stacks")), re.MULTILINE)
    keys = re.findall(r"^( +)([a-z0-9][\w.-]*):", found[1] if found else "", re.MULTILINE)
    return [name for indent, name in keys if indent == keys[0][0]]


@_offered
def hosts(ctx: click.Context) -> Iterable[str]:
    """The hosts that the file of the target lists."""
    import re

    text = _text(_file(_target(ctx), "targets"))
    found = re.search(r"^hosts:\s*?(\[[^\n]*\]|\n(?: *- .*\n?)+)", text, re.MULTILINE)
    listed = re.findall(r"[A-Za-z0-9](?:[\w.:-]|\[[\d-]+\])*", found[1] if found else "")
    return [name for each in listed for name in _expanded(each)]


@_offered
def runs(_: click.Context) -> Iterable[str]:
    """Runs of this controller, the newest first; `last` is the newest."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    folder = setting("runs", os.path.join(state, "envbuild", "runs"))
    ids = [name for name in _listed(folder) if "." not in name]
    return ["last", *reversed(ids[-_MOST:])]


@_offered
def environments(ctx: click.Context) -> Iterable[str]:
    """Folders of environments on this machine."""

    from envbuild.node.probe import inventory

    return map(os.path.basename, inventory.environments(str(ctx.params.get("prefix") or prefix())))


@_offered
def used(_: click.Context) -> Iterable[str]:
    """Stacks with an environment in use on this machine; every stack where there is none."""
    return in_use() or shipped("stacks")


def _target(ctx: click.Context) -> str:
    return str(ctx.params.get("target") or setting("target", "local"))


def _file(name: str, folder: str) -> str:
    """The file that a name or a path means."""
    return os.path.expanduser(name) if "/" in name or name.endswith((".yaml", ".yml")) else (
        os.path.join(_CATALOG, folder, f"{name}.yaml"))  # fmt: skip


def _text(path: str) -> str:
    from pathlib import Path

    from envbuild.regular_file import read_file

    try:
        return read_file(Path(path), 1_000_000).decode("utf-8", "replace")
    except OSError:
        return ""


def _expanded(name: str) -> list[str]:
    """`gpu[01-04]` as its hosts, what is written otherwise as it is."""
    head, _, rest = name.partition("[")
    first, _, last = rest.rstrip("]").partition("-")
    if not (name.endswith("]") and first.isdigit() and last.isdigit()):
        return [name]
    return [f"{head}{number:0{len(first)}}" for number in range(int(first), min(int(last), int(first) + _MOST) + 1)]


def _listed(folder: str) -> list[str]:
    """What lies in a folder, sorted, without what is hidden; nothing where there is none."""
    try:
        return sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except OSError:
        return []


def _items(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    return [CompletionItem(name) for name in dict.fromkeys(names) if name.startswith(incomplete)]
