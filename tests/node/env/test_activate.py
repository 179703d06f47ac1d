"""Activation: variables arrive literally in a shell and through a module, and a kill leaves no half state."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pip
import pytest

from envbuild.node import paths
from envbuild.node.build import environment as build_environment
from envbuild.node.env import activation_files
from envbuild.node.protocol import NodeError
from envbuild.node.smoke.runner import child_environment
from tests.node.env_support import Node, make_variant, make_wheel, run_python
from tests.support.fails import fails
from tests.support.programs import completed, executable

NASTY = {
    "A_COMMAND": "$(touch /nonexistent/x) `id` ${HOME}",
    "B_QUOTES": 'it\'s "quoted" \\ back\\',
    "C_TCL": "[exec id] {unbalanced } $env(HOME) ; # x",
    "D_JINJA": "{{ lookup('pipe','id') }}",
    "E_PLAIN": "1",
    "F_UNICODE": "größe",
}


def shells() -> list[list[str]]:
    every = [["dash"], ["bash"], ["bash", "--posix"], ["busybox", "sh"], ["zsh"], ["ksh"]]
    return [each for each in every if shutil.which(each[0])]


@pytest.mark.parametrize("program", shells(), ids=" ".join)
def test_deactivate_takes_everything_back_also_after_another_environment(tmp_path: Path, program: list[str]) -> None:
    for name in ("one", "two"):
        text = activation_files.activate_sh(
            f"{tmp_path}/{name} it's", name, {"KEPT": name, f"ONLY_{name.upper()}": "$x"}
        )
        (tmp_path / f"{name}.sh").write_text(text)
    script = """
PS1='$ '; shown() { env | grep -v '^_=' | LC_ALL=C sort; }
shown > before
. ./one.sh; . ./one.sh; . ./two.sh
echo "$PS1$KEPT ${ONLY_ONE-none} $ONLY_TWO ${PYTHONPATH-none}"
(VIRTUAL_ENV_DISABLE_PROMPT=1; . ./one.sh; echo "$PS1$KEPT")
deactivate
echo "$PS1$KEPT"; shown > after; set | grep _envbuild_ || :
"""
    env = {**os.environ, "KEPT": "as it was", "PYTHONPATH": f"{tmp_path}/a b"}
    done = completed([*program, "-u", "-e"], input=script, cwd=tmp_path, env=env)
    assert done.stdout.splitlines() == ["(two) $ two none $x none", "$ one", "$ as it was"], done.stderr
    assert (tmp_path / "after").read_text() == (tmp_path / "before").read_text()


def test_a_virtual_environment_is_a_base_whose_packages_are_seen_and_whose_programs_come_last(
    node: Node, tmp_path: Path
) -> None:
    lower = node.build(make_variant([make_wheel(node.wheels, name="below", scripts={"tool": "below:main"})]))
    provides = {"base": {"kind": "system", "provides": ["below>=1"]}, "provided": {"below": "1.0"}}
    above = make_variant([make_wheel(node.wheels, name="above")], **provides)
    changed, result = node.install(above, interpreter=str(lower / "bin" / "python"))
    assert (changed, result["base_packages"]) == (True, {"below": "1.0"})
    node.activate(above)
    on_base = node.environment(above)
    places = run_python(on_base, "import above, below; print(above.__file__); print(below.__file__)").split()
    assert places[0].startswith(str(on_base)) and places[1].startswith(str(lower))
    assert node.verify(deep=True, variant=above)["ok"]
    own = executable(tmp_path / "own" / "tool", "#!/bin/sh\necho mine\n").parent
    script = f". '{on_base}/.envbuild/activate.sh'\ntool\n"
    # As a command over SSH has it, and with a caller's own behind it.
    for path, says in (("/usr/bin:/bin", "1"), (f"/usr/bin:/bin:{own}", "mine")):
        for words in shells():
            done = completed([str(shutil.which(words[0])), *words[1:]], input=script, env={"PATH": path})
            assert done.stdout.strip() == says, (words, done.stderr)
    (folder,) = paths.base_programs(str(on_base))
    assert (Path(folder) / "tool").exists()
    text = (node.prefix / "modulefiles" / "envbuild" / "demo").read_text()
    assert f'append-path PATH "{folder}"' in text.splitlines()
    assert child_environment(str(on_base), {}, "/scratch")["PATH"] == f"{on_base}/bin:{os.environ['PATH']}:{folder}"
    seen = build_environment.variables(str(on_base), {}, {}, [], "/cuda")
    assert seen["PATH"] == f"{on_base}/bin:/cuda/bin:{os.environ['PATH']}:{folder}"


@pytest.mark.parametrize("system", ["true", "false"])
def test_the_base_of_an_interpreter_has_its_programs_beside_it(tmp_path: Path, system: str) -> None:
    for home, folder in {"/opt/it's/bin": "/opt/it's/bin", "/usr/bin": "/usr/local/bin"}.items():
        (tmp_path / "pyvenv.cfg").write_text(f"home = {home}\ninclude-system-site-packages = {system}\n")
        assert paths.base_programs(str(tmp_path)) == ([folder] if system == "true" else [])


def test_pip_of_another_python_installs_nothing_behind_the_stacks_back(node: Node) -> None:
    environment = node.build(make_variant([make_wheel(node.wheels)]))
    begin = f". '{environment}/.envbuild/activate.sh'\n"

    def said(line: str) -> tuple[int, str]:
        done = completed(["sh"], input=begin + line)
        return done.returncode, done.stderr

    for name in ("pip", "pip3"):
        code, words = said(f"{name} install x")
        assert code == 7
        assert "error[environment-locked]" in words and "`packages` of the stack" in words
    # Ours, as the Python of a machine may come without one.
    other = f"PYTHONPATH='{Path(pip.__file__).parents[1]}' '{sys.base_prefix}/bin/python3' -m pip"
    assert said(f"{other} --version")[0] == 0, "that Python has a pip"
    code, words = said(f"{other} install --no-index x")
    assert code != 0
    assert "virtualenv" in words
    assert node.verify(deep=True)["ok"]
    environment = node.build(make_variant([make_wheel(node.wheels, "pip", scripts={"pip": "pip:main"})]))
    begin = f". '{environment}/.envbuild/activate.sh'\n"
    assert said("pip")[0] == 0, "one that the lock has is the stack's own"


def test_values_arrive_literally_through_a_module_which_is_ascii(node: Node) -> None:
    """Lmod takes other bytes for Latin-1."""
    text = activation_files.modulefile("/e", "demo", {"A": "größe $x", "B": "€"})
    assert text.isascii()
    assert 'setenv A "gr\\u00f6\\u00dfe \\$x"' in text and 'setenv B "\\u20ac"' in text
    places = ("/usr/lib/x86_64-linux-gnu/modulecmd.tcl", "/usr/share/modules/libexec/modulecmd.tcl")
    program = next((path for path in places if os.path.exists(path)), None)
    if program is None or shutil.which("tclsh") is None:
        pytest.skip("no environment-modules (apt-get install environment-modules tcl): `module load` not tried")
    variables = {**NASTY, "I_GONE": {"path": str(node.top / "gone"), "if": "exists"}}
    environment = node.build(make_variant([make_wheel(node.wheels)]), variables=variables)
    env = {**os.environ, "MODULEPATH": str(node.prefix / "modulefiles"), "LC_ALL": "C.UTF-8"}
    done = completed([program, "sh", "load", "envbuild/demo"], env=env, check=True)
    names = [*variables, "VIRTUAL_ENV", "PATH"]
    code = f"import os, json; print(json.dumps({{k: os.environ.get(k) for k in {json.dumps(names)}}}))"
    shell = completed(["sh"], input=f"{done.stdout}\nexec {sys.executable} -c '{code}'", env=env, check=True)
    found = json.loads(shell.stdout)
    assert {key: found[key] for key in NASTY} == NASTY
    assert found["I_GONE"] is None
    assert found["VIRTUAL_ENV"] == str(environment)
    assert found["PATH"].startswith(f"{environment}/bin:")


def test_what_cannot_be_written_safely_is_refused() -> None:
    refused: list[dict[str, Any]] = [{"A B": "1"}, {"A": "x\ny"}, {"1A": ""}, {"A": 1}, {"A": {"path": "\0"}}]
    for variables in refused:
        with pytest.raises(NodeError, match="cannot be set"):
            activation_files.checked_variables(variables)


def test_a_folder_in_the_place_of_the_link_is_named_and_half_a_switch_is_not_the_link(node: Node) -> None:
    from envbuild.node.probe.inventory import facts

    blocked = node.prefix / "current" / "demo" / "in-the-way"
    blocked.mkdir(parents=True)
    variant = make_variant([make_wheel(node.wheels)])
    with fails("link-blocked", match="is a folder"):
        node.build(variant)
    shutil.rmtree(blocked.parent)
    assert os.listdir(node.prefix / "current") == []
    # What a kill between link and rename leaves.
    (node.prefix / "current" / ".demo.4711").symlink_to(node.environment(variant))
    assert [each["current"] for each in facts(str(node.prefix))] == [False]
    environment = node.build(variant)
    assert (node.prefix / "current" / "demo").resolve() == environment
