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


ALONE = ["--help", "--version", "completion bash", "config show", "config show --origin --json"]
LISTS = ["stack list", "stack show torch-smoke", "target list", "run list", "lock check torch-smoke --offline"]
# Without asking nodes or making locks.
OTHERS = ("envbuild.provision.ansible.play", "envbuild.lock.create", "urllib.request", "tarfile")


@pytest.mark.parametrize(
    ("packages", "lines"),
    [
        (HEAVY + LIBRARIES, [*ALONE, *(f"{verb} --help" for verb in COMMANDS)]),
        (HEAVY, LISTS),
        (HEAVY + OTHERS, [f"{verb} --target azure-nd96 --facts azure-nd96" for verb in ("plan", "explain opt-175b")]),
        (("click", *HEAVY, *LIBRARIES), [""]),
        (("click", "typing", *HEAVY, *LIBRARIES), ["--version"]),
    ],
    ids=["help and questions about envbuild", "lists", "plans from recorded facts", "alone", "version"],
)
def test_a_command_imports_no_big_library_that_it_does_not_need(
    world: World, packages: tuple[str, ...], lines: list[str]
) -> None:
    done = world.run(",".join(packages), *lines, code=("-c", _PROGRAM))
    assert done.rc == 0, done.err
    assert done.json == {line: [0, []] for line in lines}


@pytest.mark.parametrize("line", ["--version", "status --all --json", "plan --stack ./nothing.yaml"])
def test_a_process_that_was_forked_says_and_ends_as_an_interpreter_of_its_own(world: World, line: str) -> None:
    assert world.run(*line.split()) == world.run(*line.split(), fresh=True)
