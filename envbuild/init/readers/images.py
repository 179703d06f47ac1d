"""Dockerfiles, definitions of Apptainer, and job scripts of Slurm and PBS: options around a shell."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

from envbuild.init.readers.shell import Shell
from envbuild.init.readers.words import plain
from envbuild.init.statement import Kind, Place, Statement, quoted

_INSTRUCTION = re.compile(r"\s*([A-Za-z]+)\s+(.*)", re.DOTALL)
_HEREDOC = re.compile(r"<<-?\s*[\"']?(\w+)[\"']?")
_PAIR = re.compile(r"""([A-Za-z_]\w*)=("(?:\\.|[^"\\])*"|'[^']*'|(?:\\.|[^\s\\])*)""", re.DOTALL)
_CUDA = re.compile(r"(?:^|/)cuda:([0-9]+\.[0-9]+)")
_NGC = re.compile(r"/nvidia/pytorch:([0-9]{2}\.[0-9]{2})")  # of nvcr.io, or of a mirror
_PYTORCH = re.compile(r"(?:^|/)pytorch/pytorch:([0-9]+\.[0-9]+\.[0-9]+)-cuda([0-9]+\.[0-9]+)")
_PYTHON = re.compile(r"(?:^|/)python:(3\.[0-9]+)")
# The last NVIDIA image with each Python.
_NGC_PYTHONS = (("20.10", "3.6"), ("23.06", "3.8"), ("24.10", "3.10"), ("99.12", "3.12"))
_UBUNTU = {"18.04": "3.6", "20.04": "3.8", "22.04": "3.10", "24.04": "3.12"}


class _Instruction(NamedTuple):
    name: str
    rest: str
    line: int
    column: int


def _instructions(text: str) -> Iterator[_Instruction]:
    """Instructions with their places; comments inside a continued one are left out, lines keep their numbers."""
    lines = text.splitlines()
    place = 0
    while place < len(lines):
        first = place
        if not lines[place].strip() or lines[place].lstrip().startswith("#"):
            place += 1
            continue
        parts = [lines[place]]
        while re.search(r"\\\s*$", lines[place]) or (place > first and _aside(lines[place])):
            place += 1
            if place >= len(lines):
                break
            parts.append("\\" if _aside(lines[place]) else lines[place])
        here = _HEREDOC.search(parts[0]) if len(parts) == 1 else None
        if here:
            end = next((n for n in range(place + 1, len(lines)) if lines[n].strip() == here[1]), len(lines))
            body = "\n".join(lines[place + 1 : end])
            place = end
            name = parts[0].split()[0]
            yield _Instruction(name.upper(), body, first + 2, 1)
        elif match := _INSTRUCTION.fullmatch("\n".join(parts)):
            yield _Instruction(match[1].upper(), match[2], first + 1, match.start(2) + 1)
        place += 1


def _aside(line: str) -> bool:
    return not line.strip() or line.lstrip().startswith("#")


def dockerfile(text: str, file: str) -> Iterator[Statement]:
    """A Dockerfile: the shell of its RUN lines, its variables, its base images and the files that it copies."""
    shell = Shell(file, image=True)
    stages: dict[str, str] = {}
    for item in _instructions(text):
        place = Place(file, item.line, item.column)
        shown = quoted(f"{item.name} {item.rest}")
        if item.name == "FROM":
            yield from _from(item, shell, stages, place, shown)
        elif item.name == "ARG":
            name, _, default = item.rest.strip().partition("=")
            if default:
                shell.variables.setdefault(name, plain(default, shell.variables))
        elif item.name == "ENV":
            yield from _env(item, shell, place, shown)
        elif item.name == "WORKDIR":
            yield from _entered(shell, plain(item.rest.strip(), shell.variables))
        elif item.name == "RUN":
            yield from shell.read(*_run(item))
        elif item.name in ("COPY", "ADD"):
            for word in item.rest.split()[:-1]:
                # A script that is copied says nothing yet; where a RUN calls it, that command does.
                if re.search(r"(?<!-)\b(?:require|env(?:ironment)?\b.*\.ya?ml$)|\.toml$|setup\.py$", word):
                    yield Statement("file", word, place, shown, "dockerfile", options={"by": item.name})


def _entered(shell: Shell, target: str) -> Iterator[Statement]:
    """WORKDIR names folders of the image, which say nothing about the author's disk."""
    shell.where = ("", "") if target.startswith("/") else shell.where
    for statement in shell.enter(target.lstrip("/")):
        if statement.value != "hard-coded-path":
            yield statement
    if not shell.where[0]:
        shell.where = ("", "")


def _run(item: _Instruction) -> tuple[str, int, int]:
    """The script of a RUN line: options are left out, an exec form becomes words."""
    rest = item.rest
    if rest.lstrip().startswith("["):
        try:
            words = json.loads(rest)
        except ValueError:
            words = []
        return " ".join(json.dumps(word) for word in words if isinstance(word, str)), item.line, item.column
    match = re.match(r"(?:\s*(?:\\\n)?\s*--[a-z]+=\S+)+\s*", rest)
    start = match.end() if match else 0
    return " " * len(rest[:start].rpartition("\n")[2]) + rest[start:], item.line + rest[:start].count("\n"), item.column


def _from(item: _Instruction, shell: Shell, stages: dict[str, str], place: Place, shown: str) -> Iterator[Statement]:
    words = [word for word in plain(item.rest, shell.variables).split() if not word.startswith("--")]
    image = words[0] if words else ""
    named = words[2].lower() if len(words) > 2 else ""
    base = stages.get(image.lower(), image)
    stages[named or str(len(stages))] = base
    if image.lower() not in stages and image != "scratch" and image:
        yield from image_facts(image, place, shown)


def image_facts(image: str, place: Place, shown: str) -> Iterator[Statement]:
    """A base image and what its name says of CUDA, Python and torch."""

    def fact(kind: Kind, value: str, **options: str) -> Statement:
        return Statement(kind, value, place, shown, "dockerfile", options=options)

    yield fact("image", image, **({"devel": "yes"} if "devel" in image or _NGC.search(image) else {}))
    if match := _CUDA.search(image):
        yield fact("cuda", match[1], by="image")
    if match := _PYTORCH.search(image):
        yield fact("torch", f"=={match[1]}", by="image")
        yield fact("cuda", match[2], by="image")
    if match := _PYTHON.search(image):
        yield fact("python", f"=={match[1]}.*")
    if match := _NGC.search(image):
        python = next(minor for until, minor in _NGC_PYTHONS if match[1] <= until)
        yield fact("python", f"=={python}.*", inferred="image")
    if (match := re.search(r"ubuntu:?([0-9]{2}\.[0-9]{2})", image)) and match[1] in _UBUNTU:
        yield fact("python", f"=={_UBUNTU[match[1]]}.*", inferred="image")


def _env(item: _Instruction, shell: Shell, place: Place, shown: str) -> Iterator[Statement]:
    rest = item.rest.replace("\\\n", " ")
    pairs = [(match[1], match[2]) for match in _PAIR.finditer(rest)]
    if not re.match(r"\s*[A-Za-z_]\w*=", rest):
        name, _, value = rest.strip().partition(" ")
        pairs = [(name, value.strip())]
    for name, value in pairs:
        shown_value = plain(value, shell.variables)
        shell.variables[name] = shown_value
        if "$" not in shown_value and name not in ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH"):
            yield Statement("environment", f"{name}={shown_value}", place, shown, "dockerfile")


def apptainer(text: str, file: str) -> Iterator[Statement]:
    """A definition of Apptainer: `From:`, %post and %environment."""
    shell = Shell(file)
    section, body, first = "", list[str](), 1
    lines = [*text.splitlines(), "%end"]
    for number, line in enumerate(lines, 1):
        if line.startswith("%"):
            if section in ("post", "environment"):
                yield from shell.read("\n".join(body), first)
            section, body, first = line[1:].split()[0] if len(line) > 1 else "", [], number + 1
        elif not section and (match := re.match(r"From:\s*(\S+)", line, re.IGNORECASE)):
            yield from image_facts(match[1], Place(file, number), quoted(line))
        else:
            body.append(line)


def script(text: str, file: str) -> Iterator[Statement]:
    """A shell script, with its options of Slurm or PBS."""
    batch = False
    for number, line in enumerate(text.splitlines(), 1):
        if match := re.match(r"#(SBATCH|PBS)\s+(.*?)(?:\s+#.*)?$", line):
            batch = True
            kind = "slurm" if match[1] == "SBATCH" else "pbs"
            yield Statement("scheduler", match[2], Place(file, number), quoted(line), kind)
            if re.match(
                r"(?:--partition|-p|--account|-A|-q|--qos|--constraint|-C|--reservation|-l filesystems)\b", match[2]
            ):
                options = {"why": f"`{match[2]}` is a name of one cluster"}
                yield Statement("trait", "site-specific", Place(file, number), quoted(line), kind, options=options)
    yield from Shell(file, batch=batch).read(text)
