"""Node program responses -> evidence. Pure: what was not observed does not appear."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from envbuild.errors import EnvbuildError, ExitCode, gravest
from envbuild.model.evidence import Check, NodeEvidence, NodeLog, checks_exit
from envbuild.model.facts import NodeFacts
from envbuild.model.plan import NodePlan, Resolution
from envbuild.report.verdict import GPU_WARNINGS, computed
from envbuild.report.view import cure, place_words
from envbuild.resolve.compat_read import load_compat
from envbuild.resolve.rules.packages import advice
from envbuild.text import plural

NOT_BEGUN = "not-begun"
Responses = Mapping[str, Mapping[str, Any]]


def node_evidence(
    plan: NodePlan,
    facts: NodeFacts,
    responses: Responses,
    error: EnvbuildError | None = None,
) -> NodeEvidence:
    """What one node answered, verb by verb; `error` when a step could not answer at all (killed, unreachable)."""
    error, checks, exit_code = _found(responses, error)
    install, activate, verify = (_result(responses, verb) for verb in ("install", "activate", "verify"))
    rooted = _rooted(responses)
    unchanged = plan.nothing_to_do and exit_code == ExitCode.OK
    return NodeEvidence(
        node=plan.node,
        status="unchanged" if unchanged else "not-begun" if error and error.code == NOT_BEGUN else _status(exit_code),
        exit=exit_code,
        facts=facts,
        resolution=plan.resolution,
        environment=plan.environment,
        variant_digest=plan.variant_digest,
        root=rooted.get("root"),
        root_level=rooted.get("level"),
        # What conda installed has its own names: `1.26.4 py39_0 (conda)`.
        packages={
            **(verify.get("packages") or install.get("packages") or {}),
            **{name: f"{pin} (conda)" for name, pin in ((install.get("conda") or {}).get("packages") or {}).items()},
        },
        base_packages=verify.get("base_packages") or install.get("base_packages") or {},
        sources=tuple(install.get("sources") or verify.get("sources") or ()),
        checks=checks,
        error=error.as_dict() if error else None,
        files=activate.get("files") or verify.get("files"),
        bytes=activate.get("bytes") or verify.get("bytes"),
        log=NodeLog.from_plain(verify["log"]) if verify.get("log") else None,
    )


def _found(responses: Responses, error: EnvbuildError | None) -> tuple[EnvbuildError | None, tuple[Check, ...], int]:
    """What went wrong, what was checked, and the exit code of both."""
    error, checks = error or first_error(responses.values()), tuple(_checks(responses))
    return error, checks, gravest([int(error.exit_code) if error else 0, checks_exit(checks)])


def inspected_node(
    node: str, responses: Responses, stamp: Mapping[str, Any], error: EnvbuildError | None = None, **about: Any
) -> NodeEvidence:
    """What a node answered to a verb that changes nothing about what it was stamped with, or recorded.

    `error`: why it did not answer to everything; `about`: more fields.
    """
    error, checks, exit_code = _found(responses, error)
    drift, rooted = _result(responses, "verify"), _rooted(responses)
    return NodeEvidence(
        node=node,
        status="failed" if exit_code else "ok",
        exit=exit_code,
        root=rooted.get("root") or stamp.get("root"),
        root_level=rooted.get("level") or "stamped",
        sources=tuple(stamp.get("sources") or ()),
        checks=checks,
        error=error.as_dict() if error else None,
        drift=tuple(drift.get("drift") or ()),
        drift_count=int(drift.get("drift_count") or 0),
        **about,
    )


def coded(node: NodeEvidence, command: Sequence[str], *, verb: str, several: bool, stack: str = "") -> NodeEvidence:
    """The node with an error where only its checks failed: a code, and the command that repeats it.

    `smoke` can repeat the first check alone. `several`: the command is about more nodes than this one, and can be
    given one of them; `stack`: its name. What a rule knows of the failure comes first: nothing repeats well until the
    stack is edited.
    """
    failed = [check for check in node.checks if check.status == "failed"]
    if node.error is not None:
        known = advice(" ".join(str(node.error.get(key, "")) for key in ("what", "why")), load_compat())
        hint = f"{known}; {node.error.get('hint', '')}"
        return node.model_copy(update={"error": {**node.error, "hint": hint}}) if known else node
    if not failed:
        return node
    first, more = failed[0], f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
    smoke = first.name.startswith("smoke/")
    words = list(command)
    if smoke and verb == "smoke":  # for one check, in the place of what it was for
        pairs = zip(("", *command), command, strict=False)
        kept = [word for before, word in pairs if before != "--only" and word.partition("=")[0] != "--only"]
        words = [*kept, "--only", first.name.removeprefix("smoke/")]
    again = shlex.join([*words, *(["--host", node.node] if several and "--host" not in command else [])])
    printed = " ".join(f"{check.says} {check.details.get('output', '')}" for check in failed)
    slow = node.exit == ExitCode.BELOW_FLOOR
    left_out = slow and verb != "smoke"
    usable = "; it is not in use: `floors:` of the target can have a lower value, or null" if left_out else ""
    repeat = cure(first.says, place_words(command, stack), f"again: {again}{usable}" if command else "", printed)
    log = first.details.get("log")  # of a run of its own
    read = f"read {log} in the folder of the run; " if log else ""
    error = EnvbuildError(
        ("below-floor" if slow else "smoke-failed") if smoke else "drift" if node.drift_count else "check-failed",
        f"{node.node}: {first.name}: {first.says}{more}",
        hint=read + repeat if computed(first) else _what_to_do(node, command),
        exit_code=ExitCode(node.exit or ExitCode.CHECK_FAILED),
    )
    return node.model_copy(update={"error": error.as_dict()})


def of_another_root(node: NodeEvidence, usual: str, command: Sequence[str]) -> NodeEvidence:
    """A node whose stamp has a root that its variant and interpreter do not give elsewhere: it may not pass as well."""
    error = EnvbuildError(
        "drift",
        f"{node.node}: the stamp has the root {str(node.root)[:12]}, and other nodes with this variant and this Python "
        f"have {usual[:12]}",
        hint=_what_to_do(node, command),
        exit_code=ExitCode.CHECK_FAILED,
    )
    failed = {"status": "failed", "exit": int(ExitCode.CHECK_FAILED), "error": error.as_dict()}
    return node.model_copy(update=failed)


def _what_to_do(node: NodeEvidence, command: Sequence[str]) -> str:
    """What to do about drift. Files that only lie beside those of a source may be somebody's work."""
    added = all(item.get("kind") == "extra" and item.get("path", "").startswith("src/") for item in node.drift)
    repair, names = f"`{_as('provision', command)} --repair`", f"`{_as('verify', command)}` names every file"
    if added and 0 < node.drift_count == len(node.drift):
        declare = "declare what runs write: `generated:` or `outputs:` of the source in the stack file"
        return f"{declare}; {repair} builds the environment without these files"
    return f"{repair} builds it again; {names}"


def _as(verb: str, command: Sequence[str]) -> str:
    """Another verb for the stack, the target and the prefix of a command."""
    return f"envbuild {verb} {shlex.join(place_words(command))}".rstrip()


def failed_node(
    node: str, error: EnvbuildError, *, facts: NodeFacts | None = None, resolution: Resolution | None = None
) -> NodeEvidence:
    """A node on which nothing could be done."""
    return NodeEvidence(
        node=node,
        status=_status(error.exit_code),
        exit=error.exit_code,
        facts=facts,
        resolution=resolution,
        error=error.as_dict(),
    )


def deviations(nodes: Iterable[NodeEvidence]) -> tuple[str, ...]:
    """What a reader has to know of how the environments came to be; the files themselves are with their nodes."""
    return tuple(sorted({check.says for node in nodes for check in node.checks if check.details.get("deviation")}))


def of_gpus(nodes: Iterable[NodeEvidence]) -> tuple[str, ...]:
    """Warnings of GPUs that others use, and of those that are slower than their like, which refuse nothing."""
    warnings = (
        f"{node.node}: {text}"
        for node in nodes
        for key in GPU_WARNINGS
        for check in node.checks
        for text in check.details.get(key, ())
    )
    return tuple(dict.fromkeys(warnings))


def of_another_kind(node: str, first: str, why: str) -> EnvbuildError:
    """`nodes-differ` (exit 7): a job does for all its nodes what fits its `first`."""
    return EnvbuildError(
        "nodes-differ",
        f"{node} is not of the kind of {first}",
        why=why,
        hint="ask for nodes of one kind: `scheduler: {constraints: ...}`",
        details={"node": node},
    )


def all_well(responses: Responses) -> bool:
    """Every verb was answered well, and found nothing wrong."""
    return all(answer.get("ok") and (answer.get("result") or {}).get("ok", True) for answer in responses.values())


def first_error(responses: Iterable[Mapping[str, Any]]) -> EnvbuildError | None:
    """The first response that is an error."""
    for response in responses:
        if not response.get("ok", False):
            return EnvbuildError.from_dict(dict(response.get("error") or {}))
    return None


def _result(responses: Responses, verb: str) -> Mapping[str, Any]:
    result = responses.get(verb, {}).get("result")
    return result if isinstance(result, Mapping) else {}


def _rooted(responses: Responses) -> Mapping[str, Any]:
    """The answer that is surest of the root: one that measured it, else one that has it from the stamp."""
    rooted = [result for verb in ("activate", "ensure", "verify") if (result := _result(responses, verb)).get("root")]
    return next((result for result in rooted if result.get("level") == "measured"), rooted[0] if rooted else {})


def _checks(responses: Responses) -> Iterable[Check]:
    install = _result(responses, "install")
    if "record_checked" in install:
        count, wrong = int(install["record_checked"]), install.get("record_wrong") or ()
        says = f"{count} {'file agrees' if count == 1 else 'files agree'} with the RECORD of their wheel"
        if names := sorted({f"{row['package']} {row['version']}" for row in wrong}):
            says += f"; that of {', '.join(names)} is wrong about {len(wrong)}, compared with the archive"
        yield Check(
            name="record",
            status="passed",
            says=says,
            level="measured",
            details={"record_wrong": list(wrong)} if wrong else {},
            seconds=(install.get("seconds") or {}).get("record"),
        )
    for row in install.get("overwritten") or ():
        says = (
            f"{' and '.join(row['packages'])} hold {plural(row['files'], 'file')} with other contents, such as "
            f"{row['first']}; those of {' and '.join(row['there'])} are there"
        )
        details = {"deviation": "overwritten-files", **row}
        yield Check(name="overwritten", status="passed", says=says, level="measured", details=details)
    yield from _conda_checks(install.get("conda") or {})
    if install.get("required"):
        counts = install["required"]
        says = f"{plural(counts['asked'], 'package')} for the stack, {counts['required']} that these require; "
        says += "nothing else is in the lock"
        yield Check(name="required", status="passed", says=says, level="measured")
    stamped = _rooted({verb: response for verb, response in responses.items() if verb != "verify"})
    for verb in ("ensure", "smoke", "verify", "meet"):
        for data in _result(responses, verb).get("checks", ()):
            check = Check.from_plain(data)
            if check.name in ("imports", "tested") and "smoke" in responses:
                continue  # notes of what the smoke test of this run says anew
            if check.name == "files" and check.level == "not-checked" and stamped.get("level") == "measured":
                # The fast check reads nothing; what it would say was true until this run hashed every file.
                says = f"every file hashed for the stamp, root {str(stamped['root'])[:12]} measured"
                check = Check(name="files", status="passed", says=says, level="measured")
            yield check


def _conda_checks(conda: Mapping[str, Any]) -> Iterable[Check]:
    """What a reader of conda packages cannot see: what their scripts set, which did not run, and shared files."""
    skipped, shared = conda.get("link_scripts_skipped") or (), conda.get("clobbered") or ()
    if conda.get("activation"):
        says = f"{', '.join(conda['activation'])} set by activation scripts, for builds and smoke tests too"
        yield Check(
            name="activation", status="passed", says=says, level="measured", details={"variables": conda["activation"]}
        )
    if skipped:
        says = f"the post-link scripts of {', '.join(skipped)} were not run: `link_scripts` does not list them"
        yield Check(name="post-link", status="skipped", says=says)
    if shared:
        says = f"{plural(len(shared), 'file')} of two conda packages, with equal contents"
        yield Check(
            name="clobbered", status="passed", says=says, level="measured", details={"files": list(shared)[:20]}
        )


def _status(code: int) -> Any:
    return {ExitCode.OK: "ok", ExitCode.UNREACHABLE: "unreachable", ExitCode.REFUSED: "refused"}.get(
        ExitCode(code), "failed"
    )
