"""Refuses byte code that its source does not give: a planted `.pyc` runs instead of the source beside it.

Every `.pyc` is loaded and compared with what its source compiles to, by the environment's own interpreter in separate
processes. Code objects compare equal when their instructions, constants, names, flags and line tables are equal; the
file name in them may differ.
"""

import json
import os
import re
from collections.abc import Iterable

from envbuild.node import proc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_CACHED = re.compile(r"\A(.+?)\.([a-z]+-\d+)(?:\.opt-([12]))?\.pyc\Z")
_DEADLINE = 1800.0

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


def find(environment: str) -> "list[str]":
    """Every `.pyc` of an environment, relative and sorted; links are not followed."""
    found = []
    for top, _folders, files in os.walk(environment):
        relative = os.path.relpath(top, environment)
        found += [os.path.normpath(os.path.join(relative, name)) for name in files if name.endswith(".pyc")]
    return sorted(found)


def source_of(path: str) -> "tuple[str, str, int] | None":
    """(source, interpreter tag, optimisation level) of a `.pyc`; the tag of one beside its source is empty.

    None when the name is not one that an interpreter gives.
    """
    folder, name = os.path.split(path)
    if os.path.basename(folder) != "__pycache__":
        return path[:-1], "", 0
    found = _CACHED.match(name)
    if found is None:
        return None
    return os.path.join(os.path.dirname(folder), found.group(1) + ".py"), found.group(2), int(found.group(3) or 0)


def check(environment: str, paths: "Iterable[str]", tag: str, generated: "set[str]") -> "list[dict[str, str]]":
    """Compare each `.pyc` in `paths` (relative) with its source; returns [{"path", "kind", "why"}] of the refused.

    `tag`: what the environment's interpreter calls itself (`cpython-311`). `generated`: sources that runs may
    rewrite; byte code of an earlier state of those is not used by the interpreter and is let pass.
    """
    refused: list[dict[str, str]] = []
    jobs: list[list[Any]] = []
    names: list[str] = []
    for path in paths:
        origin = source_of(path)
        if origin is None or origin[1] not in ("", tag):
            refused.append(_refusal(path, "not byte code of this interpreter (%s)" % tag))
        elif os.path.islink(os.path.join(environment, path)):
            refused.append(_refusal(path, "a symbolic link"))
        elif not os.path.isfile(os.path.join(environment, origin[0])):
            refused.append(_refusal(path, "its source is not there"))
        else:
            full = [os.path.join(environment, each) for each in (path, origin[0])]
            # Beside the source there is one file for all levels; it counts as the plain one.
            jobs.append([len(names), full[0], full[1], origin[2], origin[0] in generated])
            names.append(path)
    for index, word in sorted(_compare(environment, jobs).items()):
        if word != "good":
            why = "made by another interpreter" if word == "foreign" else "its source gives other code"
            refused.append(_refusal(names[index], why))
    return sorted(refused, key=lambda each: each["path"])


def _refusal(path: str, why: str) -> "dict[str, str]":
    return {"path": path, "kind": "pyc-not-from-source", "why": why}


def _compare(environment: str, jobs: "list[list[Any]]") -> "dict[int, str]":
    workers = max(1, min(len(os.sched_getaffinity(0)), len(jobs) // 64 + 1))
    shares = [jobs[number::workers] for number in range(workers)]
    done = proc.parallel([lambda share=share: _worker(environment, share) for share in shares])  # type: ignore[misc]
    words = {job[0]: "differs" for job in jobs}
    for found in done:
        words.update(found or {})
    return words


def _worker(environment: str, jobs: "list[list[Any]]") -> "dict[int, str]":
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


def interpreter_tag(environment: str) -> str:
    """The cache tag of the environment's interpreter, empty when it cannot be run."""
    python = os.path.join(environment, "bin", "python")
    done = proc.run([python, "-I", "-S", "-B", "-c", "import sys; print(sys.implementation.cache_tag)"])
    return done.out.strip() if done.ok else ""
