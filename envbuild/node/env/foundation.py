"""What an environment stands on, by its engine: an interpreter that is there, or the conda packages of its lock.

Everything after it (wheels, sources, hashes, stamp) is the same for both. An interpreter is run to see what it is and
what its base provides.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from typing import NamedTuple, Union

from envbuild.node import paths, proc
from envbuild.node.conda import activation, meta, prefix
from envbuild.node.packages import installed, uv
from envbuild.node.protocol import Json, NodeError, log

# Without what is installed there, unless that is asked for: to read it takes longer than all the rest.
_ASK = """
import json, os, site, sys
site.main() if len(sys.argv) > 1 else site.venv(set())
venv = sys.prefix != sys.base_prefix
out = {"version": list(sys.version_info[:3]), "executable": sys.executable, "name": sys.implementation.name,
       "below": venv and getattr(sys, "_base_executable", ""), "sites": [], "system_site": True, "packages": {},
       "requires": []}
if len(sys.argv) > 1:
    from importlib import metadata
    if venv:
        out["sites"] = [each for each in site.getsitepackages([sys.prefix]) if os.path.isdir(each)]
        with open(os.path.join(sys.prefix, "pyvenv.cfg")) as cfg:
            lines = [line.lower().replace(" ", "").strip() for line in cfg]
        out["system_site"] = "include-system-site-packages=true" in lines
    for each in metadata.distributions():
        name = each.metadata["Name"]
        if name and name not in out["packages"]:
            out["packages"][name] = each.version
            out["requires"] += each.requires or []
print(json.dumps(out))
"""


class Interpreter(NamedTuple):
    """`path` (real path, never a shim), `packages` of its base (normal name -> version).

    A base that is a virtual environment has `sites`, its site-packages folders, because `path` is then the interpreter
    below it; `system_site` says whether that interpreter's own packages belong to the base. `requires`: normal names of
    what its packages require.
    """

    path: str
    packages: dict[str, str]
    sites: tuple[str, ...] = ()
    system_site: bool = True
    requires: frozenset[str] = frozenset()


def examine(path: object, variant: Json) -> Interpreter:
    """Run the interpreter at `path` and see that it is what `variant` needs.

    Raises NodeError `interpreter-missing` or `interpreter-mismatch` (exit 7).
    """
    wants_base = variant.get("base", {}).get("kind", "none") != "none"
    if not isinstance(path, str) or not path.startswith("/"):
        raise NodeError("request-invalid", "`interpreter` must be an absolute path")
    argv = [path, "-I", "-S", "-c", _ASK] + (["packages"] if wants_base else [])
    done = proc.run(argv, timeout=120.0, env=proc.clean_env({"PYTHONHOME": None, "__PYVENV_LAUNCHER__": None}))
    if not done.ok:
        raise _refused("interpreter-missing", f"cannot run the interpreter {path}", (done.err or done.out)[-500:])
    try:
        facts = json.loads(done.out)
    except ValueError:
        raise _refused("interpreter-missing", f"{path} is not a Python interpreter", done.out[-200:]) from None
    minor = "%d.%d" % tuple(facts["version"][:2])
    if facts["name"] != "cpython" or minor != variant["python"]:
        raise _refused(
            "interpreter-mismatch",
            f"{path} is {facts['name']} {minor}, the lock needs CPython {variant['python']}",
            f"the variant {variant.get('id', '')} was locked for that version",
        )
    # The name it was called by may be a link or a launcher; the environment must not depend on either.
    real = os.path.realpath(facts["below"] or facts["executable"] or path)
    # As for an import, the first on sys.path counts, however its name is written.
    packages = {installed.normal_name(name): version for name, version in reversed(list(facts["packages"].items()))}
    requires = frozenset(map(installed.required_name, facts["requires"]))
    return Interpreter(real, packages, tuple(facts["sites"]), facts["system_site"], requires)


def _refused(code: str, what: str, why: str) -> NodeError:
    return NodeError(code, what, why=why.strip(), hint="choose another interpreter (--python) or variant")


def check_replaces(added: dict[str, str], provided: dict[str, str]) -> None:
    """Raise NodeError `replaces-base-package` (exit 7) when a package of ours would hide one of the base."""
    both = sorted(name for name in added if installed.normal_name(name) in provided)
    if both:
        first = both[0]
        raise NodeError(
            "replaces-base-package",
            f"{first} {added[first]} would replace the base's {provided[installed.normal_name(first)]}",
            why=f"in the lock and in the base: {', '.join(both)}",
            hint="take these packages out of the stack, or use the variant with `base: none`",
            details={"packages": both},
        )


class Venv:
    """A virtual environment on the interpreter that the request names; `phase` names it in times."""

    phase = "venv"

    def __init__(self, request: Json, environment: str) -> None:
        """See that the base is the one that was planned with, and that the lock replaces none of its packages.

        Raises NodeError as `examine`, `base-changed` and `replaces-base-package` (exit 7).
        """
        self.prefix, self.args = request["prefix"], request["args"]
        self.environment, self.variant = environment, self.args["variant"]
        self.facts: Json = {}
        bring_staged(self.prefix, self.args.get("interpreter"), self.args.get("staged"))
        self._interpreter = examine(self.args.get("interpreter"), self.variant)
        provided = self._interpreter.packages
        for name, version in sorted(self.variant.get("provided", {}).items()):
            present = provided.get(installed.normal_name(name))
            if not installed.same_version(present, version):
                raise NodeError(
                    "base-changed",
                    f"the base has {name} {present or 'not'}, the variant was made for {version}",
                    hint="run `envbuild plan` again: the base is part of the variant's digest",
                )
        check_replaces({package["name"]: package["version"] for package in self.variant.get("packages", [])}, provided)

    def make(self, tool: uv.Uv) -> Interpreter:
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
        check_replaces(added, self._interpreter.packages)


class Conda:
    """The conda packages of the variant, the interpreter among them; `facts` is their part of the result."""

    phase = "conda"

    def __init__(self, request: Json, environment: str) -> None:
        """Raises NodeError `conda-unrecorded` (exit 5) where the variant's conda packages were never locked."""
        self.prefix, self.args = request["prefix"], request["args"]
        self.environment, self.variant = environment, self.args["variant"]
        self.facts: Json = {}
        conda = self.variant.get("conda") or {}
        if not conda.get("packages"):
            raise NodeError(
                "conda-unrecorded",
                "the lock has no conda packages",
                why=str(conda.get("unrecorded") or ""),
                hint="run `envbuild lock create STACK` on a machine that reaches the channel",
            )
        for name in ("rattler_python", "rattler"):
            bring_staged(self.prefix, self.args["tools"].get(name), self.args.get("staged"))

    def make(self, tool: uv.Uv) -> Interpreter:
        """Install them; raises what `prefix.make` and `activation.variables` raise, and `conda-and-wheel` (exit 7)."""
        where = (self.args.get("artifacts") or {}).get("conda") or {}
        folder = os.path.join(tool.cache if tool.keeps_cache else tool.tmp, "conda")
        os.makedirs(folder, exist_ok=True)
        beside = os.path.join(self.prefix, "tmp")
        os.makedirs(beside, exist_ok=True)
        made = prefix.make(self.args["tools"], tool.tmp, beside, self.variant, where, folder, self.environment)
        self.facts = {"conda": dict(made, activation=activation.variables(self.environment))}
        self.check_added({package["name"]: package["version"] for package in self.variant.get("packages", [])})
        # Its own interpreter, whose path counts as part of the environment.
        examine(os.path.join(self.environment, "bin", "python"), self.variant)
        return Interpreter("", {})

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
