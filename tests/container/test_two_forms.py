"""One stack as an image in both forms, from a fresh clone, each twice: a wheel, a patched source with an extension."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from envbuild.container import build_context, checkout
from envbuild.container.plain import DOCKERFILE
from envbuild.container.select import Choice, recipe_for
from envbuild.container.stage_images import Given
from tests.container.storage import BASE, PYTHON, Storage, storage_in
from tests.e2e.world import World
from tests.node.forge import FILES, PATCH
from tests.support.patience import PATIENCE, answers, until

REPOSITORY = Path(__file__).parents[2]
PIP_BASE = "localhost/envbuild/test-base-pip"
GIVEN = Given(base=PIP_BASE, fetch=PIP_BASE, python=f"/usr/bin/python{PYTHON}", glibc="2.36")
PLACE = ("--base", PIP_BASE, "--fetch-image", PIP_BASE, "--python", str(GIVEN.python), "--glibc", "2.36")

# What docs/containers.md says of the two forms: envbuild's own records, and what is written where code is compiled.
DIFFERS = re.compile(
    r"\.envbuild(/.*)?|\.lock|lib/.*/quick-1\.0\.dist-info/(RECORD|direct_url\.json)|lib/.*/_fast\..*\.so"
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory, run_folder: Path) -> Iterator[Storage]:
    """Images of this module; the base has pip, as the official images of Python have."""
    with storage_in(tmp_path_factory.mktemp("forms"), run_folder, compiler=True) as storage:
        top = tmp_path_factory.mktemp("pip")
        _download(top, "pip")
        file = top / "Dockerfile"
        install = f"PYTHONPATH=$(ls /pip-*.whl) python{PYTHON} -m pip install --no-index /pip-*.whl"
        file.write_text(f"FROM {BASE}\nCOPY pip-*.whl /\nRUN rm -f /usr/lib/python3*/EXTERNALLY-MANAGED && {install}\n")
        storage.buildah("bud", "-q", "--isolation", "chroot", "-f", str(file), "-t", PIP_BASE, str(top))
        yield storage


def _download(folder: Path, *words: str) -> None:
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{words[-1]} is not available here: {done.stderr[-200:]}")


@contextmanager
def git_server(world: World) -> Iterator[Path]:
    """The repositories on a port of this machine; a git configuration that leads there."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ["daemon", "--export-all", f"--base-path={world.hub}", "--listen=127.0.0.1", f"--port={port}"]
    process = subprocess.Popen(["git", *words], stderr=subprocess.DEVNULL)
    try:
        until(lambda: answers("127.0.0.1", port))
        config = world.top / "server.gitconfig"
        config.write_text(f'[url "git://127.0.0.1:{port}/"]\n\tinsteadOf = https://git.example.org/\n')
        yield config
    finally:
        process.terminate()
        process.wait(PATIENCE)


def test_both_forms_are_built_twice_with_one_id_and_give_one_environment(world: World, storage: Storage) -> None:
    world.env |= storage.env
    house = storage.house(world.top)
    shutil.copy(world.wheel(files={"alpha/__init__.py": b"", "alpha/tests/test_it.py": b""}), house)
    pin = world.repository("quick", FILES)
    source = {**pin, "patches": [PATCH], "build": {"kind": "wheel", "extensions": ["quick._fast"]}}
    path = {**world.repository("tree", {"tree.py": "ANSWER = 42\n"}), "install": "path"}
    stack = world.stack(python=[PYTHON], sources=[source, path], imports=["quick._fast"], environment={"TINY": "a b"})
    world.lock(stack)

    # From a fresh clone, with what is committed of a shipped stack and nothing else; its path has a space.
    clone = world.top / "a clone"
    words = ["git", "clone", "-q", "--no-hardlinks", "--depth", "1", REPOSITORY.as_uri(), str(clone)]
    subprocess.run(words, check=True, capture_output=True)
    made = checkout.from_checkout(recipe_for(Choice(str(stack), given=GIVEN, slim=True)))
    build_context.write(made, clone / "containers" / "tiny", program=False)
    plain = world.top / "plain"
    said = world.good("image", "dockerfile", "./tiny.yaml", *PLACE, "--slim", "--plain", "-o", str(plain))
    assert "patches/quick.patch" in said.out and "not written" not in said.err

    (world.top / "pip.conf").write_text("[global]\nno-index = true\nfind-links = /wheelhouse\n")
    (world.top / "uv.toml").write_text("[pip]\nno-index = true\n")
    with git_server(world) as config:
        secrets = [f"--secret=id={name},src={world.top / name}" for name in ("pip.conf", "uv.toml")]
        common = [f"--build-context=wheelhouse={house}", *secrets, f"--secret=id=gitconfig,src={config}"]
        ids: dict[str, set[str]] = {"ours": set(), "plain": set()}
        for number in "12":
            for name, file, context in (
                ("ours", clone / "containers" / "tiny" / "Dockerfile", clone),
                ("plain", plain / DOCKERFILE, plain),
            ):
                tag = f"localhost/{name}:{number}"
                always = ["--isolation", "chroot", "--no-cache", "--timestamp", "315532800", "--network", "host"]
                ids[name].add(
                    storage.buildah("bud", "-q", *always, *common, "-f", str(file), "-t", tag, str(context)).split()[-1]
                )
    assert [len(each) for each in ids.values()] == [1, 1]

    found = world.good("image", "verify", "localhost/ours:1", "--smoke", "--json", timeout=300).json
    assert found["ok"], found
    (left_out,) = (check["details"]["paths"] for check in found["checks"] if check["name"] == "left-out")
    assert [path.partition("site-packages/")[2] for path in left_out] == ["alpha/tests/test_it.py"]
    for name in ids:
        code = "import os, quick._fast as f, tree; print(f.answer(), tree.ANSWER, os.getuid(), os.environ['TINY'])"
        container = storage.buildah("from", "--pull-never", f"localhost/{name}:1")
        said = storage.buildah(
            "run", "--isolation", "chroot", container, "--", f"{made.environment}/bin/python", "-c", code
        )
        assert said == "42 42 10001 a b"
        storage.buildah("rm", container)

    # The Dockerfile of three lines that docs/containers.md has for CI.
    user = world.top / "user"
    user.mkdir()
    (user / "Dockerfile").write_text("FROM localhost/ours:1\nCOPY . .\nRUN python -m unittest\n")
    case = "import os, unittest\nimport quick._fast\n\n\nclass It(unittest.TestCase):\n    def test(self) -> None:\n"
    (user / "test_it.py").write_text(
        f"{case}        self.assertEqual((quick._fast.answer(), os.getuid()), (42, 10001))\n"
    )
    assert storage.buildah("bud", "-q", "--isolation", "chroot", "-t", "localhost/user:1", str(user))

    differ = world.run("image", "diff", "--environment", "localhost/ours:1", "localhost/plain:1", "--json", timeout=300)
    assert differ.rc == 1
    assert {row["path"] for row in differ.json["files"] if not DIFFERS.fullmatch(row["path"])} == set()
