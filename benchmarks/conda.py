"""The engine conda: what it costs over py-rattler called by hand (goal: <= 2 s), and a no-op against that of a venv."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import Case, measure, print_table, program, ratio, spread
from benchmarks.noop import small_stack
from tests.fleet.standalone import make_standalone_python
from tests.support.conda import Channel, make_python

# The same archives from the same folder; the cache is warm from the run before, and files are linked to it.
_BY_HAND = """
import asyncio, os, sys
from pathlib import Path
from rattler import RepoDataRecord, install
async def put():
    archives = sorted(Path(sys.argv[1]).glob("*/*.conda"))
    records = [await RepoDataRecord.from_package_archive(each) for each in archives]
    await install(records, sys.argv[2], cache_dir=sys.argv[3], show_progress=False)
asyncio.run(put())
os._exit(0)  # threads of rattler may crash an interpreter that ends as usual
"""


def main() -> None:
    """A Python of some 3000 files, two small packages and one wheel, built again and again; then nothing to do."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        channel = _channel(folder)
        venv = small_stack(folder)
        stack = _with_conda(venv, channel)
        env = {**os.environ, "ENVBUILD_RUNS": f"{folder}/runs", "ENVBUILD_PREFIX": f"{folder}/prefix"}
        for each in (venv, stack):
            subprocess.run([program("envbuild"), "lock", "create", str(each)], env=env, check=True, capture_output=True)
        cold = [_provision(each, env, folder / f"{each.stem}-cold") for each in (stack, venv)]
        again = [_provision(each, env, folder / f"{each.stem}-again", keep=True) for each in (stack, venv)]
        by_hand = Case(
            "py-rattler by hand",
            [sys.executable, "-c", _BY_HAND, str(channel.folder), f"{folder}/by-hand", f"{folder}/cache"],
            before=lambda: shutil.rmtree(folder / "by-hand", ignore_errors=True),
        )
        samples = measure([by_hand, *cold, *again], runs=5)
    hand, conda, plain, noop, noop_plain = (samples[case.name] for case in (by_hand, *cold, *again))
    print_table(
        "engine conda (n = 5)",
        ["command", "wall s", "CPU s", "against"],
        [
            [by_hand.name, spread(hand.wall), spread(hand.cpu), ""],
            [cold[1].name, spread(plain.wall), spread(plain.cpu), ""],
            [cold[0].name, spread(conda.wall), spread(conda.cpu), f"{ratio(conda.wall, plain.wall):.2f} of the venv"],
            [again[1].name, spread(noop_plain.wall), spread(noop_plain.cpu), ""],
            [
                again[0].name,
                spread(noop.wall),
                spread(noop.cpu),
                f"{ratio(noop.wall, noop_plain.wall):.2f} of the venv",
            ],
        ],
    )


def _provision(stack: Path, env: dict[str, str], prefix: Path, *, keep: bool = False) -> Case:
    engine = ["--engine", "conda"] if "conda" in stack.stem else []
    what = "conda" if engine else "venv"
    argv = [program("envbuild"), "provision", "--stack", str(stack), "--prefix", str(prefix), *engine]
    before = None if keep else lambda: shutil.rmtree(prefix / "envs", ignore_errors=True)
    return Case(f"{'no-op' if keep else 'cold'} provision, {what}, tools there", argv, before=before, env=env)


def _channel(folder: Path) -> Channel:
    made = folder / "standalone"
    make_standalone_python(made)
    channel = Channel(folder / "forge", "forge")
    python = make_python(made / "python.tar.gz", folder / "tree")
    channel.add(python)
    return channel


def _with_conda(venv: Path, channel: Channel) -> Path:
    path = venv.with_name("small-conda.yaml")
    section = f"    conda: {{channels: [{{name: forge, url: '{channel.url}'}}], only: true}}\n"
    path.write_text(venv.read_text() + section)
    return path


if __name__ == "__main__":
    main()
