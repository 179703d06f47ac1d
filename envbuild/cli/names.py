"""Names that can be typed here: of folders and lines of files alone, for nobody waits for libraries at the tab key.

What is offered is a help for who types; what a name means is decided where it is used.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import click
    from click.shell_completion import CompletionItem

    from envbuild.config import Config

    Completion = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

_CATALOG = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "catalog")
_MOST = 500
_ENDINGS = (".yaml", ".yml", ".json")


def setting(key: str, default: str = "") -> str:
    """One setting."""
    from envbuild.config import load_config

    return str(load_config().settings[key].value or default)


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
    present = [stack for stack, place in links(top).items() if os.path.exists(place)]
    return sorted(present, key=lambda stack: -os.lstat(current_link(top, stack)).st_mtime)


def off_path() -> list[str]:
    """How this shell finds `envbuild`, where it was called by its path and is on no folder of PATH."""
    folder, name = os.path.split(os.path.abspath(sys.argv[0]))
    if name != "envbuild" or shutil.which(name):
        return []
    return [f'To call it as `envbuild`: export PATH="{folder}:$PATH"']


def shipped(folder: str) -> list[str]:
    """Names of a folder of the catalog."""
    files = _listed(os.path.join(_CATALOG, folder))
    return sorted(name.rpartition(".")[0] for name in files if name.endswith(_ENDINGS))


def _offered(source: Callable[[click.Context], Iterable[str]]) -> Completion:
    """What click asks for at the tab key: of the names those that begin as what is typed."""
    return lambda ctx, _, incomplete: _items(source(ctx), incomplete)


def _of_catalog(folder: str) -> Completion:
    """Names of a folder of the catalog and files of a user's; the shell's own files once a path is begun."""

    def complete(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        if "/" in incomplete or incomplete.startswith((".", "~")):
            return [CompletionItem(incomplete, type="file")]
        return _items([*shipped(folder), *(name for name in _listed(".") if name.endswith(_ENDINGS))], incomplete)

    return complete


def own_targets() -> list[str]:
    """The target files of this folder, as an option takes them; such a file has keys that no other has."""
    from pathlib import Path

    from envbuild.regular_file import read_file

    files = []
    for name in (name for name in _listed(".") if name.endswith((".yaml", ".yml"))):
        try:
            text = read_file(Path(name), 1 << 16).decode("utf-8", "replace")
        except OSError:
            continue
        if re.search("^(extends|hosts):", text, re.MULTILINE) and not re.search("^profiles:", text, re.MULTILINE):
            files.append(f"./{name}")
    return files


def unnamed_target(target: str | None, config: Config) -> str:
    """That a `--target` was not given nor configured, and what gives it; empty where one was."""
    if target is not None or config.target != "local":
        return ""
    import shlex

    from envbuild.text import few

    own = few([f"`--target {shlex.quote(file)}`" for file in own_targets()], between=" or ")
    add = f"add {own}" if own else "`envbuild init FILE` writes a target, `--target FILE` names it"
    return f"no --target was given, so this is about `local`, this machine: {add}"


stacks, targets, facts = map(_of_catalog, ("stacks", "targets", "facts"))


@_offered
def patches(_: click.Context) -> Iterable[str]:
    """The catalog's patches."""
    return shipped("patches")


@_offered
def profiles(ctx: click.Context) -> Iterable[str]:
    """The profiles of the stack that the line names, of the configured or of the target's one."""
    # While a value is awaited, click leaves words that stand for arguments unread.
    named = ctx.params.get("stack") or next(iter(ctx.args), "")
    stack = named or setting("stack") or _described(_target(ctx), "targets").get("stack") or "torch-smoke"
    return list(_described(stack, "stacks").get("profiles") or ())


@_offered
def hosts(ctx: click.Context) -> Iterable[str]:
    """The hosts that the file of the target lists."""
    listed = _described(_target(ctx), "targets").get("hosts")
    if not isinstance(listed, list):
        return []
    from envbuild.hostlist import expand_hosts

    return expand_hosts(listed)[:_MOST]


@_offered
def runs(_: click.Context) -> Iterable[str]:
    """Runs of this controller, the newest first; `last` is the newest."""
    ids = [name for name in _listed(setting("runs")) if "." not in name]
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
    return str(ctx.params.get("target") or setting("target"))


def _described(name: str, folder: str) -> dict[str, Any]:
    """What stands in the file that a name or a path means."""
    from pathlib import Path

    from envbuild.catalog.yaml_load import load_yaml

    own = "/" in name or name.endswith((".yaml", ".yml"))
    path = os.path.expanduser(name) if own else os.path.join(_CATALOG, folder, f"{name}.yaml")
    data = load_yaml(Path(path))
    return data if isinstance(data, dict) else {}


def _listed(folder: str) -> list[str]:
    """What lies in a folder, sorted, without what is hidden; nothing where there is none."""
    try:
        return sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except OSError:
        return []


def _items(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    return [CompletionItem(name) for name in dict.fromkeys(names) if name.startswith(incomplete)]
