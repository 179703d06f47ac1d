"""Every command of a block of README and docs runs as it is written, or `NOT_RUN` says why it does not run here.

They run one after the other, for one user who has what the pages speak of; words in capitals are filled in. A comment
`# exit N` says with which code a command ends. Tutorials have their own test; what is generated has no blocks.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from envbuild.catalog.loader import load_stack, load_target
from tests.e2e.world import DEADLINE, Done, World
from tests.trace import support as trace

TOP = Path(__file__).parents[1]
PAGES = [TOP / "README.md", *sorted((TOP / "docs").glob("*.md")), *sorted((TOP / "docs" / "concepts").glob("*.md"))]
LINE = re.compile(r'^(?:\$ | {4,})((?:eval "\$\()?(?:envbuild|fab) .*)$', re.MULTILINE)

# What a command has, why it is not run here, and the test that does the same elsewhere, where there is one.
NOT_RUN = {
    r"(^envbuild provision|image build|image verify) .*torch-smoke|^envbuild provision --target (local|T)$": (
        "gigabytes of torch, images: e2e/test_torch_smoke.py, container/test_images.py"
    ),
    r"h200|megatron-alpa --gpus-per-node|megatronapp --gpus-per-node 4 --run|bench opt-175b --gpus-per-node 8$|"
    r"data megatron-deepspeed-slurm": "GPUs and the built stack of a document: e2e/test_bench.py, launch/test_data.py",
    r"cluster\.yaml": "a cluster: slurm/test_tutorial.py, test_launch.py, test_node_local.py, test_bench.py",
    r"environment\.yml|--engine conda": "a conda channel: e2e/test_conda.py",
    r"--html opt\.html|image pin": "the internet: explain/test_annotate.py, container/test_pinning.py",
    r"^fab .*gpu0": "hosts of these names: fab/test_fabfile.py",
    r"\| source$|env kernel": "the shell fish, and Jupyter: cli/test_env_shell.py",
    r"wheels (un)?pack": "a compiled wheel: cli/test_wheels_cmd.py",
    r"report merge": "reports of several nodes: report/merge/test_merge.py",
    r"--trust-first-use": "a file without a recorded hash: e2e/test_first_use.py",
    r"--commit 265b451": "a checkout of Apex: node/patch/test_apply.py",
}
FILLED = {"RUN": "last", "REPORT": "report.html", "FOLDER": "published", "KEY": "key", "TARGET": "lab.yaml"}


def commands(page: Path) -> list[tuple[str, int]]:
    """The commands of a page and their exit codes; continued lines are joined, comments left out."""
    found = LINE.findall(page.read_text(encoding="utf-8").replace("\\\n", " "))
    ends = [re.search(r"# exit (\d+)", line) for line in found]
    return [(re.sub(r"\s+# .*", "", line), int(end[1]) if end else 0) for line, end in zip(found, ends, strict=True)]


ALL = [(page.name, command, code) for page in PAGES for command, code in commands(page)]

BLOCKS = [
    (page.name, text)
    for page in PAGES
    for text in re.findall(r"^```yaml[^\n]*\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
]


def left_out(command: str) -> list[str]:
    return [each for each in NOT_RUN if re.search(each, command)]


def test_what_does_not_run_is_there_and_the_tests_that_stand_for_it_too() -> None:
    used = {each for _, command, _ in ALL for each in left_out(command)}
    assert set(NOT_RUN) == used
    for why in NOT_RUN.values():
        for name in re.findall(r"[a-z_0-9/]+\.py", why):
            assert (TOP / "tests" / name).is_file() or (TOP / "tests" / "slurm" / name).is_file(), name
    assert len([1 for _, command, _ in ALL if not left_out(command)]) > 40


@pytest.mark.parametrize(("page", "text"), BLOCKS, ids=[page for page, _ in BLOCKS])
def test_a_block_of_yaml_is_accepted_where_it_is_to_stand(page: str, text: str, tmp_path: Path) -> None:
    told = yaml.safe_load(text)
    if set(told) & {"profiles", "conda", "reference"}:
        exact = {"python": ["3.11"]} | {key: told.pop(key) for key in ("conda",) if key in told}
        whole = {"name": "mine", "summary": "a test", "profiles": {"exact": exact}, **told}
        (tmp_path / "mine.yaml").write_text(yaml.safe_dump(whole))
        assert load_stack(str(tmp_path / "mine.yaml")).stack.profiles
    else:
        (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"name": "mine", "extends": "slurm", **told}))
        assert load_target(str(tmp_path / "mine.yaml"), template=True).target.name == told.get("name", "mine")


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A stack of one wheel, locked and built here, as the only one of three targets; a run, a key, traces, a source."""
    world = World(tmp_path)
    world.wheel()
    world.lock(world.stack("my"))
    for name in ("lab", "my-target", "a100", "h100"):
        (world.work / f"{name}.yaml").write_text(f"name: {name}\nextends: local\nstack: {world.work}/my.yaml\n")
    config = world.home / ".config" / "envbuild" / "config.toml"
    config.parent.mkdir()
    config.write_text(f'target = "{world.work}/lab.yaml"\n')
    run = world.good("provision", "--json").json["run"]
    shutil.copy(world.runs / run / "report.html", world.work)
    shutil.copy(world.runs / run / "evidence.json", world.work)
    for name in ("trace_pipeline_4_model_chunks_4.txt", "node0.log", "node1.log"):
        trace.write(world.work / name, trace.iteration(8, 4, 8) if "4" in name else trace.iteration(8, 8, 8))
    rows = ({"num_updates": str(number), "loss": "7.5", "wps": "200000"} for number in range(30))
    lines = [f"2026-11-22 17:00:00 | INFO | train_inner | {json.dumps(row)}" for row in rows]
    (world.work / "opt.log").write_text("\n".join(lines))
    shutil.copy(TOP / "envbuild" / "catalog" / "facts" / "azure-nd96.json", world.work / "my-nodes.json")
    (world.work / "path" / "to" / "apex").mkdir(parents=True)
    edits = json.loads((TOP / "tests" / "node" / "data" / "edits" / "apex-cuda-check.json").read_text())
    (world.work / "path" / "to" / "apex" / "setup.py").write_text(edits["files"][0]["before"])
    (world.work / "train.py").write_text("import alpha\n")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(world.work / "key")], check=True)
    return world


def run(world: World, command: str) -> Done:
    words = [FILLED.get(word, word) for word in shlex.split(command)]
    if words[0] == "envbuild" and not set("|&;$>") & set(command):
        return world.run(*words[1:])
    path = f"{Path(sys.executable).parent}:{world.env['PATH']}"
    filled = re.sub(r"\b[A-Z]{3,}\b", lambda word: FILLED.get(word[0], word[0]), command)
    done = subprocess.run(
        ["bash", "-ec", filled], cwd=world.work, env={**world.env, "PATH": path}, capture_output=True, text=True,
        check=False, timeout=DEADLINE,
    )  # fmt: skip
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_command_of_the_pages_runs_as_it_is_written(world: World) -> None:
    failed = []
    for page, command, code in ALL:
        if not left_out(command):
            done = run(world, command)
            if done.rc != code:
                failed.append(f"{page}: {command}: exit {done.rc}\n{done.out[-600:]}{done.err[-600:]}")
    assert not failed, "\n\n".join(failed)
