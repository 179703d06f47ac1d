"""Modules of this package as files: what runs inside an environment cannot import them out of a zip file."""

import importlib
import os
import pkgutil
from collections.abc import Iterable


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
