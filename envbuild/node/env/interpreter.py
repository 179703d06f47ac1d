"""The interpreter and the base that an environment stands on: what it really is, and what it provides."""

from __future__ import annotations

import json
import os
from typing import NamedTuple

from envbuild.node import proc
from envbuild.node.packages import installed as record
from envbuild.node.protocol import Json, NodeError

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
    """`path` (real path, never a shim), `version` (three numbers), `packages` of its base (normal name -> version).

    A base that is a virtual environment has `sites`, its site-packages folders, because `path` is then the interpreter
    below it; `system_site` says whether that interpreter's own packages belong to the base. `requires`: normal names of
    what its packages require.
    """

    path: str
    version: tuple[int, ...]
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
    packages = {record.normal_name(name): version for name, version in reversed(list(facts["packages"].items()))}
    requires = frozenset(map(record.required_name, facts["requires"]))
    return Interpreter(real, tuple(facts["version"]), packages, tuple(facts["sites"]), facts["system_site"], requires)


def _refused(code: str, what: str, why: str) -> NodeError:
    return NodeError(code, what, why=why.strip(), hint="choose another interpreter (--python) or variant")


def check(variant: Json, provided: dict[str, str]) -> None:
    """See that the base is the one that was planned with, and that the lock replaces none of its packages.

    `provided` is what the interpreter really has. Raises NodeError `base-changed` or `replaces-base-package` (exit 7).
    """
    for name, version in sorted(variant.get("provided", {}).items()):
        present = provided.get(record.normal_name(name))
        if not record.same_version(present, version):
            raise NodeError(
                "base-changed",
                f"the base has {name} {present or 'not'}, the variant was made for {version}",
                hint="run `envbuild plan` again: the base is part of the variant's digest",
            )
    check_replaces({package["name"]: package["version"] for package in variant.get("packages", [])}, provided)


def check_replaces(installed: dict[str, str], provided: dict[str, str]) -> None:
    """Raise NodeError `replaces-base-package` (exit 7) when a package of ours would hide one of the base."""
    both = sorted(name for name in installed if record.normal_name(name) in provided)
    if both:
        first = both[0]
        raise NodeError(
            "replaces-base-package",
            f"{first} {installed[first]} would replace the base's {provided[record.normal_name(first)]}",
            why=f"in the lock and in the base: {', '.join(both)}",
            hint="take these packages out of the stack, or use the variant with `base: none`",
            details={"packages": both},
        )
