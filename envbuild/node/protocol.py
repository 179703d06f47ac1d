"""One JSON request on stdin, one JSON response line on stdout, everything else on stderr.

The contract is in `docs/dev/node-program.md`, section Protocol. In a checkout and in `envbuild-node.pyz` the package
has the same name, so `from envbuild.node.protocol import NodeError` works in both. Annotations of functions that
Python 3.6 could not evaluate (`list[str]`, `int | None`, names that are imported for types alone) are quoted in the
node program.
"""

import contextlib
import enum
import json
import os
import re
import sys
import time

from envbuild.node import redact

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Dict, NoReturn

    Json = Dict[str, Any]
else:
    Json = dict  # an object of JSON, for annotations

# Set by the play to the kind of connection; without it nothing is watched: a printed script may outlive its session.
CONNECTION = "ENVBUILD_CONNECTION"
PROTOCOL = 1
REQUEST_LIMIT = 64 * 1024 * 1024
# A log with the output of a large build is some megabytes.
LOGS_KEPT = 50
RUN = "[0-9]{8}T[0-9]{6}Z-[0-9a-f]{4}"  # a regular expression for the ids of runs


class Exit(enum.IntEnum):
    """What a process exit status means (the table is in the README); the controller calls it `ExitCode`."""

    OK = 0
    CHECK_FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    BUILD_FAILED = 4
    INTEGRITY = 5
    BELOW_FLOOR = 6
    REFUSED = 7
    PARTIAL = 8
    JOB_FAILED = 9
    INTERNAL = 70
    TRY_AGAIN = 75
    INTERRUPTED = 130
    TERMINATED = 143


# Which exit code an error code ends in, where an error does not say it itself; codes that are not here end in USAGE.
_CODES = {
    Exit.CHECK_FAILED: """
        data-failed environment-drifted environment-missing environment-not-of-lock environment-unstamped
        image-does-not-run image-none kernel-missing link-blocked log-unknown nodes-cannot-meet
    """,
    Exit.UNREACHABLE: """
        answer-unreadable answers-not-collected contact-failed host-key-changed host-key-unknown ssh-config-missing
        login-needs-terminal node-program-died node-silent node-unreachable scheduler-unreachable ssh-auth-failed
        ssh-missing step-overdue transfer-cut-off
    """,
    Exit.BUILD_FAILED: """
        arch-missing build-failed conda-install-failed conda-script-failed download-refused extension-broken
        extensions-missing image-build-failed index-not-an-index index-refused install-failed
        kernel-sources-missing package-not-found patch-hits patch-not-written patch-postcondition patch-precondition
        playbook-deadline registry-not-a-registry registry-refused tls-failed
    """,
    Exit.INTEGRITY: """
        address-mismatch ancestor-missing artifact-damaged commit-missing conda-package-unsafe conda-record-invalid
        conda-unrecorded document-changed document-missing download-too-large bundle-damaged bundle-unsafe
        hash-contradicts-record hash-mismatch hash-unrecorded html-instead-of-file image-damaged image-id-differs
        kit-invalid kit-missing lock-digest-mismatch lock-edited package-not-required patch-changed record-mismatch
        registry-digest-mismatch report-not-holding report-page-invalid root-differs toolchain-hash-mismatch
        tree-mismatch wheel-unreadable wheel-unsafe
    """,
    Exit.REFUSED: """
        base-changed base-lacks build-not-allowed bundle-does-not-fit bundle-incomplete not-writable
        channel-not-a-channel channel-refused conda-and-wheel conda-clobber conda-defaults-refused script-impossible
        conda-prefix-too-long conda-unsatisfiable container-needs-job container-needs-registry container-no-gpu-access
        container-no-runtime container-option data-not-made delivery-unfit environment-in-use environment-not-stamped
        environment-of-another-stack nodes-differ git-missing image-base-unfit image-base-unknown image-no-builder
        image-no-file image-of-another-lock image-without-ids image-without-python interpreter-mismatch
        interpreter-missing job-refused kernel-not-written kit-without-lock launch-does-not-fit no-acceptable-file
        node-without-python nodes-unknown not-yet-supported patch-refused plan-unconfirmed prefix-foreign
        prefix-not-shared
        profile-cannot-run project-foreign rattler-unfit replaces-base-package resolution-failed run-elsewhere
        scheduler-missing ssh-keygen-missing strategy-not-here target-untrusted toolchain-python-broken
        user-files-blocked variable-refused
    """,
    Exit.JOB_FAILED: """
        job-boot-fail job-cancelled job-deadline job-failed job-launch-failed job-lost job-node-fail job-not-cancelled
        job-out-of-memory job-timeout
    """,
    Exit.INTERNAL: """
        installation-broken git-failed internal node-internal playbook-broken
    """,
    Exit.TRY_AGAIN: """
        address-missing build-busy channel-unreachable disk-full download-failed download-timeout image-in-use
        image-transfer-failed index-unreachable job-not-started job-preempted journal-unwritable lease-lost
        network-unreachable not-begun object-missing partition-out-of-service prefix-busy registry-busy
        registry-unreachable run-directory-unwritable scheduler-silent source-unreachable uv-timeout
    """,
    Exit.INTERRUPTED: "interrupted",
}
EXITS = {code: number for number, codes in _CODES.items() for code in codes.split()}


class NodeError(Exception):
    """A failure that a user can act on; the controller turns it into an `EnvbuildError` with the same code.

    `changed` says whether the node was changed before the failure; `install` sets it.
    """

    changed = False

    def __init__(
        self,
        code: str,
        what: str,
        why: str = "",
        hint: str = "",
        exit_code: "int | None" = None,
        details: "Json | None" = None,
    ) -> None:
        """`code` is kebab-case, `what` one line, `why` the cause as observed, `hint` the next step."""
        super().__init__(what)
        self.code = code
        self.what = what
        self.why = why
        self.hint = hint
        self.exit_code = EXITS.get(code, Exit.USAGE) if exit_code is None else int(exit_code)
        self.details = details or {}

    def __str__(self) -> str:
        """One line: code and what happened."""
        return "error[%s]: %s" % (self.code, self.what)

    def as_dict(self) -> Json:
        """The `error` object of a response."""
        out = {"code": self.code, "what": self.what, "exit": self.exit_code}
        for key in ("why", "hint", "details"):
            value = getattr(self, key)
            if value:
                out[key] = value
        return out


def plural(count: int, noun: str) -> str:
    """`1 file`, `2 files`."""
    return "%d %s%s" % (count, noun, "" if count == 1 else "s")


def few(names: "Sequence[str]", most: int = 3) -> str:
    """The first of some names, and how many more there are."""
    return ", ".join(names[:most]) + (" and %d more" % (len(names) - most) if len(names) > most else "")


def plain(value: float, beside: "float | None" = None) -> str:
    """A number for people: thousands separated, else four digits; more where `beside` would read alike and is not."""
    text = _short(value)
    if beside is None or value == beside or text != _short(beside) or value == int(value):
        return text
    forms = ("{:,.%df}" % places for places in range(1, 400))
    return next(form.format(value) for form in forms if form.format(value) != form.format(beside))


def _short(value: float) -> str:
    return "{:,.0f}".format(value) if abs(value) >= 1000 else "%.4g" % value


class Interrupted(BaseException):
    """SIGTERM, SIGINT or SIGHUP arrived; not an `Exception`, so that no verb swallows it."""


def _refuse(why: str) -> "NodeError":
    return NodeError("request-invalid", "the request is not what this node program reads", why=why)


def _no_constant(text: str) -> "NoReturn":
    raise _refuse("%s is not JSON" % text)


def _no_duplicates(pairs: "list[tuple[str, Any]]") -> Json:
    out = {}
    for key, value in pairs:
        if key in out:
            raise _refuse("duplicate key %r" % key[:80])
        out[key] = value
    return out


def parse_request(data: bytes, verb: str) -> Json:
    """The request in `data` (bytes) for `verb`, its prefix expanded.

    Raises NodeError `request-invalid`.
    """
    if len(data) > REQUEST_LIMIT:
        raise _refuse("larger than %d bytes" % REQUEST_LIMIT)
    try:
        request = json.loads(data.decode("utf-8"), parse_constant=_no_constant, object_pairs_hook=_no_duplicates)
    except RecursionError:
        raise _refuse("nested too deeply") from None
    except ValueError as error:
        raise _refuse(str(error)[:300]) from None
    if not isinstance(request, dict):
        raise _refuse("not a JSON object")
    if request.get("protocol") != PROTOCOL:
        raise NodeError(
            "request-invalid",
            "the node program speaks protocol %d" % PROTOCOL,
            why="the request says protocol %r" % (request.get("protocol"),),
            hint="run the node program that belongs to this version of envbuild",
        )
    for key, kind in (("verb", str), ("run", str), ("prefix", str), ("args", dict)):
        if not isinstance(request.setdefault(key, {} if key == "args" else None), kind):
            raise _refuse("`%s` is missing or of the wrong type" % key)
    if request["verb"] != verb:
        raise _refuse("the request is for `%s`, the command line says `%s`" % (request["verb"][:80], verb))
    redact.learn(request["args"])
    request["prefix"] = expand_prefix(request["prefix"])
    for key in ("cache", "tmp"):
        if isinstance(request["args"].get(key), str) and request["args"][key]:
            request["args"][key] = expand_prefix(request["args"][key])
    return request


def _is_text(value: object) -> bool:
    return isinstance(value, str)


_KINDS: "dict[str, Callable[[Any], bool]]" = {
    "a text": _is_text,
    "an absolute path": lambda value: _is_text(value) and value.startswith("/"),
    "a list of text": lambda value: isinstance(value, list) and all(map(_is_text, value)),
    "an object": lambda value: isinstance(value, dict),
    "an object of text": lambda value: isinstance(value, dict) and all(map(_is_text, value.values())),
    "a number of days, 0 or more": lambda value: type(value) in (int, float) and 0 <= value <= 1e6,
}


def argument(args: Json, name: str, kind: str, *default: "Any") -> "Any":
    """`args[name]`, which has to be of the `kind` (in words, see above); the default, where one is given, for null.

    Raises NodeError `request-invalid`.
    """
    value = args.get(name)
    if value is None and default:
        return default[0]
    if not _KINDS[kind](value):
        raise NodeError("request-invalid", "`args.%s` is not %s" % (name, kind))
    return value


def has_fields(data: Json, **kinds: type) -> bool:
    """Whether an object that was read has these fields, each of its kind."""
    return all(isinstance(data.get(name), kind) for name, kind in kinds.items())


def expand_prefix(text: str) -> str:
    """`text` with `{user}`, `{home}` and `{data}` (XDG data directory) filled in as this node knows them.

    Raises NodeError `prefix-invalid` when the outcome is not an absolute path below `/` without `..` and without `:`,
    which parts the folders in PATH.
    """
    home = os.path.expanduser("~")
    data = os.environ.get("XDG_DATA_HOME", "")
    if not data.startswith("/"):
        data = os.path.join(home, ".local", "share")
    path = text.replace("{user}", user_name()).replace("{home}", home).replace("{data}", data)
    bad = not path.strip("/.") or not path.startswith("/") or ".." in path.split("/")
    if bad or any(c in "{:" or ord(c) < 32 for c in path):
        raise NodeError(
            "prefix-invalid",
            "%r cannot be a prefix" % text[:200],
            why="on this node it expands to %r" % path[:200],
            hint="give an absolute path below /, without `:`; `{user}`, `{home}` and `{data}` may be used",
        )
    return os.path.normpath(path)


def utc_time(seconds: "float | None" = None) -> str:
    """`2026-01-31T12:00:00Z`: now, or so many seconds after the beginning of 1970."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def user_name(number: "int | None" = None) -> str:
    """The login name of a user, else of ours; the user id as text where no name is known."""
    import pwd

    number = os.geteuid() if number is None else number
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


class Log:
    """Lines to stderr and, once a file is named, JSON lines `{"t": seconds since 1970, "message": ...}` to it."""

    def __init__(self) -> None:
        """Start with stderr only."""
        self.path: str | None = None

    def __call__(self, message: str) -> None:
        """Write one message, redacted."""
        message = redact.redact_text(message)
        sys.stderr.write(message + "\n")
        sys.stderr.flush()
        self.keep(message)

    def keep(self, message: str) -> None:
        """Write a redacted message into the file alone; one that cannot be written never stops the work."""
        if self.path is None:
            return
        line = json.dumps({"t": round(time.time(), 3), "message": message}) + "\n"
        try:
            if not os.path.exists(self.path):
                self._begin(os.path.dirname(self.path))
            # What a build prints is for its owner.
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
            with os.fdopen(os.open(self.path, flags, 0o600), "ab") as handle:
                handle.write(line.encode("ascii"))
        except OSError as error:
            self.path = None
            sys.stderr.write("log file not written: %s\n" % error)

    @staticmethod
    def _begin(folder: str) -> None:
        """Make the folder of logs; of those there only the newest stay (the name of a run begins with its time)."""
        os.makedirs(folder, exist_ok=True)
        for name in sorted(name for name in os.listdir(folder) if re.match(RUN + r"\.log\Z", name))[: -LOGS_KEPT + 1]:
            with contextlib.suppress(OSError):  # another user's
                os.unlink(os.path.join(folder, name))


log = Log()


def success(verb: str, changed: bool, result: Json) -> Json:
    """The response of a verb that ran."""
    return {"protocol": PROTOCOL, "verb": verb, "ok": True, "changed": bool(changed), "result": result}


def failure(verb: str, error: "NodeError") -> Json:
    """The response of a verb that failed with the NodeError `error`, redacted."""
    report = redact.redact_data(error.as_dict())
    return {"protocol": PROTOCOL, "verb": verb, "ok": False, "changed": error.changed, "error": report}


def encode(response: Json) -> bytes:
    """`response` as one line of UTF-8; bytes of file names that are not UTF-8 become `?`."""
    text = json.dumps(response, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "replace") + b"\n"


def write_all(descriptor: int, data: bytes) -> None:
    """Write every byte of `data`; raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
