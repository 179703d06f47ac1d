"""What `probe` found, for people: the nodes by class, who stands out and in what, and who said nothing."""

from __future__ import annotations

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


def probe_lines(facts: Mapping[str, NodeFacts], errors: Mapping[str, EnvbuildError], *, exclusive: bool) -> list[Line]:
    """Lines as long as they are. `exclusive`: jobs there get whole nodes."""
    classes = group(facts, exclusive=exclusive)
    lines: list[Line] = []
    for each in classes:
        lines += _class_lines(each)
    by_phase = sorted(errors.items(), key=lambda item: (phase(item[1]), item[1].code))
    for (where, code), found in groupby(by_phase, key=lambda item: (phase(item[1]), item[1].code)):
        silent = list(found)
        first = silent[0][1]
        text = f"silent {where}: error[{code}]: {first.what}" + (f" ({first.why})" if first.why else "")
        lines += _block(f"{len(silent)}", text, fold_hosts(name for name, _ in silent), "red")
        lines += [_line("", f"hint: {first.hint}", "cyan")] if first.hint else []
    return lines


def phase(error: EnvbuildError) -> str:
    """How far a node came."""
    return _PHASES.get(error.code, "in the first contact" if error.code.startswith("contact-") else "when it was asked")


def _class_lines(found: NodeClass) -> list[Line]:
    lines = _block(f"{len(found.nodes)} x", found.label, fold_hosts(found.nodes), "bold")
    lines += [_line("", f"not like the largest class: {each}", "yellow") for each in found.differs]
    return lines + ([_line("", f"fault: {found.fault}", "red")] if found.fault else [])


def _block(count: str, text: str, nodes: str, style: str) -> list[Line]:
    return [_line(count, text, style), _line("", nodes, "")]


def _line(count: str, text: str, style: str) -> Line:
    """The text in a column of its own beside the count."""
    return f"{count:>6}  {visible(text)}", style
