"""The payload under every shell that is here, with nothing on PATH but what it says it needs."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tarfile
from pathlib import Path

import pytest

from envbuild.errors import ExitCode
from envbuild.provision.contact import payload as payloads
from envbuild.provision.contact.payload import Tool, file_tool, python_tool, read_answer, uv_tool, write_payload
from tests.support.fails import fails
from tests.support.programs import completed, executable

SHELLS = {"dash": ["dash"], "busybox": ["busybox", "sh"], "bash": ["bash", "--posix"]}
PROGRAMS = ("dd", "tar", "gzip", "mkdir", "mv", "rm", "uname", "sync", "cat", "find", "ls")


def _shell(name: str) -> list[str]:
    command = SHELLS[name]
    found = shutil.which(command[0])
    if found is None:
        pytest.skip(f"there is no {command[0]} on this machine to run the payload with")
    return [found, *command[1:]]


def _bin(folder: Path, *programs: str, busybox: bool = False) -> Path:
    folder.mkdir()
    for program in programs:
        found = shutil.which("busybox" if busybox else program)
        if found is None:
            pytest.skip(f"there is no {'busybox' if busybox else program} on this machine")
        (folder / program).symlink_to(found)
    return folder


def _run(shell: list[str], payload: Path, path: Path | str | None = None) -> tuple[int, dict[str, object], str]:
    env = {"PATH": str(path or os.environ["PATH"])}
    done = completed([*shell, str(payload)], env=env, timeout=60)
    lines = done.stdout.splitlines()
    assert len(lines) == 1, done.stderr
    return done.returncode, json.loads(lines[0]), done.stderr


@pytest.fixture
def tools(tmp_path: Path) -> list[Tool]:
    script = tmp_path / "a script"
    script.write_text("#!/bin/sh\necho hello\n")
    noise = tmp_path / "noise"
    noise.write_bytes(os.urandom(200_001))
    return [file_tool("hello", script, file="hello.sh"), file_tool("noise", noise)]


@pytest.fixture
def python(tmp_path: Path) -> Tool:
    """A stand-in for a standalone Python: right layout, an interpreter that computes sha256 through sha256sum."""
    real = shutil.which("sha256sum")
    inside = tmp_path / "tree" / "python" / "bin"
    executable(inside / "python3", f"#!/bin/sh\n{real} | cut -d' ' -f1\n".replace("cut", str(shutil.which("cut"))))
    (inside / "python").symlink_to("python3")
    tarball = tmp_path / "python.tar.gz"
    with tarfile.open(tarball, "w:gz") as archive:
        archive.add(tmp_path / "tree" / "python", "python")
    return python_tool(tarball, hashlib.sha256(tarball.read_bytes()).hexdigest())


@pytest.mark.parametrize("packed", [False, True], ids=["stored", "packed"])
@pytest.mark.parametrize("shell", SHELLS)
def test_tools_land_in_folders_named_by_digest_and_a_second_run_changes_nothing(
    tmp_path: Path, tools: list[Tool], python: Tool, shell: str, packed: bool
) -> None:
    prefix = f"{tmp_path}/it's a {{{{ prefix }}}} $(touch {tmp_path}/pwned)"
    payload = tmp_path / "payload.sh"
    write_payload(payload, [*tools, python], prefix=prefix, packed=packed)
    code, said, noise = _run(_shell(shell), payload)
    assert (code, noise) == (0, "")
    folders = [python.folder, tools[0].folder, tools[1].folder]
    assert said == {"ok": True, "changed": True, "placed": folders, "present": [], "checked": "sha256"}
    for tool in tools:
        assert Path(tool.path(prefix)).read_bytes() == tool.source.read_bytes()
        assert os.access(tool.path(prefix), os.X_OK)
    assert os.access(python.path(prefix), os.X_OK)
    assert sorted(os.listdir(f"{prefix}/tools")) == sorted(folders)
    assert not (tmp_path / "pwned").exists()
    code, said, _ = _run(_shell(shell), payload)
    assert (code, said["changed"], said["placed"], said["present"]) == (0, False, [], folders)


def test_a_tool_is_compressed_once_for_all_prefixes(
    tmp_path: Path, tools: list[Tool], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    original = payloads.gzip.GzipFile
    monkeypatch.setattr(payloads.gzip, "GzipFile", lambda **more: made.append(1) or original(**more))
    for name in ("a", "b", "c"):
        write_payload(tmp_path / f"{name}.sh", tools, prefix=str(tmp_path / name), packed=True)
        assert _run(_shell("bash"), tmp_path / f"{name}.sh")[1]["ok"]
    assert len(made) == len(tools)


@pytest.mark.parametrize("busybox", [False, True], ids=["gnu", "busybox"])
def test_few_programs_are_enough_and_the_unpacked_python_computes_digests(
    tmp_path: Path, tools: list[Tool], python: Tool, busybox: bool
) -> None:
    payload = tmp_path / "payload.sh"
    write_payload(payload, [*tools, python], prefix=str(tmp_path / "p"), packed=True)
    path = _bin(tmp_path / "bin", *PROGRAMS, busybox=busybox)
    code, said, noise = _run(_shell("busybox" if busybox else "dash"), payload, path)
    assert (code, noise) == (0, "")
    assert said["checked"] == "sha256"
    assert (tmp_path / "p" / "tools" / tools[0].folder / "hello.sh").is_file()


@pytest.mark.parametrize("missing", ["tar", "gzip", "dd"])
def test_a_missing_program_is_named(tmp_path: Path, tools: list[Tool], missing: str) -> None:
    payload = tmp_path / "payload.sh"
    write_payload(payload, tools, prefix=str(tmp_path / "p"), packed=True)
    path = _bin(tmp_path / "bin", *(program for program in PROGRAMS if program != missing))
    code, said, noise = _run(_shell("dash"), payload, path)
    assert code == ExitCode.REFUSED
    assert said["error"]["code"] == f"{missing}-missing"  # type: ignore[index]
    assert f"no {missing}" in noise
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize("with_sha256sum", [True, False], ids=["sha256sum", "python"])
def test_a_damaged_tool_is_refused_and_nothing_is_left(
    tmp_path: Path, tools: list[Tool], python: Tool, with_sha256sum: bool
) -> None:
    payload = tmp_path / "payload.sh"
    write_payload(payload, [tools[1], python], prefix=str(tmp_path / "p"), packed=False)
    raw = bytearray(payload.read_bytes())
    at = raw.index(tools[1].source.read_bytes()[:64])
    raw[at] ^= 1
    payload.write_bytes(raw)
    path = _bin(tmp_path / "bin", *PROGRAMS, *(["sha256sum"] if with_sha256sum else []))
    code, said, _ = _run(_shell("dash"), payload, path)
    assert code == ExitCode.INTEGRITY
    assert said["error"]["code"] == "toolchain-corrupt"  # type: ignore[index]
    assert os.listdir(tmp_path / "p" / "tools") == [python.folder]


def test_a_cut_payload_is_refused(tmp_path: Path, tools: list[Tool]) -> None:
    payload = tmp_path / "payload.sh"
    write_payload(payload, [tools[1]], prefix=str(tmp_path / "p"), packed=True)
    os.truncate(payload, payload.stat().st_size // 2)
    code, said, _ = _run(_shell("dash"), payload)
    assert code in (ExitCode.INTEGRITY, ExitCode.TRY_AGAIN)
    assert said["ok"] is False
    assert os.listdir(tmp_path / "p" / "tools") == []


def test_a_tree_without_an_interpreter_is_refused(tmp_path: Path, tools: list[Tool]) -> None:
    tarball = tmp_path / "not-python.tar.gz"
    with tarfile.open(tarball, "w:gz") as archive:
        archive.add(tools[0].source, "other/file")
    tool = python_tool(tarball, hashlib.sha256(tarball.read_bytes()).hexdigest())
    write_payload(tmp_path / "payload.sh", [tool], prefix=str(tmp_path / "p"), packed=False)
    code, said, _ = _run(_shell("dash"), tmp_path / "payload.sh")
    assert code == ExitCode.INTEGRITY
    assert said["error"]["code"] == "toolchain-layout"  # type: ignore[index]


def test_a_prefix_that_cannot_be_made_is_a_coded_error(tmp_path: Path, tools: list[Tool]) -> None:
    (tmp_path / "file").write_text("")
    write_payload(tmp_path / "payload.sh", tools, prefix=str(tmp_path / "file"), packed=False)
    code, said, _ = _run(_shell("dash"), tmp_path / "payload.sh")
    assert (code, said["error"]["code"]) == (7, "not-writable")  # type: ignore[index]


@pytest.mark.parametrize("shell", SHELLS)
def test_a_tools_folder_that_everybody_can_write_is_refused(tmp_path: Path, tools: list[Tool], shell: str) -> None:
    folder = tmp_path / "prefix" / "tools"
    folder.mkdir(parents=True)
    folder.chmod(0o1777)
    payload = tmp_path / "payload"
    write_payload(payload, tools, prefix=str(tmp_path / "prefix"), packed=False)
    rc, answer, _ = _run(_shell(shell), payload)
    error = answer["error"]
    assert isinstance(error, dict)
    assert (rc, error["code"]) == (ExitCode.REFUSED, "prefix-open-to-all")
    assert not list(folder.iterdir())


def test_equal_tools_give_equal_payloads(tmp_path: Path, tools: list[Tool]) -> None:
    for name in ("one", "two"):
        write_payload(tmp_path / name, tools, prefix="/p", packed=True)
        os.utime(tools[0].source, (1, 1))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_a_standalone_python_with_another_hash_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.tar.gz").write_bytes(b"x")
    with fails("toolchain-hash-mismatch", ExitCode.INTEGRITY):
        python_tool(tmp_path / "x.tar.gz", "0" * 64)


@pytest.mark.parametrize("name", ["", "../x", "a b", "-x", "$(id)", "a\nb"])
def test_names_that_are_not_plain_are_a_mistake(name: str) -> None:
    with pytest.raises(ValueError, match="plain"):
        Tool(name, Path("/x"), "0" * 64)


def test_uv_is_found_and_runs_from_its_place(tmp_path: Path) -> None:
    tool = uv_tool()
    write_payload(tmp_path / "payload.sh", [tool], prefix=str(tmp_path / "p"), packed=False)
    code, said, _ = _run(_shell("dash"), tmp_path / "payload.sh")
    assert (code, said["changed"]) == (0, True)
    done = completed([tool.path(str(tmp_path / "p")), "--version"], check=True)
    assert done.stdout.startswith("uv ")


@pytest.mark.parametrize(
    ("stdout", "answer"),
    [
        ("", None),
        ("no json", None),
        ('{"ok": 1}', None),
        ('{"ok": tr', None),
        ('error[x]: y\r\n{"ok": false, "changed": false}\r\n', {"ok": False, "changed": False}),
    ],
)
def test_the_answer_is_found_among_other_lines(stdout: str, answer: object) -> None:
    assert read_answer(stdout) == answer


def test_a_folder_is_unpacked_and_its_archive_does_not_stay(tmp_path: Path, tools: list[Tool]) -> None:
    tarball = tmp_path / "library.tar.gz"
    with tarfile.open(tarball, "w:gz") as archive:
        archive.add(tools[0].source, "library/file")
    tool = Tool("library", tarball, hashlib.sha256(tarball.read_bytes()).hexdigest(), "folder")
    write_payload(tmp_path / "payload.sh", [tool, tools[1]], prefix=str(tmp_path / "p"), packed=True)
    code, said, noise = _run(_shell("dash"), tmp_path / "payload.sh")
    assert (code, noise) == (0, "") and said["placed"] == [tool.folder, tools[1].folder]
    folder = Path(tool.path(str(tmp_path / "p")))
    assert [path.name for path in folder.iterdir()] == ["library"]
    assert (folder / "library" / "file").read_bytes() == tools[0].source.read_bytes()
