"""Patches of an install: that they are those of the lock, and how they reach the interpreter that applies them."""

import json
import os
import tempfile

from envbuild.node import git_source, paths, proc, program_files
from envbuild.node.protocol import Exit, Json, NodeError, log

_DEADLINE = 600.0
_PACKAGE = "envbuild.node.patch"
_NEEDED = ("protocol", "redact")  # what `envbuild.node.patch` imports
_START = (
    "import runpy, sys; sys.path.insert(0, sys.argv[1]); sys.argv[1:] = []; "
    "runpy.run_module('envbuild.node.patch', run_name='__main__', alter_sys=True)"
)
# The CUDA that torch was built with, read without importing torch; nothing where torch is not there.
_TORCH = """
import ast, importlib.util, json, os, sys
found = importlib.util.find_spec("torch")
told = {}
if found is not None and found.origin:
    path = os.path.join(os.path.dirname(found.origin), "version.py")
    try:
        tree = ast.parse(open(path, encoding="utf-8").read())
    except (OSError, SyntaxError):
        tree = ast.parse("")
    for node in tree.body:
        targets = getattr(node, "targets", None) or [getattr(node, "target", None)]
        if any(getattr(each, "id", None) == "cuda" for each in targets) and getattr(node, "value", None) is not None:
            told["torch_cuda"] = ast.literal_eval(node.value)
json.dump(told, sys.stdout)
"""


def check(pins: "list[Json]", given: Json) -> None:
    """See that sources are pinned and patched as the lock says; raises what `check_pins` and `specs_of` raise."""
    git_source.check_pins(pins)
    for source in pins:
        specs_of(source, given)


def specs_of(source: Json, given: Json) -> "list[Json]":
    """The patch specs of a locked source from `args.patches`, once they are what the lock pins.

    Raises NodeError `request-invalid` (exit 2) where they are not those that the lock names, `patch-changed` (exit 5)
    where one does something else than when it was locked.
    """
    names = list(source.get("patches") or [])
    specs = list(given.get(source["name"]) or [])
    if len(specs) != len(names):
        raise NodeError(
            "request-invalid",
            "source %s has %d patches, and the request brings %d" % (source["name"], len(names), len(specs)),
        )
    for number, pin in enumerate(source.get("patch_pins") or []):
        spec = specs[number]
        found = _digest(spec)
        if found != pin["digest"]:
            raise NodeError(
                "patch-changed",
                "the patch %s is not the one that was locked for %s" % (spec["name"], source["name"]),
                why="it has digest %.12s, the lock says %.12s" % (found, pin["digest"]),
                hint="`envbuild lock create` locks the patch as it is now, after you know why it differs; "
                "or use the envbuild that made the lock",
                details={"patch": spec["name"], "digest": found, "locked": pin["digest"]},
            )
        specs[number] = dict(spec, hits={"least": pin["least"], "most": pin["most"]})
    return specs


def digests(specs: "list[Json]") -> "list[str]":
    """What a build key holds of patches."""
    return [_digest(spec) for spec in specs]


def _digest(spec: Json) -> str:
    from envbuild.node.patch import apply as patch  # all edits: a sixth of what an installation imports, for few stacks

    return patch.digest(spec)


def facts_of(python: str, env: "dict[str, str]", nvcc: "str | None") -> Json:
    """What patches want to know: `torch_cuda` of the torch that is installed (absent without torch), and `nvcc`."""
    done = proc.run([python, "-I", "-c", _TORCH], timeout=120.0, env=env)
    try:
        told = json.loads(done.out) if done.ok else {}
    except ValueError:
        told = {}
    return dict(told, nvcc=nvcc)


def apply(
    python: str, name: str, directory: str, specs: "list[Json]", facts: Json, tmp: str, env: "dict[str, str]"
) -> "list[Json]":
    """Apply `specs` to the fresh tree of the source `name` under the interpreter `python`; results of `patch.apply`.

    `tmp`: a private folder. Raises what `patch.apply` raises, and NodeError `patch-failed` (exit 4) where the program
    could not answer. A tree that was patched in part is not to be used.
    """
    log("patching %s: %s" % (name, ", ".join(spec["name"] for spec in specs)))
    home = _program(tmp)
    try:
        request = json.dumps({"directory": directory, "specs": specs, "facts": facts}).encode("ascii")
        argv = [python, "-I", "-B", "-c", _START, home]
        done = proc.run(argv, timeout=_DEADLINE, env=env, cwd=home, stdin=request)
    finally:
        paths.remove_tree(home)
    try:
        answer = json.loads(done.out)
    except ValueError:
        raise NodeError(
            "patch-failed",
            "the patches of %s could not be applied" % name,
            why=(done.err or done.out).strip()[-1000:],
            exit_code=Exit.BUILD_FAILED,
            changed=True,
        ) from None
    error = answer["error"]
    if error is not None:
        raise NodeError(
            error["code"],
            "source %s: %s" % (name, error["what"]),
            why=error.get("why", ""),
            hint=error.get("hint", ""),
            exit_code=error["exit"],
            details=dict(error.get("details") or {}, source=name),
            changed=True,
        )
    for result in answer["results"]:
        for note in result["notes"]:
            log("patch %s: %s" % (result["name"], note))
    return list(answer["results"])


def _program(tmp: str) -> str:
    """The patch modules as files: they may lie in a zip file whose path the other interpreter cannot count on."""
    home = tempfile.mkdtemp(prefix="patch-", dir=tmp)
    folder = home
    for part in _PACKAGE.split("."):
        folder = os.path.join(folder, part)
        os.mkdir(folder)
        with open(os.path.join(folder, "__init__.py"), "wb"):
            pass
    program_files.write(_PACKAGE, folder)
    program_files.write("envbuild.node", os.path.dirname(folder), _NEEDED)
    return home


def for_stamp(told: "list[Json]") -> "list[Json]":
    """What a stamp says of sources: everything but the diffs, which a run's report has."""
    out = []
    for source in told:
        kept = [{key: value for key, value in each.items() if key != "diff"} for each in source.get("patches") or []]
        out.append(dict(source, patches=kept) if kept else source)
    return out
