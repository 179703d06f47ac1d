"""A program that runs a setup.py in an environment and compiles its extensions in parallel, as `build_ext --parallel`.

    setup_py.py REQUEST       a JSON file; the current folder is that of the project

Request: `name` (of the source), `flags` (for setup.py), `out` (folder for the wheel), `report` (file to write), `fifo`
(of a job server, or None where this build is alone), `jobs`. Report: see `State`.

Runs under any Python >= 3.6 and any setuptools (distutils where there is none), and imports nothing else of the node
program. An extension is built by a thread that has a copy of the command with a temporary folder of its own, for torch
writes one build.ninja per folder. What cannot be built in threads is built as its setup.py does it.
"""

import contextlib
import copy
import functools
import glob
import importlib
import json
import os
import re
import runpy
import select
import sys
import tempfile
import threading
import time
import traceback

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

# Where a build_ext starts nothing but compilers and torch's ninja.
_KNOWN = ("distutils", "setuptools", "torch", "Cython", "numpy", "builtins")
# What a build_ext of a project's own names when it runs cmake, make or cargo instead.
_STARTS = {"subprocess", "spawn", "system", "Popen", "check_call", "check_output", "popen"}


class State:
    """What the hooks share: the request, and the report.

    Report: `extensions` [{name, optional}] in the order of setup(), `files` (how many these compile), `unread` (flags
    that nobody reads), `failed` (the extension that could not be built, or None).
    """

    def __init__(self, request: "dict[str, Any]") -> None:
        """`request`: see the module."""
        self.request = request
        self.report: dict[str, Any] = {"extensions": [], "files": 0, "unread": [], "failed": None}

    def tell(self, **more: "Any") -> None:
        """Write the report with what is new; the last one counts."""
        self.report.update(more)
        temporary = self.request["report"] + ".new"
        with open(temporary, "w") as stream:
            json.dump(self.report, stream)
        os.rename(temporary, self.request["report"])


class Tokens:
    """One job for each thread: the build's own, or a byte of the job server at `fifo`."""

    def __init__(self, fifo: "str | None") -> None:
        """`fifo`: None where this build is alone, and may have all jobs."""
        self.fifo = fifo
        self._own = threading.Lock()
        self._handle = -1 if fifo is None else os.open(fifo, os.O_RDWR | os.O_NONBLOCK)

    @contextlib.contextmanager
    def one(self) -> "Iterator[None]":
        """Wait for a job and hold it."""
        byte = b""
        while self.fifo is not None and not byte and not self._own.acquire(False):
            if select.select([self._handle], [], [], 0.2)[0]:
                byte = self._read(1)
        try:
            yield
        finally:
            if byte:
                os.write(self._handle, byte)
            elif self.fifo is not None:
                self._own.release()

    @contextlib.contextmanager
    def rest(self, jobs: int) -> "Iterator[int]":
        """Hold all that nobody else has now, and say how many they are; `jobs` where this build is alone."""
        data = b"" if self.fifo is None else self._read(jobs)
        try:
            yield jobs if self.fifo is None else 1 + len(data)
        finally:
            if data:
                os.write(self._handle, data)

    def turn(self, name: str, files: int, patience: float = 30.0) -> None:
        """Say that the build `name` compiles `files` by ninja (0: by none), and wait until all others have said it too.

        ninja takes all free jobs where it starts, and looks for more only when one of its own ends, which may be a
        minute later. So the build with the fewest files starts first, and the others two seconds apart.
        """
        if self.fifo is None:
            return
        own, end = self.fifo + "-" + name, time.time() + patience
        if not files:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(own)
            return
        with open(own, "w") as stream:
            stream.write("%d" % files)
        while True:
            counts = {}
            for mark in glob.glob(glob.escape(self.fifo) + "-*"):
                with contextlib.suppress(OSError), open(mark) as stream:
                    counts[mark] = stream.read()
            if "" not in counts.values() or time.time() > end:
                break
            time.sleep(0.1)
        time.sleep(2 * sum((int(count), mark) < (files, own) for mark, count in counts.items() if count))

    def _read(self, most: int) -> bytes:
        try:
            return os.read(self._handle, most)
        except BlockingIOError:
            return b""


class NinjaError(Exception):
    """ninja failed; which extension that was its output says."""


class Together:
    """One run of ninja for all extensions of a command; each waits with its files until the last one has come.

    An instance takes the place of torch's `_run_ninja_build`. A ninja for each would not notice that others have put
    jobs back.
    """

    def __init__(self, original: "Any", tokens: "Tokens", count: int) -> None:
        """`original`: torch's; `count` extensions."""
        self._original = original
        self._tokens = tokens
        self._left = count
        self._folders: list[str] = []
        self._failed = False
        self._changed = threading.Condition()
        self._own = threading.local()

    @contextlib.contextmanager
    def extension(self) -> "Iterator[None]":
        """One extension, from its begin to its end; once all are compiled it holds a job to be linked."""
        self._own.came = False
        with contextlib.ExitStack() as self._own.held:
            try:
                yield
            finally:
                if not self._own.came:
                    self._come()

    def __call__(self, folder: str, *args: "Any", **named: "Any") -> None:
        """As torch's; `folder` has a build.ninja. Raises NinjaError."""
        if self._own.came:
            self._original(folder, *args, **named)
            return
        with self._changed:
            self._folders.append(folder)
        self._come(*args, **named)
        with self._changed:
            self._changed.wait_for(lambda: self._left == 0)
        if self._failed:
            raise NinjaError
        self._own.held.enter_context(self._tokens.one())

    def _come(self, *args: "Any", **named: "Any") -> None:
        self._own.came = True
        with self._changed:
            last = self._left == 1
            if not last:
                self._left -= 1
                return
        try:
            if self._folders:
                top = tempfile.mkdtemp()
                with open(os.path.join(top, "build.ninja"), "w") as stream:
                    for folder in self._folders:
                        path = re.sub(r"([$ :])", r"$\1", os.path.join(os.path.abspath(folder), "build.ninja"))
                        stream.write("subninja %s\n" % path)
                self._original(top, *args, **named)
        except Exception:  # noqa: BLE001 - torch's own, after what ninja printed; every extension raises it
            self._failed = True
        finally:
            with self._changed:
                self._left = 0
                self._changed.notify_all()


def hook(state: "State") -> None:
    """Put our hooks on the classes of distutils, before setup.py imports anything."""
    try:
        importlib.import_module("setuptools")  # it replaces distutils, so it comes first, as with pip
    except ImportError:
        pass
    # The plain classes, below those that setuptools, torch and setup.py derive from them.
    base = importlib.import_module("distutils.dist").Distribution.__mro__[-2]
    command = importlib.import_module("distutils.command.build_ext").build_ext
    parse, build = base.parse_command_line, command.build_extensions
    base.parse_command_line = lambda dist: _parse_command_line(state, parse, dist)
    command.build_extensions = lambda command: _build_extensions(state, build, command)


def _parse_command_line(state: "State", original: "Any", dist: "Any") -> "Any":
    """`Distribution.parse_command_line` that places the flags which setup.py left on the command line."""
    options = {option[0].rstrip("=") for option in dist.get_command_class("bdist_wheel").user_options}
    general = {option[0].rstrip("=") for option in dist.global_options}
    unread = []
    dist.script_args = list(dist.script_args)
    for flag in [word for word in state.request["flags"] if word in dist.script_args]:
        name = flag.lstrip("-").partition("=")[0]
        if name in general:
            continue
        dist.script_args.remove(flag)
        if name in options:
            dist.script_args.append(flag)
        else:
            unread.append(flag)
    state.tell(unread=unread)
    if unread:
        sys.exit("envbuild: this setup.py does not know %s" % " ".join(unread))
    if "compression" in options:
        dist.script_args.append("--compression=stored")  # it is packed once, later
    return original(dist)


def _build_extensions(state: "State", original: "Any", command: "Any") -> None:
    """`build_ext.build_extensions` with a thread for each of as many extensions as there are jobs."""
    command.check_extensions_list(command.extensions)
    # A shared library that others link against is none.
    made = [extension for extension in command.extensions if type(extension).__name__ != "Library"]
    rows = [{"name": command.get_ext_fullname(extension.name), "optional": _optional(extension)} for extension in made]
    state.tell(extensions=rows, files=sum(len(extension.sources) for extension in made))
    tokens, most = Tokens(state.request["fifo"]), state.request["jobs"]
    tokens.turn(state.request["name"], state.report["files"] if getattr(command, "use_ninja", False) else 0)
    if _starts_programs(command):
        with tokens.rest(most) as jobs:
            os.environ.update(MAX_JOBS=str(jobs), CMAKE_BUILD_PARALLEL_LEVEL=str(jobs))
            command.build_extension = functools.partial(_build, state, command, contextlib.suppress)
            original(command)
        return
    # Libraries of setuptools must be built in their order.
    threads = min(most, len(made)) if len(made) == len(command.extensions) and _has_threads(command) else 1
    token, together = tokens.one if threads > 1 else contextlib.suppress, _together(command, tokens)
    if together is not None:
        threads, token = len(made), together.extension
    command.parallel = threads if threads > 1 else None
    if tokens.fifo is None:
        os.environ["MAX_JOBS"] = str(most if together else most // threads)
    if getattr(command, "use_ninja", False):
        # ninja begins with the first, and all are to end together.
        command.compiler.compile = _longest_first(command.compiler.compile)
        command.extensions.sort(key=lambda extension: max(map(_length, extension.sources)), reverse=True)
        if tokens.fifo is not None:
            os.environ.pop("MAX_JOBS", None)  # torch makes it a -j, with which ninja asks no job server
            os.environ["MAKEFLAGS"] = "-j%d --jobserver-auth=fifo:%s" % (most, tokens.fifo)
    command.build_extension = functools.partial(_build, state, command, token)
    original(command)


def _together(command: "Any", tokens: "Tokens") -> "Together | None":
    """What runs ninja once for all extensions; None where one may fail, or torch's function is not the known one."""
    torch: Any = sys.modules.get("torch.utils.cpp_extension")
    fixed = len(command.extensions) > 1 and not any(map(_optional, command.extensions))
    if not (fixed and getattr(command, "use_ninja", False) and hasattr(torch, "_run_ninja_build")):
        return None
    together = torch._run_ninja_build = Together(torch._run_ninja_build, tokens, len(command.extensions))
    return together


def _build(state: "State", command: "Any", token: "Any", extension: "Any") -> None:
    """Build one extension, holding a `token`; ends this program (exit code 1) when one that is not optional fails."""
    own = copy.copy(command)
    del own.build_extension
    if command.parallel:
        own.build_temp = os.path.join(command.build_temp, extension.name)
    try:
        with token():
            own.build_extension(extension)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the builder names it
        # distutils raises one error for another: the first is about the compiler, whose words stand above.
        text = traceback.format_exc(limit=-3, chain=False)
        if _optional(extension):
            sys.stdout.write("%s---- envbuild: left out extension %s, which is optional\n" % (text, extension.name))
            return
        state.tell(failed=None if isinstance(error, NinjaError) else extension.name)
        sys.stdout.write("%s---- envbuild: extension %s failed\n" % (text, extension.name))
        sys.stdout.flush()
        os._exit(1)  # then the guard ends the other extensions


def _optional(extension: "Any") -> bool:
    return bool(getattr(extension, "optional", False))


def _longest_first(original: "Any") -> "Any":
    return lambda sources, *args, **named: original(sorted(sources, key=_length, reverse=True), *args, **named)


def _length(source: str) -> "tuple[bool, bool, int]":
    """How long a file compiles, to compare: CUDA code longest, and twice as long with all of torch's headers."""
    try:
        with open(source, "rb") as stream:
            text = stream.read()
    except OSError:
        text = b""
    return source.endswith(".cu"), b"include <torch/" in text, len(text)


def _starts_programs(command: "Any") -> bool:
    """Whether a build_ext of the project's own runs other programs, which know nothing of a job server."""
    own = [cls for cls in type(command).__mro__ if cls.__module__.split(".")[0] not in _KNOWN]
    codes = [getattr(value, "__code__", None) for cls in own for value in vars(cls).values()]
    return any(_STARTS.intersection(code.co_names) for code in codes if code is not None)


def _has_threads(command: "Any") -> bool:
    """Whether threads can share the compiler: without ninja torch changes it for each file; Cython has one state."""
    makers = {cls.__module__.split(".")[0] for cls in type(command).__mro__}
    return "Cython" not in makers and ("torch" not in makers or bool(command.use_ninja))


def main(path: str) -> None:
    """Make the wheel; ends with setup.py's own exit code."""
    with open(path) as stream:
        request = json.load(stream)
    os.umask(0o022)
    own = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [os.getcwd()] + [path for path in sys.path if path != own]
    state = State(request)
    sys.argv = ["setup.py"] + request["flags"] + ["bdist_wheel", "--dist-dir", request["out"]]
    hook(state)
    try:
        runpy.run_path(os.path.abspath("setup.py"), run_name="__main__")
    finally:
        state.tell()


if __name__ == "__main__":
    main(sys.argv[1])
