"""Applies patches to a folder: patterns that we wrote, what is written in their place, and how often each must match.

It also runs alone, with nothing but the standard library of Python 3.8 or newer:

    python3 patch.py PATCHES.json FOLDER

PATCHES.json is a list of patches as `envbuild.model.patch.Patch.spec` gives them:

    [{"name": "alcf-hosfile", "hits": [1, 1], "after": [],
      "edits": [{"files": ["ALCF/launch.sh"], "find": "…", "write": "…", "times": [1, 1], "helper": false}]}]

`files` are patterns below the folder (`**/` any depth). `find` is a regular expression (MULTILINE), `write` its
replacement, `times` the least and most matches in all files of the edit together. A `helper` is code that the other
edits use: it counts as no hit. `hits` bound the hits of the whole patch, `after` names patches that must come first.
Each changed file ends in a marker line, so that a second application changes nothing. All files are written, or none.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
import stat
import sys
import tempfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    Json = dict[str, Any]

_COMMENT = {"cpp": "//", "cc": "//", "cu": "//", "h": "//", "hpp": "//"}
_MARKER = r"^(?:#|//) envbuild patch %s: ([0-9]+) hits?$"
_ENCODING = ("utf-8", "surrogateescape")
_HINT = "the patch was not written for this commit; `envbuild patch list --json` names the commits it was tried at"


class PatchError(Exception):
    """A patch that cannot be applied: `code`, `what`, `why`, `hint` as in a NodeError. No file was changed."""

    def __init__(self, code: str, what: str, why: str = "", hint: str = _HINT) -> None:
        """Keep the parts for whoever words the error."""
        super().__init__(f"{what}: {why}" if why else what)
        self.code, self.what, self.why, self.hint = code, what, why, hint


class _Folder:
    """The files of a folder: as they are, and as they will be."""

    def __init__(self, top: str) -> None:
        if not os.path.isdir(top):
            raise PatchError("request-invalid", f"not a directory: {top}", hint="")
        self.top = top
        self.before: dict[str, bytes] = {}
        self.after: dict[str, bytes] = {}

    def matching(self, patterns: list[str]) -> list[str]:
        """The relative paths of the files that patterns name, sorted; links are not followed."""
        plain = [pattern for pattern in patterns if "*" not in pattern]
        paths = {path for path in plain if os.path.lexists(os.path.join(self.top, path))}
        for folder, folders, names in os.walk(self.top) if len(plain) < len(patterns) else ():
            folders[:] = [name for name in folders if name != ".git"]
            inside = [name for name in names if not os.path.islink(os.path.join(folder, name))]
            paths.update(named(patterns, [os.path.relpath(os.path.join(folder, name), self.top) for name in inside]))
        return sorted(paths)

    def read(self, path: str) -> str:
        """The text of a file as it will be. Raises PatchError for what is no plain file inside the folder."""
        if path not in self.before:
            full, top = os.path.join(self.top, path), os.path.realpath(self.top)
            if os.path.realpath(full) != os.path.join(top, os.path.normpath(path)) or not os.path.isfile(full):
                raise PatchError("patch-precondition", f"{path} is not a plain file of this source")
            self.before[path] = _read(full)
        return self.after.get(path, self.before[path]).decode(*_ENCODING)

    def write(self) -> None:
        """Replace every changed file atomically; on failure put back those that were replaced."""
        done = []
        try:
            for path, data in sorted(self.after.items()):
                _replace(os.path.join(self.top, path), data)
                done.append(path)
        except OSError as error:
            for path in done:
                _replace(os.path.join(self.top, path), self.before[path])
            raise PatchError("patch-not-written", "the patches could not be written", str(error), "") from None


def apply(folder: str, patches: list[Json], check: bool = False, pin: Json | None = None) -> list[Json]:
    """Apply patches in their order; with `check` only say what they would do.

    `pin`: the git trees `before` and `after` these patches, `links` {path: commit}, the submodules of the tree, and
    `outputs`, paths that are no part of it. If the folder is one of these trees, the outcome must be `after`; of any
    other tree the hits alone decide.

    One result a patch: `name`, `digest` (sha256 of `digest`), `changed`, `already`, `check`, `hits`, `files` [{`path`,
    `hits`, `already`, `sha256_before`, `sha256_after`}] and `diff` (unified, all files).

    Raises PatchError `request-invalid`, `patch-hits`,
    `patch-precondition`, `patch-postcondition`, `patch-not-written`; then every file is as before.
    """
    tree = _Folder(folder)
    results = [_apply_one(tree, patch, check) for patch in patches]
    if pin:
        _compare(tree, pin, [patch["name"] for patch in patches])
    if not check:
        tree.write()
    return results


def _compare(tree: _Folder, pin: Json, names: list[str]) -> None:
    tree_entries = {
        path: entry for path, entry in entries(tree.top, pin["links"]).items() if path not in pin["outputs"]
    }
    if tree_id(tree_entries) not in (pin["before"], pin["after"]):
        return
    outcome = tree_id(
        dict(tree_entries, **{path: (tree_entries[path][0], blob_id(data)) for path, data in tree.after.items()})
    )
    if outcome != pin["after"]:
        what = f"the patches {', '.join(names)} do not give the pinned tree"
        raise PatchError("patch-postcondition", what, f"tree {outcome}, pinned is {pin['after']}")


def _apply_one(tree: _Folder, patch: Json, check: bool) -> Json:
    _check_request(patch)
    name = patch["name"]
    old = {path: tree.read(path) for edit in patch["edits"] for path in tree.matching(edit["files"])}
    marked = {path: marks for path, text in old.items() if (marks := _marked(name, text))}
    for other in patch.get("after") or []:
        if not any(_marked(other, text) for text in old.values()):
            raise PatchError("patch-precondition", f"patch {name} needs patch {other} before it", hint="")
    new, hits = {path: text for path, text in old.items() if path not in marked}, dict(marked)
    for edit in patch["edits"]:
        _edit(tree, name, edit, new, hits)
    _count(name, patch["hits"], hits, sorted(old))
    for path, text in new.items():
        if text == old[path]:
            continue
        new[path] = _with_marker(path, text, name, hits.get(path, 0))
        if path.endswith(".py") and _compiles(old[path]) and not _compiles(new[path]):
            raise PatchError("patch-postcondition", f"after patch {name} {path} does not compile")
        tree.after[path] = new[path].encode(*_ENCODING)
    files = [_file(path, hits[path], old[path], new.get(path, old[path])) for path in sorted(hits)]
    changed = [file["path"] for file in files if not file["already"]]
    return {
        "name": name,
        "digest": digest(patch),
        "changed": bool(changed) and not check,
        "already": not changed,
        "check": check,
        "hits": sum(hits.values()),
        "files": files,
        "diff": "".join(_diff(path, old[path], new[path]) for path in changed),
    }


def _check_request(patch: Json) -> None:
    if not re.match(r"[a-z0-9][a-z0-9._-]{0,62}\Z", str(patch.get("name"))) or not patch.get("edits"):
        raise PatchError("request-invalid", "a patch needs a name and edits", hint="")
    for pattern in [pattern for edit in patch["edits"] for pattern in edit.get("files") or [""]]:
        if not pattern or pattern.startswith(("/", "~", "-")) or ".." in pattern.split("/"):
            raise PatchError("request-invalid", f"patch {patch['name']}: not a path below a source: {pattern!r}")


def _edit(tree: _Folder, name: str, edit: Json, new: dict[str, str], hits: dict[str, int]) -> None:
    """Carry out one edit on the texts `new` and count its `hits`; a file that is patched already must have none."""
    paths, counts = tree.matching(edit["files"]), {}
    pattern, helper = re.compile(edit["find"], re.MULTILINE), edit.get("helper", False)
    for path in paths:
        if path in new:
            new[path], count = pattern.subn(edit["write"], new[path])
            if count:
                counts[path] = count
                hits[path] = hits.get(path, 0) + (0 if helper else count)
        elif not helper and pattern.search(tree.read(path)):
            what = f"{path} has the comment of patch {name}, and unchanged places"
            raise PatchError("patch-precondition", what, f"pattern {edit['find']}")
    least, most = edit["times"]
    # Files that are patched already have their part of the hits in their markers.
    _count(name, [least if all(path in new for path in paths) else 0, most], counts, edit["files"], edit["find"])


def _count(name: str, bounds: list[int], counts: dict[str, int], files: list[str], find: str = "") -> None:
    least, most = bounds
    hits = sum(counts.values())
    if least <= hits <= most:
        return
    wanted = str(least) if least == most else f"{least} to {most}"
    where = ", ".join(f"{path}: {count}" for path, count in sorted(counts.items()))
    where = where or f"none in {', '.join(files) or 'no file'}"
    what = f"patch {name} found {hits} place{'' if hits == 1 else 's'}, expected {wanted}"
    raise PatchError("patch-hits", what, where + (f"; pattern {find}" if find else ""))


def _marked(name: str, text: str) -> int:
    """The hits that the markers of a patch tell; 0 without one."""
    return sum(map(int, re.findall(_MARKER % re.escape(name), text, re.MULTILINE)))


def _with_marker(path: str, text: str, name: str, hits: int) -> str:
    comment = _COMMENT.get(path.rsplit(".", 1)[-1].lower(), "#")
    end = "" if not text or text.endswith("\n") else "\n"
    return f"{text}{end}{comment} envbuild patch {name}: {hits} hit{'' if hits == 1 else 's'}\n"


def _compiles(text: str) -> bool:
    try:
        compile(text, "source", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True


def named(patterns: Iterable[str], paths: Iterable[str]) -> list[str]:
    """Those of the relative paths that patterns name."""
    globs = [_as_regex(pattern) for pattern in patterns]
    return [path for path in paths if any(glob.match(path) for glob in globs)]


def _as_regex(pattern: str) -> re.Pattern[str]:
    """A pattern whose `*` stays inside one folder and whose `**/` crosses them; nothing else is special."""
    pieces = ["[^/]*".join(map(re.escape, piece.split("*"))) for piece in pattern.split("**/")]
    return re.compile("(?:[^/]+/)*".join(pieces) + r"\Z")


def _read(path: str) -> bytes:
    with open(path, "rb") as handle:
        return handle.read()


def _replace(path: str, data: bytes) -> None:
    mode = stat.S_IMODE(os.stat(path).st_mode)
    descriptor, temporary = tempfile.mkstemp(prefix=".envbuild-patch-", dir=os.path.dirname(path))
    try:
        with os.fdopen(descriptor, "wb") as handle:
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _file(path: str, hits: int, old: str, new: str) -> Json:
    before, after = (hashlib.sha256(text.encode(*_ENCODING)).hexdigest() for text in (old, new))
    return {"path": path, "hits": hits, "already": old == new, "sha256_before": before, "sha256_after": after}


def digest(patch: Json) -> str:
    """sha256 of what a patch does, its name and its edits; a lock and a build key record it."""
    text = json.dumps([patch["name"], patch["edits"]], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def _diff(path: str, old: str, new: str) -> str:
    lines = difflib.unified_diff(old.splitlines(True), new.splitlines(True), "a/" + path, "b/" + path)
    return "".join(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines)


def entries(folder: str, links: dict[str, str]) -> dict[str, tuple[str, str]]:
    """Path to git's mode and object id of everything in a checkout; `links` are its submodules, path to commit."""
    result = {path: ("160000", commit) for path, commit in links.items()}
    for top, folders, names in os.walk(folder):
        for name in names + [name for name in folders if os.path.islink(os.path.join(top, name))]:
            full = os.path.join(top, name)
            if os.path.islink(full):
                entry = ("120000", blob_id(os.fsencode(os.readlink(full))))
            else:
                entry = ("100755" if os.stat(full).st_mode & stat.S_IXUSR else "100644", blob_id(_read(full)))
            result[os.path.relpath(full, folder)] = entry
        below = [(name, os.path.relpath(os.path.join(top, name), folder)) for name in folders]
        folders[:] = [name for name, path in below if name != ".git" and path not in links]
    return result


def tree_id(tree_entries: dict[str, tuple[str, str]]) -> str:
    """The id of git's tree of these paths; modes and object ids as `entries` gives them."""
    here: dict[bytes, tuple[str, str]] = {}
    below: dict[str, dict[str, tuple[str, str]]] = {}
    for path, entry in tree_entries.items():
        name, slash, rest = path.partition("/")
        if slash:
            below.setdefault(name, {})[rest] = entry
        else:
            # Git sorts folders, submodules too, as if their names ended in a slash.
            here[os.fsencode(name) + (b"/" if entry[0] == "160000" else b"")] = entry
    here.update({os.fsencode(name) + b"/": ("40000", tree_id(part)) for name, part in below.items()})
    rows = [(name.rstrip(b"/"), mode.encode(), bytes.fromhex(oid)) for name, (mode, oid) in sorted(here.items())]
    return _object_id(b"tree", b"".join(b"%s %s\0%s" % (mode, name, oid) for name, mode, oid in rows))


def blob_id(data: bytes) -> str:
    """The id of git's object of a file."""
    return _object_id(b"blob", data)


def _object_id(kind: bytes, data: bytes) -> str:
    return hashlib.sha1(b"%s %d\0%s" % (kind, len(data), data)).hexdigest()  # noqa: S324 - it is what git has


def main(argv: list[str]) -> int:
    """Apply the patches of a file to a folder; 4 and one line of text where they do not fit, 2 for a bad request."""
    if len(argv) != 2:
        sys.stderr.write("usage: patch.py PATCHES.json FOLDER\n")
        return 2
    with open(argv[0], encoding="utf-8") as handle:
        patches = json.load(handle)
    try:
        results = apply(argv[1], patches)
    except PatchError as error:
        sys.stderr.write(f"error[{error.code}]: {error}\n")
        return 2 if error.code == "request-invalid" else 4
    for result in results:
        done = "already applied" if result["already"] else "applied"
        sys.stdout.write(f"patch {result['name']}: {done}, hits: {result['hits']}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
