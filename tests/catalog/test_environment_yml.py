from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from envbuild.catalog.loader import load_stack
from envbuild.cli.entry import main
from envbuild.errors import EnvbuildError, ExitCode
from tests.support.fails import fails

GOOD = """\
name: My Env
channels:
  - https://conda.example.org/lab
  - conda-forge
  - nodefaults
dependencies:
  - python=3.9.18
  - conda-forge::numpy=1.22.*
  - pytorch ==1.10.0
  - cudatoolkit=11.3=h9edb442_9
  - _openmp_mutex=4.5
  - pip
  - pip:
      - six>=1.0
      - einops==0.4.1
variables:
  OMP_NUM_THREADS: "4"
prefix: /home/somebody/env
"""


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "environment.yml"
    path.write_text(text)
    return str(path)


def test_it_is_a_stack_with_one_profile_for_the_engine_conda(tmp_path: Path) -> None:
    loaded = load_stack(write(tmp_path, GOOD))
    profile = loaded.stack.profiles["exact"]
    assert (loaded.stack.name, profile.python, profile.packages) == ("my-env", ("3.9",), ("six>=1.0", "einops==0.4.1"))
    assert profile.environment == {"OMP_NUM_THREADS": "4"}
    conda = profile.conda
    assert conda and conda.only
    assert [(each.name, each.url) for each in conda.channels] == [
        ("lab", "https://conda.example.org/lab"),
        ("conda-forge", None),
    ]
    assert conda.packages[:2] == ("python=3.9.18", "conda-forge::numpy=1.22.*")
    assert conda.provides == {"torch": "pytorch", "numpy": "numpy", "cudatoolkit": "cudatoolkit", "pip": "pip"}
    text = "name: a\nsummary: s\nprofiles: {exact: {python: ['3.11']}}\n"
    assert load_stack(write(tmp_path, text)).stack.profiles["exact"].conda is None, "a stack is still a stack"


@pytest.mark.parametrize("text", ["python=3.9", "python 3.9.*", "python==3.9.1", "a::python=3.9=h_0"])
def test_the_python_is_read_from_its_spec(tmp_path: Path, text: str) -> None:
    loaded = load_stack(write(tmp_path, f"channels: [conda-forge]\ndependencies: ['{text}']\n"))
    assert loaded.stack.profiles["exact"].python == ("3.9",)
    assert loaded.stack.name == "environment"


@pytest.mark.parametrize(
    ("dependencies", "line", "word"),
    [
        ("[python=3.9, ./local.conda]", 2, "./local.conda"),
        ("[python=3.9, 'https://example.org/x.conda']", 2, "https://example.org/x.conda"),
        ("\n- python=3.9\n- pip:\n  - six\n  - -r requirements.txt", 6, "-r requirements.txt"),
        ("\n- python=3.9\n- pip:\n  - git+https://example.org/x", 5, "git+https"),
        ("\n- python=3.9\n- pip:\n  - x @ https://example.org/x.whl", 5, "x @ https"),
        ("\n- python=3.9\n- poetry:\n  - six", 4, "match spec"),
        ("['python >=3.9']", 2, "which Python"),
        ("python=3.9", 2, "no list"),
        ("[python=3.9]\nmystery: 1", 3, "`mystery`"),
    ],
)
def test_what_cannot_be_locked_is_refused_with_its_line(
    tmp_path: Path, dependencies: str, line: int, word: str
) -> None:
    with fails("environment-yml", ExitCode.USAGE) as caught:
        load_stack(write(tmp_path, f"channels: [conda-forge]\ndependencies: {dependencies}\n"))
    assert caught.value.details["line"] == line
    assert word in caught.value.what


@pytest.mark.parametrize("channels", ["channels: []\n", "channels: [Bad/Label]\n"])
def test_without_a_channel_anaconda_s_own_are_not_taken_silently(tmp_path: Path, channels: str) -> None:
    with fails("environment-yml"):
        load_stack(write(tmp_path, f"{channels}dependencies: [python=3.9]\n"))


def test_a_variable_that_chooses_code_is_refused(tmp_path: Path) -> None:
    text = "channels: [conda-forge]\ndependencies: [python=3.9]\nvariables: {LD_PRELOAD: x}\n"
    with pytest.raises(EnvbuildError) as caught:
        load_stack(write(tmp_path, text))
    assert caught.value.exit_code == ExitCode.USAGE
    assert "LD_PRELOAD" in f"{caught.value.what} {caught.value.why}"


def test_it_is_shown_like_a_stack(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "channels: [conda-forge]\ndependencies: [python=3.9, libaio, {pip: [six]}]\n"
    assert main(["stack", "show", write(tmp_path, text)]) == ExitCode.OK
    shown = capsys.readouterr().out
    assert "conda       python=3.9, libaio from conda-forge; instead of wheels: libaio" in shown


@pytest.mark.parametrize(
    "line", ["-e git+https://example.org/a.git#egg=a", "a @ git+https://example.org/a.git", "-i https://example.org"]
)
def test_d96_what_only_a_stack_file_can_say_is_drafted_by_the_command_of_the_hint(
    tmp_path: Path, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, GOOD.replace("six>=1.0", f'"{line}"'))
    with pytest.raises(EnvbuildError) as caught:
        load_stack(path)
    words = shlex.split(caught.value.hint.split("`")[1])
    assert main([*words[1:], str(tmp_path / "made.yaml"), "--offline", "--yes"]) == 0, capsys.readouterr().err
    assert load_stack(str(tmp_path / "made.yaml")).stack.profiles
