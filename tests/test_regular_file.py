"""Files that somebody else wrote or named are opened by one reader: never waited for, of a bounded size."""

from __future__ import annotations

import ast
import json
import os
import re
import resource
from pathlib import Path

import pytest

import envbuild
from envbuild.node import hashing, read_text
from envbuild.node.packages import installed
from envbuild.node.probe import inventory
from envbuild.regular_file import read_file
from tests.support import forked

TOP = Path(envbuild.__file__).parent
# Modules that open files without it: what ships, what this program wrote itself, and what it writes.
OWN = """
    cli.entry container.build container.builders container.fetch_stages container.pods explain.source
    lock.packages lock.readers.wheel_record lock.sources provision.ansible.steps provision.bench
    provision.contact.first_contact provision.contact.payload
    provision.gpu_use provision.images.obtain provision.jobs.asked provision.jobs.launch provision.run.conclude
    provision.run.journal provision.run.progress provision.run.run_dir
    report.recheck.contents report.render resolve.compat_read
    resources transport.processes transport.ssh_errors
"""


_WRITTEN = re.compile(r"['\"][wxa]b?['\"]|O_WRONLY|O_CREAT|_private|tarfile")


def _reads(path: Path) -> bool:
    """Whether a module opens a file for reading."""
    text = path.read_text()
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    return any(
        getattr(call.func, "attr", "") in ("read_text", "read_bytes")
        or (
            "open" in (getattr(call.func, "attr", ""), getattr(call.func, "id", ""))
            and not _WRITTEN.search(ast.unparse(call))
        )
        for call in calls
    )


def test_d72_no_module_opens_files_of_others_by_itself() -> None:
    paths = [path for path in TOP.rglob("*.py") if path.relative_to(TOP).parts[0] != "node"]
    reads = {".".join(path.relative_to(TOP).with_suffix("").parts) for path in paths if _reads(path)}
    assert sorted(reads) == sorted(OWN.split())


def limited() -> None:
    """Less memory than a file without end would fill."""
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))


def _run(folder: Path, *words: str) -> forked.Ended:
    env = {**os.environ, "XDG_DATA_HOME": str(folder / "data")}
    return forked.run(words, cwd=folder, timeout=60, env=env, before=("tests.test_regular_file:limited",))


@pytest.fixture
def kinds(tmp_path: Path) -> dict[str, str]:
    """What is no file of somebody's: name -> path."""
    os.mkfifo(tmp_path / "fifo")
    return {"fifo": str(tmp_path / "fifo"), "zero": "/dev/zero", "memory": "/proc/self/mem", "folder": str(tmp_path)}


@pytest.mark.parametrize("kind", ["fifo", "zero", "memory", "folder"])
def test_d72_what_is_no_regular_file_is_an_error_at_once(kinds: dict[str, str], kind: str) -> None:
    with pytest.raises(OSError):
        read_file(Path(kinds[kind]), 1000)


@pytest.mark.parametrize("kind", ["fifo", "zero", "memory"])
def test_d72_options_and_fields_that_name_no_regular_file_are_refused(
    tmp_path: Path, kinds: dict[str, str], kind: str
) -> None:
    path = kinds[kind]
    target = tmp_path / "target.yaml"
    target.write_text(json.dumps({"name": "t", "extends": path if path.endswith(".yaml") else "local"}))
    link = tmp_path / "link.yaml"
    link.symlink_to(path)
    (tmp_path / "extending.yaml").write_text(json.dumps({"name": "t", "extends": "./link.yaml"}))
    (tmp_path / "hosts.yaml").write_text(
        json.dumps({"name": "t", "extends": "ssh", "prefix": "/x", "hosts": {"inventory": path}})
    )
    report = tmp_path / "report"
    report.mkdir()
    (report / "evidence.json").symlink_to(path)
    calls = [
        ("plan", "--stack", "torch-smoke", "--facts", path),
        ("target", "show", "./extending.yaml"),
        ("report", "verify", str(report)),
        ("lock", "check", "torch-smoke", "--lock", path),
        ("explain", "opt-175b", "--document", path),
        ("probe", "-t", "./hosts.yaml"),
        ("trace", path),
    ]
    for words in calls:
        done = _run(tmp_path, *words)
        assert done.returncode in ((2, 5) if "verify" in words else (2,)), (
            words,
            done.stdout[-500:],
            done.stderr[-500:],
        )
        assert "internal" not in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("kind", ["fifo", "zero", "memory", "folder"])
def test_d72_what_lies_on_a_node_in_the_place_of_a_file_is_not_waited_for(
    tmp_path: Path, kinds: dict[str, str], kind: str
) -> None:
    stamp = tmp_path / "env" / ".envbuild" / inventory.STAMP
    metadata = tmp_path / "env" / "a.dist-info" / "METADATA"
    for path in (stamp, metadata):
        path.parent.mkdir(parents=True)
        path.symlink_to(kinds[kind])
    assert inventory.read_stamp(str(tmp_path / "env")) is None
    assert hashing.digest_if_readable(str(stamp)) is None
    assert read_text.read(str(stamp)) == ""
    assert list(installed._metadata(str(tmp_path / "env"), "a.dist-info")) == []
