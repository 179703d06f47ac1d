"""Stamps wheels and source archives with the commit and the address of their checkout."""

import json
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parent))
from envbuild.resources import SOURCE_STAMP, checkout_source


class Stamp(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the stamp; a source archive hands it on to the wheel that is made of it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the stamp, except for an editable installation: its commit changes."""
        source = checkout_source(Path(self.root))
        if source and version != "editable":
            self._file.write_text(json.dumps(source))
            build_data["force_include"][str(self._file)] = f"envbuild/{SOURCE_STAMP}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Leave the archive alone in its folder."""
        self._file.unlink(missing_ok=True)

    @property
    def _file(self) -> Path:
        return Path(self.directory, "envbuild-source.json")
