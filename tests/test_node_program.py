"""The node program's zipapp: equal bytes from equal sources, whatever the machine did to the files."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

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


def test_a_copy_can_keep_byte_code_and_does_the_same_with_it(tmp_path: Path) -> None:
    program = tmp_path / "envbuild-node.pyz"
    program.write_bytes(node_program.node_pyz())

    def run(code: str) -> str:
        words = [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(program)!r}); {code}"]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()

    where = "import envbuild.node.merkle as m; print(m.__file__)"
    assert run(where).endswith("/merkle.py")
    # Modules that are imported afterwards are found where they were.
    keep = "from envbuild.node import program_files as p; p.keep_byte_code(); import envbuild.node.doctor as d; "
    assert run(keep + "print(d.__file__)").endswith("/doctor.py")
    kept = program.read_bytes()
    assert run(where).endswith("/merkle.pyc")
    text = "from envbuild.node import program_files as p; print(p.text('envbuild.node', 'merkle'))"
    assert run(text) == (resources.node_package() / "merkle.py").read_text().strip()
    run(keep)
    assert program.read_bytes() == kept
    done = subprocess.run([sys.executable, str(program), "nothing"], input=b"{}", capture_output=True, check=False)
    assert b"verb-unknown" in done.stdout and done.returncode == 2


def test_on_this_machine_the_package_itself_runs_and_nothing_that_lies_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "envbuild"
    shutil.copytree(resources.node_package(), package / "node", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("json", "signal", "os"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not the one of the standard library')\n")
    monkeypatch.setattr(resources, "_PACKAGE", package)
    done = subprocess.run(
        node_program.call_here(sys.executable, "explode"), input="{}", capture_output=True, text=True, check=False
    )
    assert json.loads(done.stdout)["error"]["code"] == "verb-unknown", done.stderr
    assert list((package / "node" / "__pycache__").glob("protocol.*.pyc")), "its byte code is kept for the next time"
