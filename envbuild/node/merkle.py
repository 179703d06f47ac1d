"""The Merkle root over an environment, as the design says it, and the one hashing pass that it is made from.

Covered: relative path, content, executable bit, link targets. Normalised out: umask, times, and the places where the
environment, its prefix and its interpreter lie. A file's tag says how it was hashed and is part of its leaf:
`file` (bytes as they are), `text` (places replaced), `prefix` (a conda package's placeholder back in its place),
`record` (a RECORD without what differs between nodes), `link`, `compiled` (bytes as they are, and no part of the root:
what the build compiled where runs may compile, too), `special` (a socket, pipe or device: never part of an environment
that was built here).
"""

from __future__ import annotations

import csv
import fnmatch
import functools
import hashlib
import io
import mmap
import os
import re
import stat
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from envbuild.node import proc
from envbuild.node.protocol import Json

COMPILED = "compiled"
TEXT_LIMIT = 4 * 1024 * 1024
_BUFFER = 1024 * 1024
_PYCACHE = (".pyc", ".nbi", ".nbc")
_LONG_SHEBANG = re.compile(rb"\A#!/bin/sh\n'''exec' ['\"]?(.+?)['\"]? \"\$0\" \"\$@\"\n' '''\n")
_RECORD = re.compile(r"\Alib/python[^/]+/site-packages/[^/]+\.dist-info/RECORD\Z")
_CFG_PLACES = ("home", "base-prefix", "base-exec-prefix", "base-executable", "executable", "command")
_UNSPECIFIC = ("/usr", "/bin", "/opt", "/lib")


@dataclass
class Entry:
    """One path of the tree: `tag`, `digest` (hex, over the normalised form), `size`, `executable`.

    `raw` is the sha256 (hex) of the bytes as they are (empty for links), `signature` what shows a later change
    without reading: device, inode, size, mtime and ctime in ns.
    """

    tag: str
    digest: str
    size: int
    executable: bool
    raw: str
    signature: list[int]

    def as_list(self) -> list[Any]:
        """The form in `files.json`."""
        return [self.tag, self.digest, self.size, int(self.executable)]


class Places:
    """Where this environment lies: its own path, that of its prefix, and the interpreter that it was made with."""

    def __init__(
        self, root: str, prefix: str, interpreter: str, replaced: Json | None = None, trees: Json | None = None
    ) -> None:
        """All absolute paths; each is also known by its real path. `interpreter`: empty where it is in the environment.

        `trees`: the user's own folders that are sources, by name; only where they lie stands in an environment.

        `replaced`: relative path -> what gives the digest of a file of a conda package as it is in its archive, by
        `digest(data, root)`.
        """
        self.root = root
        self.replaced = replaced or {}
        self.interpreters = {interpreter, os.path.realpath(interpreter)} if interpreter else set()
        marks = [(path, b"@tree:%s@" % os.fsencode(name)) for name, path in sorted((trees or {}).items())]
        self.trees = {path: mark for place, mark in marks for path in (place, os.path.realpath(place))}
        pairs = [(path, b"@environment@") for path in (root, os.path.realpath(root))]
        # A short or usual path (/opt, /usr/bin/python3) stands in files that mean something else by it.
        pairs += [(path, b"@prefix@") for path in (prefix, os.path.realpath(prefix)) if _specific(path)]
        pairs += [(path, b"@interpreter@") for path in self.interpreters if _specific(path)]
        pairs += [(path, mark) for path, mark in self.trees.items() if _specific(path)]
        unique = {os.fsencode(path): mark for path, mark in reversed(pairs)}
        self.replacements = sorted(unique.items(), key=lambda pair: -len(pair[0]))
        self._any = re.compile(b"|".join(re.escape(path) for path, _ in self.replacements))

    def text(self, data: bytes) -> bytes | None:
        """`data` with the places replaced; None when it is not text or names none of them."""
        if self._any.search(data) is None or b"\0" in data:
            return None
        long_form = _LONG_SHEBANG.match(data)
        if long_form is not None:
            # The installer writes this where `#!` plus the path is longer than the kernel reads.
            data = b"#!" + long_form.group(1) + b"\n" + data[long_form.end() :]
        return self._any.sub(lambda match: self._mark(match.group()), data)

    def _mark(self, path: bytes) -> bytes:
        return next(mark for known, mark in self.replacements if known == path)

    def link(self, target: str) -> bytes:
        """A link's target with the places replaced."""
        if target in self.interpreters or (target.startswith("/") and os.path.realpath(target) in self.interpreters):
            return b"@interpreter@"
        if target in self.trees:
            return self.trees[target]
        return self._any.sub(lambda match: self._mark(match.group()), os.fsencode(target))

    def config(self, data: bytes) -> bytes:
        """`pyvenv.cfg` without the interpreter's folder and the version of the installer."""
        out = []
        for line in data.decode("utf-8", "replace").splitlines():
            key = line.partition("=")[0].strip()
            if key != "uv":
                out.append(f"{key} = @interpreter@" if key in _CFG_PLACES else line)
        return "\n".join(out).encode("utf-8")


def _specific(path: str) -> bool:
    return path.count("/") >= 2 and not any(path == top or path.startswith(top + "/") for top in _UNSPECIFIC)


def glob_match(path: str, pattern: str) -> bool:
    """`path` matches `pattern`: `*` and `?` stay within one folder, `**` stands for any number of folders."""
    return _glob_parts(path.split("/"), pattern.split("/"))


def _glob_parts(path: list[str], pattern: list[str]) -> bool:
    if not pattern:
        return not path
    if pattern[0] == "**":
        return any(_glob_parts(path[i:], pattern[1:]) for i in range(len(path) + 1))
    return bool(path) and fnmatch.fnmatchcase(path[0], pattern[0]) and _glob_parts(path[1:], pattern[1:])


@dataclass(frozen=True)
class Generated:
    """The files that runs make in a source at `top`: those of `patterns`, but not what its build has `compiled`.

    `top`: folder in the environment, with `/` at its end; `compiled`: paths below it.
    """

    top: str
    patterns: Sequence[str]
    compiled: frozenset[str]

    def has(self, path: str) -> bool:
        """Whether `path`, relative to the environment, is one of them."""
        if not path.startswith(self.top):
            return False
        below = path[len(self.top) :]
        return below not in self.compiled and any(glob_match(below, pattern) for pattern in self.patterns)


def generated_of(sources: Iterable[Json]) -> list[Generated]:
    """What runs make in the sources that lie in the environment; `sources` as a stamp or the notes of an install say.

    `compiled` is missing in stamps of before it was told.
    """
    kept = [s for s in sources if s.get("install") in ("editable", "path") and s.get("generated")]
    return [Generated(f"src/{s['name']}/", s["generated"], frozenset(s.get("compiled") or ())) for s in kept]


def is_left_out(path: str, generated: Iterable[Generated] = ()) -> bool:
    """True for what the root does not cover: byte code, installer notes, envbuild's own files, generated files."""
    folder, _, name = path.rpartition("/")
    if name.endswith(".pyc") or path.startswith(".envbuild/") or path == ".lock":
        return True
    if folder.endswith("__pycache__") and (name.endswith(_PYCACHE) or ".pyc." in name):
        return True
    if name in ("uv_cache.json", "direct_url.json") and folder.endswith(".dist-info"):
        return True
    return any(pattern.has(path) for pattern in generated)


def listed(folder: str) -> Iterator[os.DirEntry[str]]:
    """What lies in a folder, to be asked while this goes on.

    Through its descriptor, so that no `stat` goes down the whole path again: a fifth of the time of a walk.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with os.scandir(handle) as entries:
            yield from entries
    finally:
        os.close(handle)


def walk(root: str) -> Iterator[tuple[str, os.stat_result]]:
    """Every path under `root` that is not a folder, relative, with its own `lstat`; links are not followed."""
    pending = [""]
    while pending:
        top = pending.pop()
        for item in listed(os.path.join(root, top)):
            path = top + "/" + item.name if top else item.name
            if item.is_dir(follow_symlinks=False):
                pending.append(path)
            else:
                yield path, item.stat(follow_symlinks=False)


def signature(facts: os.stat_result) -> list[int]:
    """What changes whenever a file's content does."""
    return [facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns]


def _entry(root: str, places: Places, path: str, facts: os.stat_result) -> Entry:
    full = os.path.join(root, path)
    mode = facts.st_mode
    if stat.S_ISLNK(mode):
        digest = hashlib.sha256(places.link(os.readlink(full))).hexdigest()
        return Entry("link", digest, 0, False, "", signature(facts))
    if not stat.S_ISREG(mode):
        return Entry("special", "", 0, False, "", signature(facts))
    placeholder = places.replaced.get(path)
    if placeholder is not None and facts.st_size:
        tag = "prefix"
        with open(full, "rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            raw, digest = hashlib.sha256(data).hexdigest(), placeholder.digest(data, os.fsencode(places.root))
    else:
        raw, content = _read(full, facts.st_size)
        text = None if content is None else places.config(content) if path == "pyvenv.cfg" else places.text(content)
        tag, digest = ("file", raw) if text is None else ("text", hashlib.sha256(text).hexdigest())
    return Entry(tag, digest, facts.st_size, bool(mode & stat.S_IXUSR), raw, signature(facts))


def _read(path: str, size: int) -> tuple[str, bytes | None]:
    """The sha256 (hex) of a file of so many bytes, and its contents where they may be text."""
    total, data, count = hashlib.sha256(), b"", 0
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        while True:
            block = os.read(handle, _BUFFER)
            total.update(block)
            count += len(block)
            if count <= TEXT_LIMIT and b"\0" not in data:
                data += block
            if not block or (size <= count and len(block) < _BUFFER):
                return total.hexdigest(), data if len(data) == count else None
    finally:
        os.close(handle)


def scan(
    root: str,
    places: Places,
    generated: Iterable[Generated] = (),
    known: dict[str, Entry] | None = None,
    only: Container[str] | None = None,
) -> dict[str, Entry]:
    """Hash every covered path of the tree at `root` once, in parallel; returns path -> Entry.

    `known` holds entries of an earlier scan; a file whose signature has not changed since is not read again. `only`:
    other paths are not looked at. Memory is bounded: one buffer of 1 MiB a thread and at most 4 MiB for a file that may
    be text. Raises OSError.
    """
    made_by_runs = list(generated)
    entries: dict[str, Entry] = {}
    work: list[tuple[str, os.stat_result]] = []
    for path, facts in walk(root):
        if only is not None and path not in only:
            continue
        earlier = known.get(path) if known else None
        # What an earlier scan covered is left out by a source's patterns alone.
        if (earlier is None or made_by_runs) and is_left_out(path, made_by_runs):
            continue
        if earlier is not None and earlier.tag != "special" and earlier.signature == signature(facts):
            earlier.executable = bool(facts.st_mode & stat.S_IXUSR) and earlier.tag != "link"
            entries[path] = earlier
        else:
            work.append((path, facts))
    # Largest first, so that no thread is left alone with a big file at the end; small files in chunks.
    work.sort(key=lambda item: -item[1].st_size)
    large = sum(facts.st_size >= _BUFFER for _, facts in work)
    chunks = [[item] for item in work[:large]] + [work[n : n + 64] for n in range(large, len(work), 64)]

    def hash_all(chunk: list[tuple[str, os.stat_result]]) -> list[tuple[str, Entry]]:
        return [(path, _entry(root, places, path, facts)) for path, facts in chunk]

    hashed = proc.pool_map(hash_all, chunks, len(os.sched_getaffinity(0)))
    entries.update(pair for pairs in hashed for pair in pairs)
    for path in {pattern.top + name for pattern in made_by_runs for name in pattern.compiled} & entries.keys():
        entries[path].tag = COMPILED if entries[path].raw else entries[path].tag
    _normalise_records(root, entries)
    return entries


def read_record(root: str, record: str) -> list[tuple[str, str, str]]:
    """Rows of a RECORD: (path relative to `root`, hash as written, size as written); raises OSError.

    A path that leaves the environment keeps its leading `../`, so that nothing in the environment matches it; one
    that leaves a folder it has entered (`a/../../b`, which no installer writes) gets one.
    """
    with open(os.path.join(root, record), "rb") as stream:
        return _rows(root, os.path.dirname(os.path.dirname(record)), stream.read())


@functools.lru_cache(maxsize=256)
def _rows(root: str, site: str, data: bytes) -> list[tuple[str, str, str]]:
    """Of the same bytes once: a scan asks, and whoever compares what it found; nobody changes the list."""
    text = data.decode("utf-8", "surrogateescape")
    rows = []
    for row in csv.reader(io.StringIO(text, newline="")):
        if row:
            name, digest, size = (row + ["", ""])[:3]
            if name.startswith(root + "/"):
                name = os.path.relpath(name, os.path.join(root, site))
            strays = ".." in name.lstrip("./").split("/")
            rows.append((("../" + name) if strays else os.path.normpath(os.path.join(site, name)), digest, size))
    return rows


def _normalise_records(root: str, entries: dict[str, Entry]) -> None:
    """Give each RECORD its normal form: sorted, without lines of what is left out, without hashes of `text` files."""
    # Of installed packages; those that a package vendors are plain files.
    for record in sorted(filter(_RECORD.match, entries)):
        lines = []
        for path, digest, size in read_record(root, record):
            if is_left_out(path):
                continue
            entry = entries.get(path)
            places_differ = entry is not None and entry.tag in ("text", "prefix", "record")
            lines.append("\0".join((path, "", "") if places_differ else (path, digest, size)))
        data = "\n".join(sorted(lines)).encode("utf-8", "surrogateescape")
        entry = entries[record]
        entry.tag = "record"
        entry.digest = hashlib.sha256(data).hexdigest()


def root_of(files: dict[str, list[Any]]) -> str:
    """The Merkle root (sha256, hex) over `files` (path -> [tag, digest, size, executable]), folder by folder.

    Without those of the tag `compiled`: two compilers give two files, and each environment has its own in its list.
    """
    # Folder -> the lines of what lies in it, by name.
    folders: dict[str, dict[str, str]] = {"": {}}
    for path, (tag, digest, _size, executable) in files.items():
        if tag == COMPILED:
            continue
        folder, _, name = path.rpartition("/")
        above = folder
        while above not in folders:
            folders[above] = {}
            above = above.rpartition("/")[0]
        folders[folder][name] = f"{name}\0{tag}\0{digest}\0{'x' if executable else '-'}\0\n"
    # The deepest first: the line of a folder is made of all that is in it.
    for folder in sorted((folder for folder in folders if folder), key=lambda folder: -folder.count("/")):
        above, _, name = folder.rpartition("/")
        folders[above][name + "/"] = f"{name}/\0folder\0{_folder_digest(folders[folder])}\0\0\n"
    return _folder_digest(folders[""])


def _folder_digest(lines: dict[str, str]) -> str:
    # Names may hold any byte but NUL and "/": NUL ends each field.
    text = "envbuild-folder-1\0" + "".join(lines[name] for name in sorted(lines))
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
