"""Stamps wheels and source archives with the commit and the address of their checkout; wheels get the pages too."""

import json
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parent))
from envbuild.resources import SOURCE_STAMP, checkout_source, pages


class Stamp(BuildHookInterface):  # type: ignore[type-arg]
    """Adds stamp and pages; a source archive hands the stamp on to the wheel that is made of it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the stamp, except for an editable installation: its commit changes, and it has the pages."""
        if self.target_name == "wheel" and version != "editable":
            build_data["force_include"] |= {str(path): f"envbuild/_data/{name}" for name, path in pages().items()}
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
