"""The files of an environment: hashed in one pass, and compared with what their packages say of them.

Byte code that its source does not give is refused: a planted `.pyc` runs instead of the source beside it. Each is
loaded and compared with what its source compiles to, by the environment's own interpreter in separate processes. Code
objects compare equal when their instructions, constants, names, flags and line tables are equal; the file name in them
may differ.
"""

from __future__ import annotations

import json
import os
import re
from functools import partial
from typing import Any

from envbuild.node import merkle, paths, proc
from envbuild.node.conda import meta
from envbuild.node.packages import installed
from envbuild.node.protocol import Json

_CACHED = re.compile(r"\A(.+?)\.([a-z]+-\d+)(?:\.opt-([12]))?\.pyc\Z")
_DEADLINE = 1800.0
_TAG = "import sys; print(sys.implementation.cache_tag)"

# Runs under the environment's interpreter. Reads JSON lines [index, pyc, source, optimisation, may be stale], writes
# "begin INDEX" before and "INDEX word" after each: a crash in marshal names its file.
_CHECK = r"""
import importlib.util, json, marshal, os, sys, warnings
warnings.simplefilter("ignore")
out = sys.stdout
for line in sys.stdin:
    index, pyc, source, level, lenient = json.loads(line)
    out.write("begin %d\n" % index)
    out.flush()
    try:
        with open(os.fsencode(pyc) if isinstance(pyc, str) else pyc, "rb") as stream:
            data = stream.read()
        with open(source, "rb") as stream:
            text = stream.read()
        facts = os.stat(source)
        flags = int.from_bytes(data[4:8], "little")
        if data[:4] != importlib.util.MAGIC_NUMBER or len(data) < 16 or flags & ~3:
            word = "foreign"
        else:
            stamps = (int.from_bytes(data[8:12], "little"), int.from_bytes(data[12:16], "little"))
            fresh = flags & 1 or stamps == (int(facts.st_mtime) & 0xFFFFFFFF, facts.st_size & 0xFFFFFFFF)
            if lenient and not fresh:
                word = "good"
            else:
                code = marshal.loads(data[16:])
                made = compile(text, getattr(code, "co_filename", source), "exec", dont_inherit=True, optimize=level)
                word = "good" if type(code) is type(made) and code == made else "differs"
    except Exception as error:
        word = "differs"
    out.write("%d %s\n" % (index, word))
    out.flush()
"""


def scan(
    prefix: str,
    environment: str,
    made: Json,
    known: dict[str, merkle.Entry] | None = None,
) -> dict[str, merkle.Entry]:
    """Every covered path of an environment; `made`: interpreter, sources and trees (of a stamp or install notes).

    `known`: see `merkle.scan`. Raises OSError.
    """
    made_by_runs = merkle.generated_of(made["sources"])
    where = places(prefix, environment, environment, made)
    return merkle.scan(environment, where, made_by_runs, known)


def places(prefix: str, environment: str, built_at: str, made: Json) -> merkle.Places:
    """The places that files of an environment may name; `made` as of `scan`."""
    trees = {tree["name"]: tree["at"] for tree in made.get("trees") or ()}
    return merkle.Places(built_at, prefix, made.get("interpreter") or "", meta.replaced(environment), trees)


def keep(path: str, entries: dict[str, merkle.Entry]) -> None:
    """Write what a scan gave into the file `path`."""
    paths.write_json(path, {"files": {name: list(vars(entry).values()) for name, entry in entries.items()}})


def kept(path: str) -> dict[str, merkle.Entry]:
    """What `keep` has written, so that files unchanged since are not read twice; empty where it is not there."""
    rows = (paths.read_json(path) or {}).get("files") or {}
    return {name: merkle.Entry(*row) for name, row in rows.items() if isinstance(row, list) and len(row) == 6}


def check(
    environment: str,
    entries: dict[str, merkle.Entry],
    known: dict[str, str] | None = None,
) -> tuple[int, list[Json]]:
    """Every file of a wheel against its RECORD, every file of a conda package against its archive's own list.

    Returns as `installed.check`, with its `known`.
    """
    checked, wrong = meta.check(environment, entries)
    of_wheels, others = installed.check(environment, entries, known, meta.distributions(environment))
    return checked + of_wheels, wrong + others


def byte_code(environment: str, sources: list[Json]) -> tuple[int, list[dict[str, str]]]:
    """How many `.pyc` there are, and [{"path", "kind", "why"}] of those that their source does not give.

    `sources`: of a stamp. Byte code of an earlier state of what runs rewrite there is not used by the interpreter and
    is let pass.
    """
    every = sorted(path for path, _ in merkle.walk(environment) if path.endswith(".pyc"))
    made_by_runs = merkle.generated_of(sources)
    ask = [os.path.join(environment, "bin", "python"), "-I", "-S", "-B", "-c", _TAG]
    tag = proc.run(ask).out.strip() if every else ""
    refused: dict[str, str] = {}
    jobs: list[list[Any]] = []
    for index, path in enumerate(every):
        origin = _source_of(path)
        if origin is None or origin[1] not in ("", tag):
            refused[path] = f"not byte code of this interpreter ({tag})"
        elif os.path.islink(os.path.join(environment, path)):
            refused[path] = "a symbolic link"
        elif not os.path.isfile(os.path.join(environment, origin[0])):
            refused[path] = "its source is not there"
        else:
            full = [os.path.join(environment, name) for name in (path, origin[0])]
            lenient = bool(made_by_runs) and merkle.is_left_out(origin[0], made_by_runs)
            # Beside the source there is one file for all levels; it counts as the plain one.
            jobs.append([index, full[0], full[1], origin[2], lenient])
    for index, word in _compare(environment, jobs).items():
        if word != "good":
            why = "made by another interpreter" if word == "foreign" else "its source gives other code"
            refused[every[index]] = why
    rows = [{"path": path, "kind": "pyc-not-from-source", "why": why} for path, why in sorted(refused.items())]
    return len(every), rows


def _source_of(path: str) -> tuple[str, str, int] | None:
    """(source, interpreter tag, optimisation level) of a `.pyc`; the tag of one beside its source is empty.

    None when the name is not one that an interpreter gives.
    """
    folder, name = os.path.split(path)
    if os.path.basename(folder) != "__pycache__":
        return path[:-1], "", 0
    match = _CACHED.match(name)
    if match is None:
        return None
    return os.path.join(os.path.dirname(folder), match.group(1) + ".py"), match.group(2), int(match.group(3) or 0)


def _compare(environment: str, jobs: list[list[Any]]) -> dict[int, str]:
    workers = max(1, min(len(os.sched_getaffinity(0)), len(jobs) // 64 + 1))
    shares = [jobs[number::workers] for number in range(workers)]
    done = proc.parallel([partial(_worker, environment, share) for share in shares])
    words = {job[0]: "differs" for job in jobs}
    for refusals in done:
        words.update(refusals or {})
    return words


def _worker(environment: str, jobs: list[list[Any]]) -> dict[int, str]:
    """Words by index. A process that dies took its current file with it; the rest goes to a new one."""
    python = os.path.join(environment, "bin", "python")
    words: dict[int, str] = {}
    while jobs:
        data = "".join(json.dumps(job) + "\n" for job in jobs).encode("ascii")
        done = proc.run([python, "-I", "-S", "-B", "-c", _CHECK], timeout=_DEADLINE, stdin=data)
        begun = set()
        for line in done.out.splitlines():
            first, _, second = line.partition(" ")
            if first == "begin":
                begun.add(int(second))
            elif first.isdigit():
                words[int(first)] = second
        crashed = begun - set(words)
        for index in crashed:
            words[index] = "differs"
        left = [job for job in jobs if job[0] not in words and not done.timed_out]
        if len(left) == len(jobs):
            break  # it does not even start: everything stays refused
        jobs = left
    return words
