"""`python envbuild-node.pyz VERB`: run one verb of the node program; see `protocol.py`."""

import os
import signal
import sys

from envbuild.node import proc, protocol, trust, verbs
from envbuild.node.protocol import Exit, Interrupted, Json, NodeError

# Verbs that say what is wrong with a prefix, and that a node's older Python runs as well: what they import keeps to the
# syntax of 3.6.
_OF_ANY_NODE = ("probe", "doctor")
_LEAST = (3, 8)


def _on_signal(number: int, _frame: object) -> None:
    # A second Ctrl-C ends at once. A second SIGTERM may come from the end of the session and from the next step: what
    # is being put away is put away, and who cannot wait sends SIGKILL.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, lambda *_: None)  # not SIG_IGN: programs would inherit it
    proc.stop_all()
    stopped = Interrupted(number)
    if not proc.put_off(stopped):
        raise stopped


def _dispatch(verb: str) -> "tuple[bool, Json]":
    if verb not in verbs.VERBS:
        raise NodeError("request-invalid", "the node program has no verb `%s`" % verb[:80], hint=", ".join(verbs.VERBS))
    if sys.version_info < _LEAST and verb not in _OF_ANY_NODE:
        raise NodeError(
            "node-without-python",
            "this node has no Python 3.8 or newer, which `%s` needs" % verb,
            why="%s is %d.%d, which runs only the probe" % ((sys.executable,) + sys.version_info[:2]),
            hint="`envbuild provision` installs one if the stack has `interpreters: [present, standalone]`",
        )
    request = protocol.parse_request(sys.stdin.buffer.read(protocol.REQUEST_LIMIT + 1), verb)
    path = request["args"].get("log")
    protocol.log.path = path if isinstance(path, str) and path.startswith("/") else None
    if verb not in _OF_ANY_NODE:
        trust.refuse_prefix(request["prefix"])
    if "progress" not in request["args"]:
        return verbs.run(verb, request)
    from envbuild.node.logs import progress

    with progress.following(request["args"]["progress"], verb):
        return verbs.run(verb, request)


def _execute(verb: str) -> "tuple[Json, int]":
    """Run `verb` with the request on stdin; returns (response, exit code)."""
    try:
        changed, result = _dispatch(verb)
        code = int(result.get("exit", Exit.OK if result.get("ok", True) else Exit.CHECK_FAILED))
        return protocol.success(verb, changed, result), code
    except NodeError as error:
        return protocol.failure(verb, error), error.exit_code
    except Interrupted as signal_:
        stopped = NodeError(
            "interrupted",
            "`%s` was stopped by signal %s" % (verb, signal_),
            why="its processes have ended, and no half-built environment is in use",
            hint="the same command continues where this one stopped",
        )
        return protocol.failure(verb, stopped), stopped.exit_code
    except Exception as error:  # noqa: BLE001 - the last line of defence: the controller must always get an answer
        return _internal(verb, error)


def _internal(verb: str, error: "Exception") -> "tuple[Json, int]":
    import traceback

    protocol.log(traceback.format_exc())
    frames = traceback.extract_tb(error.__traceback__)
    where = (
        {"file": os.path.basename(frames[-1][0]), "line": frames[-1][1], "function": frames[-1][2]} if frames else {}
    )
    failed = NodeError(
        "node-internal",
        "the node program failed in `%s`" % verb,
        why="%s: %s" % (type(error).__name__, str(error)[:500]),
        hint="this is a bug in envbuild; please report it with the log",
        details=where,
    )
    return protocol.failure(verb, failed), failed.exit_code


def main(argv: "list[str] | None" = None) -> int:
    """Run one verb and return the exit code; while it runs, file descriptor 1 is stderr, so stdout stays clean."""
    argv = sys.argv[1:] if argv is None else argv
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _on_signal)
    if protocol.CONNECTION in os.environ:
        from envbuild.node import identity

        identity.follow(os.environ.pop(protocol.CONNECTION))
    sys.stdout.flush()
    answer = os.dup(1)
    os.dup2(2, 1)
    try:
        verb = argv[0] if len(argv) == 1 else ""
        response, code = _execute(verb)
        try:
            line = protocol.encode(response)
        except (TypeError, ValueError) as error:
            response, code = _internal(verb, error)
            line = protocol.encode(response)
        protocol.write_all(answer, line)
    finally:
        sys.stdout.flush()
        os.dup2(answer, 1)
        os.close(answer)
    return code


if __name__ == "__main__":
    sys.exit(main())
