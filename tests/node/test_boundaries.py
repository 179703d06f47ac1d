"""The node program is on its own: standard library only, nothing outside its package, syntax of Python 3.8, or 3.6."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from envbuild import resources
from envbuild.node import verbs
from envbuild.node.__main__ import _OF_ANY_NODE
from tests.node.pythons import require_python
from tests.support.programs import completed

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


def _module(name: str) -> Path | None:
    path = resources.node_package().parent.parent.joinpath(*name.split("."))
    return next((each for each in (path.with_suffix(".py"), path / "__init__.py") if each.is_file()), None)


def _of_old_pythons() -> set[Path]:
    """What a Python 3.6 runs: the verbs that such a node answers with all they import, and programs of environments."""
    found = {path for path in FILES if "programs" in path.parts}
    newer = _module("envbuild.node.env.verify")  # `facts` looks at environments from Python 3.8 on
    left = {
        "envbuild.node.__main__",
        *(f"envbuild.node.{verbs.VERBS[verb]}".rpartition(".")[0] for verb in _OF_ANY_NODE),
    }
    while left:
        path = _module(left.pop())
        if path is None or path in found or path == newer:
            continue
        found.add(path)
        tree = ast.parse(path.read_text())
        checked = [
            node for node in ast.walk(tree) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        ]
        typed = {id(node) for block in checked for node in ast.walk(block)}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and id(node) not in typed:
                left |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


OLD = sorted(_of_old_pythons())


def test_imports_only_the_standard_library_and_itself_and_parses_as_python_3_8_or_3_6_where_that_runs_it() -> None:
    for path in FILES:
        tree = ast.parse(path.read_text(), path, feature_version=(3, 6) if path in OLD else (3, 8))
        allowed = {*sys.stdlib_module_names, *(TESTED if "programs" in path.parts else ())}
        outside = [name for name in _imports(tree) if name != "envbuild.node" and not name.startswith("envbuild.node.")]
        assert {name for name in outside if name.split(".")[0] not in allowed} == set(), path


def test_what_python_3_6_runs_is_compiled_by_a_real_one() -> None:
    python = require_python("3.6")
    code = "import sys\nfor name in sys.argv[1:]:\n    compile(open(name, 'rb').read(), name, 'exec')\n"
    done = completed([python, "-I", "-c", code, *map(str, OLD)])
    assert done.returncode == 0, done.stderr


def test_every_module_can_be_imported_by_python_3_8() -> None:
    python = require_python("3.8")
    top = resources.node_package().parent.parent
    names = [".".join(path.relative_to(top).with_suffix("").parts) for path in FILES if "programs" not in path.parts]
    code = "import importlib, sys, types\nsys.path.insert(0, sys.argv[1])\n"
    # The controller's own package wants a newer Python; on a node it is an empty one.
    code += "top = sys.modules['envbuild'] = types.ModuleType('envbuild')\ntop.__path__ = [sys.argv[1] + '/envbuild']\n"
    code += "for name in sys.argv[2:]:\n    importlib.import_module(name.replace('.__init__', ''))\n"
    done = completed([python, "-I", "-c", code, str(top), *names])
    assert done.returncode == 0, done.stderr


def test_a_brief_answer_reads_nothing_of_what_builds_environments() -> None:
    code = (
        "import sys, envbuild.node.facts, envbuild.node.env.verify\n"
        "print(*(name for name in sys.modules if name.startswith('envbuild.node.')))"
    )
    done = completed([sys.executable, "-c", code], check=True)
    read = {name.removeprefix("envbuild.node.") for name in done.stdout.split()}
    assert {"facts", "env.verify", "env.stamp"} <= read
    assert not read & {"env.install", "build.pipeline", "env.activate", "merkle", "env.contents"}
