"""The printed text in a real bash, with stand-ins for the launchers: it runs the same words as the argument lists."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuild.cli.help_code import explanation
from envbuild.launch.request import Place
from envbuild.launch.shell import WIDTH, folded, render
from envbuild.model.launch import Command, Launch, LaunchFile
from tests.launch.support import started
from tests.support.programs import completed, executable

PRINTS = f"""#!{sys.executable}
import json, os, sys
with open(os.environ["SAYS"], "a") as out:
    out.write(json.dumps([os.path.basename(sys.argv[0]), *sys.argv[1:]]) + "\\n")
    around = [os.getcwd(), os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS"), os.environ.get("ACTIVE")]
    out.write(json.dumps(around) + "\\n")
"""


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """An environment whose programs write down how they were called."""
    environment = tmp_path / "an environment"
    for name in (
        "bin",
        ".envbuild",
        "src/megatronapp/Megatron",
        "src/megatron-deepspeed",
        "src/alpa/osdi22_artifact/megatron",
    ):
        (environment / name).mkdir(parents=True)
    (environment / ".envbuild" / "activate.sh").write_text("export ACTIVE=yes\n")
    for program in ("torchrun", "deepspeed", "python3", "opt-baselines", "mpiexec", "srun"):
        executable(environment / "bin" / program, PRINTS)
    return environment


def run(text: str, world: Path) -> list[list[str]]:
    says = world / "says"
    path = f"{world}/bin:/usr/bin:/bin"
    done = completed(["bash", "-eu", "-c", text], env={"PATH": path, "SAYS": str(says)})
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in says.read_text().splitlines()]


@pytest.mark.parametrize(
    "name", ["megatron-deepspeed-alcf", "megatron-deepspeed-slurm", "megatronapp", "megatron-alpa", "opt-175b"]
)
def test_bash_runs_the_words_of_the_argument_list(name: str, world: Path, tmp_path: Path) -> None:
    output = tmp_path / "run's $HOME"
    output.mkdir()
    made = started(name, Place(nodes=1, gpus_per_node=4, environment=str(world), output=str(output)))
    called, around = run(render(made, str(output), f"{world}/.envbuild/activate.sh"), world)
    [command] = made.commands
    assert all(map(explanation, made.degrees)), "`help` explains the names"
    assert called == [Path(command.argv[0]).name, *command.argv[1:]]
    assert around == [command.directory, command.environment.get("CUDA_DEVICE_MAX_CONNECTIONS"), "yes"]
    for file in made.files:
        assert Path(file.path).read_text() == file.text


def test_a_file_keeps_every_byte_of_its_text_and_a_comment_cannot_begin_a_command(tmp_path: Path, world: Path) -> None:
    text = "$HOME `x` \\\nEND\nEND_\n"
    command = Command(argv=(f"{world}/bin/srun",), directory=str(tmp_path))
    made = Launch(
        stack="x", profile="exact", nodes=1, gpus_per_node=1, model="m", degrees={}, commands=(command,),
        files=(LaunchFile(path=str(tmp_path / "new" / "f"), text=text),),
    )  # fmt: skip
    printed = render(made.model_copy(update={"notes": ("one\ntouch x",)}), "")
    run(printed, world)
    assert (tmp_path / "new" / "f").read_text() == text
    assert "# note: one touch x" in printed.splitlines()


def test_lines_are_folded_at_options_and_stay_one_command() -> None:
    words = ["program", *(part for n in range(40) for part in (f"--option-{n}", str(n)))]
    lines = folded(words)
    assert len(lines) > 3
    assert all(len(line) <= WIDTH + 2 for line in lines)
    assert all(line.lstrip().startswith("--") for line in lines[1:])
    assert all(line.endswith(" \\") for line in lines[:-1])


_WORDS = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=40)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        _WORDS | st.sampled_from(["--x", "-n", "\\\n", "a \\\n b", "!!", "~", "$'x'", "$(touch x)", "'", '"', ""]),
        min_size=1,
        max_size=12,
    )
)
def test_bash_joins_folded_lines_to_the_same_words(words: list[str]) -> None:
    text = "\n".join(folded(["printf", "%s\\0", *words]))
    done = subprocess.run(["bash", "-c", text], capture_output=True, check=True)
    assert done.stdout.decode().split("\0")[:-1] == words
