"""`install` and `activate`: what is built, what is refused, and that nothing is left half done."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envbuild.node import identity, lease, merkle, pip_config
from envbuild.node.bundle import archive
from envbuild.node.env import activate, foundation, install, remove
from envbuild.node.env import packages as sync
from envbuild.node.protocol import NodeError
from envbuild.node.shared import look
from envbuild.node.wheels import bundled
from envbuild.node.wheels.store import Store
from tests.node.env_support import MINOR, PYTHON, Node, locked, make_variant, make_wheel, site, uv_path
from tests.node.wheel_support import filled
from tests.support.fails import fails
from tests.support.files import write_file
from tests.support.programs import completed, executable
from tests.support.served import Silent, serving
from tests.support.wheels import tampered


def test_an_environment_is_built_stamped_and_in_use_and_a_second_time_nothing_changes(node: Node) -> None:
    variant = make_variant([make_wheel(node.wheels, scripts={"alpha-run": "alpha:main"})])
    changed, result = node.install(variant)
    assert changed
    assert result["packages"] == {"alpha": "1.0"}
    assert result["record_checked"] >= 4
    environment = node.environment(variant)
    assert not (environment / ".envbuild" / "stamp.json").exists(), "the stamp comes last"
    assert lease.read(str(node.prefix))["run"] == "run-1"  # type: ignore[index]
    changed, done = node.activate(variant, variables={"A": "1"})
    assert changed
    assert lease.read(str(node.prefix)) is None
    assert os.path.realpath(node.prefix / "current" / "demo") == str(environment)
    out = completed([str(environment / "bin" / "alpha-run")], check=True).stdout
    assert out == "1\n"
    stamp = json.loads((environment / ".envbuild" / "stamp.json").read_text())
    assert (stamp["root"], stamp["variant_digest"]) == (done["root"], variant["digest"])
    assert all(os.stat(path).st_nlink == 1 for path in site(environment).rglob("*.py")), "copied, not hard-linked"
    assert node.install(variant)[0] is False
    assert node.activate(variant, variables={"A": "1"})[0] is False
    assert node.activate(variant, variables={"A": "2"})[0] is True


def test_wheels_that_another_node_built_come_in_a_bundle_of_their_own(node: Node, tmp_path: Path) -> None:
    store, key = filled(tmp_path / "from", tmp_path)
    variant = make_variant([make_wheel(node.wheels)])
    delivered = node.prefix / "store" / variant["digest"][:12]
    delivered.mkdir(parents=True)
    file = str(delivered / "built.tar")
    bundled.pack(store, [key], file)
    handed: dict[str, Any] = {"by": "gpu1", "keys": {"apex": key}, "bundle": {"file": file, "digest": "0" * 64}}
    build = {"store": str(tmp_path / "to"), "handed": handed}
    with fails("bundle-damaged", 5, match=r"built\.tar"):
        node.install(variant, build=build)
    assert not (tmp_path / "to").exists()
    handed["bundle"]["digest"] = archive.verify(file)["digest"]
    node.install(variant, build=build)
    node.activate(variant)
    assert Store(str(tmp_path / "to")).find(key) is not None
    assert not delivered.exists()


def test_d11_what_stays_of_a_provision_is_the_environment_alone(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """No second copy in a cache, no delivered wheel, no file with a second name, and nothing is hashed twice."""
    variant = make_variant([make_wheel(node.wheels, files={"alpha/data.bin": os.urandom(3_000_000)})])
    store = node.prefix / "store" / variant["digest"][:12]
    shutil.copytree(node.wheels, store / "wheels")
    artifacts = {"find_links": [str(store / "wheels")], "offline": True}
    node.install(variant, artifacts=artifacts, cache=None, tmp=None)
    read = merkle._read
    again = "a large file was hashed again"
    monkeypatch.setattr(merkle, "_read", lambda path, size: pytest.fail(again) if size > 10**6 else read(path, size))
    node.activate(variant)
    assert sorted(path.name for path in node.prefix.iterdir()) == ["current", "envs", "modulefiles", "store", "tmp"]
    assert list((node.prefix / "store").iterdir()) == [] and list((node.prefix / "tmp").iterdir()) == []
    files = [path for path in node.environment(variant).rglob("*") if path.is_file() and not path.is_symlink()]
    assert {path.stat().st_nlink for path in files} == {1}
    assert next(path for path in files if path.name == "data.bin").stat().st_size == 3_000_000


def test_d11_delivered_files_stay_while_another_run_has_delivered_them_too(node: Node) -> None:
    variant = make_variant([make_wheel(node.wheels)])
    runs = node.prefix / "store" / variant["digest"][:12] / "runs"
    for run in ("run-1", "run-2"):
        (runs / run).mkdir(parents=True)
    node.install(variant)
    node.activate(variant)
    assert [path.name for path in runs.iterdir()] == ["run-2"]
    node.run = "run-2"
    node.install(variant)
    node.activate(variant)
    assert not runs.parent.exists()


@pytest.mark.parametrize("member", ["alpha-1.0.dist-info/METADATA", "alpha/__init__.py"])
def test_d02_a_wheel_with_a_wrong_record_is_compared_with_its_archive(node: Node, member: str) -> None:
    """As torch 1.8.1, 1.10.0 and 1.11.0 of PyPI: the archive is the lock's, and its RECORD is wrong."""
    wheel = node.wheels / str(make_wheel(node.wheels)["files"][0]["file"])
    tampered(
        wheel,
        member,
        b"Metadata-Version: 2.1\nName: alpha\nVersion: 1.0\nSummary: renamed\n" * member.endswith("METADATA"),
    )
    variant = make_variant([locked(wheel, "alpha", "1.0")])
    _, result = node.install(variant)
    (wrong,) = result["record_wrong"]
    assert (wrong["package"], wrong["version"], wrong["kind"]) == ("alpha", "1.0", "changed")
    assert wrong["path"].endswith(f"/site-packages/{member}")
    code = site(node.environment(variant)) / "alpha" / "__init__.py"
    true = code.read_bytes()
    code.write_text("planted = 1\n")
    with fails("record-mismatch") as found:
        node.activate(variant)
    assert "alpha/__init__.py" in found.value.what, "it has changed between install and stamp"
    code.write_bytes(true)
    node.activate(variant)
    assert node.verify(deep=True)["ok"]
    damaged = list(node.cache.rglob("alpha/__init__.py"))
    remove.run(node.request("remove", environment=str(node.environment(variant)), force=True))
    for path in damaged:
        path.write_bytes(b"VERSION = 'damaged'\n")
    assert "alpha/__init__.py" in node.fails(variant, "record-mismatch", 5).what, (
        "the cache's copy is not the archive's"
    )


def test_packages_that_overwrite_each_other_are_named_and_the_last_of_the_lock_wins(node: Node) -> None:
    """As bitsandbytes and others, which all install a top-level `tests`."""
    wheels = [
        make_wheel(node.wheels, name, files={f"{name}/__init__.py": b"", "tests/__init__.py": f"# {name}\n".encode()})
        for name in ("alpha", "beta", "gamma")
    ]
    variant = make_variant(wheels)
    _, result = node.install(variant)
    shared = site(node.environment(variant)) / "tests" / "__init__.py"
    assert shared.read_text() == "# gamma\n" and result["record_wrong"] == []
    (row,) = result["overwritten"]
    assert (row["packages"], row["files"], row["there"]) == (["alpha", "beta", "gamma"], 1, ["gamma"])
    assert row["first"].endswith("/site-packages/tests/__init__.py")
    shared.write_text("planted = 1\n")
    with fails("record-mismatch") as found:
        node.activate(variant)
    assert "tests/__init__.py" in found.value.what


def test_beside_a_build_with_a_local_version_the_plain_one_of_the_lock_is_installed(node: Node) -> None:
    plain, local = (make_wheel(node.wheels, version=version) for version in ("1.0", "1.0+cpu"))
    for package in (plain, local):
        assert node.install(make_variant([package]))[1]["packages"] == {"alpha": package["version"]}


def test_a_wrong_interpreter_is_refused_before_anything_is_built(node: Node) -> None:
    variant = make_variant([make_wheel(node.wheels)], python="3.99")
    node.fails(variant, "interpreter-mismatch", 7)
    node.python = "/nonexistent/python3"
    node.fails(make_variant([make_wheel(node.wheels)]), "interpreter-missing", 7)


def test_a_failure_says_whether_the_node_was_changed(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    package = make_wheel(node.wheels)
    refused = node.fails(make_variant([package], python="3.99"), "interpreter-mismatch", 7)
    wheel = node.wheels / package["files"][0]["file"]
    data = wheel.read_bytes()
    wheel.unlink()
    failed = node.fails(make_variant([package]), "package-not-found", 4)
    wheel.write_bytes(data)

    def fills(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(install, "_check_set", fills)
    full = node.fails(make_variant([package]), "disk-full", 75)
    assert [error.changed for error in (refused, failed, full)] == [False, True, True]


def test_only_environments_of_the_prefix_are_touched(node: Node, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    for path in (str(victim), str(node.prefix / "envs" / ".." / ".." / "victim"), "relative"):
        with pytest.raises(NodeError, match="environment"):
            node.install(make_variant([]), environment=path)
        with pytest.raises(NodeError, match="environment"):
            remove.run(node.request("remove", environment=path, force=True))
    assert victim.exists()
    mine = write_file(node.prefix / "envs" / "mine" / "file")
    with fails("environment-unknown", 2):
        remove.run(node.request("remove", environment=str(mine.parent), force=True))
    assert mine.exists(), "a folder of a user beside environments"


def test_a_base_is_seen_recorded_and_compared(node: Node) -> None:
    there = foundation.examine(PYTHON, {"python": MINOR, "base": {"kind": "system"}}).packages
    if not there:
        pytest.skip("the interpreter of the tests has no packages of its own, not even pip")
    name, version = sorted(there.items())[0]
    wheel = make_wheel(node.wheels)
    good = make_variant([wheel], base={"kind": "system", "provides": [f"{name}>=0"]}, provided={name: version})
    assert node.install(good)[1]["base_packages"] == there
    node.activate(good)
    assert node.verify(deep=True, variant=good)["ok"]
    node.fails(make_variant([wheel], base={"kind": "system"}, provided={name: "0.0.1"}), "base-changed", 7)


def again(node: Node, variant: dict[str, Any]) -> dict[str, str]:
    """Arguments that build an environment beside the one that is there, as the planner gives them."""
    return {"environment": f"{node.environment(variant)}.2"}


def test_d101_an_environment_is_built_again_beside_the_one_in_use_which_goes_when_it_is_replaced(node: Node) -> None:
    package = make_wheel(node.wheels)
    variant = make_variant([package])
    environment = node.build(variant)
    shutil.rmtree(site(environment) / "alpha-1.0.dist-info")
    node.fails(variant, "environment-drifted", 1)
    wheel = node.wheels / package["files"][0]["file"]
    data = wheel.read_bytes()
    wheel.unlink()
    node.cache = node.top / "empty-cache"
    node.fails(variant, "package-not-found", 4, **again(node, variant))
    assert [path.name for path in (node.prefix / "envs").iterdir()] == [environment.name]
    wheel.write_bytes(data)
    assert node.install(variant, **again(node, variant))[0]
    assert (node.prefix / "current" / "demo").resolve() == environment
    before = json.loads((environment / ".envbuild" / "stamp.json").read_text())["root"]
    assert node.activate(variant, **again(node, variant))[1]["root"] == before, "the root does not depend on the path"
    assert node.verify(deep=True)["ok"]
    assert [path.name for path in (node.prefix / "envs").iterdir()] == [f"{environment.name}.2"]


def test_a_half_built_environment_is_removed_and_built_again(node: Node) -> None:
    variant = make_variant([make_wheel(node.wheels)])
    half = node.environment(variant)
    (half / "lib").mkdir(parents=True)
    (half / "left-behind").write_text("x")
    listed = look.run(node.request("verify", tell="environments"))[1]["environments"]
    assert [(each["path"], each["stamp"]) for each in listed] == [(str(half), None)]
    node.build(variant)
    assert not (half / "left-behind").exists()
    listed = look.run(node.request("verify", tell="environments"))[1]["environments"]
    assert [(each["current"], each["stack"]) for each in listed] == [(True, "demo")]


def test_use_switches_and_remove_refuses_the_one_in_use(node: Node) -> None:
    one = make_variant([make_wheel(node.wheels)])
    two = make_variant([make_wheel(node.wheels, version="2.0")])
    node.build(one)
    node.build(two)
    first, second = str(node.environment(one)), str(node.environment(two))
    with pytest.raises(NodeError, match="in use"):
        remove.run(node.request("remove", environment=second))
    assert activate.use(node.request("use", environment=first, stack="demo"))[0] is True
    assert activate.use(node.request("use", environment=first, stack="demo"))[0] is False
    assert first in (node.prefix / "modulefiles" / "envbuild" / "demo").read_text()
    assert remove.run(node.request("remove", environment=second))[0]
    assert not os.path.exists(second)
    with pytest.raises(NodeError, match="half built"):
        activate.use(node.request("use", environment=second, stack="demo"))
    with pytest.raises(NodeError, match="belongs to the stack"):
        activate.use(node.request("use", environment=first, stack="other"))


def test_activate_stamps_only_what_its_own_run_built_and_under_no_lease_of_another_that_lives(node: Node) -> None:
    variant = make_variant([make_wheel(node.wheels)])
    node.install(variant)
    held, stamp = node.prefix / "lease.json", node.environment(variant) / ".envbuild" / "stamp.json"
    held.write_text(json.dumps({**json.loads(held.read_text()), "run": "another"}))
    with fails("prefix-busy", 75):
        node.activate(variant)
    # Given back when a connection broke: it is taken again, for nobody else has built here since.
    held.unlink()
    notes = node.environment(variant) / ".envbuild" / "installed.json"
    kept = notes.read_text()
    notes.write_text(json.dumps({**json.loads(kept), "run": "another"}))
    with pytest.raises(NodeError):
        node.activate(variant)
    assert not stamp.exists()
    notes.write_text(kept)
    node.activate(variant)
    assert stamp.exists()
    # D100: the lease of a run that is dead is taken over.
    (node.prefix / "current" / "demo").unlink()
    dead = {"boot_id": "0", "controller": {}, "host": "vm", "pid": 99, "pidns": "x", "run": "gone", "started": "1"}
    held.write_text(json.dumps({**dead, "token": "aa"}))
    os.utime(held, (0, 0))
    node.activate(variant)
    assert (node.prefix / "current" / "demo").resolve() == node.environment(variant)
    assert not held.exists()


class _Answers(Silent):
    """A portal that answers every request with its login form, and an index that is broken."""

    def do_GET(self) -> None:
        body = b"<html><form action=login>user <input name=u></form></html>"
        self.answer(503 if "broken" in self.path else 200, body, Content_Type="text/html")


@pytest.fixture
def portal() -> Iterator[str]:
    with serving(_Answers) as url:
        yield url.removeprefix("http://")


def test_a_login_page_is_not_an_index_and_secrets_stay_out(
    node: Node, portal: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    package = dict(make_wheel(node.top / "elsewhere"), index="site")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    node.offline = False
    url = f"http://canary-user:canary-secret@{portal}/simple"
    artifacts = {"indexes": {"site": {"url": url, "kind": "index"}}}
    seen = node.top / "argv"
    wrapper = executable(node.top / "uv", f'#!/bin/sh\nprintf "%s\\n" "$@" >> {seen}\nexec {uv_path()} "$@"\n')
    tools = {"uv": str(wrapper)}
    error = node.fails(make_variant([package]), "index-not-an-index", 4, artifacts=artifacts, tools=tools)
    assert "install" in seen.read_text()
    assert "canary" not in seen.read_text(), "an argument list is read by every user of the machine"
    broken = {"indexes": {"site": {"url": url + "/broken", "kind": "index"}}}
    second = node.fails(make_variant([package]), "network-unreachable", 75, artifacts=broken)
    said = json.dumps([error.as_dict(), second.as_dict()]) + "".join(capfd.readouterr())
    assert "canary-secret" not in said


def test_a_configured_mirror_stands_in_for_an_index_that_is_gone(
    node: Node, portal: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = dict(make_wheel(tmp_path / "mirror" / "alpha"), index="site")
    file = package["files"][0]["file"]
    (tmp_path / "mirror" / "alpha" / "index.html").write_text(f'<a href="{file}">{file}</a>')
    config = tmp_path / "pip.conf"
    config.write_text(f"[global]\nextra-index-url = file://{tmp_path}/mirror\nindex-url = file://{tmp_path}/mirror\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    node.offline = False
    artifacts = {"indexes": {"site": {"url": f"http://{portal}/broken", "kind": "index"}}}
    variant = make_variant([package])
    assert node.install(variant, artifacts=artifacts)[1]["packages"] == {"alpha": "1.0"}
    node.activate(variant)
    bad = make_variant([dict(package, files=[dict(package["files"][0], sha256="0" * 64)])])
    node.fails(bad, "hash-mismatch", 5, artifacts=artifacts)


def test_dead_locations_of_pips_configuration_do_not_stop_uv(node: Node, tmp_path: Path) -> None:
    package = make_wheel(tmp_path / "links")
    config = tmp_path / "pip.conf"
    config.write_text(
        f"[global]\nfind-links = {tmp_path}/gone {tmp_path}/links\nextra-index-url = file://{tmp_path}/no\n"
    )
    told = pip_config.read({"PIP_CONFIG_FILE": str(config), "HOME": str(tmp_path)})
    assert told.find_links == [f"{tmp_path}/gone", f"{tmp_path}/links"]
    found = sync.groups([package], {}, told)
    assert [(group.name, group.args) for group in found] == [
        ("local", ["--no-index", "--find-links", f"{tmp_path}/links"])
    ]
    found = sync.groups([dict(package, files=[dict(package["files"][0], file="x-1-py3-none-any.whl")])], {}, told)
    assert [(group.name, group.extra.get("UV_EXTRA_INDEX_URL")) for group in found] == [("configured", None)]


def test_a_run_that_lost_its_lease_leaves_the_others_environment_alone(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    variant = make_variant([make_wheel(node.wheels)])

    def asleep(*_: object) -> None:
        (node.prefix / "lease.json").unlink()
        lease.acquire(str(node.prefix), "the-other", None, 0)
        (node.environment(variant) / "of-the-other").write_text("x")

    monkeypatch.setattr(sync.Installer, "install", asleep)
    with pytest.raises(NodeError):
        node.install(variant)
    assert (node.environment(variant) / "of-the-other").exists()
    assert lease.read(str(node.prefix))["run"] == "the-other"  # type: ignore[index]


BUILDS = ("envbuild-install-0a_kille", "envbuild-install-0a_lives")


# Under the lease nobody else builds in that of a prefix; the target's own may be that of other prefixes too.
@pytest.mark.parametrize(
    ("place", "goes"),
    [("prefix/tmp", {*BUILDS, "install-cache-0a_kille", "smoke-0a_kille"}), ("of-the-target", {BUILDS[0]})],
)
def test_temporary_files_of_a_killed_run_are_removed_by_the_next(node: Node, place: str, goes: set[str]) -> None:
    killed = subprocess.Popen([sys.executable, "-c", ""])
    killed.wait()
    tmp = node.top / place
    signed = {*BUILDS, "install-cache-0a_kille", "smoke-0a_kille"}
    for name in signed:
        pid = os.getpid() if name.endswith("lives") else killed.pid
        write_file(tmp / name / "deep" / "file")
        owner = {**identity.here(), "pid": pid, "started": identity.start_time(pid)}
        (tmp / name / "owner.json").write_text(json.dumps(owner))
    mine = {"install-0a_kille", "install-of-mine", "not-ours", "smoke-of-mine"}
    for name in mine:
        (tmp / name).mkdir()
        os.utime(tmp / name, (0, 0))
    node.install(make_variant([make_wheel(node.wheels)]), tmp=str(tmp))
    assert set(os.listdir(tmp)) == mine | signed - goes


def test_d43_a_smoke_test_that_runs_keeps_its_folder_while_another_environment_is_built(node: Node) -> None:
    tmp = node.prefix / "tmp"
    code = (
        "import sys\nfrom envbuild.node.smoke.runner import Scratch\n"
        "with Scratch('', {}, sys.argv[1]) as scratch:\n    print(scratch.path, flush=True)\n    sys.stdin.read()\n"
    )
    argv = [sys.executable, "-c", code, str(tmp)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as test:
        assert test.stdin is not None and test.stdout is not None
        folder = Path(test.stdout.readline().strip())
        node.install(make_variant([make_wheel(node.wheels)]), tmp=str(tmp))
        assert (folder / "envbuild_smoke" / "imports.py").exists()
        test.stdin.close()
    assert (test.returncode, folder.exists()) == (0, False)
