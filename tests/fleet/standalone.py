"""Makes a relocatable Python like the published standalone builds, out of the one that runs the tests; places tools."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import yaml

from envbuild.node_program import node_pyz
from envbuild.plan.tools import Tool
from envbuild.provision.contact.payload import uv_tool, write_payload
from envbuild.provision.contact.toolchain import NODE_PROGRAM
from envbuild.regular_file import sha256_of
from tests.fleet.nodes import copy_python, libraries_of
from tests.support.debian import UnavailableError


def make_standalone_python(folder: Path) -> Path:
    """`python.tar.gz` in `folder`: a `python/` tree that runs wherever it is unpacked, with its own libraries."""
    patchelf = shutil.which("patchelf")
    if patchelf is None:
        raise UnavailableError("patchelf is missing (see tests/system-packages.txt)")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    tree = folder / "python"
    copy_python(Path(sys.base_prefix), version, tree)
    # Published builds have their headers too, so that extensions can be compiled for them.
    headers = Path(sysconfig.get_path("include", vars={"installed_base": sys.base_prefix}))
    if headers.is_dir():
        shutil.copytree(headers, tree / "include" / headers.name)
    (tree / "bin" / "python3").symlink_to(version)
    lib = tree / "lib"
    for library in libraries_of(tree):
        shutil.copy2(library, lib / library.name)
    programs = {tree / "bin" / version: "$ORIGIN/../lib"}
    programs |= {path: "$ORIGIN" for path in lib.glob("*.so*") if not path.is_symlink()}
    programs |= dict.fromkeys(lib.glob("python3*/lib-dynload/*.so"), "$ORIGIN/../..")
    strip = shutil.which("strip")
    for path, where in programs.items():
        path.chmod(0o755)
        if strip:
            subprocess.run([strip, "--strip-unneeded", str(path)], check=True)
        subprocess.run([patchelf, "--set-rpath", where, str(path)], check=True)
    tarball = folder / "python.tar.gz"
    with tarfile.open(tarball, "w:gz", compresslevel=1) as archive:
        archive.add(tree, "python")
    return tarball


def place_tools(standalone: Path, folder: Path, prefix: str = "/opt/envbuild") -> None:
    """Make `folder` a tree in which all tools that a node with no Python needs lie under `prefix`."""
    pyz, payload = folder.with_name("envbuild-node.pyz"), folder.with_name("payload.sh")
    pyz.write_bytes(node_pyz())
    tools = [Tool("python", standalone, sha256_of(standalone), "tree"), uv_tool()]
    tools.append(Tool(NODE_PROGRAM, pyz, sha256_of(pyz), file=f"{NODE_PROGRAM}.pyz"))
    write_payload(payload, tools, prefix=f"{folder}{prefix}", packed=False)
    subprocess.run(["sh", str(payload)], check=True, stdout=subprocess.DEVNULL)
    # As a first run leaves it: each new node would compile the same standard library again.
    (python,) = folder.glob(f"{prefix[1:]}/tools/python-*/python/bin/python3")
    subprocess.run([python, "-m", "compileall", "-q", python.parents[1] / "lib"], check=True)


def write_toolchain(path: Path, standalone: Path) -> str:
    """A toolchain file with this Python alone; returns its path."""
    version = platform.python_version()
    build = {
        "name": f"cpython-{version}-test", "version": version, "arch": platform.machine(),
        "sha256": sha256_of(standalone), "url": standalone.as_uri(), "witness": "made by the tests",
    }  # fmt: skip
    path.write_text(yaml.safe_dump({"pythons": [build]}))
    return str(path)
