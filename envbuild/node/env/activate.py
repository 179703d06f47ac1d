"""The verb `activate`: hashes a built environment, stamps it, and makes it the one in use. It ends a run's lease.

The verb `use` makes another stamped environment the one in use; going back is switching a link.
"""

from __future__ import annotations

import os
import time

from envbuild.node import git_source, lease, merkle, paths
from envbuild.node.env import activation_files, contents, published, remove, stamp, user_files, verify
from envbuild.node.packages import installed
from envbuild.node.protocol import Json, NodeError, log, plural, utc_time
from envbuild.node.read_text import names

_DELIVERING = 86400.0  # seconds after which a run that delivered files and has not used them is taken for dead


def run(request: Json) -> tuple[bool, Json]:
    """Stamp `args.environment` and switch `current/<stack>` to it; returns (changed, result of the contract).

    An environment that is stamped already is only switched to: `level` is `stamped`, not `measured`.
    Its other generations go then; `notes` say what stays, and where files of users are now. `verify` is what the verb
    of that name says right after it.
    Raises NodeError: `lease-lost`, `prefix-busy` (75),
    `environment-not-installed` (2), `record-mismatch` (5), `environment-drifted` (1).
    """
    args = request["args"]
    prefix = request["prefix"]
    environment = paths.checked_environment(prefix, args.get("environment"))
    stack = paths.checked_name(args.get("stack"), "stack")
    variables = activation_files.checked_variables(args.get("variables") or {})
    paths.set_umask(prefix)
    stamped = stamp.read(environment)
    new = stamped is None
    with lease.during(request) as held, paths.coded_errors(environment):
        if stamped is None:
            stamped = _finish(prefix, environment, request, held)
        else:
            stamp.check_unchanged(environment, args.get("variant"))
        changed = new or stamped.get("variables") != variables
        if changed and not new:
            stamped["variables"] = variables
            stamp.write(environment, stamped)
        held.check()
        changed = switch(prefix, stack, environment, variables) or changed
        if args.get("publish"):
            published.publish(request, stamped)
        notes = remove.retire(prefix, environment, bool(args.get("shared")))
        _drop_delivered(paths.delivered(prefix, stamped["variant_digest"]), request["run"])
    result = {key: stamped[key] for key in ("root", "files", "bytes")}
    result.update(level="measured" if new else "stamped", environment=environment)
    result.update(current=paths.current_link(prefix, stack), notes=notes)
    return changed, dict(result, verify=verify.run(request)[1])


def use(request: Json) -> tuple[bool, Json]:
    """Point `current/<stack>` at `args.environment` and rewrite the modulefile.

    Raises NodeError `environment-not-stamped` or `environment-of-another-stack` (exit 7), `prefix-busy` (75).
    """
    args, prefix = request["args"], request["prefix"]
    environment = paths.checked_environment(prefix, args.get("environment"))
    stack = paths.checked_name(args.get("stack"), "stack")
    _stamped(environment, stack)
    paths.set_umask(prefix)
    with lease.during(request):
        changed = switch(prefix, stack, environment, _stamped(environment, stack).get("variables") or {})
    return changed, {"current": paths.current_link(prefix, stack)}


def switch(prefix: str, stack: str, environment: str, variables: Json) -> bool:
    """Point the link and the modulefile of a stack at an environment, and write what shells load.

    True when one of them was not so already.
    """
    target = os.path.join("..", "envs", os.path.basename(environment))
    changed = activation_files.write(environment, stack, variables)
    changed = activation_files.write_modulefile(prefix, environment, stack, variables) or changed
    # Last: a run that is killed before has not switched, and is taken up by the next.
    return paths.switch_link(paths.current_link(prefix, stack), target) or changed


def _stamped(environment: str, stack: str) -> Json:
    stamped = stamp.read(environment)
    if stamped is None:
        raise NodeError(
            "environment-not-stamped",
            f"{environment} is half built or missing",
            hint="`envbuild status --all` lists all environments",
        )
    if stamped["stack"] != stack:
        raise NodeError(
            "environment-of-another-stack", f"{environment} belongs to the stack {stamped['stack']}, not {stack}"
        )
    return stamped


def _drop_delivered(folder: str, run: str) -> None:
    """Remove what was delivered for this environment, unless another run has just delivered there too."""
    runs = os.path.join(folder, "runs")
    now = time.time()
    others = [
        name for name in names(runs) if name != run and now - os.stat(os.path.join(runs, name)).st_mtime < _DELIVERING
    ]
    if others:
        paths.remove_tree(os.path.join(runs, run))
    else:
        paths.discard(folder)


def _finish(prefix: str, environment: str, request: Json, held: lease.Lease) -> Json:
    """Hash, check against RECORD, write what activates it and `files.json`, and the stamp as the last thing.

    Raises NodeError `root-differs` (exit 5) where another node has stamped another root for what should be equal.
    """
    args = request["args"]
    built = _built(environment, request)
    entries = contents.scan(prefix, environment, built, contents.kept(paths.meta(environment, stamp.SCAN)))
    _check_record(environment, entries, built.get("archived"))
    files = {path: entry.as_list() for path, entry in entries.items()}
    data = _stamp(environment, request, built, files)
    root, wanted = data["root"], args.get("root")
    if wanted is not None and root != wanted:
        raise NodeError(
            "root-differs",
            f"{environment} differs from what the first node built",
            why=f"its root is {root:.12}, that node's is {wanted:.12}",
            hint="look at both with `envbuild verify`, then `envbuild provision --repair`",
        )
    activation_files.write(environment, data["stack"], data["variables"])
    user_files.note_made(environment, built["sources"])
    paths.write_json(paths.meta(environment, stamp.FILES), files)
    held.check()
    stamp.write(environment, data)
    log(f"stamped {environment}: {plural(len(files), 'file')}, root {root:.12}")
    for name in (stamp.SCAN, stamp.INSTALLED):
        paths.remove_tree(paths.meta(environment, name))
    return data


def _built(environment: str, request: Json) -> Json:
    """What this run's `install` noted. Raises NodeError `environment-not-installed` (exit 2)."""
    built = paths.read_json(paths.meta(environment, stamp.INSTALLED))
    wanted = (request["args"].get("variant") or {}).get("digest")
    if built is None or built.get("run") != request["run"] or built.get("variant_digest") != wanted:
        raise NodeError(
            "environment-not-installed",
            f"{environment} was not built by this run",
            hint="run `envbuild provision`",
        )
    return built


def _stamp(environment: str, request: Json, built: Json, files: Json) -> Json:
    """Everything that a stamp says; `root` is the Merkle root over `files`."""
    args = request["args"]
    return {
        "stack": args["stack"],
        "profile": args.get("profile"),
        "variant_digest": built["variant_digest"],
        "variant_id": args["variant"].get("id"),
        "arch_list": args["variant"].get("arch_list"),
        "root": merkle.root_of(files),
        "packages": installed.installed(environment),
        "base_packages": built["base_packages"],
        "conda": built.get("conda"),
        "sources": built["sources"],
        "trees": [dict(tree, state=git_source.tree_state(tree["at"])) for tree in built.get("trees") or ()],
        "variables": args.get("variables") or {},
        "interpreter": built["interpreter"],
        "environment": environment,
        "files": len(files),
        "bytes": sum(size for _tag, _sha256, size, _executable in files.values()),
        "run": request["run"],
        "stamped_at": utc_time(),
        "evidence": args.get("evidence") or {},
    }


def _check_record(environment: str, entries: dict[str, merkle.Entry], known: dict[str, str] | None) -> None:
    """Raise NodeError `record-mismatch` (exit 5) where a file is not that of its wheel any more."""
    _checked, wrong = contents.check(environment, entries, known)
    special = sorted(path for path, entry in entries.items() if entry.tag == "special")
    if wrong or special:
        path = wrong[0]["path"] if wrong else special[0]
        raise NodeError(
            "record-mismatch",
            f"{path} changed between install and stamp",
            why="the smoke test or another process wrote into the environment",
            hint="provision again",
            details={"files": wrong[:20]},
        )
