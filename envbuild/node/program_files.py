"""This program as files: modules for what runs inside an environment, and all of it for a container."""

from __future__ import annotations

import importlib
import io
import os
import pkgutil
import sys
import zipfile

_TIME = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip entry can have
_MAIN = "import sys\nfrom envbuild.node.__main__ import main\n\nsys.exit(main())\n"
_PACKAGE = '"""The part of envbuild that runs on nodes."""\n'
# Reads the program from its standard input, as many bytes as its argument says, and leaves the rest.
_CARRIED = (
    "import os, runpy, sys, tempfile; top = tempfile.TemporaryDirectory(prefix='envbuild-'); "
    "sys.argv[0] = os.path.join(top.name, 'envbuild-node.pyz'); size = int(sys.argv.pop(1)); "
    "open(sys.argv[0], 'wb').write(sys.stdin.buffer.read(size)); runpy.run_path(sys.argv[0], run_name='__main__')"
)


def zipped(folder: str) -> bytes:
    """Zipapp of the node package in `folder`, importable as `envbuild.node`; only its `.py` files.

    Not compressed: the same bytes whatever zlib is there, and made in an instant; what sends it compresses it.
    """
    contents = {"__main__.py": _MAIN.encode("utf-8"), "envbuild/__init__.py": _PACKAGE.encode("utf-8")}
    for top, _folders, names in os.walk(folder):
        for name in names:
            if name.endswith(".py"):
                path = os.path.join(top, name)
                with open(path, "rb") as stream:
                    below = os.path.relpath(path, folder).replace(os.sep, "/")
                    contents["envbuild/node/" + below] = stream.read()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in sorted(contents):
            entry = zipfile.ZipInfo(name, _TIME)
            entry.create_system = 3
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, contents[name])
    return buffer.getvalue()


def archive() -> bytes:
    """This program as one zip file, wherever it runs from."""
    place = getattr(getattr(sys.modules[__name__], "__loader__", None), "archive", None)
    if place is None:
        return zipped(os.path.dirname(os.path.abspath(__file__)))
    with open(place, "rb") as stream:
        return stream.read()


def carried(python: str, size: int, verb: str) -> list[str]:
    """The command that runs a verb in a container, whose standard input has the program (`size` bytes), then a request.

    Nothing of envbuild is in an image, and no folder of the machine has to be one of the container's.
    """
    return [python, "-I", "-S", "-c", _CARRIED, str(size), verb]


def write(package: str, folder: str) -> None:
    """Write the modules of `package` into `folder`, as NAME.py."""
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        with open(os.path.join(folder, module.name + ".py"), "w", encoding="utf-8") as file:
            file.write(text(package, module.name))


def text(package: str, name: str) -> str:
    """The text of one module; raises OSError where the node program has none of that name."""
    data = pkgutil.get_data(package, name + ".py")
    if data is None:
        raise OSError(f"the node program has no module {package}.{name}")
    return data.decode("utf-8")
