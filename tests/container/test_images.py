"""Real images: an edited source with a C extension, from the folder alone, twice, verified inside, by digest back."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.container.storage import BASE, PYTHON, Storage, registry, storage_in
from tests.e2e.world import World
from tests.node.forge import FILES, PATCH
from tests.support.served import free_port, listening

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
PLACE = ("--base-image", BASE, "--fetch-image", BASE, "--python", f"/usr/bin/python{PYTHON}", "--glibc", "2.36")
LONG = 400.0
LOOK = "cat /root/.netrc; grep -rs s3cret-canary /etc /root /run /var /opt/envbuild"


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory, run_folder: Path) -> Iterator[Storage]:
    """Images of this module."""
    with storage_in(tmp_path_factory.mktemp("images"), run_folder, compiler=True) as storage:
        yield storage


@pytest.fixture
def site(world: World, storage: Storage) -> World:
    """The stack `tiny` on the base's Python: a wheel, an edited source with an extension, a tree on Python's path."""
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


def make_bundle(world: World, storage: Storage) -> Path:
    """The bundle of the stack as a folder, with all that the build needs, as an air-gapped user has it."""
    house = world.top / "house"
    shutil.rmtree(house, ignore_errors=True)
    links = f"{world.wheels} {storage.uv()}"
    words = ("bundle", "create", "./tiny.yaml", "--engine", "container", "--trust-environment", "-o", str(house))
    world.good(*words, env={"PIP_FIND_LINKS": links})
    return house


def _without_sources(world: World, house: Path) -> None:
    """The folder is then no bundle, but one with files of the user's; this machine does not keep the sources either."""
    (house / "bundle.json").unlink()
    shutil.rmtree(house / "sources")
    shutil.rmtree(world.home / ".cache" / "envbuild" / "artifacts")


@contextmanager
def git_server(world: World) -> Iterator[Path]:
    """The repositories on a port of this machine; a git configuration that leads there."""
    port = free_port()
    words = ["daemon", "--export-all", f"--base-path={world.hub}", "--listen=127.0.0.1", f"--port={port}"]
    with listening(["git", *words], "127.0.0.1", port):
        config = world.top / "server.gitconfig"
        config.write_text(f'[url "git://127.0.0.1:{port}/"]\n\tinsteadOf = https://git.example.org/\n')
        yield config


def _build(world: World, house: Path, *more: str) -> dict[str, Any]:
    words = ("image", "build", "./tiny.yaml", *PLACE, "--wheelhouse", str(house), "--json", *more)
    return world.good(*words, timeout=LONG).json


def test_one_image_twice_by_envbuild_and_from_its_folder_alone(site: World, storage: Storage) -> None:
    house = make_bundle(site, storage)
    (site.top / "netrc").write_text("machine example.org login me password s3cret-canary\n")
    site.env["NETRC"] = str(site.top / "netrc")
    first = _build(site, house, "--no-cache", "--tag", "localhost/tiny/one:1")
    # Neither a secret nor anything of envbuild is in it.
    nothing = "find / -xdev -name '*.pyz' -o -xdev -path '*envbuild/node*'"
    assert _run(storage, "sh", "-c", f"{{ {LOOK}; {nothing}; }} 2>/dev/null; true") == ""
    assert "s3cret-canary" not in storage.buildah("inspect", "--type", "image", "localhost/tiny/one:1")

    found = site.good(
        "image", "verify", "localhost/tiny/one:1", "-s", "./tiny.yaml", "--smoke", "--json", timeout=LONG
    ).json
    assert found["ok"] and {check["status"] for check in found["checks"]} == {"passed"}
    assert [check["name"] for check in found["checks"]] == ["packages", "files", "bytecode"]
    assert [check["name"] for check in found["smoke"]["checks"]] == ["smoke/sound", "smoke/sound/closure"]

    code = "import os, sys, quick._fast as f; print(f.answer(), os.getuid(), os.environ['TINY'], sys.prefix)"
    inside = _run(storage, "python", "-c", code)
    assert inside.startswith('42 10001 a "b" $HOME \\ /opt/envbuild/envs/tiny-exact-')
    environment = inside.split()[-1]
    assert "KIND = float" in _run(storage, "cat", f"{environment}/lib/python{PYTHON}/site-packages/quick/old.py")
    data = f"{environment}/src/tree/data"
    _run(storage, "sh", "-ec", f"touch {data}/own.so {data}/../out/own; echo new > {data}/old.so")  # in place
    _tampered(site, storage, environment)

    # What changes is rebuilt.
    _stack(site, {**FILES, "fast.c": FILES["fast.c"].replace("42", "43")})
    make_bundle(site, storage)
    second = _build(site, house, "--tag", "localhost/tiny/one:2", "--verify")
    assert second["id"] != first["id"]
    other = site.run("image", "verify", "localhost/tiny/one:1", "-s", "./tiny.yaml", timeout=LONG)
    assert (other.rc, other.code) == (7, "image-of-another-lock")
    root = second["verified"]["root"]
    not_podman = _podman_builds_the_same_environment(site, house, root)

    # With the layers that were kept it is the image of a build without. This time git fetches the sources from a
    # mirror, by insteadOf of the named configuration.
    _without_sources(site, house)
    with git_server(site) as config:
        again = _build(site, house, "--no-cache", "--tag", "localhost/tiny/two:1", "--gitconfig", str(config))
        by_hand = _from_its_folder(site, storage, house, config)
    assert (again["id"], _root(site, by_hand)) == (second["id"], root)

    assert storage.buildah("containers", "--quiet") == ""  # no build leaves one behind
    _pushed_image_comes_back(site, storage, str(second["id"]))
    if not_podman:
        pytest.skip(f"the image was built, verified and pushed; podman did not build it: {not_podman}")


def _root(world: World, image: str, builder: str = "buildah") -> str:
    """What `image verify` reads inside."""
    words = ("image", "verify", image, "-s", "./tiny.yaml", "--builder", builder, "--json")
    return str(world.good(*words, timeout=LONG).json["root"])


def _from_its_folder(world: World, storage: Storage, house: Path, config: Path) -> str:
    """What `image dockerfile -o` writes, built by buildah alone; the name of the image."""
    folder = world.top / "a folder"
    world.good("image", "dockerfile", "./tiny.yaml", *PLACE, "-o", str(folder))
    assert world.good("image", "dockerfile", "./tiny.yaml", *PLACE, "-o", str(folder), "--check").rc == 0
    texts = "".join(path.read_text() for path in folder.rglob("*") if path.is_file())
    assert FILES["quick/old.py"] not in texts, "no line of a source"
    (world.top / "pip.conf").write_text("[global]\nno-index = true\n")
    (world.top / "uv.toml").write_text("[pip]\nno-index = true\n")
    secrets = [f"--secret=id={name},src={world.top / name}" for name in ("pip.conf", "uv.toml")]
    always = ["--isolation", "chroot", "--pull-never", "--timestamp", "315532800", "--network", "host"]
    words = [*always, f"--build-context=wheelhouse={house}", *secrets, f"--secret=id=gitconfig,src={config}"]
    # With the layers that envbuild has built: another Dockerfile or another context would find none.
    storage.buildah("build", "-q", "--layers", *words, "-t", "localhost/hand:1", str(folder))
    return "localhost/hand:1"


def _tampered(world: World, storage: Storage, environment: str) -> None:
    """One changed file in an image is named."""
    container = storage.buildah("from", "--pull-never", "localhost/tiny/one:1")
    path = f"lib/python{PYTHON}/site-packages/quick/old.py"
    words = ("--user", "root", "--isolation", "chroot", container, "--", "sh", "-c")
    storage.buildah("run", *words, f"echo x=1 >> {environment}/{path}")
    storage.buildah("commit", "-q", container, "localhost/tiny/changed:1")
    storage.buildah("rm", container)
    words = ("image", "verify", "localhost/tiny/changed:1", "-s", "./tiny.yaml", "--json")
    done = world.run(*words, timeout=LONG)
    assert done.rc == 1 and [row["path"] for row in done.json["drift"]] == [path]


def _run(storage: Storage, *argv: str, image: str = "localhost/tiny/one:1") -> str:
    container = storage.buildah("from", "--pull-never", image)
    try:
        return storage.buildah("run", "--isolation", "chroot", container, "--", *argv)
    finally:
        storage.buildah("rm", container)


def _pushed_image_comes_back(world: World, storage: Storage, image: str) -> None:
    """Through a local registry, by the digest that the registry says."""
    with registry(world.top) as address:
        name = f"{address}/tiny"
        storage.buildah("push", "--tls-verify=false", "localhost/tiny/one:2", f"docker://{name}:1")
        from envbuild.container.registry import ask_image

        digest = ask_image(f"{name}:1", plain_http=True)[0]
        _a_digest_that_is_not_there(world, address)
        storage.buildah("rmi", "--force", image)  # by all of its names
        storage.buildah("pull", "--tls-verify=false", f"{name}@sha256:{digest}")
        back = storage.buildah("inspect", "--type", "image", "--format", "{{.FromImageID}}", f"{name}@sha256:{digest}")
        assert back == image


def _a_digest_that_is_not_there(world: World, address: str) -> None:
    config = world.top / "registries.conf"
    config.write_text(f'[[registry]]\nlocation = "{address}"\ninsecure = true\n')
    place = ["--base-image", f"{address}/tiny@sha256:{'0' * 64}", *PLACE[2:]]
    done = world.run(
        "image", "build", "./tiny.yaml", *place, env={"CONTAINERS_REGISTRIES_CONF": str(config)}, timeout=LONG
    )
    assert (done.rc, done.code) == (7, "image-base-unknown"), done.err


def _podman_builds_the_same_environment(site: World, house: Path, root: str) -> str | None:
    """Why podman builds nothing here, None where it did."""
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
    assert _root(site, "localhost/tiny/podman:1", "podman") == root
    return None


def test_a_build_that_fails_says_why(site: World, storage: Storage) -> None:
    house = make_bundle(site, storage)
    without = site.run("image", "build", "./tiny.yaml", *PLACE, "--python", "/usr/bin/python3.99",
                       "--wheelhouse", str(house), timeout=LONG)  # fmt: skip
    assert (without.rc, without.code) == (7, "image-without-python"), without.err
    _stack(site, {**FILES, "quick/old.py": "KIND = float\n"})
    make_bundle(site, storage)
    done = site.run("image", "build", "./tiny.yaml", *PLACE, "--wheelhouse", str(house), timeout=LONG)
    assert (done.rc, done.code) == (4, "image-build-failed") and "found 0 places" in done.err, done.err
    _stack(site, FILES)
    make_bundle(site, storage)
    # A wrong file in the wheelhouse is not taken, whatever its name says.
    (wheel,) = house.glob("wheels/alpha-*.whl")
    wheel.write_bytes(wheel.read_bytes() + b"x")
    (site.wheels / wheel.name).write_bytes(wheel.read_bytes())
    wrong = site.run("image", "build", "./tiny.yaml", *PLACE, "--wheelhouse", str(house), "--no-cache", timeout=LONG)
    assert wrong.rc in (4, 5, 75)  # there may be an index, and it has another file or none
    assert "alpha" in wrong.err
