"""The node program is on its own: standard library only, nothing outside its package, Python 3.6 syntax."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from envbuild import resources
from tests.node.pythons import require_python

FILES = sorted(resources.node_package().rglob("*.py"))
# The smoke test runs in the environment that it tests, where these are the point; rattler is a tool that is brought.
TESTED = {"torch", "numpy", "rattler"}


def _imports(tree: ast.AST) -> list[str]:
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level <= 1, "a relative import that leaves the package"
            found.append("envbuild.node" if node.level else str(node.module))
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_imports_only_the_standard_library_and_itself(path: Path) -> None:
    for name in _imports(ast.parse(path.read_text())):
        top = name.split(".")[0]
        inside = name == "envbuild.node" or name.startswith("envbuild.node.")
        tested = top in TESTED and "programs" in path.parts
        assert inside or tested or top in sys.stdlib_module_names, f"{path.name} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_parses_as_python_3_6(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 6))


def test_compiles_on_a_real_python_3_6(tmp_path: Path) -> None:
    python = require_python("3.6")
    code = "import sys\nfor name in sys.argv[1:]:\n    compile(open(name, 'rb').read(), name, 'exec')\n"
    done = subprocess.run([python, "-I", "-c", code, *map(str, FILES)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_exit_codes_agree_with_the_controller() -> None:
    from envbuild.errors import ExitCode
    from envbuild.node.protocol import Exit

    assert {name: getattr(Exit, name) for name in ExitCode.__members__} == {code.name: int(code) for code in ExitCode}


def test_a_brief_answer_reads_nothing_of_what_builds_environments() -> None:
    code = (
        "import sys, envbuild.node.facts, envbuild.node.env.verify\n"
        "print(*(name for name in sys.modules if name.startswith('envbuild.node.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    read = {name.removeprefix("envbuild.node.") for name in done.stdout.split()}
    assert {"facts", "env.verify", "env.stamp"} <= read
    assert not read & {"env.install", "build.pipeline", "env.activate", "merkle", "packs.pack", "env.bytecode"}
