"""The last proof of a build: its extensions are imported in the environment, in a process of their own."""

from __future__ import annotations

import json

from envbuild.node import proc
from envbuild.node.packages import uv
from envbuild.node.protocol import Json, NodeError, log
from envbuild.node.read_text import json_lines

_DEADLINE = 900.0
# torch before what is linked to it, or fails alone: it loads the libraries of its extensions. One line before each
# import says where a crash was.
_PROGRAM = """
import importlib, importlib.util, json, sys
def say(**what):
    sys.stdout.write(json.dumps(what) + "\\n")
    sys.stdout.flush()
def import_torch():
    try:
        importlib.import_module("torch")
    except ImportError:
        pass
def is_of_torch(name):
    spec = importlib.util.find_spec(name)
    if not spec or not spec.has_location:
        return False
    with open(spec.origin, "rb") as stream:
        data = stream.read()
    return b"libtorch" in data or b"libc10" in data
for name in json.loads(sys.argv[1]):
    say(begins=name)
    try:
        if is_of_torch(name):
            import_torch()
        try:
            importlib.import_module(name)
        except ImportError:
            import_torch()
            importlib.import_module(name)
    except BaseException as error:
        say(name=name, error="%s: %s" % (type(error).__name__, error))
    else:
        say(name=name, error=None)
"""
# A shared object that is a plain library: it was loaded, and is no module.
_LIBRARY = "does not define module export function"
# Of the driver: there is none where nothing but a build is done.
_DRIVER = ("libcuda.so", "libnvidia-ml.so")


def check(python: str, source: str, names: list[str], env: dict[str, str]) -> Json:
    """Import `names`, the extensions of `source`, with the interpreter `python`; `env` is that of its process.

    Result: `imported`, `libraries` (plain shared libraries, which only load) and `unchecked` (name -> why: they need
    the driver, which is not here). Raises NodeError `extension-broken` (exit 4) with what the import says.
    """
    done = proc.run([python, "-I", "-B", "-c", _PROGRAM, json.dumps(names)], timeout=_DEADLINE, env=env)
    told: Json = {"imported": [], "libraries": [], "unchecked": {}}
    broken: dict[str, str] = {}
    at: str | None = None
    for each in json_lines(done.out):  # an extension may print lines of its own
        if "begins" in each:
            at = str(each["begins"])
        if "name" not in each:
            continue
        at, name, error = None, str(each["name"]), each.get("error")
        if error is None:
            told["imported"].append(name)
        elif _LIBRARY in error:
            told["libraries"].append(name)
        elif any(library in error for library in _DRIVER):
            told["unchecked"][name] = error
        else:
            broken[name] = str(error)
    if at is not None or not done.ok:
        how = "it did not end in time" if done.timed_out else f"the process ended with {done.rc}"
        broken[at or names[0]] = f"{how}; {uv.tail(done.err, 10)}"
    if broken:
        raise _broken(source, broken)
    log(f"{source}: imported {', '.join(told['imported']) or 'nothing'}")
    return told


def _broken(source: str, broken: dict[str, str]) -> NodeError:
    first = sorted(broken)[0]
    return NodeError(
        "extension-broken",
        f"source {source}: the extension {first} was built and cannot be imported",
        why="; ".join(f"{name}: {broken[name]}" for name in sorted(broken)),
        hint="it was built against other libraries than those of the environment; look at LD_LIBRARY_PATH, and at the "
        "stored wheel: `envbuild store list`",
        details={"extensions": sorted(broken)},
        changed=True,
    )
