"""Stands for the module in which pydantic looks for plugins, where there are to be none.

That module imports `importlib.metadata` before it looks whether it may look: a fortieth of the time of a plan.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

_LOADER = "pydantic.plugin._loader"


class _NoPlugins(type(sys)):  # type: ignore[misc] # the class of modules, whose own module takes time to import
    get_plugins = tuple

    def __getattr__(self, name: str) -> Any:
        """Another version of pydantic may ask for something else: it gets the real one."""
        if name.startswith("__"):
            raise AttributeError(name)
        from importlib import import_module

        sys.modules.pop(_LOADER, None)
        return getattr(import_module(_LOADER), name)


def install() -> None:
    """To be called before pydantic is imported."""
    sys.modules.setdefault(_LOADER, _NoPlugins(_LOADER))
