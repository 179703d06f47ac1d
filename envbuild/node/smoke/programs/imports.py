"""Smoke program `sound`: every import comes from the locked place, at the locked version.

Runs inside the environment. Versions are read from the metadata first (nothing is imported for that), then each
module is imported and asked where it came from.
"""

import csv
import email
import importlib
import os
import pathlib
import re
import sys
import sysconfig
import time
from typing import Any, Dict, Iterable, List, Optional, Sequence, Set

from .common import Channel, other_machine


def _under(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip(os.sep) + os.sep)


def comparable(version: str) -> List[str]:
    """Parts of a version for equality: case, leading zeros, `v` and the separator do not matter."""
    text = version.strip().lower().lstrip("v")
    parts = [part for part in re.split(r"[._+-]|(?<=\d)(?=[a-z])|(?<=[a-z])(?=\d)", text) if part]
    return [str(int(part)) if part.isdecimal() else part for part in parts]


def same_version(locked: str, version: str) -> bool:
    """Equal; a lock without a local part (`+cpu`) accepts any local part."""
    if "+" not in locked:
        version = version.split("+", 1)[0]
    return comparable(locked) == comparable(version)


class Places:
    """Where a module may come from: environment, working trees, standard library and, what it provides, the base."""

    def __init__(self, environment: str, base: str, provided: Dict[str, str], trees: Sequence[str] = ()) -> None:
        """`base` is the kind (`none`: nothing is provided), `provided` its packages, `trees` folders of the user."""
        self.environment = os.path.realpath(environment)
        self.own = [self.environment, *map(os.path.realpath, trees)]
        self.base = base
        self.provided = provided
        self._tops = None  # type: Optional[Set[str]]
        self.stdlib = sorted({os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")})

    def _is_own(self, path: str) -> bool:
        return any(_under(path, root) for root in self.own)

    def in_stdlib(self, path: str) -> bool:
        """Whether a real path is of the standard library, and no package of it."""
        for root in self.stdlib:
            if _under(path, root):
                rest = path[len(root) :].split(os.sep)
                return "site-packages" not in rest and "dist-packages" not in rest
        return False

    def problem(self, module: str, path: str) -> Optional[str]:
        """Why this place is wrong for this module; None when it is right."""
        real = os.path.realpath(path)
        if self._is_own(real) or self.in_stdlib(real):
            return None
        if self.base != "none" and module.split(".")[0] in self._provided_tops():
            return None
        return "%s comes from %s, which is outside the environment" % (module, path)

    def _provided_tops(self) -> Set[str]:
        """Importable top-level names of what the base provides."""
        if self._tops is None:
            there = _distributions()
            self._tops = {top for name in self.provided for top in _top_levels(name, there.get(_normal(name)))}
        return self._tops

    def stray_paths(self) -> List[str]:
        """Existing entries of sys.path from which a module of neither environment nor interpreter could come."""
        if self.base != "none":
            return []
        strays = []
        for entry in sys.path:
            real = os.path.realpath(entry)
            if os.path.exists(real) and not self._is_own(real) and not self.in_stdlib(real):
                strays.append(entry)
        return strays


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


class _Distribution:
    """What `importlib.metadata` says of a distribution, for Python 3.6 and 3.7, which have no such module."""

    def __init__(self, folder: str) -> None:
        """`folder` is the `.dist-info` or `.egg-info`."""
        self.folder = folder
        self.metadata = email.message_from_string(self.read_text("METADATA") or self.read_text("PKG-INFO") or "")
        self.version = self.metadata["Version"]
        rows = csv.reader((self.read_text("RECORD") or "").splitlines())
        self.files = [pathlib.PurePosixPath(row[0]) for row in rows if row]

    def read_text(self, name: str) -> Optional[str]:
        """The text of a file of the folder; None where it is not there."""
        try:
            return pathlib.Path(self.folder, name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return None


def _found() -> Iterable[Any]:
    """Every distribution on sys.path, in its order."""
    try:
        from importlib import metadata
    except ImportError:
        places = [pathlib.Path(entry) for entry in sys.path if os.path.isdir(entry)]
        folders = (folder for place in places for folder in sorted(place.iterdir()))
        return [_Distribution(str(path)) for path in folders if path.suffix in (".dist-info", ".egg-info")]
    return metadata.distributions()


def _distributions() -> Dict[str, Any]:
    """Distributions by normal name, the first on sys.path; Python 3.8 finds no `a.b` where it is asked for `a-b`."""
    by_name = {}  # type: Dict[str, Any]
    for distribution in _found():
        by_name.setdefault(_normal(distribution.metadata["Name"] or ""), distribution)
    return by_name


def _top_levels(name: str, distribution: Any) -> List[str]:
    """Importable top-level names of a distribution, as far as its metadata says."""
    if distribution is None:
        return []
    text = distribution.read_text("top_level.txt")
    names = {name.replace("-", "_")}
    names.update((text or "").split())
    for file in distribution.files or []:
        first = file.parts[0] if file.parts else ""
        if not first.endswith((".dist-info", ".egg-info", "..")):
            names.add(first.split(".")[0])
    return sorted(names)


def _check_versions(channel: Channel, wanted: Dict[str, str], where: str) -> None:
    there = _distributions()
    for name, locked in sorted(wanted.items()):
        if _normal(name) not in there:
            channel.failure("%s %s is in the %s and not installed" % (name, locked, where))
            continue
        version = there[_normal(name)].version
        if not same_version(locked, str(version)):
            channel.failure("%s is %s, the %s says %s" % (name, version, where, locked))


def _import(channel: Channel, places: Places, name: str) -> Any:
    channel.emit("importing", {"module": name})
    channel.stage("import %s" % name)
    started = time.perf_counter()
    try:
        module = importlib.import_module(name)
    except BaseException as error:  # noqa: BLE001 - a module may raise anything, SystemExit included
        words = (name, type(error).__name__, str(error)[:500], other_machine(error))
        channel.failure("import %s: %s: %s%s" % words)
        channel.emit("imported", {"module": name, "ok": False})
        return None
    seconds = time.perf_counter() - started
    file = getattr(module, "__file__", None)
    # A namespace package has its folders alone, what is built in has none.
    paths = [file] if file else [str(path) for path in getattr(module, "__path__", [])]
    problems = [text for text in (places.problem(name, path) for path in paths) if text]
    for text in problems:
        channel.failure(text)
    data = {"module": name, "ok": not problems, "seconds": round(seconds, 4), "file": paths[0] if paths else "built-in"}
    channel.emit("imported", data)
    return module


def _check_torch(channel: Channel, torch: Any, wanted: str, flavour: Optional[str]) -> None:
    cuda = torch.version.cuda
    channel.facts({"torch": str(torch.__version__), "torch_cuda": cuda})
    if wanted and not same_version(wanted, str(torch.__version__)):
        channel.failure("torch says it is %s, the lock says %s" % (torch.__version__, wanted))
    if flavour == "cpu" and cuda is not None:
        channel.failure("torch is built for CUDA %s, the lock says cpu" % cuda)
    if flavour and flavour.startswith("cu"):
        expected = "%s.%s" % (flavour[2:-1], flavour[-1])
        if cuda is None or ".".join(str(cuda).split(".")[:2]) != expected:
            channel.failure("torch is built for CUDA %s, the lock says %s" % (cuda, expected))


def _check_interpreter(channel: Channel, args: Dict[str, Any], places: Places) -> None:
    version = "%d.%d" % sys.version_info[:2]
    channel.facts({"python": ".".join(str(part) for part in sys.version_info[:3]), "prefix": sys.prefix})
    if args["python"] and version != args["python"]:
        channel.failure("the interpreter is Python %s, the lock says %s" % (version, args["python"]))
    if os.path.realpath(sys.prefix) != places.environment:
        channel.failure("the interpreter belongs to %s, not to the environment" % sys.prefix)
    for entry in places.stray_paths():
        channel.failure("sys.path has %s, which is outside the environment" % entry)
    _check_versions(channel, args["packages"], "lock")
    _check_versions(channel, args["provided"], "base")


def main(args: Dict[str, Any], channel: Channel) -> None:
    """Check what the request asks for; failures are events."""
    sys.path.pop(0)  # the programs' own folder; it must not serve an import
    places = Places(args["environment"], args["base"], args["provided"], args.get("trees", ()))
    if args["first"]:
        channel.stage("reading the metadata of the packages")
        _check_interpreter(channel, args, places)
    for name in args["imports"]:
        module = _import(channel, places, name)
        if name == "torch" and module is not None:
            _check_torch(channel, module, args["torch"] or "", args["flavour"])
