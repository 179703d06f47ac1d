"""The commands of README and docs that need GPUs and the stack of a document, as they are written, on a machine that
says that it has eight H200, with small contents under the names of the shipped stacks."""

from __future__ import annotations

import re

import pytest

from envbuild.node.smoke import training_data
from tests.e2e.world import Done, World
from tests.support.small_stacks import Small
from tests.test_snippets import of, run

# What a command that did its work prints.
SAYS = {
    r"^envbuild provision .*--check-rebuild": r"built again:\s+equal,\s+byte\s+by\s+byte",
    r"^envbuild provision ": r"is provisioned on 1 node|nothing to do",
    r"^envbuild bench megatron-alpa ": r"ran on 1 node: [0-9.]+ TFLOP/s per GPU",
    r"^envbuild bench megatron-deepspeed-slurm ": r"ran on 1 node: 127 ms",
    r"^envbuild bench opt-175b ": r"ran on 1 node: 2\.1e\+05 words/s",
    r"^envbuild data ": r"/work/data/my-gpt2_text_document\.bin\n",
    r"^envbuild launch megatron-alpa ": r"Values: \{'tflops'",
    r"^envbuild launch ": r"iteration +20/ +20 \|",
    r"^envbuild strategy ": r"\nthe best: envbuild launch megatron-alpa --profile ported --target h200 ",
}
# What the pages build before them, in other words.
BEFORE = (
    ("opt-175b", "exact", "local"),
    ("megatronapp", "exact", "local"),
    ("megatron-deepspeed-alcf", "ported-cu130", "h200"),
)
PORTED = {"megatron-alpa": "ported", "megatron-deepspeed-slurm": "ported-cu130", "opt-175b": "ported-cu130"}


@pytest.fixture
def small(world: World) -> Small:
    small = Small(world, "megatron-alpa")
    for name, profile, target in BEFORE:
        small.lock(name, profile)
        world.good("provision", "--stack", name, "--profile", profile, "-t", target, before=small.before)
    for name, profile in PORTED.items():
        small.lock(name, profile)
    (world.work / "data").mkdir()
    training_data.write("gpt2", str(world.work / "data"))
    (world.work / "datasets").mkdir()
    (world.work / "datasets" / "gpt-large-cased-vocab-small_text_document.bin").write_text("")
    return small


def wrong(command: str, code: int, done: Done) -> str:
    """What is wrong with the end of a command; empty when nothing is."""
    says = next(words for pattern, words in SAYS.items() if re.search(pattern, command))
    if done.rc == code and re.search(says, done.out + done.err):
        return ""
    return f"{command}: exit {done.rc}, no {says!r}\n{done.out[-1500:]}{done.err[-1500:]}"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_command_of_the_pages_about_gpus_runs_as_it_is_written(small: Small) -> None:
    # What compares a second build comes first: later nothing is built any more.
    given = sorted(of("gpus"), key=lambda told: "--check-rebuild" not in told[1])
    assert len(given) > 20
    told = [wrong(command, code, run(small.world, command, before=small.before)) for _, command, code in given]
    assert not any(told), "\n\n".join(filter(None, told))
