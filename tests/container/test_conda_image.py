"""A real image of the engine conda: everything from folders of this machine, built without a network."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envbuild.catalog.toolchain import load_toolchain
from tests.container.mirror import mirror
from tests.container.storage import BASE, PYTHON, Storage, storage_in
from tests.e2e.world import MINOR, World
from tests.node.forge import ACTIVATED, FILES, PATCH
from tests.support.conda import Channel, fill

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
ANSWER = "python -c 'import quick._fast as f; print(f.answer())'"
PLACE = ("--base", BASE, "--fetch-image", BASE, "--python", f"/usr/bin/python{PYTHON}", "--glibc", "2.36")


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory, run_folder: Path) -> Iterator[Storage]:
    """Images of this module."""
    with storage_in(tmp_path_factory.mktemp("images"), run_folder, compiler=True) as storage:
        yield storage


def tools_into(house: Path) -> None:
    """The wheels of uv and py-rattler that the toolchain names."""
    wanted = house / "requirements.txt"
    pins = [("uv", load_toolchain().uv[0]), ("py-rattler", load_toolchain().rattler[0])]
    wanted.write_text("".join(f"{name}=={pin.version} --hash=sha256:{pin.sha256}\n" for name, pin in pins))
    words = ["download", "-q", "--no-deps", "--require-hashes", "-d", str(house), "-r", str(wanted)]
    done = subprocess.run([sys.executable, "-m", "pip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"the wheels of the tools are not available here: {done.stderr[-200:]}")


def test_a_conda_environment_in_an_image_is_verified_there(world: World, storage: Storage, conda_python: Path) -> None:
    if MINOR != PYTHON:
        pytest.skip(f"the image has Python {PYTHON}, the conda package is of {MINOR}")
    world.env |= storage.env
    channel = fill(Channel(world.top / "forge", "forge"), conda_python)
    tools_into(world.wheels)
    world.wheel(scripts={"alpha-run": "alpha:main"})
    section: dict[str, Any] = {"channels": [{"name": "forge", "url": channel.url}], "packages": ["tool", "pure"]}
    build = {"kind": "wheel", "extensions": ["quick._fast"]}
    quick = {**world.repository("quick", {**FILES, **ACTIVATED}), "ref": "main", "patches": [PATCH], "build": build}
    imports = ["alpha", "pure", "quick._fast", "quick.activated"]
    world.lock(world.stack(conda={**section, "only": True}, sources=[quick], imports=imports))
    with mirror(world, "quick") as config:
        words = (*PLACE, "--gitconfig", str(config), "--tag", "localhost/tiny:1", "--json")
        world.good("image", "build", "./tiny.yaml", *words, timeout=400.0)
    found = world.good("image", "verify", "localhost/tiny:1", "--smoke", "--json", timeout=400.0).json
    assert found["ok"] and {check["status"] for check in found["checks"]} == {"passed"}
    container = storage.buildah("from", "--pull-never", "localhost/tiny:1")
    words = (
        "/bin/sh",
        "/opt/envbuild/image/entrypoint.sh",
        "sh",
        "-c",
        f"pure-run; echo $TOOL_HOME; which python; {ANSWER}",
    )
    said = storage.buildah("run", "--isolation", "chroot", container, "--", *words).split()
    storage.buildah("rm", container)
    assert (said[0], said[3]) == ("pure", "7") and "/envs/tiny-exact-" in said[1] + said[2]
