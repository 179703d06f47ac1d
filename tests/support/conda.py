"""Tiny real conda packages of both formats and the channels that hold them; equal arguments give equal bytes."""

from __future__ import annotations

import bz2
import hashlib
import io
import json
import os
import platform
import struct
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

PLACEHOLDER = "/opt/" + "placehold_" * 25  # 255 bytes, as conda-build has them
# As those of conda's compilers: in bash's own words, and with what a compiler reads.
ACTIVATE = b"""\
function _tool { export TOOL_HOME="$CONDA_PREFIX/share"; }
_tool
unset -f _tool
export CFLAGS="-DANSWER=7 -Wl,-rpath,$CONDA_PREFIX/lib"
"""
_BLOCK = 1 << 17


@dataclass(frozen=True)
class File:
    """One file of a package: its bytes, or where a link leads; `placeholder`: how its prefix is replaced."""

    data: bytes = b""
    link: str | None = None
    placeholder: Literal["text", "binary"] | None = None
    executable: bool = False


@dataclass
class Package:
    """A conda package before it is written. `files`: path -> contents; `index`, `paths`, `members` change what is said.

    `members`: tar members beside the files, as no honest build makes them. `entry_points` are of a noarch package.
    """

    name: str
    version: str = "1.0"
    build: str = "0"
    files: Mapping[str, File | bytes] = field(default_factory=dict)
    depends: Sequence[str] = ()
    subdir: str = "linux-64"
    entry_points: Sequence[str] = ()
    suffix: Literal[".conda", ".tar.bz2"] = ".conda"
    build_number: int = 0
    timestamp: int = 1_600_000_000_000
    index: Mapping[str, Any] = field(default_factory=dict)
    paths: Sequence[Mapping[str, Any]] = ()
    members: Sequence[tuple[tarfile.TarInfo, bytes]] = ()

    @property
    def noarch(self) -> bool:
        return self.subdir == "noarch"

    @property
    def file(self) -> str:
        return f"{self.name}-{self.version}-{self.build}{self.suffix}"

    def index_json(self) -> dict[str, Any]:
        said: dict[str, Any] = {"name": self.name, "version": self.version, "build": self.build}
        said |= {"build_number": self.build_number, "depends": list(self.depends), "subdir": self.subdir}
        said |= {"timestamp": self.timestamp, "license": "BSD-3-Clause"}
        return said | ({"noarch": "python"} if self.noarch else {}) | dict(self.index)

    def write(self, folder: Path) -> Path:
        """The archive in `folder`."""
        files = {path: each if isinstance(each, File) else File(each) for path, each in self.files.items()}
        info = {"info/index.json": _json(self.index_json()), "info/files": "\n".join(files).encode()}
        info["info/paths.json"] = _json({"paths_version": 1, "paths": [*map(_row, files.items()), *self.paths]})
        if self.noarch:
            link = {"noarch": {"type": "python", "entry_points": list(self.entry_points)}}
            info["info/link.json"] = _json(link | {"package_metadata_version": 1})
        about = [(_member(path, len(data)), data) for path, data in info.items()]
        payload = [(_member(path, len(f.data), f), f.data) for path, f in files.items()]
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / self.file
        if self.suffix == ".conda":
            _write_conda(target, about, [*payload, *self.members])
        else:
            target.write_bytes(bz2.compress(_tar([*about, *payload, *self.members])))
        return target


class Channel:
    """A folder of packages with its `repodata.json`; `url` is what a user writes."""

    def __init__(self, folder: Path, name: str = "conda-forge") -> None:
        self.folder = folder
        self.name = name
        for subdir in ("linux-64", "noarch"):
            (folder / subdir).mkdir(parents=True, exist_ok=True)
            self._change(subdir, {})

    @property
    def url(self) -> str:
        return f"file://{self.folder}"

    def add(self, package: Package) -> dict[str, Any]:
        """Write a package into the channel; returns it as a locked package."""
        path = package.write(self.folder / package.subdir)
        return self.take(path, package.index_json())

    def take(self, path: Path, index: Mapping[str, Any]) -> dict[str, Any]:
        """Enter an archive that lies in the channel; returns it as a locked package."""
        data = path.read_bytes()
        said = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
        self._change(path.parent.name, {path.name: {**index, **said, "md5": hashlib.md5(data).hexdigest()}})
        kept = {key: index[key] for key in ("name", "version", "build", "subdir")}
        return {**kept, "channel": self.name, "file": path.name, **said, "requires": []}

    def _change(self, subdir: str, more: Mapping[str, Any]) -> None:
        target = self.folder / subdir / "repodata.json"
        empty: dict[str, Any] = {"info": {"subdir": subdir}, "packages": {}, "packages.conda": {}}
        data = json.loads(target.read_text()) if target.exists() else empty
        for name, record in more.items():
            data["packages.conda" if name.endswith(".conda") else "packages"][name] = record
        target.write_text(json.dumps({**data, "repodata_version": 1}))


def zstd(data: bytes) -> bytes:
    """A zstd frame of raw blocks: valid for every reader, and made without a compressor."""
    blocks = [data[start : start + _BLOCK] for start in range(0, len(data), _BLOCK)] or [b""]
    frame = [b"\x28\xb5\x2f\xfd\x00\x58"]
    for number, block in enumerate(blocks, 1):
        frame += [struct.pack("<I", len(block) << 3 | (number == len(blocks)))[:3], block]
    return b"".join(frame)


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tuple[tarfile.TarInfo, bytes]:
    """A tar member as no honest build makes it."""
    data = b"planted" if kind == tarfile.REGTYPE else b""
    found = _member(name, len(data))
    found.type, found.linkname = kind, link
    return found, data


def _json(data: Any) -> bytes:
    return json.dumps(data, sort_keys=True).encode()


def _row(item: tuple[str, File]) -> dict[str, Any]:
    path, file = item
    row: dict[str, Any] = {"_path": path, "path_type": "hardlink" if file.link is None else "softlink"}
    row |= {"sha256": hashlib.sha256(file.data).hexdigest(), "size_in_bytes": len(file.data)}
    return row | ({"prefix_placeholder": PLACEHOLDER, "file_mode": file.placeholder} if file.placeholder else {})


def _member(name: str, size: int, file: File | None = None) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.size, found.mtime = size, 1_600_000_000
    found.mode = 0o755 if file is not None and (file.executable or name.startswith("bin/")) else 0o644
    if file is not None and file.link is not None:
        found.type, found.linkname = tarfile.SYMTYPE, file.link
    return found


def _tar(members: Iterable[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for found, data in members:
            archive.addfile(found, io.BytesIO(data))
    return stream.getvalue()


def _write_conda(
    target: Path, about: Sequence[tuple[tarfile.TarInfo, bytes]], payload: Sequence[tuple[tarfile.TarInfo, bytes]]
) -> None:
    stem = target.name.removesuffix(".conda")
    parts = {"metadata.json": _json({"conda_pkg_format_version": 2})}
    parts |= {f"pkg-{stem}.tar.zst": zstd(_tar(payload)), f"info-{stem}.tar.zst": zstd(_tar(about))}
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for name, data in parts.items():
            archive.writestr(zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), data)


def make_python(standalone: Path, folder: Path) -> Package:
    """The CPython of a tar.gz in `install_only` layout as a package; what `sysconfig` says of its place is replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    # `extractall(filter=...)` is not in every Python 3.11, Debian 12's for one.
    subprocess.run(["tar", "-xf", str(standalone), "-C", str(folder), "--no-same-owner"], check=True)
    tree = folder / "python"
    names = {path.name for path in (tree / "bin").iterdir()}
    program = next(name for name in sorted(names, key=len, reverse=True) if name.startswith("python3."))
    version = platform.python_version()
    files = {f"bin/{name}": File(link=program) for name in ("python", "python3")}
    for path in sorted(tree.rglob("*")):
        name = path.relative_to(tree).as_posix()
        if path.is_symlink():
            files[name] = File(link=str(path.readlink()))
        elif path.is_file():
            data, text = path.read_bytes(), "_sysconfigdata" in name
            data = data.replace(sys.base_prefix.encode(), PLACEHOLDER.encode()) if text else data
            files[name] = File(data, placeholder="text" if text else None, executable=bool(path.stat().st_mode & 0o100))
    files["lib/libplace.so"] = File(b"\x7fELF\0" + PLACEHOLDER.encode() + b"/lib\0\0end", placeholder="binary")
    return Package("python", version, "h0_0_cpython", files)


def fill(channel: Channel, python: Path) -> Channel:
    """A Python, a library whose place is in a binary file, scripts of activation, and a noarch package."""
    mark = PLACEHOLDER.encode()
    archive = next((python / "linux-64").iterdir())
    place = channel.folder / "linux-64" / archive.name
    os.link(archive, place)
    channel.take(place, json.loads((python / "index.json").read_text()))
    tool = Package(
        "tool",
        "2.0",
        "h1_3",
        {
            "lib/libtool.so": File(b"\0" + mark + b"/share\0end", placeholder="binary"),
            "etc/conda/activate.d/tool.sh": ACTIVATE,
            "etc/conda/deactivate.d/tool.sh": b"unset TOOL_HOME\n",
        },
        depends=(f"python {sys.version_info.major}.{sys.version_info.minor}.*",),
    )
    module = b"VERSION = '1.5'\ndef main():\n    print('pure')\n"
    info = b"Metadata-Version: 2.1\nName: pure\nVersion: 1.5\n"
    files = {"site-packages/pure/__init__.py": module, "site-packages/pure-1.5.dist-info/METADATA": info}
    pure = Package("pure", "1.5", "py_0", files, depends=("python",), subdir="noarch",
                   entry_points=("pure-run = pure:main",))  # fmt: skip
    channel.add(tool)
    channel.add(pure)
    return channel


def section(folder: Path, python: Path) -> dict[str, Any]:
    """The `conda:` of a profile: a new channel in `folder`, filled, and its two packages."""
    channel = fill(Channel(folder, "forge"), python)
    return {"channels": [{"name": "forge", "url": channel.url}], "packages": ["tool", "pure"]}
