"""D89, as a researcher meets it: what a script wrote into the folder of a source is at the place that was said."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.e2e.world import World
from tests.support.files import write_file

pytestmark = pytest.mark.slow
PREPARE = """\
import os
os.makedirs("data", exist_ok=True)
with open("data/train.bin", "w") as out:
    out.write("tokens")
"""
WRITTEN = {"data/train.bin": "tokens", "out/ckpt.pt": "weights", "train.py": "LR = 2\n"}


def script(world: World) -> None:
    """What the README of the source says: prepare, train; and an edit by hand."""
    source = world.current / "src" / "nano"
    done = world.python(f"import os; os.chdir({str(source)!r}); exec(open('prepare.py').read()); print('done')")
    assert done == "done"
    write_file(source / "out" / "ckpt.pt", "weights")
    (source / "train.py").write_text("LR = 2\n")


def check(said: str, prefix: Path, count: int) -> None:
    """The files are in the folder that was named, which is the only one so far."""
    (folder,) = set(re.findall(rf"{re.escape(str(prefix))}/kept/[^\s:]+", said))
    assert {name: (Path(folder) / "src/nano" / name).read_text() for name in WRITTEN} == WRITTEN
    assert len(list((prefix / "kept").iterdir())) == count


@pytest.mark.parametrize("generated", [[], ["data/**", "out-*/**", "out/**"]], ids=["undeclared", "generated"])
def test_d89_files_of_a_script_survive_repair_version_change_prune_and_remove(
    tmp_path: Path, generated: list[str]
) -> None:
    world = World(tmp_path)
    source = world.repository("nano", {"prepare.py": PREPARE, "train.py": "LR = 1\n"})
    sources = [{**source, "install": "path", "generated": generated}]
    world.tiny(sources=sources)
    world.built()
    script(world)
    repaired = world.provision("--repair", rc=0)
    (warning,) = (text for text in repaired.json["warnings"] if "/kept/" in text)
    check(warning, world.prefix, 1)
    assert "/kept/" in (world.runs / repaired.json["run"] / "report.md").read_text()

    script(world)
    old = world.current
    world.wheel(version="2.0")
    world.lock(world.stack(packages=["alpha==2.0"], sources=sources))
    world.built()
    assert (old / "src/nano/out/ckpt.pt").exists(), "an older version stays until it is pruned"
    pruned = world.good("store", "clean", "--only", "environments", "--keep", "0s", "--yes")
    assert not old.exists()
    check(pruned.out, world.prefix, 2)

    script(world)
    second = world.current.with_name(f"{world.current.name}.2")
    shutil.copytree(world.current, second, symlinks=True)
    said = world.good("env", "remove", second.name).out
    assert (said, second.is_dir()) == (f"would remove {second}; `--yes` does it\n", True)
    world.good("env", "remove", second.name, "--yes")
    shutil.rmtree(world.prefix / "kept" / max(path.name for path in (world.prefix / "kept").iterdir()))
    shutil.copytree(world.current, second, symlinks=True)
    in_use = world.good("env", "remove", world.current.name).out
    assert in_use == f"would remove {world.current}; it is in use, so `--force --yes` does it\n"
    removed = world.good("env", "remove", world.current.name, "--force", "--yes", "--json")
    check(removed.json["notes"][0], world.prefix, 3)
    assert [path.name for path in (world.prefix / "envs").iterdir()] == [second.name]
