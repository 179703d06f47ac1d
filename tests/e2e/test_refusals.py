"""Bad input and bad surroundings at the command line: a coded error, its exit code, and nothing changed."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Callable
from typing import Any

import pytest

from envbuild.node import lease
from tests.e2e.world import MINOR, World, drift, forget_sizes, snapshot
from tests.support.programs import completed
from tests.support.served import answering, serving

HEAD = "name: tiny\nsummary: x\nprofiles:\n  exact:\n    python: ['3.11']\n"
SOURCE = "    sources:\n      - {name: s, git: 'https://git.example.org/s', commit: %s}\n"
BOMB = (
    "a: &a [x, x, x, x, x, x, x, x, x]\n"
    + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join([f'*{chr(97 + i)}'] * 9)}]\n" for i in range(12))
    + HEAD
)
MANIFESTS: dict[str, bytes] = {
    "unknown key": (HEAD + "    pakages: []\n").encode(),
    "wrong type": HEAD.replace("['3.11']", "3.11").encode(),
    "duplicate key": (HEAD + "    python: ['3.12']\n").encode(),
    "tab": HEAD.replace("    python", "\tpython").encode(),
    "alias bomb": BOMB.encode(),
    "object": (HEAD + "    packages: !!python/object/apply:os.system ['touch pwned']\n").encode(),
    "not utf-8": HEAD.encode() + b"    packages: ['\xff\xfe']\n",
    "commit not hex": (HEAD + SOURCE % ("g" * 40)).encode(),
    "short commit": (HEAD + SOURCE % ("a" * 12)).encode(),
    "credentials": (HEAD + SOURCE % ("a" * 40)).replace("//git", "//me:secret@git").encode(),
    "ext transport": (HEAD + SOURCE % ("a" * 40)).replace("https://git.example.org/s", "ext::sh -c id").encode(),
    "upload-pack": (HEAD + SOURCE % ("a" * 40)).replace("https://git.example.org/s", "--upload-pack=id").encode(),
    "path escape": (HEAD + SOURCE % ("a" * 40)).replace("name: s,", "name: s, path: ../../etc,").encode(),
    "leading dash": (HEAD + SOURCE % ("a" * 40)).replace("name: s,", "name: s, path: -rf,").encode(),
    "newline in name": HEAD.replace("name: tiny", 'name: "ti\\nny"').encode(),
    "template in name": HEAD.replace("name: tiny", 'name: "{{ lookup(1) }}"').encode(),
}


def failed(world: World, rc: int, code: str, *args: str, **more: Any) -> str:
    """Provision fails as told and leaves no environment; what it said."""
    done = world.fails(rc, code, *args, **more)
    assert "Traceback" not in done.err
    for folder in (world.prefix / "envs", world.prefix / "current"):
        assert not folder.exists() or list(folder.iterdir()) == [], "nothing half built is left, nothing is in use"
    assert not (world.prefix / "lease.json").exists()
    return " ".join(str(done.error.get(key, "")) for key in ("what", "why", "hint"))


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_bad_stack_file_stops_before_any_node_is_asked(world: World, name: str) -> None:
    (world.work / "tiny.yaml").write_bytes(MANIFESTS[name])
    before = snapshot(world.top)
    done = world.run("provision", "--stack", "./tiny.yaml", "--json", rc=2)
    assert done.json["error"]["code"] not in ("", "internal", "usage")
    assert "secret" not in done.out + done.err
    assert snapshot(world.top) == before


def test_a_stack_file_of_100_megabytes_and_an_unknown_name_are_refused_at_once(world: World) -> None:
    with (world.work / "tiny.yaml").open("wb") as stream:
        stream.truncate(100 << 20)
    world.provision(rc=2)
    for args, near in ((("--stack", "torch-smok"), "torch-smoke"), (("--target", "locl"), "local")):
        assert near in world.run("provision", *args, rc=2).err
    assert not world.prefix.exists()


def test_an_interpreter_that_is_not_there_is_refused_with_those_that_are(world: World) -> None:
    world.tiny(python=["3.99"])
    said = failed(world, 7, "python-not-there")
    assert "3.99" in said
    assert not world.prefix.exists()
    world.run("plan", "--stack", "./tiny.yaml", "--json", rc=7)
    assert f"{MINOR}." in said
    human = world.run("provision", "--stack", "./tiny.yaml", rc=7)
    assert "there:" in human.err, "it says which interpreters are there"


def without_capabilities() -> list[str]:
    """Words before a command so that file modes count, for root too."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("root may write anywhere, and setpriv (util-linux) is not here to take that away")
    return ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]


def test_a_prefix_that_cannot_be_written_or_lies_below_a_file_is_refused(world: World) -> None:
    world.tiny()
    (world.top / "file").write_text("")
    failed(world, 7, "prefix-usable", "--prefix", str(world.top / "file" / "prefix"))
    assert (world.top / "file").read_text() == ""
    above = world.top / "theirs"
    above.mkdir(mode=0o555)
    world.env["ENVBUILD_PREFIX"] = str(above / "prefix")
    argv = [*without_capabilities(), sys.executable, "-m", "envbuild", "provision", "--stack", "./tiny.yaml"]
    done = completed(argv, env=world.env, cwd=world.work)
    assert done.returncode == 7, done.stderr
    assert "error[prefix-usable]" in done.stderr
    assert list(above.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "code"),
    [("size=60m", "disk-full"), pytest.param("size=200m,nr_inodes=45", "disk-full", marks=pytest.mark.slow)],
)
def test_a_full_disk_is_told_and_leaves_nothing(
    world: World, mount: Callable[[str], None], options: str, code: str
) -> None:
    files = {f"alpha/m{number}.py": os.urandom(40000).hex().encode() for number in range(400)}
    world.wheel(files={"alpha/__init__.py": b"VERSION = '1.0'\n", **files})
    world.tiny()
    forget_sizes(world.work / "tiny.lock.toml")
    mount(options)
    said = failed(world, 75, code)
    assert str(world.prefix) in said


def test_a_disk_that_cannot_even_hold_the_tools(world: World, mount: Callable[[str], None]) -> None:
    world.tiny()
    forget_sizes(world.work / "tiny.lock.toml")
    mount("size=4m")
    done = world.fails(75, "toolchain-unpack")
    assert "disk full" in done.error["what"]
    left = [path.name.rpartition("-")[0] for path in (world.prefix / "tools").iterdir()]
    assert left in ([], ["envbuild-node"]), "what did not fit whole is not there"


def online(world: World, url: str) -> dict[str, str]:
    """Variables under which wheels come from an index only."""
    (world.home / ".config" / "uv" / "uv.toml").unlink(missing_ok=True)
    return {"PIP_FIND_LINKS": "", "UV_DEFAULT_INDEX": url, "UV_HTTP_RETRIES": "0", "UV_HTTP_TIMEOUT": "5"}


def test_no_network_and_an_index_that_answers_with_a_login_page_are_told_as_such(world: World) -> None:
    world.tiny()
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/simple"
        said = failed(world, 75, "network-unreachable", env=online(world, url))
    assert "network" in said
    page = b"<html><body><form action='/login'><input name=password></form></body></html>"
    with serving(answering(200, page, Content_Type="text/html")) as address:
        said = failed(world, 4, "index-not-an-index", env=online(world, f"{address}/simple"))
    assert "log in" in said


def test_a_prefix_that_another_one_changes_is_refused_without_waiting(world: World) -> None:
    world.tiny()
    world.prefix.mkdir()
    held = lease.acquire(str(world.prefix), "another-run", None, 0)
    done = world.fails(75, "prefix-busy", "--wait", "0s")
    assert "another-run" in done.error["why"]
    assert lease.read(str(world.prefix))["run"] == "another-run"  # type: ignore[index]
    assert list((world.prefix / "envs").iterdir()) == []
    held.release()
    assert world.built()["status"] == "ok"


@pytest.mark.slow
def test_two_at_once_in_one_prefix_do_not_disturb_each_other(world: World) -> None:
    world.tiny()
    both = [world.start("provision", "--stack", "./tiny.yaml", "--json") for _ in range(2)]
    ended = [(process.communicate(timeout=120), process.returncode) for process in both]
    assert [code for _, code in ended] == [0, 0], [err for (_, err), _ in ended]
    assert drift(world) == (0, {})
    assert len(list((world.prefix / "envs").iterdir())) == 1
    assert not (world.prefix / "lease.json").exists()
    assert world.built()["status"] == "unchanged"


def test_verify_says_what_is_not_in_use_and_d97_that_the_stack_file_is_newer_than_its_lock(world: World) -> None:
    world.tiny()
    asked = ("verify", "--target", "local", "--stack", "./tiny.yaml")
    error = world.run("verify", "--stack", "./tiny.yaml", "--json", rc=1).error
    assert error["code"] == "environment-unknown"
    assert "{" not in error["what"], "a target's placeholders are no path"
    assert "`envbuild plan ./tiny.yaml --target local` says whether it can be built there, and" in error["hint"]
    assert "`envbuild provision ./tiny.yaml --target local` builds it; `envbuild status --all" in error["hint"]

    world.good("provision", "--target", "local", "--stack", "./tiny.yaml")
    assert "has changed since its lock was made" not in world.good(*asked).err
    world.stack(environment={"NCCL_DEBUG": "1"})
    said = " ".join(world.good(*asked).err.split())
    assert "has changed since its lock was made" in said
    assert "envbuild lock check ./tiny.yaml" in said


def test_a_stack_file_without_a_lock_or_newer_than_that_is_refused(world: World) -> None:
    world.stack()
    done = world.refused(2, "lock-missing", "provision", "--target", "local", "--stack", "./tiny.yaml")
    assert "`envbuild lock create ./tiny.yaml`" in done.err
    world.tiny()
    world.stack(environment={"NCCL_DEBUG": "1"})
    done = world.provision()
    assert (done.rc, done.code) == (2, "lock-stale")
    assert "lock create" in done.err
    assert not world.prefix.exists()
