"""Is an environment still what its stamp says? It takes no lease.

It changes nothing that the root covers; where it may, it notes beside the stamp when the contents were last read.
"""

import json
import os
import time

from envbuild.node import logs, paths
from envbuild.node.conda import meta
from envbuild.node.env import stamp
from envbuild.node.protocol import Json, NodeError, plural, utc_time

_CODE = (".py", ".pyc", ".so", ".pth")
_NAMED = 3


def run(request: Json) -> "tuple[bool, Json]":
    """Check the environment in use for `args.stack`, or `args.environment`; returns (False, result of the contract).

    `deep`: every file against the Merkle root and every `.pyc` against its source, and `root` is the one measured now
    (`level` says so). Else stamp, variant digest, package set and versions, link; the check `files` is `not-run` and
    says when the contents were last read. `base`: its packages are told, as stamped. `image`: the environment
    `args.environment` of an image, which has no stamp: packages are compared with `variant`, files with RECORD.
    `result.ok` is False on drift. Raises NodeError `environment-unknown` (2), those of `stamp.of_image`.
    """
    args, prefix = request["args"], request["prefix"]
    stack = paths.checked_name(args.get("stack"), "stack")
    environment = _environment(prefix, stack, args.get("environment"))
    checks: list[Json] = []
    look = _look_at_image if args.get("image") else _look_at_stamped
    found, drift, root = look(checks, prefix, environment, args)
    drift.sort(key=lambda each: each["path"])
    limit = int(args.get("limit", 20))
    told = {"base_packages": (found or {}).get("base_packages") or {}} if args.get("base") else {}
    return False, {
        **told,
        "environment": environment,
        "root": root or (found or {}).get("root"),
        "level": "measured" if root else "stamped",
        "ok": all(check["status"] != "failed" for check in checks),
        "checks": checks,
        "drift": drift[:limit],
        "drift_count": len(drift),
        "log": logs.digest(prefix, request.get("run")),
    }


def _look_at_stamped(
    checks: "list[Json]", prefix: str, environment: str, args: Json
) -> "tuple[Json | None, list[dict[str, str]], str | None]":
    """The stamp, drift from it, and the root where every file was read."""
    found = stamp.read(environment)
    _check_stamp(checks, environment, found, args.get("variant"))
    if found is None:
        return None, [], None
    _check_packages(checks, environment, found, args.get("variant"))
    _check_trees(checks, environment, found)
    _check_link(checks, prefix, str(args["stack"]), environment, bool(args.get("environment")))
    if args.get("deep"):
        drift, root = _check_contents(checks, prefix, environment, found)
        return found, drift, root
    checks.append(_unread(environment, found))
    return found, [], None


def _look_at_image(
    checks: "list[Json]", prefix: str, environment: str, args: Json
) -> "tuple[Json | None, list[dict[str, str]], str | None]":
    """The same of an image: what a stamp would say, drift from RECORD, the root."""
    found = stamp.of_image(environment, args["variant"])
    _check_packages(checks, environment, found, args["variant"])
    drift, root = _check_record(checks, prefix, environment, found)
    return found, drift + _check_pyc(checks, environment, found), root


def _check_record(
    checks: "list[Json]", prefix: str, environment: str, found: Json
) -> "tuple[list[dict[str, str]], str | None]":
    from envbuild.node import merkle
    from envbuild.node.env import contents

    begun = time.monotonic()
    try:
        entries = contents.scan(prefix, environment, found)
        checked, wrong = contents.check(environment, entries)
    except OSError as error:
        _add(checks, "files", ["cannot be read: %s" % error], "", begun)
        return [{"path": os.path.relpath(str(error.filename or environment), environment), "kind": "unreadable"}], None
    root = merkle.root_of({path: entry.as_list() for path, entry in entries.items()})
    problems = ["%d of %d files differ from RECORD" % (len(wrong), checked + len(wrong))] if wrong else []
    says = "%s read, %d compared with RECORD, root %.12s measured" % (plural(len(entries), "file"), checked, root)
    _add(checks, "files", problems, says, begun)
    return [{key: str(each[key]) for key in ("path", "kind", "package")} for each in wrong], root


def _environment(prefix: str, stack: str, given: object) -> str:
    if given:
        environment = paths.checked_environment(prefix, given)
    else:
        link = paths.current_link(prefix, stack)
        if not os.path.islink(link):
            raise NodeError(
                "environment-unknown",
                "no environment of %s is in use under %s" % (stack, prefix),
                hint="`envbuild provision` builds one; `envbuild status --all` shows those that are there",
            )
        target = os.path.normpath(os.path.join(os.path.dirname(link), os.readlink(link)))
        environment = paths.checked_environment(prefix, target)
    if not os.path.isdir(environment):
        raise NodeError(
            "environment-unknown", "there is no environment %s" % environment, hint="`envbuild status --all` shows them"
        )
    return environment


def _add(
    checks: "list[Json]", name: str, problems: "list[str]", good: str, begun: float, level: str = "measured"
) -> None:
    says = "; ".join(problems[:10]) if problems else good
    check = {"name": name, "status": "failed" if problems else "passed", "says": says, "level": level}
    checks.append(dict(check, seconds=round(time.monotonic() - begun, 3)))


def _check_stamp(checks: "list[Json]", environment: str, found: "Json | None", variant: "Json | None") -> None:
    begun, problems = time.monotonic(), []
    if found is None:
        problems = ["there is no stamp, or it is damaged: the environment is half built"]
    elif variant and variant.get("digest") != found["variant_digest"]:
        said = (found["variant_digest"], variant.get("digest"))
        problems = ["the stamp says variant %.12s, the lock says %.12s" % said]
    elif not os.access(os.path.join(environment, "bin", "python"), os.X_OK):
        problems = ["its interpreter is gone"]
    good = "stamp is there, variant %.12s" % (found or {}).get("variant_digest", "")
    _add(checks, "stamp", problems, good, begun, "stamped")
    version = stamp.python_version(environment)
    if version:
        checks[-1]["details"] = {"python": version}


def _check_packages(checks: "list[Json]", environment: str, found: Json, variant: "Json | None") -> None:
    begun = time.monotonic()
    problems = stamp.package_problems(environment, found, variant)
    good = "%s as %s, by name and version" % (
        plural(len(found["packages"]), "package"),
        "stamped" if "root" in found else "locked",
    )
    _add(checks, "packages", problems, good, begun, "stamped")


def _check_trees(checks: "list[Json]", environment: str, found: Json) -> None:
    """A deviation for each working tree: at which commit it is now. Its files are the user's and are not compared."""
    for tree in found.get("trees") or ():
        from envbuild.node import git_source

        begun, link = time.monotonic(), os.path.join(environment, "src", tree["name"])
        state = git_source.tree_state(tree["at"])
        problem = "the working tree of source %s, %s, %s" % (tree["name"], tree["at"], state["problem"])
        problems = [problem] if state["problem"] else []
        if not os.path.islink(link) or os.readlink(link) != tree["at"]:
            problems.append("%s does not lead to %s" % (link, tree["at"]))
        words = (tree["name"], git_source.state_words(state), tree["at"])
        good = "source %s is a working tree, %s, not part of the digest: %s" % words
        _add(checks, "working-tree", problems, good, begun)
        checks[-1]["details"] = {"deviation": "working-tree", "name": tree["name"], **state}


def _check_link(checks: "list[Json]", prefix: str, stack: str, environment: str, named: bool) -> None:
    begun = time.monotonic()
    if stamp.is_current(prefix, stack, environment):
        _add(checks, "link", [], "current/%s points at it" % stack, begun)
    elif named:
        says = "current/%s does not point at it; it was asked for by name" % stack
        checks.append({"name": "link", "status": "skipped", "says": says})
    else:
        _add(checks, "link", ["current/%s does not point at it" % stack], "", begun)


def _unread(environment: str, found: Json) -> Json:
    """The check `files` where no contents were read: when that was done last, and what was wrong then."""
    at, differed = stamp.last_read(environment, found)
    then = ", when %s differed from the stamp" % plural(differed, "file") if differed else ""
    says = "contents not read; last read on %s%s" % (at or "an unknown date", then)
    details = {"read_at": at, "differed": differed}
    return {"name": "files", "status": "not-run", "says": says, "level": "not-checked", "details": details}


def _check_contents(
    checks: "list[Json]", prefix: str, environment: str, found: Json
) -> "tuple[list[dict[str, str]], str | None]":
    """The checks `files` and `bytecode`: drift, and the root measured now (None where it cannot be); notes the time."""
    drift, root = _check_files(checks, prefix, environment, found)
    drift += _check_pyc(checks, environment, found)
    owners = meta.owners(environment) if drift else {}
    for each in drift:
        if each["path"] in owners:
            each["package"] = owners[each["path"]]
    if root is not None:
        now = utc_time()
        paths.set_umask(prefix)
        try:
            noted = {"at": now, "run": found.get("run"), "root": root, "differed": len(drift)}
            paths.write_json(paths.meta(environment, stamp.READ), noted)
        except (OSError, NodeError):
            pass  # who may only read cannot leave a note, and nothing depends on it
    return drift, root


def _check_files(
    checks: "list[Json]", prefix: str, environment: str, found: Json
) -> "tuple[list[dict[str, str]], str | None]":
    # Only a deep check needs what builds environments; a fast one is most of a run that has nothing to do.
    from envbuild.node import merkle
    from envbuild.node.env import contents

    begun = time.monotonic()
    stamped = paths.read_json(paths.meta(environment, stamp.FILES))
    try:
        entries = contents.scan(prefix, environment, found)
    except OSError as error:
        _add(checks, "files", ["cannot be read: %s" % error], "", begun)
        unread = os.path.relpath(str(error.filename or environment), environment)
        return [{"path": unread, "kind": "unreadable"}], None
    now = {path: entry.as_list() for path, entry in entries.items()}
    added = _added_data(stamped or {}, now, merkle.source_folders(found["sources"]))
    for path in added:
        del now[path]
    if added:
        _say_added(checks, added, begun)
    root = merkle.root_of(now)
    good = "%s read, root %.12s measured" % (plural(len(now), "file"), root)
    if stamped is None or merkle.root_of(stamped) != found["root"]:
        problems = ["the list of files does not give the stamped root"]
        if root == found["root"]:
            problems[0] += "; the files themselves do"
        _add(checks, "files", problems, good, begun)
        return [{"path": ".envbuild/files.json", "kind": "changed"}], root
    drift = differences(stamped, now)
    roots = "root %.12s, stamped was %.12s" % (root, found["root"])
    problems = ["%d of %d files differ from the stamp; %s" % (len(drift), len(stamped), roots)] if drift else []
    if not drift and root != found["root"]:
        problems = [roots]
    _add(checks, "files", problems, good, begun)
    return drift, root


def _added_data(stamped: Json, now: Json, folders: "tuple[str, ...]") -> "list[str]":
    """Files that scripts wrote into the folders of sources, sorted: data, and nothing that Python would run.

    They are no drift. A link may lead to code, so it is drift until it is declared.
    """
    return sorted(
        path
        for path in now.keys() - stamped.keys()
        if path.startswith(folders) and now[path][0] in ("file", "text") and not path.endswith(_CODE)
    )


def _say_added(checks: "list[Json]", added: "list[str]", begun: float) -> None:
    """A deviation: the files that lie in sources beside their own, and how the stack file declares them."""
    sources: dict[str, dict[str, int]] = {}
    for path in added:
        _src, source, below = path.split("/", 2)
        top = below.partition("/")[0] + "/" * ("/" in below)
        counts = sources.setdefault(source, {})
        counts[top] = counts.get(top, 0) + 1
    rows = []
    for source, counts in sources.items():
        tops = list(counts)[:_NAMED]
        there = ["%s (%s)" % (top, plural(counts[top], "file")) for top in tops]
        there += ["%d more" % (len(counts) - _NAMED)] * (len(counts) > _NAMED)
        patterns = json.dumps([top + "**" * top.endswith("/") for top in tops])
        rows.append("src/%s: %s. In the stack file, add `generated: %s` to the source %s, or `outputs:` for new folders"
                    % (source, ", ".join(there), patterns, source))  # fmt: skip
    says = "%s that no build made, such as %s; not part of the root, kept on repair. %s" % (
        plural(len(added), "file"), ", ".join(added[:_NAMED]), "; ".join(rows))  # fmt: skip
    _add(checks, "added-files", [], says, begun)
    checks[-1]["details"] = {"deviation": "added-files", "count": len(added), "files": added[:20]}


def differences(stamped: Json, now: Json) -> "list[dict[str, str]]":
    """Drift file by file: `missing`, `extra`, `changed` (content or kind) or `mode` (executable bit); sorted."""
    drift = []
    for path in sorted(set(stamped) | set(now)):
        before, after = stamped.get(path), now.get(path)
        if after is None:
            kind = "missing"
        elif before is None:
            kind = "extra"
        elif before[:2] != after[:2]:
            kind = "changed"
        elif before[3] != after[3]:
            kind = "mode"
        else:
            continue
        drift.append({"path": path, "kind": kind})
    return drift


def _check_pyc(checks: "list[Json]", environment: str, found: Json) -> "list[dict[str, str]]":
    from envbuild.node import merkle
    from envbuild.node.env import bytecode

    begun = time.monotonic()
    every = bytecode.find(environment)
    made_by_runs = merkle.generated_of(found["sources"])
    sources = {origin[0] for origin in map(bytecode.source_of, every) if origin is not None}
    generated = {path for path in sources if made_by_runs and merkle.is_left_out(path, made_by_runs)}
    tag = bytecode.interpreter_tag(environment)
    refused = bytecode.check(environment, every, tag, generated) if every else []
    problems = ["%d of %d .pyc files are not what their source gives" % (len(refused), len(every))] if refused else []
    _add(checks, "bytecode", problems, "%d .pyc files, each what its source gives" % len(every), begun)
    return refused
