"""Which tools a node needs under its prefix, and what runs the node program there."""

from __future__ import annotations

import gzip
import importlib.util
import platform
from collections.abc import Iterable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.version import Version

from envbuild.catalog.toolchain import ToolchainPython, load_toolchain
from envbuild.errors import EnvbuildError, ExitCode
from envbuild.model.common import Unpacked
from envbuild.model.facts import NodeFacts
from envbuild.model.lock import Lock, Variant
from envbuild.model.target import Target
from envbuild.node_program import node_pyz, node_pyz_digest
from envbuild.plan.source_builds import python_name
from envbuild.plan.tools import NodeTools, Tool
from envbuild.provision.contact.payload import uv_tool, write_tar
from envbuild.regular_file import sha256_of
from envbuild.resolve.artifacts import numbers
from envbuild.resolve.estimate import PYTHON_BYTES

if TYPE_CHECKING:
    from envbuild.provision.contact.first_contact import ContactResult


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
    files = [file for file in sorted(package.rglob("*")) if file.is_file() and "__pycache__" not in file.parts]
    half = folder / f".{begins}{platform.node()}.tmp"
    try:
        with half.open("wb") as out, gzip.GzipFile("", "wb", compresslevel=4, fileobj=out, mtime=0) as packed:
            write_tar(packed, [(file.relative_to(package.parent).as_posix(), file) for file in files], 0o644)
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
            hint="run envbuild on a machine like the node, or use `--engine venv`",
        )


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


# Node program and Ansible; what this Python cannot do on a node, no node program needs.
BOOTSTRAP_PYTHON = "3.12"
NODE_PROGRAM = "envbuild-node"
TOOLCHAIN = "toolchain"  # the folder of the cache of this machine that keeps what is fetched here


@cache
def least_python() -> Version:
    """The oldest Python on a node that the installed ansible-core can work with (its release notes)."""
    return Version("3.9") if Version(version("ansible-core")) >= Version("2.20") else Version("3.8")


def node_tools(
    facts: NodeFacts, variant: Variant, interpreter: str | None, *, folder: Path | None, toolchain_file: Path | None
) -> NodeTools:
    """Everything that provisioning `variant` on a node with these facts takes; `folder` keeps the node program.

    `interpreter` is what the resolution chose; None for a standalone build, which becomes a tool. Without a `folder`
    nothing is written or fetched: the tools are good for planning, their `source` is only a name.
    Raises EnvbuildError `interpreter-missing` (exit 7) and what the download raises.
    """
    prefix = facts.stage_prefix
    program, uv = _node_program(folder), uv_tool()
    tools = [program, uv]
    standalone: Tool | None = None
    if variant.interpreter.kind == "standalone":
        try:
            standalone = standalone_python(variant, toolchain_file, fetch=folder is not None)
        except EnvbuildError as error:
            minors = sorted({item.version.split(".")[1] for item in facts.pythons if not item.virtual}, key=int)
            if minors and error.code.startswith("download-"):
                near = min(minors, key=lambda minor: abs(int(minor) - int(variant.python.split(".")[1])))
                error.hint = (
                    f'{error.hint}; or write `python: ["3.{near}"]` in the stack file: {facts.node} has Python '
                )
                error.hint += ", ".join(f"3.{minor}" for minor in minors)
            raise
        tools.append(standalone)
        # An environment stands on what lies on the same disk.
        interpreter = standalone.path(facts.prefix.path)

    def python_for(least: tuple[int, ...], own: Tool | None = None) -> str:
        """A Python of the node that is new enough, else one that becomes a tool: `own`, or the pinned one."""
        there = newest_python(facts, least)
        if there is not None:
            return there
        runner = own or bootstrap_python(facts.os.arch, facts.libc.kind, toolchain_file, fetch=folder is not None)
        if runner not in tools:
            tools.append(runner)
        return runner.path(prefix)

    python = python_for(least_python().release, standalone)
    rattler = rattler_python = None
    if variant.conda is not None:
        check_platform(facts)
        library = rattler_tool(make=folder is not None)
        tools.append(library)
        rattler, rattler_python = library.path(prefix), python_for(LEAST_PYTHON)
    return NodeTools(
        tools=tuple(tools),
        python=python,
        pyz=program.path(prefix),
        uv=uv.path(prefix),
        interpreter=interpreter,
        uv_sha256=uv.sha256,
        rattler=rattler,
        rattler_python=rattler_python,
    )


def disk_bytes(tool: Tool) -> int:
    """What a tool takes on a node with its folder; of a standalone Python whose archive is not at hand, a guess."""
    if tool.kind != "file":
        guess = PYTHON_BYTES if tool.kind == "tree" else UNPACKED_BYTES
        return _unpacked_bytes(tool.source) if tool.source.is_file() else guess
    size = len(node_pyz()) if tool.name == NODE_PROGRAM else tool.source.stat().st_size
    return Unpacked.of({f"{tool.folder}/{tool.file_name}": size}).bytes


@cache
def _unpacked_bytes(archive: Path) -> int:
    import tarfile

    with tarfile.open(archive) as tree:
        return Unpacked.of({member.name: member.size for member in tree if member.isfile()}).bytes


def bytes_before(lock: Lock, target: Target) -> dict[str, int]:
    """What the tools of every node take, by folder, and the standalone Pythons of a lock, before any is fetched.

    Nothing for images, which hold theirs.
    """
    if target.engine == "container":
        return {}
    sizes = {tool.folder: disk_bytes(tool) for tool in (_node_program(None), uv_tool())}
    pinned = [variant.interpreter.sha256 for variant in lock.variants]
    return sizes | {f"python-{sha256[:12]}": PYTHON_BYTES for sha256 in pinned if sha256}


def runner_tools(
    facts: NodeFacts, python: str, version: str, *, folder: Path, toolchain_file: Path | None
) -> NodeTools:
    """The node program alone, for nodes that get an image; a Python too where `python`, theirs, is too old."""
    tools = [_node_program(folder)]
    if numbers(version) < least_python().release:
        tools.append(bootstrap_python(facts.os.arch, facts.libc.kind, toolchain_file))
        python = tools[1].path(facts.prefix.path)
    return NodeTools(tuple(tools), python, tools[0].path(facts.prefix.path), "", None)


def first_tool(answer: ContactResult, variants: Iterable[Variant], toolchain_file: Path | None) -> Tool:
    """What a node without any Python needs before it can be probed: a Python, the one of its lock where it has one."""
    standalone = next((item for item in variants if item.interpreter.kind == "standalone"), None)
    if standalone is not None:
        return standalone_python(standalone, toolchain_file)
    arch, libc = answer.findings.get("arch", platform.machine()), answer.findings.get("libc", "glibc").split()[0]
    return bootstrap_python(arch, libc, toolchain_file)


def bootstrap_python(arch: str, libc: str, toolchain_file: Path | None, *, fetch: bool = True) -> Tool:
    """The pinned Python that runs the node program where the node has none that can."""
    build = load_toolchain(toolchain_file).find_python(BOOTSTRAP_PYTHON, arch, libc)
    return python_tool(build, fetch=fetch)


def standalone_python(variant: Variant, toolchain_file: Path | None, *, fetch: bool = True) -> Tool:
    """The Python that a variant pins. Raises EnvbuildError `interpreter-mismatch` (exit 5)."""
    build = load_toolchain(toolchain_file).by_name(str(variant.interpreter.name))
    if build.sha256 != variant.interpreter.sha256:
        raise EnvbuildError(
            "interpreter-mismatch",
            f"the toolchain has another build under the name {build.name}",
            why=f"the lock pins sha256 {variant.interpreter.sha256}, the toolchain has {build.sha256}",
            hint="use the toolchain file that the lock was made with, or run `envbuild lock create STACK`",
            exit_code=ExitCode.INTEGRITY,
        )
    return python_tool(build, fetch=fetch)


@cache
def python_tool(build: ToolchainPython, *, fetch: bool = True) -> Tool:
    """The build's archive on the controller, fetched once and checked; without `fetch` only what a plan says of it."""
    if not fetch:
        return Tool("python", Path(build.name), build.sha256, "tree")
    import platformdirs

    from envbuild.transport.download import download

    folder = platformdirs.user_cache_path("envbuild") / TOOLCHAIN
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / python_name(build.name, build.sha256)
    if not (archive.is_file() and sha256_of(archive) == build.sha256):
        # Missing, or damaged since it was fetched.
        download(build.url, archive, build.sha256, size_cap=1 << 30, deadline=1800)
    return Tool("python", archive, build.sha256, "tree")


def _node_program(folder: Path | None) -> Tool:
    """The node program as a file in `folder`."""
    path = (folder or Path()) / f"{NODE_PROGRAM}.pyz"
    if folder is not None:
        path.write_bytes(node_pyz())
    return Tool(NODE_PROGRAM, path, node_pyz_digest(), "file", path.name)
