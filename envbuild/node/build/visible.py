"""What a build sees of the packages: those that it asks for and what these require, in a venv of its own.

The build key names these and no others, so that stacks which agree in them share a wheel. An environment of conda
packages is seen whole: its compilers and libraries lie among its packages.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from envbuild.node import proc
from envbuild.node.build.programs import editable
from envbuild.node.packages import installed
from envbuild.node.protocol import Json, NodeError
from envbuild.node.read_text import names, read

# What a setup.py of this field imports and does not declare: it is made for pip's --no-build-isolation. Megatron's
# imports its own package, which imports regex.
_UNDECLARED = ("numpy", "ninja", "packaging", "pybind11", "regex", "setuptools", "torch", "wheel")
_REQUIRES = re.compile(r"(?ms)^\s*requires\s*=\s*\[(.*?)\]\s*(?:#.*)?$")
_EXTRAS = re.compile(r"\s*[\w.-]+\s*\[([^\]]*)\]")
_FOR_EXTRA = re.compile(r"\bextra\s*==\s*[\"']([^\"']*)")
_ASK = """
import json, os, sys
base = getattr(sys, "_base_executable", None) or os.path.realpath(sys.executable)
print(json.dumps({"path": sys.path, "base": base, "version": "%d.%d" % sys.version_info[:2]}))
"""


class Distribution(NamedTuple):
    """One that an interpreter sees: `info` is its dist-info or egg-info, `requires` what its metadata says."""

    info: str
    version: str
    requires: list[str]

    def wants(self, extra: str) -> Iterator[tuple[str, str]]:
        """Names that it requires for an extra (empty: always), each with every extra of it that is asked for."""
        for each in self.requires:
            if extra in ([installed.normal_name(name) for name in _FOR_EXTRA.findall(each)] or [""]):
                extras = _EXTRAS.match(each)
                for asked in ["", *(extras.group(1).split(",") if extras else ())]:
                    yield installed.required_name(each), installed.normal_name(asked.strip())


class Packages:
    """All that the interpreter `python` of an environment sees; `distributions` by normal name."""

    def __init__(self, python: str) -> None:
        """Ask it. Raises NodeError `build-failed`."""
        done = proc.run([python, "-I", "-c", _ASK])
        if not done.ok:
            raise NodeError("build-failed", f"{python} does not run", why=done.err[-500:], changed=True)
        answer = json.loads(done.out)
        self.base: str = answer["base"]
        self.version: str = answer["version"]
        self.distributions: dict[str, Distribution] = {}
        for folder in answer["path"]:
            for name in names(folder):
                if name.endswith((".dist-info", ".egg-info")):
                    self._add(os.path.join(folder, name))

    def _add(self, info: str) -> None:
        file = next((path for path in (info + "/METADATA", info + "/PKG-INFO", info) if os.path.isfile(path)), None)
        name, version, requires = os.path.basename(info).split("-")[0], "?", []
        for key, value in installed.headers(read(file).splitlines()) if file else ():
            name = value if key == "name" else name
            version = value if key == "version" else version
            if key == "requires-dist":
                requires.append(value)
        requires += re.split(r"(?m)^\[", read(info + "/requires.txt"))[0].splitlines()
        # The first on the path is the one that is imported.
        self.distributions.setdefault(installed.normal_name(name), Distribution(info, version, requires))

    def versions(self) -> dict[str, str]:
        """Version by name."""
        return {name: each.version for name, each in self.distributions.items()}

    def closure(self, wanted: set[str]) -> dict[str, str]:
        """Version by name of what is `wanted` and all that this requires; an empty one for what is not there."""
        reached: set[tuple[str, str]] = set()
        left = {(name, "") for name in wanted}
        while left:
            reached |= left
            there = [(self.distributions[name], extra) for name, extra in left if name in self.distributions]
            left = {pair for each, extra in there for pair in each.wants(extra) if pair[0]} - reached
        absent = Distribution("", "", [])
        return {name: self.distributions.get(name, absent).version for name, _ in sorted(reached)}

    def view(self, folder: str, wanted: dict[str, str]) -> str:
        """Make a virtual environment of the `wanted` packages in the new `folder`; returns its interpreter."""
        site = os.path.join(folder, "lib", "python" + self.version, "site-packages")
        programs = os.path.join(folder, "bin")
        os.makedirs(site)
        os.makedirs(programs)
        with open(os.path.join(folder, "pyvenv.cfg"), "w", encoding="utf-8") as stream:
            stream.write(f"home = {os.path.dirname(self.base)}\ninclude-system-site-packages = false\n")
        python = os.path.join(programs, "python")
        for name in ("python", "python3", "python" + self.version):
            os.symlink(self.base, os.path.join(programs, name))
        files = {name: _files(each.info) for name, each in self.distributions.items()}
        tops: dict[str, set[str]] = {}
        for name, listed in files.items():
            for path in listed:
                tops.setdefault(path.split("/")[0], set()).add(name)
        for name in sorted(wanted.keys() & files.keys()):
            for path in files[name]:
                top = path.split("/")[0]
                # A folder of one package alone is linked whole.
                alone = top != ".." and len(tops[top]) == 1
                _link(os.path.dirname(self.distributions[name].info), top if alone else path, site, python)
        return python


def wanted(project: str, build: Json) -> set[str]:
    """The packages that a build asks for: in pyproject.toml, in the stack's `requires`, and what nobody declares."""
    text = _REQUIRES.search(editable.section(project))
    declared = re.findall(r"\"([^\"\n]*)\"|'([^'\n]*)'", text.group(1)) if text else []
    asked = [first or second for first, second in declared] + list(build.get("requires") or [])
    return {installed.required_name(each) for each in asked}.union(_UNDECLARED) - {""}


def _files(info: str) -> list[str]:
    """What a distribution has installed, relative to the folder of its `info`."""
    record = [line.rpartition(",")[0].rpartition(",")[0] for line in read(info + "/RECORD", 1 << 26).splitlines()]
    listed = [line[1:-1].replace('""', '"') if line.startswith('"') else line for line in record]
    if not listed:
        # A package of the distribution's own: nothing names its files.
        tops = read(info + "/top_level.txt").split() or [re.sub(r"[-.]", "_", os.path.basename(info).split("-")[0])]
        listed = [name + end for name in tops for end in ("", ".py")] + [os.path.basename(info)]
    return [path for path in listed if path and not path.startswith("/") and not path.endswith(".pyc")]


def _link(above: str, path: str, site: str, python: str) -> None:
    """Link one file or folder of a package to the same place in the view; a script runs the view's interpreter."""
    source, place = os.path.join(above, path), os.path.normpath(os.path.join(site, path))
    inside = place.startswith(os.path.dirname(os.path.dirname(python)) + "/")
    if os.path.lexists(place) or not inside or not os.path.exists(source):
        return
    os.makedirs(os.path.dirname(place), exist_ok=True)
    if os.path.dirname(place) == os.path.dirname(python):
        with open(source, "rb") as stream:
            first, rest = stream.readline(4096), stream.read()
        if first.startswith(b"#!") and b"python" in first:
            with open(place, "wb") as stream:
                stream.write(b"#!" + os.fsencode(python) + b"\n" + rest)
            os.chmod(place, 0o755)  # noqa: S103 - a program, in a folder of the build
            return
    os.symlink(source, place)
