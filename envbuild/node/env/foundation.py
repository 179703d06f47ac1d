"""What an environment stands on, by its engine: an interpreter that is there, or the conda packages of its lock.

Everything after it (wheels, sources, hashes, stamp) is the same for both.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import Union

from envbuild.node import paths
from envbuild.node.conda import activation, archives, meta, prefix
from envbuild.node.env import interpreter as base
from envbuild.node.packages import installed, uv
from envbuild.node.protocol import Json, NodeError, log


class Venv:
    """A virtual environment on the interpreter that the request names; `phase` names it in times."""

    phase = "venv"

    def __init__(self, request: Json, environment: str) -> None:
        """Look at the interpreter and its packages before anything is changed; raises what `base.examine` raises."""
        self.prefix, self.args = request["prefix"], request["args"]
        self.environment, self.variant = environment, self.args["variant"]
        self.facts: Json = {}
        bring_staged(self.prefix, self.args.get("interpreter"), self.args.get("staged"))
        self._interpreter = base.examine(self.args.get("interpreter"), self.variant)
        base.check(self.variant, self._interpreter.packages)

    def make(self, tool: uv.Uv) -> base.Interpreter:
        """Make it with uv; raises what `uv.failure` makes."""
        python = self._interpreter
        args = ["venv", "--python", python.path, "--no-project", "--no-python-downloads", "--link-mode", "copy"]
        on_base = self.variant.get("base", {}).get("kind", "none") != "none"
        if on_base and python.system_site:
            args.append("--system-site-packages")
        done = tool.run(args + [self.environment], timeout=300.0)
        if not done.ok:
            raise uv.failure(done, "making the virtual environment", self.environment)
        if on_base and python.sites:
            # A virtual environment below this one: its folders are added as site does it, with their own .pth files.
            lines = [f"import site; site.addsitedir({folder!r})\n" for folder in python.sites]
            folder = os.path.join(self.environment, "lib", "python" + self.variant["python"], "site-packages")
            with open(os.path.join(folder, paths.BASE_PTH), "w", encoding="utf-8") as file:
                file.writelines(lines)
        return python

    def check_added(self, added: dict[str, str]) -> None:
        """Raise `replaces-base-package` (exit 7) where one of `added` (name -> version) would hide one of the base."""
        base.check_replaces(added, self._interpreter.packages)


class Conda:
    """The conda packages of the variant, the interpreter among them; `facts` is their part of the result."""

    phase = "conda"

    def __init__(self, request: Json, environment: str) -> None:
        """Raises NodeError `conda-unrecorded` (exit 5)."""
        self.prefix, self.args = request["prefix"], request["args"]
        self.environment, self.variant = environment, self.args["variant"]
        self.facts: Json = {}
        archives.check_recorded(self.variant)
        for name in ("rattler_python", "rattler"):
            bring_staged(self.prefix, self.args["tools"].get(name), self.args.get("staged"))

    def make(self, tool: uv.Uv) -> base.Interpreter:
        """Install them; raises what `prefix.make` and `activation.variables` raise, and `conda-and-wheel` (exit 7)."""
        where = (self.args.get("artifacts") or {}).get("conda") or {}
        folder = os.path.join(tool.cache if tool.keeps_cache else tool.tmp, "conda")
        os.makedirs(folder, exist_ok=True)
        beside = os.path.join(self.prefix, "tmp")
        os.makedirs(beside, exist_ok=True)
        rattler = prefix.Rattler(self.args["tools"], tool.tmp, beside)
        made = prefix.make(rattler, self.variant, where, folder, self.environment)
        self.facts = {"conda": dict(made, activation=activation.variables(self.environment))}
        self.check_added({package["name"]: package["version"] for package in self.variant.get("packages", [])})
        # Its own interpreter, whose path counts as part of the environment.
        python = base.examine(os.path.join(self.environment, "bin", "python"), self.variant)
        return base.Interpreter("", python.version, {})

    def check_added(self, added: dict[str, str]) -> None:
        """Raise `conda-and-wheel` (exit 7) where a distribution (name -> version) is one of conda's as well."""
        present = meta.distributions(self.environment)
        both = {name: present.get(installed.normal_name(name)) for name in sorted(added)}
        both = {name: owner for name, owner in both.items() if owner}
        if both:
            pairs = [f"{name} {added[name]} and {owner}" for name, owner in both.items()]
            name, owner = next(iter(both.items()))
            raise NodeError(
                "conda-and-wheel",
                f"the wheel {name} {added[name]} and the conda package {owner} hold the same distribution",
                why=f"both: {'; '.join(pairs)}",
                hint="name it under `provides` of the profile's conda section, or leave the conda package out",
                details={"packages": list(both)},
                changed=True,
            )


Foundation = Union[Venv, Conda]


def of(request: Json, environment: str) -> Foundation:
    """What the variant of an install request stands on, looked at and not yet made. Raises NodeError."""
    conda = request["args"]["variant"].get("engine") == "conda"
    return Conda(request, environment) if conda else Venv(request, environment)


def bring_staged(prefix: str, interpreter: object, staged: str | None) -> None:
    """Copy `<staged>/<tool>` to `<prefix>/tools/<tool>` where `interpreter` lies in that tool and it is not there.

    `staged` is a folder that all nodes see. Whole or not at all: it appears by one rename. Raises OSError.
    """
    tools = os.path.join(prefix, "tools")
    if not staged or not isinstance(interpreter, str) or not interpreter.startswith(tools + "/"):
        return
    name = os.path.relpath(interpreter, tools).split("/")[0]
    place, source = os.path.join(tools, name), os.path.join(staged, paths.checked_name(name, "tool"))
    if os.path.isdir(place) or not os.path.isdir(source):
        return
    os.makedirs(tools, exist_ok=True)
    log(f"copying {source} to {place}")
    half = tempfile.mkdtemp(prefix=f".{name}.", dir=tools)
    try:
        shutil.copytree(source, os.path.join(half, name), symlinks=True)
        os.rename(os.path.join(half, name), place)
    finally:
        paths.remove_tree(half)
