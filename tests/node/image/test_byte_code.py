"""Byte code for builds lies beside the environment, is found by both its names, and gives way to a changed source."""

import importlib.util
import marshal
import os
import subprocess
import sys
from pathlib import Path

from envbuild.node import paths
from envbuild.node.build import build_dir
from envbuild.node.image import added_files, build_stage, byte_code

_IMPORT = "import sys; sys.pycache_prefix = sys.argv[1]; sys.path[:0] = sys.argv[2:]; import tool; print(tool.VALUE)"


def test_what_builds_import_is_kept_with_the_hash_of_its_source(tmp_path: Path) -> None:
    byte_code.keep(str(tmp_path), sys.executable)
    files = list(Path(byte_code.folder(str(tmp_path))).rglob("*.pyc"))
    assert any(path.name.startswith("shlex.") for path in files)
    # PEP 552: bit 0: compared by hash, bit 1: compared at every import.
    assert {path.read_bytes()[4] for path in files} == {3}


def test_it_is_found_by_the_second_name_and_a_changed_source_is_compiled(tmp_path: Path) -> None:
    environment, kept = tmp_path / "env", str(tmp_path / "kept")
    environment.mkdir()
    source = environment / "tool.py"
    source.write_text("VALUE = 1\n")
    _keep(source, kept, "VALUE = 'kept'\n")
    for name in ("one", "one", "two"):  # a second build of the same source has the same name
        link = str(tmp_path / "builds" / name / "env")
        os.makedirs(os.path.dirname(link), exist_ok=True)
        if not os.path.lexists(link):
            build_dir.give_name(str(environment), link, dated=True)
        build_dir.name_byte_code(kept, str(environment), link)
        assert _value(kept, link) == "kept"
    source.write_text("VALUE = 2\n")
    assert _value(kept, link) == "2"


def test_headers_are_dated_again_only_where_one_has_another_date(tmp_path: Path) -> None:
    header = tmp_path / "lib" / "include" / "a.h"
    header.parent.mkdir(parents=True)
    header.write_text("")
    os.utime(header, (paths.EPOCH, paths.EPOCH))
    assert build_stage._of_layer("/nowhere", added_files.look(str(tmp_path))) == {"byte_code": None, "dated": True}
    os.utime(header, (1, 1))
    assert not build_stage._of_layer("/nowhere", added_files.look(str(tmp_path)))["dated"]


def _keep(source: Path, kept: str, text: str) -> None:
    """Byte code of another `text` with the hash of `source`, so that one sees which of them an import takes."""
    to = Path(kept + os.path.splitext(str(source))[0] + f".{sys.implementation.cache_tag}.pyc")
    to.parent.mkdir(parents=True)
    header = importlib.util.MAGIC_NUMBER + b"\3\0\0\0" + importlib.util.source_hash(source.read_bytes())
    to.write_bytes(header + marshal.dumps(compile(text, str(source), "exec")))


def _value(kept: str, folder: str) -> str:
    words = [sys.executable, "-c", _IMPORT, kept, folder]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
