"""Cold: provision 25 usual packages (warm wheel cache) against pip and bare uv by hand, in one run.

Goals: <= 0.5x of `python -m venv` + `pip install --require-hashes`; at most 4 s more than bare uv.
`--torch` reports the same for torch-smoke's CPU variant.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import Case, measure, print_table, program, ratio, spread

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


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        stack, variant = _stack(folder, torch=options.torch)
        env = {**os.environ, "ENVBUILD_PREFIX": f"{folder}/prefix", "ENVBUILD_RUNS": f"{folder}/runs"}
        env["ENVBUILD_CACHE"] = f"{folder}/cache"
        export = [program("envbuild"), "lock", "export", stack, "--variant", variant, "--format", "requirements"]
        requirements = folder / "requirements.txt"
        requirements.write_bytes(subprocess.run(export, check=True, capture_output=True, env=env).stdout)
        wheels = folder / "wheels"
        download = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--require-hashes", "-d", str(wheels)]
        subprocess.run([*download, "-r", str(requirements)], check=True)
        provision = [program("envbuild"), "provision", "--target", "local", "--stack", stack, "--variant", variant]
        ours = Case(
            "envbuild provision",
            [*provision, "--quiet"],
            before=lambda: shutil.rmtree(folder / "prefix", ignore_errors=True),
            env={**env, "PIP_FIND_LINKS": str(wheels)},
        )
        cases = [ours, *_pip_cases(folder, requirements, wheels)]
        samples = measure(cases, runs=options.runs)
    envbuild, pip, uv = samples.values()
    over = sorted(a - b for a, b in zip(envbuild.wall, uv.wall, strict=True))[len(uv.wall) // 2]
    print_table(
        f"cold, {'torch-smoke (CPU)' if options.torch else '25 packages'}, warm wheel cache (n = {options.runs})",
        ["command", "wall s", "CPU s", "envbuild is", "goal"],
        [
            ["envbuild provision", spread(envbuild.wall), spread(envbuild.cpu), "", ""],
            [
                "python -m venv + pip",
                spread(pip.wall),
                spread(pip.cpu),
                f"{ratio(envbuild.wall, pip.wall):.2f}x",
                "<= 0.5x",
            ],
            ["uv venv + uv pip install", spread(uv.wall), spread(uv.cpu), f"{over:+.1f} s", "<= +4 s"],
        ],
    )


if __name__ == "__main__":
    main()
