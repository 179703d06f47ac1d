"""Patches: our own edits of pinned sources, placed by syntax, counted, checked, written all or not at all.

`apply(directory, patch_spec, facts)` is the whole interface. A spec is JSON (the catalog makes it):

    {"name": "apex-cuda-check", "hits": {"least": 1, "most": 1},
     "parts": [{"edit": "apex-cuda-check", "files": ["setup.py"], "least": 1, "most": 1}]}

`files` are glob patterns below the directory (`**/` any depth). `least` and `most` bound the hits of one part, `hits`
those of the whole patch. A part may have `near`, a word whose lines are shown when there are too few hits. Each
changed file ends in a marker line, so that a second application changes nothing.
"""

import difflib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from typing import NamedTuple

from envbuild.node.patch import registry
from envbuild.node.patch.source_text import Source, UnfitError, changed_text, mask_c, unbalanced
from envbuild.node.protocol import Json, NodeError, log, plural

TYPE_CHECKING = False
if TYPE_CHECKING:
    from envbuild.node.patch.source_text import Change

SIZE_LIMIT = 8 * 1024 * 1024
_SEEN = 3
_COMMENT = {"cpp": "//", "cc": "//", "cu": "//", "h": "//", "hpp": "//"}
_MARKER = re.compile(r"(?:\A|(?<=[\r\n]))(?:#|//) envbuild patch ([a-z0-9._-]+): ([0-9]+) hits?[ \t]*(?=[\r\n]|\Z)")


class _File(NamedTuple):
    """One file of a part: what it was, what it becomes (None: unchanged), and how many hits it accounts for."""

    path: str
    before: bytes
    after: "bytes | None"
    hits: int
    seen: str = ""  # the lines around the first places, for messages


def apply(directory: str, patch_spec: Json, facts: "Json | None" = None, check: bool = False) -> Json:
    """Apply one patch to a checkout; with `check` only say what it would do.

    `facts` may hold `torch_cuda` (the CUDA that torch was built with, None for a CPU torch) and `nvcc` (its version).
    Result: `name`, `digest` (sha256 of the spec), `changed`, `already`, `check`, `hits`, `notes` (list of str),
    `files` [{`path`, `hits`, `already`, `sha256_before`, `sha256_after`}] and `diff` (unified, all files).

    Raises NodeError `request-invalid` (exit 2), `patch-no-hits`, `patch-too-many-hits`, `patch-precondition`,
    `patch-postcondition` (exit 4, every file as before), `patch-refused` and `python-too-old` (exit 7).
    """
    _check_request(directory, patch_spec)
    notes = _judge_facts(patch_spec, facts or {})
    files: list[_File] = []
    for part in patch_spec["parts"]:
        found = [_work(directory, path, part, patch_spec["name"]) for path in _paths(directory, part)]
        _count(patch_spec["name"], part, sum(each.hits for each in found), found, directory)
        for each in found:
            _prove(part["edit"], each, patch_spec["name"])
        files += [each for each in found if each.hits]
    total = sum(each.hits for each in files)
    _count(patch_spec["name"], patch_spec.get("hits") or {}, total, files, directory)
    changed = [each for each in files if each.after is not None]
    if changed and not check:
        _write(directory, changed, patch_spec["name"])
    verb = "would change" if check else "changed"
    said = "%s %s" % (verb, plural(len(changed), "file")) if changed else "already applied, nothing changed"
    log("patch %s: %s, %s" % (patch_spec["name"], plural(total, "hit"), said))
    return _result(patch_spec, files, notes, check)


def _check_request(directory: str, spec: Json) -> None:
    if sys.version_info < (3, 8):
        raise NodeError(
            "python-too-old",
            "patching needs Python 3.8, this is %d.%d" % sys.version_info[:2],
            hint="run it with the environment's own interpreter",
        )
    if not os.path.isdir(directory):
        raise NodeError("request-invalid", "not a directory: %s" % directory)
    if not re.match(r"[a-z0-9][a-z0-9._-]{0,62}\Z", str(spec.get("name"))) or not spec.get("parts"):
        raise NodeError("request-invalid", "a patch needs a name and parts")
    for part in spec["parts"]:
        if part.get("edit") not in registry.names():
            raise NodeError("request-invalid", "patch %s names an unknown edit: %r" % (spec["name"], part.get("edit")))
        for pattern in part.get("files") or [""]:
            if not pattern or pattern.startswith(("/", "~", "-")) or ".." in pattern.split("/"):
                raise NodeError("request-invalid", "patch %s: not a path below a source: %r" % (spec["name"], pattern))


def _judge_facts(spec: Json, facts: Json) -> "list[str]":
    """What the facts say about this patch here. Raises NodeError `patch-refused` where it could not help."""
    if spec["name"] != "apex-cuda-check" or "torch_cuda" not in facts:
        return []
    torch, nvcc = facts["torch_cuda"], facts.get("nvcc")
    if not torch:
        return ["torch has no CUDA: the check stays in force"]
    if not nvcc:
        return ["nvcc's version is not known here: decided when it is built"]
    if str(nvcc).split(".")[0] != str(torch).split(".")[0]:
        raise NodeError(
            "patch-refused",
            "the CUDA check of Apex is not passed over across major versions",
            why="nvcc is %s, torch was built with CUDA %s" % (nvcc, torch),
            hint="use an nvcc of CUDA %s.x" % str(torch).split(".")[0],
        )
    same = str(nvcc).split(".")[:2] == str(torch).split(".")[:2]
    said = "equal, the check runs" if same else "same major, passed over"
    return ["nvcc %s, torch CUDA %s: %s" % (nvcc, torch, said)]


def _paths(directory: str, part: Json) -> "list[str]":
    """The files that the patterns of a part name, sorted, relative; links are not followed."""
    plain = [pattern for pattern in part["files"] if "*" not in pattern]
    out = {path for path in plain if os.path.lexists(os.path.join(directory, path))}
    globs = [_as_regex(pattern) for pattern in part["files"] if pattern not in plain]
    if globs:
        for folder, folders, names in os.walk(directory):
            folders[:] = sorted(name for name in folders if name != ".git")
            base = os.path.relpath(folder, directory)
            for name in names:
                path = name if base == os.curdir else base + "/" + name
                if any(glob.match(path) for glob in globs) and not os.path.islink(os.path.join(folder, name)):
                    out.add(path)
    return sorted(out)


def _as_regex(pattern: str) -> "re.Pattern[str]":
    """A pattern whose `*` stays inside one folder and whose `**/` crosses them; nothing else is special."""
    pieces = ["[^/]*".join(map(re.escape, piece.split("*"))) for piece in pattern.split("**/")]
    return re.compile("(?:[^/]+/)*".join(pieces) + r"\Z")


def _work(directory: str, path: str, part: Json, name: str) -> "_File":
    """Read one file and work out its new contents; nothing is written."""
    edit = part["edit"]
    data = _read(directory, path, name)
    source: Source | None = None
    try:
        source = Source(path, data)
        marked = [int(match.group(2)) for match in _MARKER.finditer(source.text) if match.group(1) == name]
        changes = _places(edit, source, bool(marked))
        hits = sum(1 for change in changes if change.hit)
        if not hits:
            return _File(path, data, None, sum(marked), _near(source, part.get("near") or ""))
        text = changed_text(source, changes)
        after = source.encoded(_with_marker(source, text, name, hits))
    except UnfitError as error:
        raise _failed("patch-precondition", name, path, source, error) from None
    places = [change.start for change in changes if change.hit]
    return _File(path, data, after, hits, "\n--\n".join(map(source.around, places[:_SEEN])))


def _near(source: "Source", word: str) -> str:
    """The lines around the first places of a word, which may say what the file has instead."""
    places = [match.start() for match in re.finditer(re.escape(word), source.text)] if word else []
    return "\n--\n".join(map(source.around, places[:_SEEN]))


def _places(edit: str, source: "Source", marked: bool) -> "list[Change]":
    """The changes to make; none in a file that carries the marker, which must still be as this patch left it."""
    changes = registry.find(edit, source)
    if marked and any(change.hit for change in changes):
        raise UnfitError("carries the marker of this patch and has places left to change", changes[0].start)
    if marked:
        registry.check(edit, source)
    return changes


def _read(directory: str, path: str, name: str) -> bytes:
    full = os.path.join(directory, path)
    root = os.path.realpath(directory)
    if os.path.realpath(full) != os.path.join(root, os.path.normpath(path)) or not os.path.isfile(full):
        raise NodeError("patch-precondition", "patch %s: %s is not a plain file of this source" % (name, path))
    with open(full, "rb") as handle:
        data = handle.read(SIZE_LIMIT + 1)
    if len(data) > SIZE_LIMIT:
        raise NodeError("patch-precondition", "%s is larger than %d bytes" % (path, SIZE_LIMIT))
    return data


def _with_marker(source: "Source", text: str, name: str, hits: int) -> str:
    end = "" if not text or text.endswith(("\n", "\r")) else source.newline
    mark = _COMMENT.get(source.suffix, "#")
    return "%s%s%s envbuild patch %s: %s%s" % (text, end, mark, name, plural(hits, "hit"), source.newline)


def _prove(edit: str, each: "_File", name: str) -> None:
    """Raises NodeError `patch-postcondition` when the new contents of a file are not what they should be."""
    if each.after is None:
        return
    source: Source | None = None
    try:
        source = Source(each.path, each.after)
        _check_outcome(edit, source)
    except UnfitError as error:
        raise _failed("patch-postcondition", name, each.path, source, error) from None


def _check_outcome(edit: str, source: "Source") -> None:
    """The file still is what it was: Python compiles, shell parses, TOML loads, C++ brackets match."""
    if source.suffix == "py":
        source.tree()
        try:
            compile(source.text, source.path, "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            raise UnfitError("does not compile afterwards: %s" % error) from None
    elif source.suffix == "sh":
        _check_shell(source.text)
    elif source.suffix == "toml":
        _check_toml(source.text)
    elif source.suffix in _COMMENT:
        wrong = unbalanced(mask_c(source.text))
        if wrong:
            raise UnfitError("is no C++ afterwards: %s" % wrong)
    registry.check(edit, source)


def _check_shell(text: str) -> None:
    shell = shutil.which("bash") or shutil.which("sh")
    if shell is None:
        return
    done = subprocess.run([shell, "-n"], input=text.encode("utf-8"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        raise UnfitError("does not parse afterwards: %s" % done.stdout.decode("utf-8", "replace").strip()[-300:])


def _check_toml(text: str) -> None:
    try:
        import tomllib  # Python 3.11 and newer; before, the edit's own check is all there is
    except ImportError:
        return
    try:
        tomllib.loads(text)
    except ValueError as error:
        raise UnfitError("is no TOML afterwards: %s" % error) from None


def _count(name: str, bounds: Json, hits: int, files: "list[_File]", directory: str) -> None:
    """Compare hits with what is expected; a patch that changes nothing is an error."""
    least, most = int(bounds.get("least", 1)), int(bounds.get("most", sys.maxsize))
    if least <= hits <= most:
        return
    wanted = str(least) if least == most else "%d to %s" % (least, "any" if most == sys.maxsize else most)
    looked = bounds.get("files") or sorted({each.path for each in files})
    shown = [each for each in files if each.seen][:_SEEN]
    where = "; ".join("%s: %d\n%s" % (each.path, each.hits, each.seen) for each in shown)
    raise NodeError(
        "patch-too-many-hits" if hits > most else "patch-no-hits" if not hits else "patch-too-few-hits",
        "patch %s found %s, expected %s" % (name, plural(hits, "place"), wanted),
        why="looked in %s below %s%s" % (", ".join(looked) or "no file", directory, "; " + where if where else ""),
        hint="this commit is not one that the patch was written for; `envbuild patch list --json` names those",
        details={"hits": hits, "least": least, "files": [{"path": f.path, "hits": f.hits} for f in files[:50]]},
    )


def _failed(code: str, name: str, path: str, source: "Source | None", error: "UnfitError") -> "NodeError":
    around = source.around(error.where) if source is not None and error.where is not None else ""
    return NodeError(
        code,
        "patch %s does not fit %s" % (name, path),
        why="%s %s%s" % (path, error, "\n" + around if around else ""),
        hint="every file is as before; check that the source is at the commit that the patch was written for",
        details={"path": path},
    )


def _write(directory: str, files: "list[_File]", name: str) -> None:
    """Replace every file atomically; on failure put back those already replaced."""
    done: list[_File] = []
    try:
        for each in files:
            _replace(os.path.join(directory, each.path), each.after or b"")
            done.append(each)
    except OSError as error:
        for each in done:
            _replace(os.path.join(directory, each.path), each.before)
        raise NodeError(
            "patch-not-written", "patch %s could not be written" % name, why=str(error), hint="every file is as before"
        ) from None


def _replace(path: str, data: bytes) -> None:
    mode = os.stat(path).st_mode & 0o7777
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


def _result(spec: Json, files: "list[_File]", notes: "list[str]", check: bool) -> Json:
    changed = [each for each in files if each.after is not None]
    return {
        "name": spec["name"],
        "digest": digest(spec),
        "changed": bool(changed) and not check,
        "already": not changed,
        "check": check,
        "hits": sum(each.hits for each in files),
        "notes": notes,
        "files": [
            {
                "path": each.path,
                "hits": each.hits,
                "already": each.after is None,
                "sha256_before": hashlib.sha256(each.before).hexdigest(),
                "sha256_after": hashlib.sha256(each.before if each.after is None else each.after).hexdigest(),
            }
            for each in files
        ],
        "diff": "".join(_diff(each) for each in changed),
    }


def digest(spec: Json) -> str:
    """sha256 of what a patch does: its name, and the edits, their versions and files.

    A lock and a build key record it; bounds and words for messages are no part of it.
    """
    parts = [[part["edit"], sorted(part["files"]), registry.version(part["edit"])] for part in spec["parts"]]
    text = json.dumps([spec["name"], parts], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def _diff(each: "_File") -> str:
    before, after = (data.decode("utf-8", "surrogateescape") for data in (each.before, each.after or b""))
    lines = difflib.unified_diff(before.splitlines(True), after.splitlines(True), "a/" + each.path, "b/" + each.path)
    return "".join(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines)
