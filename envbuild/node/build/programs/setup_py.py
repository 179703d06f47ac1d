"""A program that runs a setup.py in an environment and compiles its extensions in parallel.

    setup_py.py REQUEST       a JSON file; the current folder is that of the project

Request: `flags` (for setup.py), `out` (folder for the wheel), `report` (file to write), `gate` (path of job_client.py),
`socket`, `memory` (GB a job), `jobs`, `logs` (an empty folder), `source` (its name). Report: see `State`.

Runs under any Python >= 3.6 and any setuptools (distutils where there is none), and imports nothing else of the node
program. Each extension is built in a forked process with its own temporary folder: torch's BuildExtension writes one
build.ninja per folder and swaps the compiler's executables while it works, so threads of one process would race.
"""

import importlib
import importlib.util
import json
import os
import py_compile
import re
import runpy
import shlex
import subprocess
import sys
import time
import traceback

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

# Where a build_ext compiles and links by `compiler.call`, `compiler.spawn` or by torch's ninja files alone.
_KNOWN = ("distutils", "setuptools", "torch", "Cython", "numpy")
# What a build_ext of a project's own names when it runs cmake, make or cargo instead.
_STARTS = {"subprocess", "spawn", "system", "Popen", "check_call", "check_output", "popen"}
_TORCH = "torch.utils.cpp_extension"


class State:
    """What the hooks share: the request, and the report.

    Report: `extensions` [{name, optional, seconds}] in the order of setup(), `unread` (flags that nobody reads),
    `gated` (`commands`, or `extensions` where single compile commands cannot be held back), `failed` (the extension
    that could not be built, or None), `setup` (whether setup() was called).
    """

    def __init__(self, request: "dict[str, Any]") -> None:
        """`request`: see the module."""
        self.request = request
        self.gate = _load(request["gate"])
        # It starts once for every compile command: not to be compiled itself each time.
        self.program = str(request["gate"]) + "c"
        py_compile.compile(request["gate"], cfile=self.program, doraise=True)
        self.extensions: list[dict[str, Any]] = []
        self.unread: list[str] = []
        self.gated = "commands"
        self.failed: str | None = None
        self.setup = False

    def prefix(self) -> "list[str]":
        """The words that stand before a compile command."""
        request = self.request
        words = [request["socket"], request["source"], str(request["memory"]), "--"]
        return [sys.executable, "-I", "-S", self.program, "take"] + words

    def write(self) -> None:
        """Write the report; the last one counts."""
        names = ("extensions", "unread", "gated", "failed", "setup")
        temporary = self.request["report"] + ".new"
        with open(temporary, "w") as stream:
            json.dump({name: getattr(self, name) for name in names}, stream)
        os.rename(temporary, self.request["report"])

    def tell(self, op: str, **message: "Any") -> None:
        """One message to the builder, at once: an `event` for the log, or how many `files` will be compiled."""
        try:
            line = self.gate.connect(self.request["socket"])
            self.gate.send(line, dict(message, op=op))
            line.close()
        except OSError:
            pass


def _load(path: str) -> "ModuleType":
    spec = importlib.util.spec_from_file_location("envbuild_build_gate", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def hook(state: "State") -> None:
    """Put our hooks on the classes of distutils, before setup.py imports anything."""
    try:
        importlib.import_module("setuptools")  # it replaces distutils, so it comes first, as with pip
    except ImportError:
        pass
    # The plain classes, below those that setuptools, torch and setup.py derive from them.
    base = importlib.import_module("distutils.dist").Distribution.__mro__[-2]
    base.parse_command_line = _parser(state, base.parse_command_line)
    importlib.import_module("distutils.command.build_ext").build_ext.build_extensions = _builder(state)


def _parser(state: "State", original: "Any") -> "Any":
    """`Distribution.parse_command_line` that places the flags which setup.py left on the command line."""

    def parse_command_line(dist: "Any") -> "Any":
        state.setup = True
        options = {each[0].rstrip("=") for each in dist.get_command_class("bdist_wheel").user_options}
        general = {each[0].rstrip("=") for each in dist.global_options}
        state.unread = []
        dist.script_args = list(dist.script_args)
        for flag in [each for each in state.request["flags"] if each in dist.script_args]:
            name = flag.lstrip("-").partition("=")[0]
            if name in general:
                continue
            dist.script_args.remove(flag)
            if name in options:
                dist.script_args.append(flag)
            else:
                state.unread.append(flag)
        state.write()
        if state.unread:
            sys.exit("envbuild: this setup.py does not know %s" % " ".join(state.unread))
        if "compression" in options:
            dist.script_args.append("--compression=stored")  # it is packed once, later
        return original(dist)

    return parse_command_line


def _builder(state: "State") -> "Any":
    """`build_ext.build_extensions` that forks a process for every extension."""

    def build_extensions(command: "Any") -> None:
        command.check_extensions_list(command.extensions)
        whole = _starts_programs(command) or _hook_torch(state, command)
        if whole:
            state.gated = "extensions"
        for attribute in ("compiler", "shlib_compiler"):
            compiler = getattr(command, attribute, None)
            if compiler is not None and not whole:
                # Since setuptools 84 `call` is what compiles, and `spawn` one that calls it.
                name = "call" if hasattr(compiler, "call") else "spawn"
                setattr(compiler, name, _gated(state.prefix(), getattr(compiler, name)))
        # A shared library that others link against: those of setuptools must be built in their order.
        if any(type(each).__name__ == "Library" for each in command.extensions):
            for each in command.extensions:
                command.build_extension(each)
            state.extensions += [_row(command, each, 0.0) for each in command.extensions if not _is_library(each)]
            state.write()
            return
        Pool(state, command, whole).run()

    return build_extensions


def _is_library(extension: "Any") -> bool:
    return type(extension).__name__ == "Library"


def _row(command: "Any", extension: "Any", seconds: float) -> "dict[str, Any]":
    name = command.get_ext_fullname(extension.name)
    return {"name": name, "optional": bool(getattr(extension, "optional", False)), "seconds": round(seconds, 2)}


def _starts_programs(command: "Any") -> bool:
    """Whether a build_ext of the project's own runs other programs, which know nothing of tokens."""
    own = [each for each in type(command).__mro__ if each.__module__.split(".")[0] not in _KNOWN + ("builtins",)]
    codes = [getattr(value, "__code__", None) for each in own for value in vars(each).values()]
    return any(_STARTS.intersection(code.co_names) for code in codes if code is not None)


def _gated(prefix: "list[str]", original: "Any") -> "Any":
    def spawn(words: "list[str]", *args: "Any", **named: "Any") -> "Any":
        try:
            return original(prefix + list(words), *args, **named)
        except subprocess.CalledProcessError as error:
            raise subprocess.CalledProcessError(error.returncode, words[:1]) from None
        except Exception as error:  # noqa: BLE001 - distutils' own, which would name the gate
            raise type(error)("%s failed" % words[0]) from None

    return spawn


def _hook_torch(state: "State", command: "Any") -> bool:
    """Put the gate into the ninja files that torch writes; True when torch uses ninja and cannot be hooked."""
    module: Any = sys.modules.get(_TORCH)
    if module is None or not getattr(command, "use_ninja", False):
        return False
    original = getattr(module, "_write_ninja_file", None)
    if original is None:
        return True
    words = " ".join(shlex.quote(word).replace("$", "$$") for word in state.prefix())

    def write_ninja_file(*args: "Any", **named: "Any") -> "Any":
        outcome = original(*args, **named)
        path = named["path"] if "path" in named else args[0]
        with open(path) as stream:
            text = stream.read()
        with open(path, "w") as stream:
            stream.write(re.sub(r"(?m)^(\s*command\s*=\s*)(?=\S)", lambda found: found.group(1) + words + " ", text))
        return outcome

    module._write_ninja_file = write_ninja_file
    return False


class Pool:
    """The extensions of one command, each in a process of its own."""

    def __init__(self, state: "State", command: "Any", whole: bool) -> None:
        """`whole`: an extension takes its tokens at its begin, not one for each compile command."""
        self.state = state
        self.command = command
        self.share = max(1, state.request["jobs"] // max(1, len(command.extensions))) if whole else 0
        self.running: dict[int, tuple[int, float]] = {}
        self.seconds: dict[int, float] = {}

    def run(self) -> None:
        """Build all; ends this program (exit code 1) when one that is not optional fails."""
        waiting = list(range(len(self.command.extensions)))
        if not self.share:
            self.state.tell("files", count=sum(len(each.sources) for each in self.command.extensions))
        while waiting or self.running:
            # Those beyond the budget only wait for tokens, each with a copy of this process.
            while waiting and len(self.running) < self.state.request["jobs"] + 2:
                self._start(waiting.pop(0))
            self._finish()
        rows = [_row(self.command, each, self.seconds[i]) for i, each in enumerate(self.command.extensions)]
        self.state.extensions += rows
        self.state.write()

    def _log(self, index: int) -> str:
        return os.path.join(self.state.request["logs"], "%03d.log" % index)

    def _start(self, index: int) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            self.running[pid] = (index, time.time())
            return
        code = 1
        try:
            self._child(index)
            code = 0
        except BaseException:  # noqa: BLE001 - whatever it is, it goes into the log of this extension
            # distutils raises one error for another: the first is about the compiler, whose words stand above.
            traceback.print_exc(limit=-3, chain=False)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _child(self, index: int) -> None:
        log = os.open(self._log(index), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        command, extension = self.command, self.command.extensions[index]
        command.build_temp = os.path.join(command.build_temp, "ext-%03d" % index)
        if not os.path.isdir(command.build_temp):
            os.makedirs(command.build_temp)
        jobs = str(self.share or self.state.request["jobs"])
        os.environ["MAX_JOBS"] = jobs
        if self.share:
            os.environ["CMAKE_BUILD_PARALLEL_LEVEL"] = jobs
            gate, request = self.state.gate, self.state.request
            line = gate.connect(request["socket"])  # it is held until this process ends
            gate.send(line, {"op": "take", "source": request["source"], "cores": self.share,
                             "memory": request["memory"], "weight": 1})  # fmt: skip
            gate.receive(line)
            command.build_extension(extension)
            line.close()
            return
        command.build_extension(extension)

    def _finish(self) -> None:
        """Wait for one."""
        pid, status = os.wait()
        if pid not in self.running:
            return
        index, begun = self.running.pop(pid)
        extension = self.command.extensions[index]
        self.seconds[index] = time.time() - begun
        with open(self._log(index), encoding="utf-8", errors="replace") as stream:
            sys.stdout.write("---- %s\n%s" % (extension.name, stream.read()))
            sys.stdout.flush()
        told = (self.state.request["source"], extension.name, self.seconds[index])
        if status == 0:
            self.state.tell("event", text="%s: built %s in %.1f s" % told)
        elif getattr(extension, "optional", False):
            self.state.tell("event", text="%s: left out %s, which is optional, after %.1f s" % told)
        else:
            self.state.failed = extension.name
            self.state.write()
            sys.stdout.write("---- envbuild: extension %s failed\n" % extension.name)
            sys.stdout.flush()
            os._exit(1)  # then the guard ends the other extensions


def main(path: str) -> None:
    """Make the wheel; ends with setup.py's own exit code."""
    with open(path) as stream:
        request = json.load(stream)
    os.umask(0o022)
    own = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [os.getcwd()] + [each for each in sys.path if each != own]
    state = State(request)
    sys.argv = ["setup.py"] + request["flags"] + ["bdist_wheel", "--dist-dir", request["out"]]
    hook(state)
    try:
        runpy.run_path(os.path.abspath("setup.py"), run_name="__main__")
    finally:
        state.write()


if __name__ == "__main__":
    main(sys.argv[1])
