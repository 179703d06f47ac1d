"""What a command imports before it needs it: measured in processes of its own, on `sys.modules`."""

from __future__ import annotations

import signal

import pytest

from envbuild.cli.verbs import COMMANDS
from tests.e2e.world import World

HEAVY = ("ansible", "ansible_runner", "fabric", "paramiko", "invoke")
LIBRARIES = ("pydantic", "rich", "jinja2")

# Runs several command lines in one process and says which of the packages each of them brought in.
_PROGRAM = """
import io, json, sys
from contextlib import redirect_stdout, redirect_stderr
from envbuild.cli.entry import main
wanted = set(sys.argv[1].split(","))
found = {}
for line in sys.argv[2:]:
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        code = main(line.split())
    found[line] = [code, sorted(wanted & set(sys.modules))]
print(json.dumps(found))
"""


# An interrupt comes while the module is looked for in which all verbs are.
_INTERRUPTED = """
import os, signal, sys
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "envbuild.cli.run":
            os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Finder)
from envbuild.cli.entry import main
sys.exit(main())
"""


def test_an_interrupt_while_all_is_imported_leaves_no_traceback(world: World) -> None:
    done = world.run("plan", code=("-c", _INTERRUPTED))
    assert (done.rc, done.out, done.err) == (-signal.SIGINT, "", "")


def test_a_locale_of_few_characters_is_no_failure(world: World) -> None:
    done = world.run("explain", "opt-175b", env={"PYTHONIOENCODING": "ascii"}, fresh=True)
    assert done.rc == 0 and "document: Benchmark OPT-175B" in done.out and "?" in done.out, done.err


def imported(world: World, packages: tuple[str, ...], *lines: str) -> dict[str, list[object]]:
    done = world.run(",".join(packages), *lines, code=("-c", _PROGRAM))
    assert done.rc == 0, done.err
    return done.json


def test_help_and_questions_about_envbuild_itself_import_no_big_library(world: World) -> None:
    lines = ["--help", "--version", "completion bash", "config show", "config show --origin --json", "doctor"]
    found = imported(world, HEAVY + LIBRARIES, *lines)
    assert {line: modules for line, (_, modules) in found.items()} == {line: [] for line in lines}
    assert all(code == 0 for line, (code, _) in found.items() if line != "doctor")


def test_the_help_of_every_verb_imports_no_big_library(world: World) -> None:
    lines = [f"{verb} --help" for verb in COMMANDS]
    found = imported(world, HEAVY + LIBRARIES, *lines)
    assert found == {line: [0, []] for line in lines}


def test_stacks_and_targets_are_listed_without_ansible_and_fabric(world: World) -> None:
    lines = ["stack list", "stack show torch-smoke", "target list", "run list", "lock check torch-smoke --offline"]
    assert imported(world, HEAVY, *lines) == {line: [0, []] for line in lines}


def test_plans_and_decisions_from_recorded_facts_import_nothing_that_asks_nodes_or_makes_locks(world: World) -> None:
    others = ("envbuild.provision.ansible.play", "envbuild.lock.create", "urllib.request", "tarfile")
    lines = [f"{verb} --target azure-nd96 --facts azure-nd96" for verb in ("plan", "explain opt-175b")]
    assert imported(world, HEAVY + others, *lines) == {line: [0, []] for line in lines}


@pytest.mark.parametrize("line", ["--version", "-V", ""])
def test_the_version_and_envbuild_alone_do_not_even_need_click(world: World, line: str) -> None:
    assert imported(world, ("click", *HEAVY, *LIBRARIES), line) == {line: [0, []]}


def test_the_version_costs_no_more_than_python(world: World) -> None:
    assert imported(world, ("typing",), "--version") == {"--version": [0, []]}


@pytest.mark.parametrize(
    "line", ["--version", "status --all --json", "plan --stack ./nothing.yaml", "prob", "stack list"]
)
def test_a_process_that_was_forked_says_and_ends_as_an_interpreter_of_its_own(world: World, line: str) -> None:
    assert world.run(*line.split()) == world.run(*line.split(), fresh=True)
