"""Packages without a wheel are built beside the others of the environment, from nothing but them and the archive."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

from tests.node.env_support import Node, locked, make_variant, make_wheel, node, site

__all__ = ["node"]

PYPROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
# `seen()` runs while the wheel is built and gives the text of its module.
BACKEND = """
import os, zipfile

{code}

def build_wheel(folder, config_settings=None, metadata_directory=None):
    info = "old-1.0.dist-info/"
    files = {{
        "old.py": "SEEN = %r\\n" % (seen(),),
        info + "METADATA": "Metadata-Version: 2.1\\nName: old\\nVersion: 1.0\\n",
        info + "WHEEL": "Wheel-Version: 1.0\\nGenerator: t\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }}
    files[info + "RECORD"] = "".join("%s,,\\n" % name for name in files) + info + "RECORD,,\\n"
    with zipfile.ZipFile(os.path.join(folder, "old-1.0-py3-none-any.whl"), "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return "old-1.0-py3-none-any.whl"
"""


def make_sdist(folder: Path, code: str) -> dict[str, Any]:
    """old-1.0.tar.gz as a locked package; `code` defines `seen()`, whose answer the built module has as SEEN."""
    files = {
        "pyproject.toml": PYPROJECT,
        "backend.py": BACKEND.format(code=code),
        "PKG-INFO": "Metadata-Version: 2.1\nName: old\nVersion: 1.0\n",
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "old-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(f"old-1.0/{name}")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    return locked(path, "old", "1.0")


def seen(node: Node, variant: dict[str, Any]) -> Any:
    """Install `variant`; what the setup code of `old` saw."""
    node.install(variant)
    names: dict[str, Any] = {}
    exec((site(node.environment(variant)) / "old.py").read_text(), names)
    return names["SEEN"]


def test_a_package_is_built_anew_beside_other_packages_whatever_the_cache_has(node: Node) -> None:
    archive = make_sdist(node.wheels, "def seen():\n    import alpha\n    return alpha.VERSION")
    for version in ("1.0", "2.0"):
        beside = make_wheel(node.wheels, version=version)
        assert seen(node, make_variant([beside, archive])) == version
