"""Cold: provision 25 usual packages, whose wheels are at hand, against pip and bare uv by hand, in one run.

Goals: <= 0.21x of `python -m venv` + `pip install --require-hashes`; with `--cache` at most 4 s more than bare uv, both
with what uv unpacked before; at most 1.1x of the environment written where the tools are there.
`--torch` reports the same for torch-smoke's CPU variant.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from benchmarks.measure import Case, measure, print_table, program, ratio, spread, time_once

PACKAGES = (
    *("numpy", "scipy", "pandas", "matplotlib", "pillow", "requests", "pyyaml", "tqdm", "regex", "sympy", "networkx"),
    *("jinja2", "packaging", "click", "rich", "pydantic", "fsspec", "filelock", "typing-extensions", "protobuf"),
    *("psutil", "safetensors", "sentencepiece", "einops", "ninja"),
)


def _stack(folder: Path, *, torch: bool) -> tuple[str, str]:
    """(what `--stack` gets, variant to choose)."""
    if torch:
        return "torch-smoke", f"cp{sys.version_info[0]}{sys.version_info[1]}-linux_x86_64-cpu"
    path = folder / "usual.yaml"
    lines = "\n".join(f"      - {name}" for name in PACKAGES)
    path.write_text(
        "name: usual\nsummary: 25 usual packages\nprofiles:\n  exact:\n"
        f"    python: ['{sys.version_info[0]}.{sys.version_info[1]}']\n    packages:\n{lines}\n"
        "    imports: [numpy, yaml]\n"
    )
    subprocess.run([program("envbuild"), "lock", "create", str(path)], check=True, capture_output=True)
    return str(path), f"cp{sys.version_info[0]}{sys.version_info[1]}-linux_x86_64"


def _pip_cases(folder: Path, requirements: Path, wheels: Path) -> list[Case]:
    """The same by hand: pip from a wheelhouse (its own HTTP cache is not dependable everywhere), and bare uv."""
    uv, cache = program("uv"), folder / "uv-cache"

    def fresh(name: str) -> None:
        shutil.rmtree(folder / name, ignore_errors=True)

    options = f"--no-deps --require-hashes --no-index -f {wheels} -r {requirements}"
    pip = f"{folder}/pip-env/bin/python -m pip install -q {options}"
    by_uv = f"{uv} pip install -q --python {folder}/uv-env/bin/python --link-mode copy {options}"
    return [
        Case(
            "python -m venv + pip",
            ["sh", "-c", f"{sys.executable} -m venv {folder}/pip-env && {pip}"],
            before=lambda: fresh("pip-env"),
        ),
        Case(
            "uv venv + uv pip install",
            ["sh", "-c", f"{uv} venv -q -p {sys.executable} {folder}/uv-env && {by_uv}"],
            before=lambda: fresh("uv-env"),
            env={**os.environ, "UV_CACHE_DIR": str(cache)},
        ),
    ]


def _bytes_on_disk(top: Path) -> int:
    """Of all files and folders, each file once however many links it has."""
    found = {path.lstat() for path in (top, *top.rglob("*"))}
    return sum({each.st_ino: each.st_blocks * 512 for each in found}.values())


def _our_cases(folder: Path, provision: list[str], wheels: Path) -> list[Case]:
    """As it is, and with what uv unpacked kept from run to run, as bare uv keeps it."""
    env = {**os.environ, "ENVBUILD_PREFIX": f"{folder}/prefix", "ENVBUILD_RUNS": f"{folder}/runs"}
    env["PIP_FIND_LINKS"] = str(wheels)

    def fresh() -> None:
        shutil.rmtree(folder / "prefix", ignore_errors=True)

    cached = [*provision, "--cache", f"{folder}/cache"]
    return [Case("envbuild provision", provision, fresh, env), Case("envbuild provision --cache", cached, fresh, env)]


def _written(case: Case, prefix: Path) -> tuple[int, int]:
    """Bytes written to build an environment under a prefix that has the tools, and bytes of the environment."""

    def without_environment() -> None:
        for name in ("current", "envs"):
            shutil.rmtree(prefix / name)

    return time_once(replace(case, before=without_environment))[2], _bytes_on_disk(prefix / "envs")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        stack, variant = _stack(folder, torch=options.torch)
        export = [program("envbuild"), "lock", "export", stack, "--variant", variant, "--format", "requirements"]
        requirements = folder / "requirements.txt"
        requirements.write_bytes(subprocess.run(export, check=True, capture_output=True).stdout)
        wheels = folder / "wheels"
        download = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--require-hashes", "-d", str(wheels)]
        subprocess.run([*download, "-r", str(requirements)], check=True)
        provision = [program("envbuild"), "provision", "--target", "local", "--stack", stack, "--variant", variant]
        ours = _our_cases(folder, [*provision, "--quiet"], wheels)
        samples = measure([*ours, *_pip_cases(folder, requirements, wheels)], runs=options.runs)
        written, stays = _written(ours[0], folder / "prefix")
    cold, cached, pip, uv = samples.values()
    over = statistics.median(a - b for a, b in zip(cached.wall, uv.wall, strict=True))
    print_table(
        f"cold, {'torch-smoke (CPU)' if options.torch else '25 packages'}, wheels at hand (n = {options.runs})",
        ["command", "wall s", "CPU s", "against", "wall", "CPU", "goal"],
        [
            ["envbuild provision", spread(cold.wall), spread(cold.cpu), "pip", f"{ratio(cold.wall, pip.wall):.2f}x",
             f"{ratio(cold.cpu, pip.cpu):.2f}x", "<= 0.21x"],
            ["the same --cache", spread(cached.wall), spread(cached.cpu), "uv", f"{over:+.1f} s", "", "<= +4 s"],
            ["python -m venv + pip", spread(pip.wall), spread(pip.cpu), "", "", "", ""],
            ["uv venv + uv pip install", spread(uv.wall), spread(uv.cpu), "", "", "", ""],
        ],
    )  # fmt: skip
    print(
        f"  {written / 1e6:.0f} MB written for an environment of {stays / 1e6:.0f} MB: {written / stays:.2f}x (<= 1.1x)"
    )


if __name__ == "__main__":
    main()
