"""What goes to nodes and comes back: the tools of their shell, the archive of rattler, single files."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from envbuild.catalog.node_facts import load_facts
from envbuild.catalog.toolchain import ToolchainPython
from envbuild.errors import EnvbuildError, ExitCode
from envbuild.model.facts import NodeFacts
from envbuild.model.target import Connection
from envbuild.plan.tools import Tool
from envbuild.provision.contact import payload as payloads
from envbuild.provision.contact import toolchain as module
from envbuild.provision.contact import wheel_stores
from envbuild.provision.contact.payload import read_answer, uv_tool, write_payload
from envbuild.provision.contact.toolchain import python_tool
from envbuild.provision.contact.wheel_stores import receive
from envbuild.regular_file import sha256_of
from tests.resolve.builders import make_lock
from tests.support.fails import fails
from tests.support.need import need
from tests.support.programs import completed, executable
from tests.transport.test_ssh import StartServer, client, options, start

SHELLS = {"dash": ["dash"], "busybox": ["busybox", "sh"], "bash": ["bash", "--posix"]}
PROGRAMS = ("dd", "tar", "gzip", "mkdir", "mv", "rm", "uname", "sync", "cat", "find", "ls")


def _bin(folder: Path, *programs: str, busybox: bool = False) -> Path:
    folder.mkdir()
    for program in programs:
        found = shutil.which("busybox" if busybox else program)
        if found is None:
            pytest.skip(f"there is no {'busybox' if busybox else program} on this machine")
        (folder / program).symlink_to(found)
    return folder


def _run(payload: Path, shell: str = "dash", path: Path | None = None) -> tuple[int, dict[str, Any], str]:
    command = SHELLS[shell]
    need(command[0])
    env = {"PATH": str(path or os.environ["PATH"]), "HOME": os.environ["HOME"]}
    done = completed([str(shutil.which(command[0])), *command[1:], str(payload)], env=env)
    (line,) = done.stdout.splitlines()
    return done.returncode, json.loads(line), done.stderr


def _written(tmp_path: Path, *tools: Tool, packed: bool = False) -> Path:
    """A payload for the prefix `tmp_path/p`."""
    write_payload(tmp_path / "payload.sh", tools, prefix=str(tmp_path / "p"), packed=packed)
    return tmp_path / "payload.sh"


def _archived(path: Path, source: Path, name: str) -> str:
    """A tar file with one file or folder; its sha256."""
    with tarfile.open(path, "w:gz") as archive:
        archive.add(source, name)
    return sha256_of(path)


@pytest.fixture
def tools(tmp_path: Path) -> list[Tool]:
    script = tmp_path / "a script"
    script.write_text("#!/bin/sh\necho hello\n")
    noise = tmp_path / "noise"
    noise.write_bytes(os.urandom(200_001))
    return [
        Tool("hello", script, sha256_of(script), file="hello.sh"),
        Tool("noise", noise, sha256_of(noise)),
    ]


@pytest.fixture
def python(tmp_path: Path) -> Tool:
    """A stand-in for a standalone Python: right layout, an interpreter that computes sha256 through sha256sum."""
    real = shutil.which("sha256sum")
    inside = tmp_path / "tree" / "python" / "bin"
    executable(inside / "python3", f"#!/bin/sh\n{real} | cut -d' ' -f1\n".replace("cut", str(shutil.which("cut"))))
    (inside / "python").symlink_to("python3")
    tarball = tmp_path / "python.tar.gz"
    return Tool("python", tarball, _archived(tarball, tmp_path / "tree" / "python", "python"), "tree")


@pytest.mark.parametrize("packed", [False, True], ids=["stored", "packed"])
@pytest.mark.parametrize("shell", SHELLS)
def test_tools_land_in_folders_named_by_digest_and_a_second_run_changes_nothing(
    tmp_path: Path, tools: list[Tool], python: Tool, shell: str, packed: bool
) -> None:
    prefix = f"{tmp_path}/it's a {{{{ prefix }}}} $(touch {tmp_path}/pwned)"
    payload = tmp_path / "payload.sh"
    write_payload(payload, [*tools, python], prefix=prefix, packed=packed)
    code, said, noise = _run(payload, shell)
    assert (code, noise) == (0, "")
    folders = [python.folder, tools[0].folder, tools[1].folder]
    assert said == {"ok": True, "changed": True, "placed": folders, "present": [], "checked": "sha256"}
    for tool in tools:
        assert Path(tool.path(prefix)).read_bytes() == tool.source.read_bytes()
        assert os.access(tool.path(prefix), os.X_OK)
    assert os.access(python.path(prefix), os.X_OK)
    assert sorted(os.listdir(f"{prefix}/tools")) == sorted(folders)
    assert not (tmp_path / "pwned").exists()
    code, said, _ = _run(payload, shell)
    assert (code, said["changed"], said["placed"], said["present"]) == (0, False, [], folders)


def test_a_tool_is_compressed_once_for_all_prefixes_and_equal_tools_give_equal_payloads(
    tmp_path: Path, tools: list[Tool], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    original = payloads.gzip.GzipFile
    monkeypatch.setattr(payloads.gzip, "GzipFile", lambda **more: made.append(1) or original(**more))
    monkeypatch.setenv("HOME", "/nonexistent")  # as an account has it that gets its tools without noise
    for name in ("a", "b", "c"):
        write_payload(tmp_path / f"{name}.sh", tools, prefix=str(tmp_path / name), packed=True)
        for changed in (True, False):
            code, said, noise = _run(tmp_path / f"{name}.sh", "bash")
            assert (code, said["changed"], noise) == (0, changed, "")
    assert len(made) == len(tools)
    os.utime(tools[0].source, (1, 1))
    write_payload(tmp_path / "again.sh", tools, prefix=str(tmp_path / "a"), packed=True)
    assert (tmp_path / "again.sh").read_bytes() == (tmp_path / "a.sh").read_bytes()


@pytest.mark.parametrize("busybox", [False, True], ids=["gnu", "busybox"])
def test_few_programs_are_enough_and_the_unpacked_python_computes_digests(
    tmp_path: Path, tools: list[Tool], python: Tool, busybox: bool
) -> None:
    path = _bin(tmp_path / "bin", *PROGRAMS, busybox=busybox)
    payload = _written(tmp_path, *tools, python, packed=True)
    code, said, noise = _run(payload, "busybox" if busybox else "dash", path)
    assert (code, noise) == (0, "")
    assert said["checked"] == "sha256"
    assert (tmp_path / "p" / "tools" / tools[0].folder / "hello.sh").is_file()


@pytest.mark.parametrize("missing", ["tar", "gzip", "dd"])
def test_a_missing_program_is_named(tmp_path: Path, tools: list[Tool], missing: str) -> None:
    path = _bin(tmp_path / "bin", *(program for program in PROGRAMS if program != missing))
    code, said, noise = _run(_written(tmp_path, *tools, packed=True), path=path)
    assert (code, said["error"]["code"]) == (ExitCode.REFUSED, f"{missing}-missing")
    assert f"no {missing}" in noise
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize("with_sha256sum", [True, False], ids=["sha256sum", "python"])
def test_a_damaged_tool_is_refused_and_nothing_is_left(
    tmp_path: Path, tools: list[Tool], python: Tool, with_sha256sum: bool
) -> None:
    payload = _written(tmp_path, tools[1], python)
    raw = bytearray(payload.read_bytes())
    at = raw.index(tools[1].source.read_bytes()[:64])
    raw[at] ^= 1
    payload.write_bytes(raw)
    path = _bin(tmp_path / "bin", *PROGRAMS, *(["sha256sum"] if with_sha256sum else []))
    code, said, _ = _run(payload, path=path)
    assert (code, said["error"]["code"]) == (ExitCode.INTEGRITY, "toolchain-corrupt")
    assert os.listdir(tmp_path / "p" / "tools") == [python.folder]


def test_a_cut_payload_and_a_tree_without_an_interpreter_are_refused(tmp_path: Path, tools: list[Tool]) -> None:
    payload = _written(tmp_path, tools[1], packed=True)
    os.truncate(payload, payload.stat().st_size // 2)
    code, said, _ = _run(payload)
    assert code in (ExitCode.INTEGRITY, ExitCode.TRY_AGAIN)
    assert said["ok"] is False
    assert os.listdir(tmp_path / "p" / "tools") == []
    tarball = tmp_path / "not-python.tar.gz"
    tool = Tool("python", tarball, _archived(tarball, tools[0].source, "other/file"), "tree")
    code, said, _ = _run(_written(tmp_path, tool))
    assert (code, said["error"]["code"]) == (ExitCode.INTEGRITY, "toolchain-layout")


def test_a_uv_without_a_record_of_its_installation_is_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str) -> None:
        raise PackageNotFoundError(name)

    recorded = uv_tool()
    monkeypatch.setattr(payloads.metadata, "files", unknown)
    assert uv_tool.__wrapped__() == recorded


def test_a_folder_is_unpacked_and_its_archive_does_not_stay(tmp_path: Path, tools: list[Tool]) -> None:
    tarball, uv = tmp_path / "library.tar.gz", uv_tool()
    tool = Tool("library", tarball, _archived(tarball, tools[0].source, "library/file"), "folder")
    code, said, noise = _run(_written(tmp_path, tool, uv, packed=True))
    assert (code, noise) == (0, "") and said["placed"] == [tool.folder, uv.folder]
    folder = Path(tool.path(str(tmp_path / "p")))
    assert [path.name for path in folder.iterdir()] == ["library"]
    assert (folder / "library" / "file").read_bytes() == tools[0].source.read_bytes()
    done = completed([uv.path(str(tmp_path / "p")), "--version"], check=True)
    assert done.stdout.startswith("uv "), "it runs from its place"


@pytest.mark.parametrize("shell", SHELLS)
def test_a_tools_folder_that_everybody_can_write_is_refused(tmp_path: Path, tools: list[Tool], shell: str) -> None:
    folder = tmp_path / "p" / "tools"
    folder.mkdir(parents=True)
    folder.chmod(0o1777)
    code, said, _ = _run(_written(tmp_path, *tools), shell)
    assert (code, said["error"]["code"]) == (ExitCode.REFUSED, "prefix-open-to-all")
    assert not list(folder.iterdir())


def test_a_home_folder_gets_no_tools_and_a_file_is_no_prefix(
    tmp_path: Path, tools: list[Tool], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "p"
    home.mkdir()
    (tmp_path / "link").symlink_to(home)
    monkeypatch.setenv("HOME", str(tmp_path / "link"))
    code, said, _ = _run(_written(tmp_path, *tools))
    assert (code, said["error"]["code"]) == (ExitCode.USAGE, "prefix-invalid")
    assert not list(home.iterdir())
    home.rmdir()
    home.touch()
    code, said, _ = _run(tmp_path / "payload.sh")
    assert (code, said["error"]["code"]) == (7, "not-writable")


def test_a_standalone_python_is_checked_whenever_it_is_taken_and_fetched_again_where_it_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "x.tar.gz").write_bytes(b"x")
    row = {
        "name": "mine",
        "version": "3.11.7",
        "arch": "x86_64",
        "url": (tmp_path / "x.tar.gz").as_uri(),
        "witness": "w",
    }
    build = ToolchainPython.from_plain({**row, "sha256": hashlib.sha256(b"x").hexdigest()})
    archive = python_tool(build).source
    archive.write_bytes(b"damaged")
    python_tool.cache_clear()
    assert python_tool(build).source.read_bytes() == b"x"
    with fails("hash-mismatch", ExitCode.INTEGRITY):
        python_tool(build.model_copy(update={"sha256": "0" * 64}))


@pytest.mark.parametrize("name", ["", "../x", "a b", "-x", "$(id)", "a\nb"])
def test_names_that_are_not_plain_are_a_mistake(name: str) -> None:
    with pytest.raises(ValueError, match="plain"):
        Tool(name, Path("/x"), "0" * 64)


@pytest.mark.parametrize(
    ("stdout", "answer"),
    [
        ("no json", None),
        ('{"ok": 1}', None),
        ('{"ok": true, "result": []}', None),
        ('{"ok": false, "error": "x"}', None),
        ('{"ok": true, "result": {"seconds": NaN}}', None),
        ('{"ok": true, "result": {"name": "a\u2028b\x85c"}}\n', {"ok": True, "result": {"name": "a\u2028b\x85c"}}),
        ('error[x]: y\r\n{"ok": false, "changed": false}\r\n', {"ok": False, "changed": False}),
    ],
)
def test_the_answer_is_found_among_other_lines(stdout: str, answer: object) -> None:
    assert read_answer(stdout) == answer


__all__ = ["client", "start"]


DATA = os.urandom(300_000) + b"\n===envbuild file"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "it's a pack.tar"
    path.write_bytes(DATA)
    return path


Fetch = Callable[..., None]


@pytest.fixture
def fetch(start: StartServer, client: Path, tmp_path: Path) -> Fetch:
    """Bring a file of a node to `tmp_path/to`, past what its start-up files print."""
    server = start()
    (server.home / ".bashrc").write_text("echo ===envbuild file; echo noise >&2\n")
    return partial(receive, server.address, to=tmp_path / "to", connection=options(client, server, server.known))


def test_a_file_arrives_whole_and_is_gone_there(fetch: Fetch, tmp_path: Path, file: Path) -> None:
    fetch(path=str(file), size=len(DATA))
    assert (tmp_path / "to").read_bytes() == DATA
    assert not file.exists()
    (tmp_path / "to").rename(file)
    receive("localhost", str(file), tmp_path / "to", len(DATA), Connection(kind="local"))
    assert (tmp_path / "to").read_bytes() == DATA
    assert not file.exists(), "on this machine it is moved"
    (tmp_path / "to").unlink()
    with fails("transfer-cut-off") as found:
        fetch(path="/nowhere/pack", size=len(DATA))
    assert "/nowhere/pack" in found.value.why


@pytest.mark.parametrize("most", [1 << 40, 1000])
def test_a_file_that_does_not_arrive_whole_is_told(
    fetch: Fetch, tmp_path: Path, file: Path, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheel_stores, "LIMIT", most)
    with fails("transfer-cut-off", 3, match="of 300020 bytes"):
        fetch(path=str(file), size=300020)
    assert (tmp_path / "to").stat().st_size == min(most, len(DATA))


@pytest.mark.slow
def test_hundreds_of_megabytes_need_no_memory(fetch: Fetch, tmp_path: Path) -> None:
    path, block = tmp_path / "large", os.urandom(1 << 20)
    with path.open("wb") as out:
        for _ in range(400):
            out.write(block)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.monotonic()
    fetch(path=str(path), size=400 << 20)
    seconds = time.monotonic() - began
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    sys.stderr.write(f"400 MiB in {seconds:.1f} s, {grown / 1024:.0f} MiB more memory\n")
    assert grown < 64 << 10


@pytest.fixture
def facts() -> NodeFacts:
    return next(iter(load_facts("h200").values()))


@pytest.mark.slow
def test_the_archive_is_made_once_and_loads_where_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    module.rattler_tool.cache_clear()
    planned = module.rattler_tool(make=False)
    assert not list(tmp_path.rglob("*.tar.gz")) and planned.name == "py-rattler"
    tool = module.rattler_tool(make=True)
    assert tool.sha256 == sha256_of(tool.source) and tool.kind == "folder"
    module.rattler_tool.cache_clear()
    monkeypatch.setattr(module, "write_tar", lambda *_: pytest.fail("made again"))
    assert module.rattler_tool(make=True) == tool
    (tmp_path / "out").mkdir()
    # `extractall(filter=...)` is not in every Python 3.11, Debian 12's for one.
    subprocess.run(["tar", "-xf", str(tool.source), "-C", str(tmp_path / "out")], check=True)
    code = f"import sys; sys.path.insert(0, {str(tmp_path / 'out')!r}); import rattler; print(rattler.__file__)"
    said = completed([sys.executable, "-I", "-S", "-c", code], check=True)
    assert said.stdout.startswith(str(tmp_path / "out"))


def test_a_python_is_taken_that_can_load_it_and_a_node_of_another_machine_is_refused(facts: NodeFacts) -> None:
    known = facts.pythons[0]
    versions = ("3.9.18", "3.10.4", "3.12.1", "3.11.2")
    pythons = tuple(known.model_copy(update={"version": each, "path": f"/py/{each}"}) for each in versions)
    assert module.newest_python(facts.model_copy(update={"pythons": pythons}), module.LEAST_PYTHON) == "/py/3.12.1"
    assert module.newest_python(facts.model_copy(update={"pythons": pythons[:1]}), module.LEAST_PYTHON) is None
    module.check_platform(facts)
    other = facts.model_copy(update={"os": facts.os.model_copy(update={"arch": "aarch64"})})
    with fails("rattler-unfit", 7):
        module.check_platform(other)


def test_d114_a_python_that_cannot_be_fetched_names_those_that_are_there(
    facts: NodeFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise EnvbuildError("download-failed", "cannot download", hint="check the network")

    monkeypatch.setattr(module, "standalone_python", unreachable)
    pinned = {"kind": "standalone", "name": "cpython-x", "sha256": "0" * 64}
    variant = make_lock({"id": "v", "python": "3.11", "interpreter": pinned}).variants[0]
    with pytest.raises(EnvbuildError) as caught:
        module.node_tools(facts, variant, None, folder=None, toolchain_file=None)
    says = 'check the network; or write `python: ["3.12"]` in the stack file: localhost has Python 3.12'
    assert caught.value.hint == says
