"""Coded errors and the exit codes they end in.

Every failure a user can meet is an `EnvbuildError`: a stable kebab-case code, what happened, why, and what to
do next. The command line prints it and exits with its documented code; there is no traceback without `--verbose`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from envbuild.node.protocol import EXITS, Exit

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T")

# A note on an exception that is a mistake of ours begins so: where its run has kept the traceback.
TRACEBACK_KEPT = "report its traceback: "


ExitCode = Exit

# Gravest first; codes that are not listed (usage, internal, interrupted) end a run before nodes are compared.
_GRAVITY = (
    ExitCode.INTEGRITY,
    ExitCode.BUILD_FAILED,
    ExitCode.REFUSED,
    ExitCode.JOB_FAILED,
    ExitCode.PARTIAL,
    ExitCode.BELOW_FLOOR,
    ExitCode.CHECK_FAILED,
    ExitCode.UNREACHABLE,
    ExitCode.TRY_AGAIN,
)


def gravest(codes: Iterable[int]) -> ExitCode:
    """The one exit code that stands for several, `OK` when there is none."""
    present = {ExitCode(code) for code in codes if code}
    for code in _GRAVITY:
        if code in present:
            return code
    return min(present, default=ExitCode.OK)


def exit_of(errors: Mapping[str, EnvbuildError]) -> ExitCode:
    """The one exit code for the errors of several nodes."""
    return gravest(error.exit_code for error in errors.values())


def as_dicts(errors: Mapping[str, EnvbuildError]) -> dict[str, dict[str, Any]]:
    """The errors of nodes, for `--json` and the journal."""
    return {node: error.as_dict() for node, error in errors.items()}


def sort_out(answers: Mapping[str, T | EnvbuildError]) -> tuple[dict[str, T], dict[str, EnvbuildError]]:
    """What nodes answered, and the errors of those that did not."""
    errors = {node: answer for node, answer in answers.items() if isinstance(answer, EnvbuildError)}
    return {node: answer for node, answer in answers.items() if not isinstance(answer, EnvbuildError)}, errors


class EnvbuildError(Exception):
    """A failure that a user can act on.

    `code` is stable and kebab-case, `what` one line, `why` the cause as observed, `hint` the next step.
    """

    def __init__(
        self,
        code: str,
        what: str,
        *,
        why: str = "",
        hint: str = "",
        exit_code: ExitCode | None = None,
        details: dict[str, Any] | None = None,
    ) -> None:
        """Keep the parts apart; `str()` joins them for logs.

        `exit_code`: by default that of the code, see `EXITS` of `node/protocol.py`.
        """
        super().__init__(what)
        self.code = code
        self.what = what
        self.why = why
        self.hint = hint
        self.exit_code = ExitCode(EXITS.get(code, ExitCode.USAGE)) if exit_code is None else exit_code
        self.details = details or {}

    @classmethod
    def unexpected(cls, what: str, error: BaseException) -> EnvbuildError:
        """An exception that nobody foresaw, where one part of a run must not end the others; it stays as the cause.

        That a disk is full can come up wherever something is written, and is no mistake of ours (`disk-full`, exit 75).
        """
        why = f"a bug in envbuild: {type(error).__name__}: {error}"
        result = EnvbuildError("internal", what, why=why, hint="run again with -v and report the traceback")
        if isinstance(error, OSError):
            from envbuild.node import paths

            full = paths.no_room(
                error, str(error.filename or "the disk of runs, caches or temporary files of this machine")
            )
            if full is not None:
                result = cls.from_dict(full.as_dict())
        result.__cause__ = error
        return result

    def __str__(self) -> str:
        """One line: code and what happened."""
        return f"error[{self.code}]: {self.what}"

    def as_dict(self) -> dict[str, Any]:
        """The same for `--json` and evidence; keys as the node program uses them."""
        more = {"why": self.why, "hint": self.hint, "details": self.details}
        given = {key: value for key, value in more.items() if value}
        return {"code": self.code, "what": self.what, "exit": int(self.exit_code), **given}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> EnvbuildError:
        """Rebuild an error that the node program reported (see `envbuild/node/protocol.py`)."""
        try:
            exit_code = ExitCode(int(data.get("exit", ExitCode.INTERNAL)))
        except ValueError:
            exit_code = ExitCode.INTERNAL
        return cls(
            str(data.get("code", "node-error")),
            str(data.get("what", "the node program failed")),
            why=str(data.get("why", "")),
            hint=str(data.get("hint", "")),
            exit_code=exit_code,
            details=dict(data.get("details") or {}),
        )


@contextlib.contextmanager
def writing(path: Path | str) -> Iterator[None]:
    """The body writes a file or folder that the user named. Raises EnvbuildError `output-unwritable` (exit 2)."""
    try:
        yield
    except OSError as error:
        why, hint = error.strerror or str(error), "make it writable, free some space there, or name another"
        raise EnvbuildError("output-unwritable", f"{path} cannot be written", why=why, hint=hint) from error
