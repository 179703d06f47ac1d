"""docker builds what buildah builds in `test_images.py`, with a daemon of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from tests.container.storage import BASE, PYTHON, Storage
from tests.container.test_images import PLACE, make_bundle, storage
from tests.e2e.world import World
from tests.node.forge import FILES, PATCH
from tests.support.patience import PATIENCE, until
from tests.support.programs import completed

__all__ = ["storage"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def _docker(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **more}
    return completed(["docker", *words], env=env, timeout=280)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """DOCKER_HOST of a daemon with a network of its own, which leaves nothing behind."""
    missing = [name for name in ("dockerd", "containerd", "runc", "docker", "unshare") if shutil.which(name) is None]
    if not missing:
        missing = [f"docker {name}" for name in ("buildx",) if _docker(name, "version").returncode]
    if missing:
        pytest.skip(f"missing programs: {', '.join(missing)} (Debian 13: docker.io docker-cli docker-buildx)")
    if os.geteuid() != 0:
        pytest.skip("dockerd needs root, and this is a plain user")
    top = tmp_path_factory.mktemp("docker")
    host = f"unix://{top}/socket"
    words = ["unshare", "--net", "dockerd", "--data-root", f"{top}/data", "--exec-root", f"{top}/exec", "-H", host]
    words += ["--pidfile", f"{top}/pid", "--iptables=false", "--ip6tables=false"]
    with (top / "log").open("wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        until(lambda: process.poll() is not None or _docker("info", DOCKER_HOST=host).returncode == 0)
        if process.poll() is not None:
            pytest.skip(f"dockerd does not start here: {(top / 'log').read_text()[-300:]}")
        yield host
    finally:
        process.terminate()
        process.wait(PATIENCE)
        shutil.rmtree(top, ignore_errors=True)


@pytest.fixture(scope="module")
def loaded(storage: Storage, daemon: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same with the base in it."""
    archive = tmp_path_factory.mktemp("base") / "base.tar"
    storage.buildah("push", "-q", BASE, f"docker-archive:{archive}:{BASE}")
    assert _docker("load", "-i", str(archive), DOCKER_HOST=daemon).returncode == 0
    return daemon


def test_docker_builds_the_folder_alone_and_the_image_verifies(world: World, storage: Storage, loaded: str) -> None:
    world.wheel()
    source = {**world.repository("quick", FILES), "ref": "main", "patches": [PATCH]}
    source |= {"build": {"kind": "wheel", "extensions": ["quick._fast"]}}
    tree = {**world.repository("tree", {"tree.py": ""}), "ref": "main", "install": "path"}
    world.lock(world.stack(python=[PYTHON], sources=[source, tree], imports=["quick._fast"]))
    house = make_bundle(world, storage)
    world.good("image", "dockerfile", "./tiny.yaml", *PLACE, "-o", "image")
    (world.top / "pip.conf").write_text("[global]\nno-index = true\n")
    (world.top / "uv.toml").write_text("[pip]\nno-index = true\n")
    words = [f"--secret=id={name},src={world.top / name}" for name in ("pip.conf", "uv.toml")]
    words += [f"--build-context=wheelhouse={house}", "-t", "tiny", str(world.work / "image")]
    done = _docker("build", *words, DOCKER_HOST=loaded)
    assert done.returncode == 0, done.stderr[-3000:]
    world.env |= {"DOCKER_HOST": loaded}
    found = world.good("image", "verify", "tiny", "-s", "./tiny.yaml", "--builder", "docker", "--smoke", "--json").json
    assert found["ok"]
    made = world.good("image", "build", "./tiny.yaml", *PLACE, "--wheelhouse", str(house), "--builder", "docker",
                      "--verify", "--json", timeout=280).json  # fmt: skip
    assert made["verified"]["root"] == found["root"]
