"""Git sources: fetch exactly the pinned commit and compare its tree; say at what commit a working tree is.

Git's own configuration is honoured (insteadOf, proxies, credential helpers); hooks, the `ext` transport, filters and
submodule recursion are switched off, because what a repository says must never run before its tree is checked.
"""

import contextlib
import glob
import os
import re
from collections.abc import Sequence

from envbuild.node import hashing, paths, proc
from envbuild.node.protocol import Exit, Json, NodeError, log, plural
from envbuild.node.read_text import first
from envbuild.node.redact import redact_text

DEADLINE = 3600.0
# A server that sends nothing for a minute is given up; one that is at work sends some bytes every five seconds.
STALLED = ("http.lowSpeedLimit=1", "http.lowSpeedTime=60")
STATE_DEADLINE = 60.0
_SAFE = (
    "protocol.ext.allow=never",
    "core.hooksPath=" + os.devnull,
    "core.fsmonitor=false",
    "core.autocrlf=false",
    "core.symlinks=true",
    "core.attributesFile=" + os.devnull,
    "filter.lfs.smudge=",
    "filter.lfs.process=",
    "filter.lfs.required=false",
    "submodule.recurse=false",
    "fetch.recurseSubmodules=false",
    "advice.detachedHead=false",
    "init.defaultBranch=main",
    "gc.auto=0",
) + STALLED
# Set by a git that runs us (in a hook, say); they would point our commands at another repository.
REPOSITORY_VARIABLES = (
    "GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE GIT_OBJECT_DIRECTORY GIT_ALTERNATE_OBJECT_DIRECTORIES GIT_COMMON_DIR"
    " GIT_NAMESPACE".split()
)
_TRANSPORT = re.compile(
    r"Could not resolve host|unable to access|Connection (refused|timed out|reset)|Network is unreachable"
    r"|early EOF|RPC failed|Operation too slow|The requested URL returned error: 5|Operation timed out|No route to host"
)
# What git says, on its own or for the other side, of a repository that lost objects.
_LOST = re.compile(r"(?:unable to read|Could not read|missing (?:blob|tree|commit)(?: object)?) '?([0-9a-f]{40})")
# Folders that are no code of a tree's own.
PASSED = frozenset(
    (".git", ".hg", ".svn", "node_modules", "__pycache__", ".mypy_cache", ".pytest_cache", ".venv", "venv", ".tox",
     "site-packages", "dist", "build", "_build", ".eggs", ".ipynb_checkpoints", "wandb")
)  # fmt: skip
_CODE = (".py", ".pyi", ".pyx", ".so")
_COMPILED = (".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp")
_COUNT = re.compile(r"[0-9]{1,4}\Z")
_HEX = re.compile(r"\A[0-9a-f]{40}\Z")
_FIELDS = {"2": 9, "u": 10}  # before the path in a row of `git status --porcelain=v2`; others have eight
# Locks, kits as files and byte code, which envbuild and Python write beside the user's own files.
_MADE = re.compile(
    r"\.lock\.toml\Z|(\A|/)kit(-[^/]+-[0-9]{8}T[0-9]{6}Z-[0-9a-f]{4})?\.tar\Z|(\A|/)__pycache__/|\.py[co]\Z"
)
_NAMES = 3


def _git(folder: str, *args: str, deadline: float = DEADLINE, more: "dict[str, str] | None" = None) -> "proc.Finished":
    drop: dict[str, str | None] = dict.fromkeys(REPOSITORY_VARIABLES)
    own = dict(more or {}, GIT_TERMINAL_PROMPT="0", GIT_LFS_SKIP_SMUDGE="1", GIT_OPTIONAL_LOCKS="0")
    env = proc.clean_env(dict(drop, **own))
    options = [word for setting in _SAFE for word in ("-c", setting)]
    done = proc.run(["git"] + options + ["-C", folder] + list(args), timeout=deadline, env=env)
    if done.missing:
        raise NodeError(
            "git-missing", "this stack has git sources and there is no git on this node", hint="install git on the node"
        )
    return done


def _must(folder: str, doing: str, *args: str) -> str:
    """What git prints in `folder` while `doing` (words), stripped. Raises NodeError `git-failed` (exit 4)."""
    done = _git(folder, *args)
    if done.ok:
        return done.out.strip()
    text = redact_text(done.err + done.out).strip()
    paths.refuse_full(text, folder, text[-500:])
    raise NodeError("git-failed", "git failed while %s" % doing, why=text[-1000:], exit_code=Exit.BUILD_FAILED)


def check_pins(sources: "list[Json]") -> None:
    """Refuse pins that are none; raises NodeError `request-invalid`."""
    for source in sources:
        parts = source.get("submodules") or []
        for part in [source] + parts:
            if not str(part["git"]).startswith(("https://", "ssh://")):
                raise NodeError("request-invalid", "source %s: not an https:// or ssh:// URL" % source["name"])
            if not _HEX.match(part["commit"]) or not _HEX.match(part["tree"]):
                raise NodeError("request-invalid", "source %s: commit and tree must be 40 hex digits" % source["name"])
        paths.checked_name(source["name"], "source name")
        named = [source["path"]] if source.get("path") else []
        for path in [part["path"] for part in parts] + named + (source.get("outputs") or []):
            if path.startswith(("/", "-", "~")) or any(word in ("", ".", "..", ".git") for word in path.split("/")):
                raise NodeError("request-invalid", "not a path inside a source: %r" % path[:100])


def fetch(source: Json, folder: str, bundle: "str | None", parts: "dict[str, str] | None" = None) -> "dict[str, str]":
    """Put the pinned tree of `source` into the new folder `folder`, submodules included, without `.git`.

    Returns path and commit of every submodule that the tree names, checked out or not.

    `bundle`: a git bundle to take the commit from instead of the URL; `parts`: the same for submodules, by path.
    Raises NodeError `tree-mismatch` and `commit-missing` (exit 5), `network-unreachable` and `object-missing` (75),
    `source-unreachable` and `git-failed` (4).
    """
    log("fetching source %s at %.12s" % (source["name"], source["commit"]))
    _checkout(source, folder, source["name"], bundle)
    repositories = {"": folder}
    for part in sorted(source.get("submodules") or [], key=lambda submodule: submodule["path"].count("/")):
        where, name = os.path.join(folder, part["path"]), "%s/%s" % (source["name"], part["path"])
        # A link in the tree must not lead a submodule out of it.
        if os.path.realpath(where) != os.path.join(os.path.realpath(folder), part["path"]):
            raise _mismatch(part["path"], "the path goes through a symbolic link")
        # The parent's tree must itself name the submodule's commit.
        above = max((path for path in repositories if not path or part["path"].startswith(path + "/")), key=len)
        below = part["path"][len(above) + 1 :] if above else part["path"]
        listed = _must(repositories[above], "reading a tree", "ls-tree", "HEAD", "--", below)
        if listed.split()[:3] != ["160000", "commit", part["commit"]]:
            raise _mismatch(name, "the lock says submodule commit %s; the tree says: %s" % (part["commit"], listed))
        _checkout(part, where, name, (parts or {}).get(part["path"]))
        repositories[part["path"]] = where
    listed = _must(folder, "reading a tree", "ls-tree", "-r", "-z", "HEAD")
    for where in repositories.values():
        paths.remove_tree(os.path.join(where, ".git"))
    entries = [line.partition("\t") for line in listed.split("\0")]
    return {path: head.split()[2] for head, _, path in entries if head.startswith("160000 ")}


def _mismatch(name: str, why: str) -> "NodeError":
    return NodeError(
        "tree-mismatch",
        "source %s is not what the lock says" % name,
        why=why,
        hint="use another repository or mirror; if the lock is wrong, run `envbuild lock create STACK`",
    )


def _checkout(pin: Json, folder: str, name: str, bundle: "str | None") -> None:
    os.makedirs(folder, exist_ok=True)
    _must(folder, "making a folder for %s" % name, "init", "--quiet", "--template=")
    _obtain(pin, folder, name, bundle)
    tree = _git(folder, "rev-parse", "--verify", "--quiet", pin["commit"] + "^{tree}").out.strip()
    if tree != pin["tree"]:
        why = "tree %s, the lock says %s; commit %s" % (tree or "(none)", pin["tree"], pin["commit"])
        raise _mismatch(name, why)
    _must(folder, "checking out %s" % name, "checkout", "--quiet", "--detach", pin["commit"])


def _obtain(pin: Json, folder: str, name: str, bundle: "str | None") -> None:
    if bundle is not None:
        # It has the commit alone, as a shallow clone has.
        with open(os.path.join(folder, ".git", "shallow"), "w", encoding="ascii") as out:
            out.write(pin["commit"] + "\n")
        done = _git(folder, "fetch", "--quiet", "--no-tags", "--", bundle, "+refs/*:refs/envbuild/*")
    else:
        done = _git(folder, "fetch", "--quiet", "--no-tags", "--depth", "1", "--", pin["git"], pin["commit"])
        if not done.ok and not _TRANSPORT.search(done.err) and not lost_object(done.err):
            # Some servers hand out only what a branch or tag names: fetch all and look for the commit.
            wanted = ("+refs/heads/*:refs/envbuild/heads/*", "+refs/tags/*:refs/envbuild/tags/*")
            done = _git(folder, "fetch", "--quiet", "--no-tags", "--update-shallow", "--", pin["git"], *wanted)
    if _git(folder, "cat-file", "-e", pin["commit"] + "^{commit}").ok:
        return
    origin = bundle or pin["git"]
    if done.ok:
        raise NodeError(
            "commit-missing",
            "source %s: commit %s is not in %s" % (name, pin["commit"], origin),
            why="all branches and tags were fetched and none contains it",
            hint="it was removed upstream, or a mirror is behind; upstream is %s" % pin["git"],
        )
    text = redact_text(done.err).strip()[-1000:]
    paths.refuse_full(text, folder, text)
    lost = lost_object(done.err)
    if lost:
        raise object_missing(origin, lost, text)
    transport = done.timed_out or _TRANSPORT.search(text) is not None
    raise NodeError(
        "network-unreachable" if transport else "source-unreachable",
        "source %s cannot be fetched from %s" % (name, origin),
        why=text,
        hint="check the network and the proxy, set `url.<base>.insteadOf` for a mirror, or use a bundle",
        exit_code=Exit.TRY_AGAIN if transport else Exit.BUILD_FAILED,
    )


def tree_state(place: str) -> Json:
    """The state of the user's working tree `place`, which is only read, in the shape of `TreeFacts`.

    `changed`: how many files differ from the commit; `untracked`: how many are not in git (a new folder counts as one).
    Neither counts byte code, stack files with a lock beside them, their copies `.old`, locks, and kits. `names`: up to
    three of both.
    `problem` says why the folder cannot be used; `unknown` why git says nothing of it.
    """
    state: Json = {"path": place, "commit": None, "branch": None, "changed": None, "untracked": None, "names": []}
    state.update(problem="", unknown="")
    if not os.path.isdir(place):
        return dict(state, problem="is no folder" if os.path.lexists(place) else "is not there")
    if not os.access(place, os.R_OK | os.X_OK):
        return dict(state, problem="cannot be read")
    try:
        words = ("status", "--porcelain=v2", "--branch", "-z", "--ignore-submodules=dirty", "--", ".")
        done = _git(place, *words, deadline=STATE_DEADLINE, more=_disarmed(place))
    except NodeError:
        return dict(state, unknown="there is no git on the node")
    if not done.ok:
        text = redact_text(done.err).strip().splitlines()
        no_git = "not a git repository" in done.err
        return dict(state, unknown="no git repository" if no_git else "git: %s" % (text or ["no answer"])[0][:200])
    return dict(state, **_status(place, done.out.split("\0")))


def code_files(top: str, environment: str, suffixes: "tuple[str, ...]" = _CODE) -> "list[str]":
    """The files of a tree's own code by relative path; the prefix of the `environment` may lie in the tree."""
    prefix = os.path.realpath(os.path.dirname(os.path.dirname(environment)))
    files = []  # type: list[str]
    for folder, folders, names in os.walk(top):
        own = (name for name in set(folders) - PASSED if os.path.realpath(os.path.join(folder, name)) != prefix)
        folders[:] = sorted(own)
        files += (os.path.relpath(os.path.join(folder, name), top) for name in names if name.endswith(suffixes))
    return files


def code_digests(top: str, environment: str, before: "Json | None" = None) -> Json:
    """By path [size, time of the last change, sha256] of what the user writes in a tree.

    A file that is as `before` by size and time is not read again.
    """
    known, digests = before or {}, {}  # type: Json, Json
    for path in code_files(top, environment, (".py", ".pyi", ".pyx") + _COMPILED):
        with contextlib.suppress(OSError):
            full = os.path.join(top, path)
            facts = os.stat(full)
            row = known.get(path) or [None, None, None]
            same = row[:2] == [facts.st_size, facts.st_mtime_ns]
            digests[path] = [facts.st_size, facts.st_mtime_ns, row[2] if same else hashing.digest_of(full)]
    return digests


def _disarmed(place: str) -> "dict[str, str]":
    """The variables with which `git status` runs nothing that the configuration of a repository names.

    Its filters have no program, and what it lacks is not fetched. gits before 2.31 know no such variables.
    """
    keys = set()
    for scope in ("--local", "--worktree"):
        words = ("config", scope, "--includes", "--null", "--name-only", "--get-regexp", r"^filter\.")
        keys.update(_git(place, *words, deadline=STATE_DEADLINE).out.split("\0"))
    first = os.environ.get("GIT_CONFIG_COUNT", "")
    number = int(first) if _COUNT.match(first) else 0
    variables = {"GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": ""}
    for key in sorted(filter(None, keys)):
        variables.update({"GIT_CONFIG_KEY_%d" % number: key, "GIT_CONFIG_VALUE_%d" % number: ""})
        number += 1
    variables["GIT_CONFIG_COUNT"] = str(number)
    return variables


def _status(place: str, rows: "list[str]") -> Json:
    """What the rows of `git status --porcelain=v2 --branch -z` say; a renamed file has a second row, its old name."""
    head: Json = {}
    changed, untracked, renamed = [], [], False  # type: list[str], list[str], bool
    for row in rows:
        if renamed or not row:
            renamed = False
            continue
        kind = row.split(" ", 1)[0]
        if kind == "#":
            _hash, name, value = (row.split(" ", 2) + [""])[:3]
            head[name] = value
        elif kind == "?":
            untracked.append(row[2:])
        else:
            renamed = kind == "2"
            changed.append(row.split(" ", _FIELDS.get(kind, 8))[-1])
    commit = head.get("branch.oid", "")
    branch = head.get("branch.head", "")
    named = None if branch == "(detached)" else branch
    commits = {"commit": commit if _HEX.match(commit) else None, "branch": named}
    # Rows are relative to the top of the repository, of which `place` may be a folder.
    top = os.path.realpath(place)
    while top != "/" and not os.path.exists(os.path.join(top, ".git")):
        top = os.path.dirname(top)
    changed, untracked = ([name for name in names if not _wrote(top, name)] for names in (changed, untracked))
    return dict(commits, changed=len(changed), untracked=len(untracked), names=(changed + untracked)[:_NAMES])


def _wrote(top: str, name: str) -> bool:
    """Whether envbuild or Python wrote a file below `top`: it is no code of the user."""
    stem, yaml, kept = os.path.join(top, name).partition(".yaml")
    if yaml and kept in ("", ".old") and glob.glob(glob.escape(stem) + ".*lock.toml"):
        return True
    return bool(_MADE.search(name)) or os.path.isfile(os.path.join(top, name, "kit.json"))


def state_words(state: Json) -> str:
    """A state in words: `commit 0123456789ab on main, 3 files changed`."""
    if state["problem"] or state["unknown"]:
        return str(state["problem"] or state["unknown"])
    commit = "commit %.12s" % state["commit"] if state["commit"] else "no commit yet"
    where = "on %s" % state["branch"] if state["branch"] else "on no branch"
    changed = "%s changed" % plural(state["changed"], "file") if state["changed"] else "no changes"
    beside = ", %d not in git" % state["untracked"] if state["untracked"] else ""
    names = list(state["names"]) + ["…"] * (state["changed"] + state["untracked"] > len(state["names"]))
    return "%s %s, %s%s%s" % (commit, where, changed, beside, ": " + ", ".join(names) if names else "")


def lost_object(output: str) -> str:
    """The id of the object that a repository names in its commits and does not have, as git said it; else empty."""
    return first(_LOST, output) or ""


def object_missing(origin: str, lost: str, why: str) -> "NodeError":
    """The error for a repository, often a mirror, that is not whole: the commit is there and cannot be had."""
    return NodeError(
        "object-missing",
        "%s lacks object %s" % (origin, lost),
        why=why,
        hint="the copy is incomplete: use another one (git's `url.<base>.insteadOf`), or repair it (see `git fsck`)",
    )


def option_flags(flags: "Sequence[str]") -> "list[str]":
    """Build flags as setup.py reads them: `cpp_ext` becomes `--cpp_ext`; what begins with `-` stays."""
    return [flag if flag.startswith("-") else "--" + flag for flag in flags]
