"""The node program's zipapp: equal bytes from equal sources, whatever the machine did to the files."""

from __future__ import annotations

import base64
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
from envbuild.node import program_files
from tests.support.programs import completed

_ZIPPED = "from envbuild.node import program_files; sys.stdout.buffer.write(program_files.zipped())"


def _zipped(place: Path) -> bytes:
    """What the program says that lies in a folder or zip file."""
    code = f"import sys; sys.path.insert(0, {str(place)!r}); {_ZIPPED}"
    return subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, check=True).stdout


def _from_memory(code: str) -> subprocess.CompletedProcess[bytes]:
    """How `code` ends in place of the main program, where the program is read from standard input."""
    loader, *rest = program_files.sent({}).split(b"\n")
    text = base64.b64decode(loader).replace(b'exec(files["__main__.py"])', code.encode())
    words = [sys.executable, "-I", "-S", "-c", program_files.START]
    return subprocess.run(words, input=b"\n".join([base64.b64encode(text), *rest]), capture_output=True, check=False)


def test_bytes_do_not_depend_on_times_modes_place_or_order(tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere" / "envbuild" / "node"
    shutil.copytree(resources.node_package(), copy)
    for index, path in enumerate(sorted(copy.rglob("*.py"), reverse=True)):
        os.utime(path, (1_000_000_000 + index, 1_000_000_000 + index))
        path.chmod(0o600)
    (copy / "__pycache__").mkdir(exist_ok=True)
    (copy / "__pycache__/junk.cpython-311.pyc").write_bytes(b"junk")
    assert _zipped(copy.parent) == node_program.node_pyz()


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


def test_it_runs_from_memory_and_leaves_nothing(tmp_path: Path) -> None:
    words = program_files.carried(sys.executable, "nothing")
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(words, input=program_files.sent({}), capture_output=True, check=False, env=env)
    assert b"request-invalid" in done.stdout and done.returncode == 2
    assert list(tmp_path.iterdir()) == []


def test_it_is_the_same_program_read_from_a_folder_a_zip_file_and_memory(tmp_path: Path) -> None:
    (tmp_path / "p").write_bytes(node_program.node_pyz())
    assert _zipped(tmp_path / "p") == node_program.node_pyz()
    assert _from_memory(_ZIPPED).stdout == node_program.node_pyz()


def test_a_traceback_shows_the_lines_of_a_program_in_memory() -> None:
    done = _from_memory("from envbuild.node import program_files; program_files.text('envbuild.node', 'none')")
    assert b"    return files()[" in done.stderr


def test_on_this_machine_the_package_itself_runs_and_nothing_that_lies_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "envbuild"
    shutil.copytree(resources.node_package(), package / "node", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("json", "signal", "os"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not the one of the standard library')\n")
    monkeypatch.setattr(resources, "_PACKAGE", package)
    done = completed(node_program.call_here(sys.executable, "explode"), input="{}")
    assert json.loads(done.stdout)["error"]["code"] == "request-invalid", done.stderr
    assert list((package / "node" / "__pycache__").glob("protocol.*.pyc")), "its byte code is kept for the next time"
