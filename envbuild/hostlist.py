"""Names of hosts: ranges expanded and folded, with bounds."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from envbuild.errors import EnvbuildError
from envbuild.model.common import HOST
from envbuild.model.target import HostSource
from envbuild.text import printable

if TYPE_CHECKING:
    pass


MAX_HOSTS = 20_000


def check_host(name: str) -> str:
    """The name itself when it is a plain host name or address.

    Raises EnvbuildError `host-invalid` (exit 2).
    """
    if not HOST.match(name):
        raise EnvbuildError(
            "host-invalid",
            f"{name!r} is not a host name",
            why="letters, digits, dots, colons, underscores and inner dashes only, at most 254",
            hint="give user and port under `connection:`",
        )
    return name


def expand_hosts(hosts: Iterable[str] | HostSource) -> list[str]:
    """Host names from host lists as clusters write them (`nid[001-064]`, `gpu1,gpu2`), each once, in order.

    Groups (`@name`) are refused: resolving them runs programs of the site's ClusterShell configuration. Hosts that
    somebody else names are listed by `hosts.settle_hosts`.

    Raises EnvbuildError `hosts-invalid`, `hosts-too-many` or `host-invalid` (exit 2), `not-yet-supported` (exit 7).
    """
    if isinstance(hosts, HostSource):
        named = ", ".join(f"{key}: {value}" for key, value in hosts.given.items())
        raise EnvbuildError(
            "not-yet-supported", f"hosts named by {named} cannot be listed here", hint="list them: `hosts: [...]`"
        )  # fmt: skip
    texts = list(hosts)
    if all(HOST.match(text) for text in texts):
        # Plain names need no parser, and importing it costs more than the rest of a short command.
        if len(texts) > MAX_HOSTS:
            raise _too_many(f"{texts[0]}, ...")
        return list(dict.fromkeys(texts))
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException
    from ClusterShell.RangeSet import RangeSetException

    out: dict[str, None] = {}
    for text in texts:
        if any(char in text for char in "@!&^") or not text.strip():
            raise _bad_hosts(text, "groups and set operators are not supported")
        if _expands_to(text) > MAX_HOSTS:
            raise _too_many(text)
        try:
            nodes = NodeSet(text, resolver=RESOLVER_NOGROUP)
        except (NodeSetException, RangeSetException, ValueError) as error:
            raise _bad_hosts(text, str(error)) from error
        for node in nodes:
            out[check_host(str(node))] = None
        if len(out) > MAX_HOSTS:
            raise _too_many(text)
    return list(out)


def fold_hosts(names: Iterable[str]) -> str:
    """Host names as clusters write them: `gpu[01-60]`. The opposite of `expand_hosts`."""
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

    listed = list(names)
    if len(listed) == 1 or not all(HOST.match(name) for name in listed):
        return ", ".join(listed)
    return str(NodeSet.fromlist(listed, resolver=RESOLVER_NOGROUP))


def _expands_to(text: str) -> int:
    """An upper estimate of how many hosts a text names, taken before anything is expanded."""
    total = 1
    for inner in re.findall(r"\[([^\]]*)\]", text):
        count = 0
        for part in inner.split(","):
            ends = re.match(r"\s*([0-9]{1,18})\s*-\s*([0-9]{1,18})", part)
            count += max(1, int(ends[2]) - int(ends[1]) + 1) if ends else 1
        total *= count
    return total


def _bad_hosts(text: str, why: str) -> EnvbuildError:
    return EnvbuildError(
        "hosts-invalid", f"cannot read the host list {text!r}", why=printable(why), hint="an example: nid[001-064]"
    )


def _too_many(text: str) -> EnvbuildError:
    return EnvbuildError("hosts-too-many", f"{text!r} names more than {MAX_HOSTS} hosts", hint="split the target")
