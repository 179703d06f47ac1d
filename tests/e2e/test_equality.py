"""Two builds of one lock are equal, whatever differs around them."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from tests.e2e.world import MINOR, PYTHON, World
from tests.support.programs import completed

_SCRIPT = {"alpha-tool": "alpha:main"}


@pytest.fixture
def moved_python(tmp_path: Path) -> Path:
    """The interpreter of the tests under another path: a folder of links to everything of the installation."""
    home = Path(completed([PYTHON, "-I", "-c", "import sys; print(sys.base_prefix)"], check=True).stdout.strip())
    place = tmp_path / "elsewhere" / "python"
    (place / "bin").mkdir(parents=True)
    for part in home.iterdir():
        if part.name != "bin":
            (place / part.name).symlink_to(part)
    copied = place / "bin" / f"python{MINOR}"
    shutil.copy(PYTHON, copied)
    said = completed([copied, "-I", "-c", "import sys, ctypes; print(sys.base_prefix)"])
    if said.stdout.strip() != str(place):
        pytest.skip(f"a copy of {PYTHON} does not run on its own: {said.stderr or said.stdout}")
    return copied


@pytest.mark.slow
def test_prefix_umask_cache_wheel_times_and_interpreter_path_do_not_matter(world: World, moved_python: Path) -> None:
    world.wheel(scripts=_SCRIPT)
    world.tiny()
    old = os.umask(0o022)
    try:
        first = world.built("--python", PYTHON, "--cache", str(world.top / "cache-1"))
        for wheel in world.wheels.iterdir():
            os.utime(wheel, (time.time() - 10**7,) * 2)
        os.umask(0o077)
        second = world.built(
            "--prefix", str(world.top / "another" / "place"), "--python", str(moved_python),
            "--cache", str(world.top / "cache-2"),
        )  # fmt: skip
    finally:
        os.umask(old)
    assert first["environment"] != second["environment"]
    tools = [Path(each["environment"]) / "bin" / "alpha-tool" for each in (first, second)]
    assert tools[0].read_bytes() != tools[1].read_bytes(), "console scripts name their interpreter"
    assert [completed([tool]).stdout for tool in tools] == ["1\n", "1\n"]
    links = {os.path.realpath(Path(each["environment"]) / "bin" / "python") for each in (first, second)}
    assert links == {PYTHON, str(moved_python)}
    assert (first["root"], first["variant_digest"]) == (second["root"], second["variant_digest"])
