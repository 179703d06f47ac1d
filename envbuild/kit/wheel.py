"""This envbuild as a wheel, made of its own files: for the reader of a kit who has no address to install it from."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import zipfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from envbuild import __version__, resources
from envbuild.node.hashing import for_record
from envbuild.regular_file import read_file

_INFO = f"envbuild-{__version__}.dist-info"
_METADATA = ("METADATA", "WHEEL", "entry_points.txt", "licenses/LICENSE")


def wheel_name(version: str) -> str:
    """What the wheel of an envbuild is called."""
    return f"envbuild-{version}-py3-none-any.whl"


@functools.cache
def own_wheel() -> bytes:
    """The wheel, the same bytes for the same files; empty where envbuild runs without being installed."""
    try:
        about = Path(str(distribution("envbuild").locate_file(_INFO)))
    except PackageNotFoundError:
        return b""
    if not about.is_dir():  # of another version than these files
        return b""
    files = {name: read_file(path) for name, path in _files()}
    files[f"envbuild/{resources.SOURCE_STAMP}"] = json.dumps(resources.own_source()).encode()
    files |= {f"{_INFO}/{name}": read_file(about / name) for name in _METADATA}
    rows = [f"{name},sha256={for_record(hashlib.sha256(data).hexdigest())},{len(data)}" for name, data in files.items()]
    files[f"{_INFO}/RECORD"] = "\n".join([*rows, f"{_INFO}/RECORD,,", ""]).encode()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def _files() -> Iterator[tuple[str, Path]]:
    """The files of the package, and those that a wheel has below `_data`, each with its name in the wheel."""
    package = resources.node_package().parent
    places = {package: "envbuild"} | {path: f"envbuild/_data/{name}" for name, path in resources.shipped().items()}
    for place, name in places.items():
        for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
            inside = path.relative_to(place).as_posix()
            if path.is_file() and "__pycache__" not in path.parts and not inside.startswith("_data/"):
                yield f"{name}/{inside}".removesuffix("/."), path
