"""Modules of this package as files: what runs inside an environment cannot import them out of a zip file."""

import importlib
import importlib.util
import io
import marshal
import os
import pkgutil
import sys
import zipfile
from collections.abc import Iterable

from envbuild.node import paths

# Of byte code that its source is not compared with; then eight bytes for the hash of the source.
_HEADER = importlib.util.MAGIC_NUMBER + b"\1\0\0\0" + bytes(8)


def write(package: str, folder: str, names: "Iterable[str] | None" = None) -> None:
    """Write the modules `names` of `package` (None: all but `__init__`) into `folder`, as NAME.py."""
    if names is None:
        names = [each.name for each in pkgutil.iter_modules(importlib.import_module(package).__path__)]
    for name in names:
        with open(os.path.join(folder, name + ".py"), "w", encoding="utf-8") as file:
            file.write(text(package, name))


def text(package: str, name: str) -> str:
    """The text of one module; raises OSError where the node program has none of that name."""
    data = pkgutil.get_data(package, name + ".py")
    if data is None:
        raise OSError("the node program has no module %s.%s" % (package, name))
    return data.decode("utf-8")


def keep_byte_code() -> None:
    """Put beside every module of the zip file that this runs from its byte code, so that no later run compiles it.

    For a copy that is run by this interpreter alone; nothing where it runs from no zip file, or has it. Raises OSError.
    """
    place = getattr(getattr(sys.modules[__name__], "__loader__", None), "archive", None)
    if place is None:
        return
    with open(place, "rb") as stream:
        buffer = io.BytesIO(stream.read())
    # Appended: what this process still imports lies where it was.
    with zipfile.ZipFile(buffer, "a") as archive:
        names = set(archive.namelist())
        for name in sorted(name for name in names if name.endswith(".py") and name + "c" not in names):
            code = compile(archive.read(name), os.path.join(place, name), "exec", dont_inherit=True)
            archive.writestr(zipfile.ZipInfo(name + "c"), _HEADER + marshal.dumps(code))
    paths.write_atomic(place, buffer.getvalue())
