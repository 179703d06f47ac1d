"""This program as files: modules for what runs inside an environment, and all of it as one zip file or one line."""

import base64
import functools
import io
import json
import os
import sys
import zipfile
import zlib

_TIME = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip entry can have
_MAIN = "import sys\nfrom envbuild.node.__main__ import main\n\nsys.exit(main())\n"
_PACKAGE = '"""The part of envbuild that runs on nodes."""\n'
# What `python -c` runs: the first line of `sent()`.
START = "import base64, sys; exec(base64.b64decode(sys.stdin.buffer.readline()))"
# Runs the program from memory, because disks can be full; a zip file would also be compiled twice, as zipimport does.
_LOADER = """
import importlib.util, io, json, zlib

class Loader:
    def __init__(self, files):
        self.files = files

    def find_spec(self, name, path=None, target=None):
        stem = name.replace(".", "/")
        for file, package in ((stem + "/__init__.py", True), (stem + ".py", False)):
            if file in self.files:
                return importlib.util.spec_from_loader(name, self, origin=file, is_package=package)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        file = module.__spec__.origin
        exec(compile(self.files[file], file, "exec"), vars(module))

    def get_source(self, name):
        return self.files[sys.modules[name].__spec__.origin]

program, request = (base64.b64decode(line) for line in sys.stdin.buffer)
files = json.loads(zlib.decompress(program).decode())
sys.meta_path.insert(0, Loader(files))
sys.stdin = io.TextIOWrapper(io.BytesIO(request), encoding="utf-8")
exec(files["__main__.py"])
"""


def files() -> "dict[str, str]":
    """Path in the program (`envbuild/node/...`) -> text of every module, wherever this one was loaded from."""
    loader: object = getattr(sys.modules[__name__], "__loader__", None)
    if hasattr(loader, "files"):
        return dict(loader.files)
    if hasattr(loader, "archive"):
        with zipfile.ZipFile(loader.archive) as archive:
            return {name: archive.read(name).decode("utf-8") for name in archive.namelist()}
    contents = {"__main__.py": _MAIN, "envbuild/__init__.py": _PACKAGE}
    folder = os.path.dirname(os.path.abspath(__file__))
    for top, _folders, names in os.walk(folder):
        for name in names:
            if name.endswith(".py"):
                path = os.path.join(top, name)
                with open(path, encoding="utf-8", newline="") as stream:
                    contents["envbuild/node/" + os.path.relpath(path, folder).replace(os.sep, "/")] = stream.read()
    return contents


def zipped() -> bytes:
    """This program as a zipapp, whose bytes depend on its text alone.

    Not compressed: the same bytes whatever zlib is there, and made in an instant; what sends it compresses it.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in sorted(files().items()):
            entry = zipfile.ZipInfo(name, _TIME)
            entry.create_system = 3
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, content.encode("utf-8"))
    return buffer.getvalue()


@functools.lru_cache(maxsize=None)
def packed() -> bytes:
    """What loads this program, and the program: two lines of base64."""
    program = zlib.compress(json.dumps(files(), sort_keys=True).encode("utf-8"), 3)
    return b"%s\n%s\n" % (base64.b64encode(_LOADER.encode("utf-8")), base64.b64encode(program))


def sent(request: "object") -> bytes:
    """This program and a request as lines of base64: what goes to the standard input of `python -c START VERB`."""
    return packed() + base64.b64encode(json.dumps(request, allow_nan=False).encode("utf-8")) + b"\n"


def carried(python: str, verb: str) -> "list[str]":
    """The command that runs a verb of the program and request in its standard input (`sent`), in a container say.

    Nothing of envbuild is in an image, and no folder of the machine has to be one of the container's.
    """
    return [python, "-I", "-S", "-c", START, verb]


def write(package: str, folder: str) -> None:
    """Write the modules of `package` into `folder`, as NAME.py."""
    for path, content in files().items():
        if os.path.dirname(path) == package.replace(".", "/") and os.path.basename(path) != "__init__.py":
            with open(os.path.join(folder, os.path.basename(path)), "w", encoding="utf-8") as file:
                file.write(content)


def text(package: str, name: str) -> str:
    """The text of one module; raises KeyError where the node program has none of that name."""
    return files()["%s/%s.py" % (package.replace(".", "/"), name)]
