"""Interpreters, compilers and the small programs that a build may need, each with its version.

Every CPython is found by running what looks like one: a shim or a wrapper never counts as itself.
"""

import json
import os
import re
from collections.abc import Callable, Sequence
from functools import partial

from envbuild.node import proc, trust
from envbuild.node.protocol import Json
from envbuild.node.read_text import first, names, read, which

DEADLINE = 10.0
VERSION_DEADLINE = 5.0
TOOLS = ("git", "tar", "gzip", "xz", "zstd", "unzip", "patch", "make", "cmake", "ninja", "uv", "curl", "wget", "rsync")
_VERSION = re.compile(r"(?<![0-9A-Za-z.])v?([0-9]+(?:\.[0-9]+)+[0-9A-Za-z.+-]*)")
_COMPILER = re.compile(r"(gcc|g\+\+)(-[0-9]{1,2})?\Z")

# What an interpreter is asked; it must run on every Python 3.
_ASK = """
import json, os, sys
out = {"implementation": sys.implementation.name, "version": sys.version.split()[0], "executable": sys.executable}
def packages():
    try:
        from importlib.metadata import distributions
    except ImportError:  # before Python 3.8
        return {}
    versions = {}
    for package in distributions():
        try:
            fields = package.metadata or {}
        except ValueError:  # no UTF-8
            continue
        if fields.get("Name") and fields.get("Version"):
            versions.setdefault(fields["Name"].lower().replace("_", "-").replace(".", "-"), fields["Version"])
    return versions
try:
    import _ssl
    out["openssl"] = _ssl.OPENSSL_VERSION
except (ImportError, AttributeError):
    pass
try:
    import _ctypes
    try:
        _ctypes.dlopen("libstdc++.so.6", os.RTLD_LAZY)
        out["libstdcxx"] = True
    except OSError:
        out["libstdcxx"] = False
except (ImportError, AttributeError):
    pass
if "-P" in sys.argv:
    out["packages"] = packages()
print(json.dumps(out))
"""


def python_facts(
    folders: "list[str]", prefix: str, packages: bool = False, asked: "Sequence[str]" = ()
) -> "list[Json]":
    """Interpreters in the shape of `PythonFacts`, by path; `packages`: with what each has installed.

    `folders` are PATH's; pyenv, uv, /opt, the usual conda homes and `<prefix>/tools` are looked into as well. An
    interpreter in a virtual environment is its own entry, because its site packages are. `asked` are paths of more
    interpreters, wherever they are, or names to look for in PATH; their entry names them under `also`.
    """
    candidates = _candidates(_places(folders, prefix))
    also: dict[tuple[str, str], list[str]] = {}
    real = [folder for folder in folders if not _is_shims(folder)]
    for name in asked:
        path = os.path.expanduser(name) if "/" in name else which(name, real) or ""
        if path.startswith("/") and os.path.isfile(path) and os.access(path, os.X_OK):
            also.setdefault(_key(path), []).append(name)
            candidates.setdefault(_key(path), path)
    by_path: dict[str, Json] = {}
    for key, answer in proc.by_name({key: partial(_ask, path, packages) for key, path in candidates.items()}).items():
        if answer:
            fact = by_path.setdefault(answer["path"], answer)
            if key in also:
                fact["also"] = also[key]
    return [by_path[path] for path in sorted(by_path)]


def _places(folders: "list[str]", prefix: str) -> "list[str]":
    home = os.path.expanduser("~")
    data = os.environ.get("XDG_DATA_HOME") or os.path.join(home, ".local", "share")
    pyenvs = [os.environ.get("PYENV_ROOT") or os.path.join(home, ".pyenv")]
    pyenvs += [os.path.dirname(folder) for folder in folders if _is_shims(folder)]
    parents = [os.path.join(root, "versions") for root in pyenvs]
    parents.append(os.environ.get("UV_PYTHON_INSTALL_DIR") or os.path.join(data, "uv", "python"))
    parents.append("/opt")
    homes = [os.path.join(parent, name) for parent in parents for name in names(parent)]
    tools = os.path.join(prefix, "tools")
    if not trust.prefix_problem(prefix):
        homes += [os.path.join(tools, name, below) for below in ("", "python") for name in names(tools)]
    homes += [os.path.join(home, name) for name in ("miniconda3", "anaconda3", "miniforge3", "mambaforge")]
    return [folder for folder in folders if not _is_shims(folder)] + [os.path.join(home, "bin") for home in homes]


def _is_shims(folder: str) -> bool:
    return os.path.basename(folder.rstrip("/")) == "shims"


def _key(path: str) -> "tuple[str, str]":
    """The interpreter's file and, where it is in one, its virtual environment: together they are its identity."""
    home = os.path.dirname(os.path.realpath(os.path.dirname(path)))
    return os.path.realpath(path), home if os.path.isfile(os.path.join(home, "pyvenv.cfg")) else ""


def _candidates(places: "list[str]") -> "dict[tuple[str, str], str]":
    """One path for each interpreter file; a link in a virtual environment counts apart from what it points to."""
    tried = ["python3"] + ["python3.%d" % minor for minor in range(4, 30)]
    chosen: dict[tuple[str, str], str] = {}
    for place in places:
        if not os.path.isdir(place):
            continue
        for name in tried:
            path = os.path.join(place, name)
            if os.access(path, os.X_OK):
                chosen.setdefault(_key(path), path)
    return chosen


def _ask(path: str, packages: bool) -> "Json | None":
    """Run one candidate; None when it is no CPython 3 that answers in time."""
    arguments = ["-c", _ASK] + (["-P"] if packages else [])
    answer = proc.run([path, "-I"] + ([] if packages else ["-S"]) + arguments, timeout=DEADLINE, limit=4 << 20)
    try:  # what a sitecustomize prints before and after is passed over
        data = json.loads([line for line in answer.out.splitlines() if line.startswith("{")][-1])
    except (IndexError, ValueError, RecursionError):
        return None
    if not isinstance(data, dict) or data.get("implementation") != "cpython":
        return None
    executable, version = data.get("executable"), data.get("version")
    if not isinstance(executable, str) or not executable.startswith("/") or not isinstance(version, str):
        return None
    home = os.path.dirname(os.path.dirname(executable))
    virtual = bool(read(os.path.join(home, "pyvenv.cfg"), 1))
    fact: Json = {
        "path": executable if virtual else os.path.realpath(executable),
        "version": version,
        "implementation": "cpython",
        "virtual": virtual,
    }
    openssl = first(r"\AOpenSSL ([0-9.]+)", str(data.get("openssl")))
    if openssl:
        fact["openssl"] = openssl
    if isinstance(data.get("libstdcxx"), bool):
        fact["libstdcxx"] = data["libstdcxx"]
    if packages:
        fact["packages"] = data.get("packages")
    return fact


def compiler_facts(folders: "list[str]") -> "list[dict[str, str]]":
    """Every gcc and g++ on PATH, with or without a version in its name; links to one file count once a kind."""
    chosen: dict[tuple[str, str], str] = {}
    for folder in folders:
        for name in names(folder):
            match = _COMPILER.match(name)
            path = os.path.join(folder, name)
            if match and os.access(path, os.X_OK):
                chosen.setdefault((match.group(1), os.path.realpath(path)), path)
    return versions(list(chosen.values()), parse_compiler, VERSION_DEADLINE)


def versions(paths: "list[str]", parse: "Callable[[str], str | None]", deadline: float) -> "list[dict[str, str]]":
    """`path` and `version` of each program that says one, whatever it warns of and ends with.

    All are asked at once, for at most `deadline` seconds.
    """
    answers = proc.by_name({path: partial(proc.run, [path, "--version"], timeout=deadline) for path in paths})
    parsed = {path: parse(answer.out) for path, answer in answers.items() if answer}
    return [{"path": path, "version": version} for path, version in parsed.items() if version]


def tool_facts(folders: "list[str]", modules: "str | None") -> Json:
    """Tool -> version; None when it is not there, `unknown` when it is there and does not say.

    `module` is a shell function, so its entry is what `modules_system` found.
    """
    paths = {name: which(name, folders) for name in TOOLS}
    answers = proc.by_name({name: partial(_version, name, path) for name, path in paths.items() if path})
    result: Json = dict.fromkeys(TOOLS)
    result.update({name: answer or "unknown" for name, answer in answers.items()})
    result["module"] = (modules.partition(" ")[2] or "unknown") if modules else None
    result["sudo"] = "unknown" if which("sudo", folders) else None
    return result


def _version(name: str, path: str) -> "str | None":
    answer = proc.run([path, "-v" if name == "unzip" else "--version"], timeout=VERSION_DEADLINE)
    return parse_tool(answer.out or answer.err)


def parse_compiler(text: str) -> "str | None":
    """`gcc --version` -> version; neither the vendor's own one in parentheses nor a warning before its line is it."""
    lines = text.splitlines()[:5]
    for line in [line for line in lines if re.match(r"\S*(gcc|g\+\+)", line)] + lines[:1]:
        bare = re.sub(r"\([^()]*\)", " ", re.sub(r"\([^()]*\)", " ", line))
        version = first(r"(?:^|\s)([0-9]+(?:\.[0-9]+){1,3})", bare)
        if version:
            return version
    return None


def parse_tool(text: str) -> "str | None":
    """The first thing in the first lines of a tool's `--version` that looks like a version."""
    for line in text.splitlines()[:3]:
        version = first(_VERSION, line)
        if version:
            return version.rstrip(".,;-+")
    return None
