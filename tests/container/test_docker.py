"""The documented lines of docker, bake and compose, as they are written, with a daemon of their own and a small stack
under the name that they have. buildah does the same in `test_two_forms.py`."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from envbuild.container import build_context, checkout, plain
from envbuild.container.select import Choice, recipe_for
from tests.container.storage import PYTHON, Storage
from tests.container.test_images import bundle
from tests.container.test_two_forms import GIVEN, PIP_BASE, PLACE, REPOSITORY, storage
from tests.e2e.world import World
from tests.node.forge import FILES, PATCH
from tests.support.patience import PATIENCE, until
from tests.test_snippets_others import shown

__all__ = ["storage"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
NAME = "torch-smoke"
SAYS = "import alpha, os; print(alpha.__name__, os.getuid(), os.environ['ENVBUILD_STACK'])"


def _docker(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **more}
    return subprocess.run(["docker", *words], env=env, capture_output=True, text=True, timeout=280, check=False)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """DOCKER_HOST of a daemon with a network of its own, which leaves nothing behind."""
    missing = [name for name in ("dockerd", "containerd", "runc", "docker", "unshare") if shutil.which(name) is None]
    if not missing:
        missing = [f"docker {name}" for name in ("buildx", "compose") if _docker(name, "version").returncode]
    if missing:
        pytest.skip(
            f"missing programs: {', '.join(missing)} (Debian 13: docker.io docker-cli docker-buildx docker-compose)"
        )
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
    storage.buildah("push", "-q", PIP_BASE, f"docker-archive:{archive}:{PIP_BASE}")
    assert _docker("load", "-i", str(archive), DOCKER_HOST=daemon).returncode == 0
    return daemon


def test_a_rebuild_by_docker_makes_the_last_part_alone_from_what_is_mounted(
    world: World, storage: Storage, loaded: str
) -> None:
    world.env |= {"DOCKER_HOST": loaded}
    house = storage.house(world.top)
    shutil.copy(world.wheel(), house)
    images = []
    for number in (42, 43):
        files = {**FILES, "fast.c": FILES["fast.c"].replace("42", str(number))}
        source = {**world.repository("quick", files), "ref": "main", "patches": [PATCH]}
        source |= {"build": {"kind": "wheel", "extensions": ["quick._fast"]}}
        tree = {**world.repository("tree", {"tree.py": f"NUMBER = {number}\n"}), "ref": "main", "install": "path"}
        world.lock(world.stack(python=[PYTHON], sources=[source, tree], imports=["quick._fast"]))
        bundle(world, house)
        words = ["./tiny.yaml", *PLACE, "--wheelhouse", str(house), "--builder", "docker", "--json"]
        images.append(world.good("image", "build", *words, timeout=280).json)
        code = "import quick._fast as f, os; print(f.answer(), os.getuid())"
        tag = str(images[-1]["image"])
        done = _docker("run", "--rm", "--network", "none", tag, "python", "-c", code, DOCKER_HOST=loaded)
        assert done.stdout == f"{number} 10001\n", done.stderr
    there = {part for part, seconds in images[1]["seconds"].items() if not seconds}
    assert there == {"fetch", "packages", "installed"} and all(images[0]["seconds"][part] for part in there)


def test_the_lines_of_docker_bake_and_compose_run_as_they_are_written(
    world: World, storage: Storage, loaded: str
) -> None:
    house = storage.house(world.top)
    shutil.copy(world.wheel(), house)
    stack = world.stack(name=NAME, imports=["alpha"])
    world.lock(stack)
    recipe = recipe_for(Choice(str(stack), given=GIVEN))
    clone = world.top / "a clone"
    words = ["git", "clone", "-q", "--no-hardlinks", "--depth", "1", REPOSITORY.as_uri(), str(clone)]
    subprocess.run(words, check=True, capture_output=True)
    shutil.rmtree(clone / "containers")
    folder = clone / "containers" / NAME
    texts = plain.texts(plain.make_plain(recipe))
    build_context.write(checkout.from_checkout(recipe), folder, program=False, more=texts)
    for name, text in checkout.shared([recipe]).items():
        (clone / name).write_text(text)
    more = _what_a_reader_has(world, house, clone, loaded)

    def run(line: str, stdin: str = "") -> str:
        done = subprocess.run(
            ["bash", "-ec", line], cwd=clone, env={**os.environ, **more}, input=stdin, capture_output=True, text=True,
            timeout=280, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (line, done.stdout[-1500:], done.stderr[-1500:])
        return done.stdout

    ours, bare = shown("containers.md", "docker build ")
    for line, says in ((ours, SAYS), (bare, SAYS.replace("os.environ['ENVBUILD_STACK']", repr(NAME)))):
        run(line)
        made = (world.top / "id").read_text()
        assert run(f"docker run --rm --network none {made} python -c {shlex.quote(says)}") == f"alpha 10001 {NAME}\n"
    (bake,) = shown("containers.md", "docker buildx bake ")
    run(bake)
    assert run(f"docker run --rm --network none {recipe.tag} python -c {shlex.quote(SAYS)}") == f"alpha 10001 {NAME}\n"
    (compose,) = shown("containers.md", "docker compose ")
    assert run(compose, stdin=SAYS) == f"alpha 10001 {NAME}\n"
    run(f"docker rmi -f {recipe.tag}")
    assert run(compose, stdin=SAYS).endswith(f"\nalpha 10001 {NAME}\n"), "it builds an image that is missing"


def _what_a_reader_has(world: World, house: Path, clone: Path, daemon: str) -> dict[str, str]:
    """The wheels in a folder and pip told to ask nobody else, for each of the programs in its own words."""
    files = {"pip.conf": "[global]\nno-index = true\nfind-links = /wheelhouse\n", "uv.toml": "[pip]\nno-index = true\n"}
    for name, text in files.items():
        (world.top / name).write_text(text)
    secrets = [f"id={name},src={world.top / name}" for name in files]
    contexts = {"wheelhouse": str(house)}
    override = f'target "{NAME}" {{\n  contexts = {json.dumps(contexts)}\n  secret = {json.dumps(secrets)}\n}}\n'
    (clone / "docker-bake.override.hcl").write_text(override.replace('": "', '" = "'))
    build = {"additional_contexts": contexts, "secrets": list(files)}
    named = {name: {"file": str(world.top / name)} for name in files}
    (world.top / "more.json").write_text(json.dumps({"services": {NAME: {"build": build}}, "secrets": named}))
    options = [f"--build-context=wheelhouse={house}", f"--iidfile={world.top / 'id'}"]
    options += [f"--secret={secret}" for secret in secrets]
    program = world.top / "programs" / "docker"
    program.parent.mkdir()
    real = shlex.quote(str(shutil.which("docker")))
    program.write_text(
        f'#!/bin/sh\n[ "$1" = build ] || exec {real} "$@"\nshift\nexec {real} build {shlex.join(options)} "$@"\n'
    )
    program.chmod(0o755)
    path = f"{program.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {"DOCKER_HOST": daemon, "PATH": path, "COMPOSE_FILE": f"compose.yaml:{world.top / 'more.json'}"}
