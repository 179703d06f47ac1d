"""What `probe` found, for people: the nodes by class, who stands out and in what, and who said nothing."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from itertools import groupby

from envbuild.errors import EnvbuildError
from envbuild.hostlist import fold_hosts
from envbuild.model.facts import NodeFacts
from envbuild.resolve.node_classes import NodeClass, group
from envbuild.text import visible

Line = tuple[str, str]
"""text and style, as `Ui.lines` prints it"""

_PHASES = {
    "node-unreachable": "while connecting",
    "host-key-unknown": "at its host key",
    "host-key-changed": "at its host key",
    "ssh-auth-failed": "at the login",
    "login-needs-terminal": "at the login",
    "node-without-python": "without a Python",
}


def probe_lines(
    facts: Mapping[str, NodeFacts], errors: Mapping[str, EnvbuildError], *, exclusive: bool, width: int
) -> list[Line]:
    """Lines of at most `width` columns (0: as long as they are). `exclusive`: jobs there get whole nodes."""
    classes = group(facts, exclusive=exclusive)
    lines: list[Line] = []
    for each in classes:
        lines += _class_lines(each, width)
    by_phase = sorted(errors.items(), key=lambda item: (phase(item[1]), item[1].code))
    for (where, code), found in groupby(by_phase, key=lambda item: (phase(item[1]), item[1].code)):
        silent = list(found)
        first = silent[0][1]
        text = f"silent {where}: error[{code}]: {first.what}" + (f" ({first.why})" if first.why else "")
        lines += _block(f"{len(silent)}", text, fold_hosts(name for name, _ in silent), "red", width)
        lines += _wrapped("", f"hint: {first.hint}", "cyan", width) if first.hint else []
    return lines


def phase(error: EnvbuildError) -> str:
    """How far a node came."""
    return _PHASES.get(error.code, "in the first contact" if error.code.startswith("contact-") else "when it was asked")


def _class_lines(found: NodeClass, width: int) -> list[Line]:
    lines = _block(f"{len(found.nodes)} x", found.label, fold_hosts(found.nodes), "bold", width)
    for text, style in (
        *((f"not like the largest class: {each}", "yellow") for each in found.differs),
        (found.fault and f"fault: {found.fault}", "red"),
    ):
        lines += _wrapped("", text, style, width) if text else []
    return lines


def _block(count: str, text: str, nodes: str, style: str, width: int) -> list[Line]:
    return _wrapped(count, text, style, width) + _wrapped("", nodes, "", width)


def _wrapped(count: str, text: str, style: str, width: int) -> list[Line]:
    """The text in a column of its own beside the count."""
    safe = visible(text)
    parts = textwrap.wrap(safe, max(20, width - 8)) if width else [safe]
    return [(f"{count if not index else '':>6}  {part}", style) for index, part in enumerate(parts or [""])]
