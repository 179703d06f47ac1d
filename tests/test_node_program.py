"""The node program's zipapp: equal bytes from equal sources, whatever the machine did to the files."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import zipfile
from pathlib import Path

from envbuild import node_program, resources


def test_bytes_do_not_depend_on_times_modes_place_or_order(tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere"
    shutil.copytree(resources.node_package(), copy)
    for index, path in enumerate(sorted(copy.rglob("*.py"), reverse=True)):
        os.utime(path, (1_000_000_000 + index, 1_000_000_000 + index))
        path.chmod(0o600)
    (copy / "__pycache__").mkdir(exist_ok=True)
    (copy / "__pycache__/junk.cpython-311.pyc").write_bytes(b"junk")
    assert node_program.build_pyz(copy) == node_program.build_pyz(resources.node_package())


def test_holds_the_node_package_and_nothing_else() -> None:
    with zipfile.ZipFile(io.BytesIO(node_program.node_pyz())) as archive:
        names = archive.namelist()
        times = {entry.date_time for entry in archive.infolist()}
    assert names == sorted(names)
    assert {"__main__.py", "envbuild/__init__.py", "envbuild/node/protocol.py"} <= set(names)
    assert all(name.startswith("envbuild/node/") for name in names[2:])
    assert all(name.endswith(".py") for name in names)
    assert times == {(1980, 1, 1, 0, 0, 0)}


def test_digest_is_of_these_bytes() -> None:
    assert node_program.node_pyz_digest() == hashlib.sha256(node_program.node_pyz()).hexdigest()
    assert node_program.node_pyz() is node_program.node_pyz()
