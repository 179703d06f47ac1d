"""One result of a check of a report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["checked", "problem", "not-checked"]


@dataclass(frozen=True)
class Finding:
    """`kind`: it holds, it does not (`code` says in which way), or nobody could look. `topic` is what it is about."""

    kind: Kind
    topic: str
    says: str
    code: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        code = {"code": self.code} if self.code else {}
        return {"kind": self.kind, "topic": self.topic, **code, "says": self.says}


def checked(topic: str, says: str) -> Finding:
    """It was looked at and holds."""
    return Finding("checked", topic, says)


def problem(code: str, topic: str, says: str) -> Finding:
    """It does not hold."""
    return Finding("problem", topic, says, code)


def not_checked(topic: str, says: str) -> Finding:
    """It could not be looked at."""
    return Finding("not-checked", topic, says)


def judged(topic: str, good: str, problems: Iterable[Finding]) -> list[Finding]:
    """The problems, or where there is none that all is `good`."""
    return list(problems) or [checked(topic, good)]
