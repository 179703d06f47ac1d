"""py-rattler as a tool of nodes: the one that envbuild itself depends on, as an archive that needs no unzip there."""

from __future__ import annotations

import gzip
import importlib.util
import platform
from functools import cache
from pathlib import Path
from typing import IO, cast

from envbuild.errors import EnvbuildError
from envbuild.hashing import sha256_of
from envbuild.model.facts import NodeFacts
from envbuild.provision.contact.payload import Tool
from envbuild.resolve.versions import numbers

NAME = "py-rattler"
LEAST_PYTHON = (3, 10)  # what its wheel says
UNPACKED_BYTES = 84_000_000


@cache
def rattler_tool(*, make: bool) -> Tool:
    """The installed package as a tar.gz in the cache, written once; its name holds its sha256, so none is taken twice.

    Without `make` nothing is written: it is good for planning. Raises EnvbuildError `installation-broken` (exit 70).
    """
    import platformdirs

    package, record = _installed()
    folder = platformdirs.user_cache_path("envbuild") / "toolchain"
    begins = f"{NAME}-{sha256_of(record)[:12]}-"
    for path in folder.glob(f"{begins}*.tar.gz"):
        return Tool(NAME, path, path.name.removeprefix(begins).removesuffix(".tar.gz"), "folder")
    if not make:
        return Tool(NAME, Path(NAME), sha256_of(record), "folder")
    folder.mkdir(parents=True, exist_ok=True)
    half = folder / f".{begins}{platform.node()}.tmp"
    try:
        _write(half, package)
        digest = sha256_of(half)
        return Tool(NAME, half.replace(folder / f"{begins}{digest}.tar.gz"), digest, "folder")
    finally:
        half.unlink(missing_ok=True)


def check_platform(facts: NodeFacts) -> None:
    """Raise EnvbuildError `rattler-unfit` (exit 7) where this machine's py-rattler cannot run on the node."""
    here = platform.machine()
    if facts.os.arch != here or facts.libc.kind != "glibc":
        raise EnvbuildError(
            "rattler-unfit",
            f"py-rattler of this machine cannot run on {facts.node}",
            why=f"the node is {facts.os.arch} with {facts.libc.kind}, this machine {here} with glibc",
            hint="run envbuild from a machine like the node, or use the engine venv",
        )


def present_python(facts: NodeFacts) -> str | None:
    """The newest CPython of the node that can load py-rattler, as far as the node was asked."""
    return newest_python(facts, LEAST_PYTHON)


def newest_python(facts: NodeFacts, least: tuple[int, ...]) -> str | None:
    """The newest CPython of the node, of those that are at least so new.

    Not one on a node's own disk that came with a pack: the other nodes of a job may not have it.
    """
    usable = [item for item in facts.pythons if item.implementation == "cpython" and numbers(item.version) >= least]
    if facts.shared:
        usable = [item for item in usable if not item.path.startswith(f"{facts.prefix.path}/tools/")]
    return max(usable, key=lambda item: numbers(item.version)).path if usable else None


def _installed() -> tuple[Path, Path]:
    """The folder of the package and its RECORD."""
    spec = importlib.util.find_spec("rattler")
    if spec is None or spec.origin is None:
        raise EnvbuildError(
            "installation-broken",
            "py-rattler is not installed beside envbuild",
            hint="install envbuild again: it depends on py-rattler",
        )
    package = Path(spec.origin).parent
    record = next(package.parent.glob("py_rattler-*.dist-info/RECORD"), package / "__init__.py")
    return package, record


def _write(path: Path, package: Path) -> None:
    """Owner, time and mode are fixed, so that equal packages give equal bytes."""
    import tarfile

    files = [each for each in sorted(package.rglob("*")) if each.is_file() and "__pycache__" not in each.parts]
    with (
        path.open("wb") as out,
        gzip.GzipFile("", "wb", compresslevel=4, fileobj=out, mtime=0) as packed,
        tarfile.TarFile(fileobj=cast(IO[bytes], packed), mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for each in files:
            member = tarfile.TarInfo(each.relative_to(package.parent).as_posix())
            member.size, member.mode = each.stat().st_size, 0o644
            with each.open("rb") as content:
                archive.addfile(member, content)
