"""Names of hosts: ranges expanded and folded, with bounds."""

from __future__ import annotations

import re
from collections.abc import Iterable

from envbuild.errors import EnvbuildError
from envbuild.model.common import HOST
from envbuild.model.target import HostSource
from envbuild.text import grouped, visible

MAX_HOSTS = 20_000
_ENDS = r"[0-9]{1,18}(?:-[0-9]{1,18})?"
_PATTERN = rf"(?:[A-Za-z0-9._:-]|\[{_ENDS}(?:,{_ENDS})*\])+"
_LIST = re.compile(rf"\s*{_PATTERN}(?:\s*,\s*{_PATTERN})*\s*")


def check_host(name: str) -> str:
    """The name itself when it is a plain host name or address. Raises EnvbuildError `host-invalid` (exit 2)."""
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
        job = "; a Slurm partition needs `connection: {kind: job, login: {host: …}}`" if hosts.slurm else ""
        raise EnvbuildError(
            "not-yet-supported",
            f"envbuild cannot list the hosts of {named}",
            hint=f"list the hosts: `hosts: [...]`{job}",
        )
    texts = list(hosts)
    if all(HOST.match(text) for text in texts):
        # Plain names need no parser, and importing it costs more than the rest of a short command.
        if len(texts) > MAX_HOSTS:
            raise _too_many(f"{texts[0]}, ...")
        return list(dict.fromkeys(texts))
    patterns = [pattern for text in texts for pattern in _patterns(text)]
    # Counted over all, before anything is expanded: a list may name one range ten thousand times.
    if sum(map(_count, patterns)) > MAX_HOSTS:
        raise _too_many(", ".join(texts))
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

    out: dict[str, None] = {}
    for pattern in patterns:
        try:
            # One pattern at a time: NodeSet takes minutes to join thousands of names with two numbers.
            names = NodeSet(pattern, resolver=RESOLVER_NOGROUP) if "[" in pattern else [pattern]
        except (NodeSetException, ValueError) as error:  # it takes the digits of a name for a number, too
            raise _bad_hosts(pattern, str(error)) from error
        out |= {check_host(str(name)): None for name in names}
    return list(out)


def fold_hosts(names: Iterable[str]) -> str:
    """Host names as clusters write them: `gpu[01-60]`, folded over the last number of a name (over several at once,
    ClusterShell takes minutes for thousands of names). The opposite of `expand_hosts`.
    """  # fmt: skip
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

    listed = list(names)
    if len(listed) == 1 or not all(HOST.match(name) for name in listed):
        return ", ".join(listed)
    alike = grouped(dict.fromkeys(listed), key=lambda name: re.sub(r"[0-9]+(?=[^0-9]*\Z)", "*", name))
    return ",".join(str(NodeSet.fromlist(group, resolver=RESOLVER_NOGROUP)) for group in alike.values())


def _patterns(text: str) -> list[str]:
    """The patterns of a host list, such as `r[1-2]n[01-32]`. ClusterShell takes more: signs, underscores and other
    digits in numbers, groups, set operators.
    """  # fmt: skip
    if not _LIST.fullmatch(text):
        raise _bad_hosts(text, "names have letters, digits, `.`, `:`, `_`, `-` and ranges of digits, joined by commas")
    return re.findall(_PATTERN, text)


def _count(pattern: str) -> int:
    """How many hosts a pattern names, or more where its ranges overlap; those that run backwards count as well."""
    total = 1
    for ranges in re.findall(r"\[(.*?)\]", pattern):
        ends = [[int(end) for end in part.split("-")] for part in ranges.split(",")]
        total = min(total * sum(abs(end[-1] - end[0]) + 1 for end in ends), MAX_HOSTS + 1)  # no number of many digits
    return total


def _bad_hosts(text: str, why: str) -> EnvbuildError:
    return EnvbuildError(
        "hosts-invalid",
        f"cannot read the host list {text[:80]!r}",
        why=visible(why),
        hint="write a list such as nid[001-064]",
    )


def _too_many(text: str) -> EnvbuildError:
    return EnvbuildError("hosts-too-many", f"{text[:80]!r} names more than {MAX_HOSTS} hosts", hint="split the target")
