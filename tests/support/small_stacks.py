"""The shipped stacks with small contents, for commands that name the shipped ones.

Names, profiles, references and targets are the shipped ones; the contents of each profile are wheels and sources that
are made here, with programs in the shapes of the documents' own. On the machine of `Machine`, nvidia-smi prints a
recording of eight GPUs, and the interpreter on PATH has a torch that is a name and a version.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from envbuild import resources
from envbuild.catalog.yaml_load import read_yaml
from tests.e2e.world import MINOR, PYTHON, World
from tests.node.forge import FILES as EXTENSION
from tests.node.forge import need_compiler
from tests.support.files import write_file
from tests.support.often import ask_often
from tests.support.programs import executable
from tests.support.wheels import write_wheel

RECORDED = Path(__file__).parents[1] / "node" / "data"
GPUS = 8
BASES = [{"kind": "none"}, {"kind": "system", "provides": ["torch>=2.11,<2.12"]}]

# Stands in for torchrun, for the launcher of DeepSpeed and for mpiexec: the program runs once, with its own words.
LAUNCH = """
import os, runpy, sys


def main():
    script = next(word for word in sys.argv[1:] if word.endswith(".py"))
    sys.argv = sys.argv[sys.argv.index(script):]
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
"""
MPIEXEC = '#!/bin/sh\nwhile [ "${1#/}" = "$1" ]; do shift; done\nexec "$@"\n'
ALPA = """
import ast, sys
case = ast.literal_eval(sys.argv[1])
batch, count = case[1] // case[7], case[12]
assert case[7] * case[8] * case[11] in (2, 4, 8), case
print("Values: {'tflops': np.float64(%s), 'parameter_count': 1.3}" % (300 * batch / (batch + count)), flush=True)
"""
MEGATRON = """
import argparse
parser = argparse.ArgumentParser()
for name in ("train-iters", "global-batch-size", "seq-length"):
    parser.add_argument("--" + name, type=int, required=True)
parser.add_argument("--data-path", required=True)
args, _ = parser.parse_known_args()
for step in range(1, args.train_iters + 1):
    print(f" iteration {step:8}/{args.train_iters:8} | consumed samples: {step * args.global_batch_size:12} | elapsed "
          f"time per iteration (ms): 127.0 | lm loss: {6 - step / 100:.6E} | loss scale: 1.0 |", flush=True)
"""
METASEQ = """
import json, sys


def main():
    assert {"--benchmark", "--local"} <= set(sys.argv), sys.argv
    for number in range(8):
        row = {"num_updates": str(number), "loss": str(11 - number), "wps": "210000"}
        print(f"2026-11-23 10:00:0{number} | INFO | train_inner | {json.dumps(row)}", flush=True)
    print("2026-11-23 10:00:09 | INFO | metaseq.cli.train | done training in 9.0 seconds", flush=True)
"""
NANOGPT = """
import torch.distributed

for step in range(8):
    print(f"iter {step}: loss {4 - step / 10:.4f}, time 135.00ms, mfu 10.00%", flush=True)
"""
TOOL = """
import argparse
parser = argparse.ArgumentParser()
for name in ("input", "output-prefix", "vocab-file", "merge-file"):
    parser.add_argument("--" + name, required=True)
args, _ = parser.parse_known_args()
for end in (".bin", ".idx"):
    with open(args.output_prefix + "_text_document" + end, "w") as made:
        made.write(str(len(open(args.input).read()) + len(open(args.vocab_file).read())))
"""
RUNS = {"__init__": "", "launch": LAUNCH, "opt": METASEQ}
READS = "import os\nassert os.path.isfile(args.data_path + '.bin'), args.data_path\n"
PROGRAMS = {
    "alpa": {"osdi22_artifact/megatron/benchmark_gpt_one_case.py": ALPA},
    "megatron-deepspeed": {"pretrain_gpt.py": MEGATRON + READS, "tools/preprocess_data.py": TOOL},
    "megatronapp": {"Megatron/pretrain_gpt.py": MEGATRON},
    "nanogpt": {"train.py": NANOGPT},
}


def install(catalog: str, lockfiles: str) -> None:
    """For `World.run(..., before=...)`: the command's shipped files are these, and it asks schedulers often."""
    ask_often()
    resources.catalog = lambda: Path(catalog)
    resources.lockfiles = lambda: Path(lockfiles)


class Shelf:
    """Shipped files of a world, as they are but for stacks and locks; `before` is for `World.run`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.catalog, self.lockfiles = world.top / "catalog", world.top / "lockfiles"
        self.before = ("tests.support.small_stacks:install", str(self.catalog), str(self.lockfiles))
        for made, shipped in ((self.catalog, resources.catalog()), (self.lockfiles, resources.lockfiles())):
            made.mkdir()
            for part in shipped.iterdir():
                if part.name != "stacks":
                    (made / part.name).symlink_to(part)
        (self.catalog / "stacks").mkdir()

    def site(self, name: str, **changed: Any) -> None:
        """The shipped target of that name, with other values of some keys."""
        targets = self.catalog / "targets"
        if targets.is_symlink():
            targets.unlink()
            shutil.copytree(resources.catalog() / "targets", targets)
        path = targets / f"{name}.yaml"
        path.write_text(json.dumps(read_yaml(path).data | changed))

    def put(self, name: str, **changed: Any) -> None:
        """The shipped stack of that name, with other values of some keys; None takes a key away."""
        told = read_yaml(resources.catalog() / "stacks" / f"{name}.yaml").data | changed
        kept = {key: value for key, value in told.items() if value is not None}
        (self.catalog / "stacks" / f"{name}.yaml").write_text(json.dumps(kept))

    def lock(self, name: str, profile: str, *more: str) -> Path:
        """Lock a profile of a stack that was `put`; the lock."""
        path = self.lockfiles / f"{name}.{profile}.lock.toml"
        path.unlink(missing_ok=True)
        self.world.good("lock", "create", name, "--profile", profile, *more, before=self.before)
        assert path.is_file() and not path.is_symlink()
        return path


class Machine(Shelf):
    """The small stacks on a machine with GPUs of one kind; `compiled`: the stack with a source to compile."""

    def __init__(self, world: World, gpus: str, compiled: str = "") -> None:
        super().__init__(world)
        self.compiled = compiled
        self._machine(RECORDED / gpus)
        self.pins = {name: world.repository(name, files) for name, files in {**PROGRAMS, "quick": EXTENSION}.items()}
        launch = {f"torch/distributed/{name}.py": LAUNCH.encode() for name in ("run", "launch")}
        files = {"torch/__init__.py": b"", "torch/distributed/__init__.py": b"", **launch}
        files |= {f"own_runs/{name}.py": text.encode() for name, text in RUNS.items()}
        scripts = {
            "deepspeed": "own_runs.launch:main",
            "torchrun": "own_runs.launch:main",
            "opt-baselines": "own_runs.opt:main",
        }
        write_wheel(world.wheels, "own-runs", "1.0", files, scripts=scripts)

    def small(self, name: str, profile: str) -> None:
        """The shipped stack in small, with the lock of a profile."""
        shipped = read_yaml(resources.catalog() / "stacks" / f"{name}.yaml").data
        profiles = dict.fromkeys(shipped["profiles"], self._profile(name))
        self.put(name, profiles=profiles, repositories=None, findings=None)
        self.lock(name, profile, "--base-python", str(self.python))

    def own(self, name: str, reference: dict[str, Any]) -> None:
        """A stack file of that name in the folder of work, with that run of its own, locked and provisioned."""
        reference["launch"]["source"] = name
        packages = {
            "python": [MINOR],
            "packages": ["own-runs==1.0"],
            "sources": [{**self.pins[name], "install": "path"}],
        }
        stack = {"name": name, "summary": "a test", "profiles": {"exact": packages}, "reference": reference}
        (self.world.work / f"{name}.yaml").write_text(json.dumps(stack))
        self.world.good("lock", "create", f"./{name}.yaml", before=self.before)
        self.world.good("provision", f"./{name}.yaml", "-t", "local", before=self.before)

    def _profile(self, name: str) -> dict[str, Any]:
        own = {"megatron-alpa": "alpa", "megatronapp": "megatronapp", "opt-175b": ""}.get(name, "megatron-deepspeed")
        sources: list[dict[str, Any]] = [{**self.pins[own], "install": "path"}] if own else []
        if name == self.compiled:
            sources.append({**self.pins["quick"], "build": {"kind": "wheel", "extensions": ["quick._fast"]}})
        packages = {"python": [MINOR], "bases": BASES, "packages": ["own-runs==1.0"], "sources": sources}
        return {**packages, "smoke": [{"name": "sound"}]}

    def _machine(self, recorded: Path) -> None:
        """nvidia-smi with eight GPUs, mpiexec, and the interpreter with torch, first on PATH."""
        programs = self.world.top / "programs"
        subprocess.run([PYTHON, "-m", "venv", "--without-pip", str(programs.parent / "torch")], check=True)
        self.python = programs.parent / "torch" / "bin" / "python3"
        (packages,) = (programs.parent / "torch" / "lib").glob("python3*/site-packages")
        write_file(packages / "torch" / "__init__.py", "")
        (packages / "torch-2.11.0+cu130.dist-info").mkdir()
        text = "Metadata-Version: 2.1\nName: torch\nVersion: 2.11.0+cu130\n"
        (packages / "torch-2.11.0+cu130.dist-info" / "METADATA").write_text(text)
        programs.mkdir()
        rows, listed = ((recorded / name).read_text().splitlines() for name in ("query.txt", "list.txt"))
        if len(rows) == 2:  # the H200; the second GPU shows what differs
            made = [f"{number}{rows[0][1:]}" for number in range(GPUS)]
            made = [
                row.replace("60", str(60 + number)).replace(":06.0", f":{6 + number:02x}.0")
                for number, row in enumerate(made)
            ]
            assert made[1] == rows[1]
            line = listed[0]
            listed = [line.replace("GPU 0", f"GPU {number}").replace("60", str(60 + number)) for number in range(GPUS)]
            rows = made
        (programs / "query").write_text("\n".join(rows) + "\n")
        (programs / "list").write_text("\n".join(listed) + "\n")
        smi = f'case "$1" in -L) cat {programs}/list ;; --query-gpu=memory.used*) exec sleep 600 ;;\n'
        smi += f"--query-gpu=*) cat {programs}/query ;; *) cat {recorded}/plain.txt ;; esac\n"
        for name, script in (("nvidia-smi", f"#!/bin/sh\n{smi}"), ("mpiexec", MPIEXEC)):
            executable(programs / name, script)
        need_compiler()
        self.world.env["PATH"] = f"{programs}:{self.python.parent}:{self.world.env['PATH']}"
