"""Real images: a patched source with a C extension through all three stages, twice, verified inside, by digest back."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.container.mirror import mirror
from tests.container.storage import BASE, PYTHON, Storage, storage_in
from tests.e2e.world import World
from tests.node.forge import FILES, PATCH
from tests.support.patience import PATIENCE, answers, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
PLACE = ("--base", BASE, "--fetch-image", BASE, "--python", f"/usr/bin/python{PYTHON}", "--glibc", "2.36")
LONG = 400.0


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory, run_folder: Path) -> Iterator[Storage]:
    """Images of this module."""
    with storage_in(tmp_path_factory.mktemp("images"), run_folder, compiler=True) as storage:
        yield storage


@pytest.fixture
def site(world: World, storage: Storage) -> World:
    """The stack `tiny` on the base's Python: a wheel, a patched source with an extension; git through a mirror."""
    world.env |= storage.env
    world.wheel()
    _stack(world, FILES)
    return world


def _stack(world: World, files: dict[str, str]) -> None:
    pin = world.repository("quick", files)
    source = {**pin, "ref": "main", "patches": [PATCH], "build": {"kind": "wheel", "extensions": ["quick._fast"]}}
    files = {"tree.py": "", "data/made.txt": "made", "data/old.so": "old", "README": str(time.monotonic_ns())}
    tree = world.repository("tree", files)
    path = {**tree, "ref": "main", "install": "path", "generated": ["data/*.so", "out/*/x"]}
    stack = world.stack(
        python=[PYTHON], sources=[source, path], imports=["quick._fast"], environment={"TINY": 'a "b" $HOME \\'}
    )
    world.lock(stack)


def _house(world: World, storage: Storage) -> Path:
    """A folder for `--wheelhouse` with uv and the source as the fetch stage makes it; so nothing needs an index."""
    house = storage.house(world.top)
    bundle(world, house)
    return house


def bundle(world: World, house: Path) -> None:
    """The sources as git bundles, as an air-gapped user brings them."""
    for old in house.glob("*.bundle"):
        old.unlink()
    for name in ("quick", "tree"):
        ask = ["git", "-C", str(world.hub / name)]
        commit, tree = (
            subprocess.run([*ask, "rev-parse", what], capture_output=True, text=True, check=True).stdout.strip()
            for what in ("HEAD", "HEAD^{tree}")
        )
        path = house / f"{name}-{commit}-{tree[:12]}.bundle"
        subprocess.run([*ask, "bundle", "create", "-q", str(path), "main"], check=True, capture_output=True)


def _build(world: World, house: Path, *more: str) -> dict[str, object]:
    done = world.good(
        "image", "build", "./tiny.yaml", *PLACE, "--wheelhouse", str(house), "--json", *more, timeout=LONG
    )
    return done.json


def test_a_source_a_patch_and_an_extension_give_one_image_twice_and_it_verifies(site: World, storage: Storage) -> None:
    house = _house(site, storage)
    (site.top / "netrc").write_text("machine example.org login me password s3cret-canary\n")
    site.env["NETRC"] = str(site.top / "netrc")
    first = _build(site, house, "--no-cache", "--tag", "localhost/tiny/one:1")
    _no_part_has_the_login(storage)
    # The second time git fetches them from a mirror, by insteadOf of the named configuration.
    for old in house.glob("*.bundle"):
        old.unlink()
    with mirror(site, "quick", "tree") as config:
        second = _build(site, house, "--no-cache", "--tag", "localhost/tiny/two:1", "--gitconfig", str(config))
    assert first["id"] == second["id"]
    same = site.good("image", "diff", "localhost/tiny/one:1", "localhost/tiny/two:1")
    assert same.out == f"one image, id {first['id']}\n"

    found = site.good("image", "verify", "localhost/tiny/one:1", "--smoke", "--json", timeout=LONG).json
    assert found["ok"] and {check["status"] for check in found["checks"]} == {"passed"}
    assert [check["name"] for check in found["smoke"]["checks"]] == ["smoke/sound"]

    code = "import os, sys, quick._fast as f; "
    inside = _python(storage, code + "print(f.answer(), os.getuid(), os.environ['TINY'], sys.prefix)")
    environment = site.good("image", "dockerfile", "./tiny.yaml", *PLACE).out
    assert inside.startswith('42 10001 a "b" $HOME \\ /opt/envbuild/envs/tiny-exact-')
    assert inside.split()[-1] in environment
    assert "KIND = float" in _run(storage, "cat", f"{inside.split()[-1]}/lib/python{PYTHON}/site-packages/quick/old.py")
    _run(storage, "touch", f"{inside.split()[-1]}/src/tree/data/own.so", f"{inside.split()[-1]}/src/tree/out/own")
    _run(storage, "sh", "-c", f"echo new > {inside.split()[-1]}/src/tree/data/old.so")  # in place
    stamp = json.loads(_run(storage, "cat", f"{inside.split()[-1]}/.envbuild/stamp.json"))
    assert stamp["evidence"]["network"] == "off"
    assert [patch["name"] for patch in stamp["sources"][0]["patches"]] == [PATCH]

    # What changes is rebuilt and told file by file.
    _stack(site, {**FILES, "fast.c": FILES["fast.c"].replace("42", "43")})
    bundle(site, house)
    third = _build(site, house, "--tag", "localhost/tiny/one:2")
    assert third["id"] != first["id"]
    # The packages did not change, and with their layers the image is the one of a build without any.
    assert third["seconds"]["fetch"] == third["seconds"]["packages"] == third["seconds"]["installed"] == 0.0
    nothing = _build(site, house, "--tag", "localhost/tiny/again:2")
    assert (nothing["id"], set(nothing["seconds"].values())) == (third["id"], {0.0})
    assert _build(site, house, "--no-cache", "--tag", "localhost/tiny/one:3")["id"] == third["id"]
    differ = site.run("image", "diff", "localhost/tiny/one:1", "localhost/tiny/one:2", "--json", timeout=LONG)
    assert differ.rc == 1
    assert any(row["path"].endswith(".so") for row in differ.json["files"])
    assert {"Labels"} <= {row["name"] for row in differ.json["config"]}

    assert storage.buildah("containers", "--quiet") == ""  # no build leaves one behind

    not_podman = _podman_builds_and_runs_the_same_environment(site, house)
    _pushed_image_comes_back(site, storage, str(first["id"]))
    if not_podman:
        pytest.skip(f"the image was built, verified and pushed; podman did not build it: {not_podman}")


def _no_part_has_the_login(storage: Storage) -> None:
    """Secrets of the fetch stage are in none of the images that a build leaves."""
    names = storage.buildah("images", "--format", "{{.Name}}:{{.Tag}}").split()
    parts = [name for name in names if name.startswith("localhost/envbuild/tiny-")]
    kinds = ("fetch", "packages", "installed", "runtime")
    assert sorted(name.rpartition(":")[0].rpartition("-")[2] for name in parts) == sorted(kinds)
    look = "cat /root/.netrc; grep -rs s3cret-canary /etc /root /run /var /opt/envbuild/image /opt/envbuild/fetched"
    for name in parts:
        assert _run(storage, "sh", "-c", f"{{ {look}; }} 2>/dev/null; true", image=name) == ""
        assert "s3cret-canary" not in storage.buildah("inspect", "--type", "image", name)


def _run(storage: Storage, *argv: str, image: str = "localhost/tiny/one:1") -> str:
    container = storage.buildah("from", "--pull-never", image)
    try:
        return storage.buildah("run", "--isolation", "chroot", container, "--", *argv)
    finally:
        storage.buildah("rm", container)


def _python(storage: Storage, code: str) -> str:
    return _run(storage, "/bin/sh", "/opt/envbuild/image/entrypoint.sh", "python", "-c", code)


def _pushed_image_comes_back(world: World, storage: Storage, image: str) -> None:
    """Through a local registry, by the digest that the registry says."""
    program = shutil.which("docker-registry")
    if program is None:
        pytest.skip("the image was built and verified; without docker-registry it is not pushed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = world.top / "registry.yml"
    config.write_text(
        f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {world.top}/registry}}}}\n"
        f"http: {{addr: '127.0.0.1:{port}'}}\n"
    )
    with (world.top / "registry.log").open("wb") as log:
        process = subprocess.Popen([program, "serve", str(config)], stdout=log, stderr=log)
    try:
        until(lambda: answers("127.0.0.1", port))
        name = f"127.0.0.1:{port}/tiny"
        storage.buildah("push", "--tls-verify=false", "localhost/tiny/one:1", f"docker://{name}:1")
        from envbuild.container.registry import ask_digest

        digest = ask_digest(f"{name}:1", plain_http=True)
        _a_digest_that_is_not_there(world, port)
        storage.buildah("rmi", "--force", image)  # by all of its names
        storage.buildah("pull", "--tls-verify=false", f"{name}@sha256:{digest}")
        back = storage.buildah("inspect", "--type", "image", "--format", "{{.FromImageID}}", f"{name}@sha256:{digest}")
        assert back == image
    finally:
        process.terminate()
        process.wait(PATIENCE)


def _a_digest_that_is_not_there(world: World, port: int) -> None:
    config = world.top / "registries.conf"
    config.write_text(f'[[registry]]\nlocation = "127.0.0.1:{port}"\ninsecure = true\n')
    place = ["--base", f"127.0.0.1:{port}/tiny@sha256:{'0' * 64}", *PLACE[2:]]
    done = world.run(
        "image", "build", "./tiny.yaml", *place, env={"CONTAINERS_REGISTRIES_CONF": str(config)}, timeout=LONG
    )
    assert (done.rc, done.code) == (7, "image-base-unknown"), done.err


def _podman_builds_and_runs_the_same_environment(site: World, house: Path) -> str | None:
    """As buildah did under `one:2`; why podman builds nothing here, None where it did."""
    missing = [name for name in ("podman", "runc") if shutil.which(name) is None]
    if missing:
        return f"missing programs: {', '.join(missing)} (see tests/system-packages.txt)"
    config = site.top / "containers.conf"
    config.write_text(
        '[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]\n'
        '[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
    )
    site.env["CONTAINERS_CONF"] = str(config)
    made = site.run(
        "image", "build", "./tiny.yaml", *PLACE, "--wheelhouse", str(house), "--no-cache", "--json",
        "--builder", "podman", "--tag", "localhost/tiny/podman:1", timeout=LONG,
    )  # fmt: skip
    if made.rc and any(word in made.err for word in ("runc", "cgroup", "namespace", "mount")):
        return f"it runs no container here: {made.err[-300:]}"
    assert made.rc == 0, made.err[-2000:]
    roots = [
        site.good("image", "verify", image, "--builder", name, "--json", timeout=LONG).json["root"]
        for image, name in (("localhost/tiny/podman:1", "podman"), ("localhost/tiny/one:2", "buildah"))
    ]
    assert roots[0] == roots[1]
    return None


def test_a_build_that_fails_says_what_the_node_program_says(site: World, storage: Storage) -> None:
    house = _house(site, storage)
    _stack(site, {**FILES, "quick/old.py": "KIND = float\n"})
    bundle(site, house)
    done = site.run("image", "build", "./tiny.yaml", *PLACE, "--wheelhouse", str(house), timeout=LONG)
    assert (done.rc, done.code) == (4, "patch-no-hits")
    without = site.run("image", "build", "./tiny.yaml", *PLACE, "--python", "/usr/bin/python3.99", timeout=LONG)
    assert (without.rc, without.code) == (7, "image-without-python")
    # A wrong file in the wheelhouse is not taken, whatever its name says.
    (wheel,) = site.wheels.glob("alpha-*.whl")
    wheel.write_bytes(wheel.read_bytes() + b"x")
    wrong = site.run("image", "build", "./tiny.yaml", *PLACE, "--wheelhouse", str(house), "--no-cache", timeout=LONG)
    assert wrong.rc in (4, 75)  # there may be an index, and it has another file or none
    assert "alpha-1.0-py3-none-any.whl" in wrong.err
