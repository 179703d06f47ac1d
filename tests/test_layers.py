"""The shape of the package: no import circle, imports go down only, no folder that nobody can look over."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import envbuild

TOP = Path(envbuild.__file__).parent
# From the ground up. A name stands for its module or package; the longest one that fits counts. Rows may use what is in
# rows above them, and modules of one row each other, without a circle.
LAYERS = (
    ("errors", "resources", "text", "node"),
    ("regular_file",),
    ("node_program", "model"),
    ("hostlist", "catalog"),
    ("config", "transport", "conda"),
    ("resolve", "schedule"),
    ("lock", "report"),
    ("explain", "export", "init", "plan", "trace"),
    ("bundle",),
    ("launch", "strategy", "container", "provision.contact", "provision.gpu_use"),
    ("kit",),
    ("provision.run",),
    ("provision.ansible", "provision.deliver"),
    ("provision.survey", "doctor"),
    ("provision.environments",),
    ("provision.fleet",),
    ("provision.jobs",),
    ("provision.images",),
    ("provision",),
    ("cli", "fab"),
    ("__main__",),
)
NODE = (
    (
        "git_source", "hashing", "identity", "lease", "logs", "merkle", "paths", "pip_config", "proc", "program_files",
        "protocol", "read_text", "redact", "trust", "variables",
    ),
    ("probe", "packages", "bundle"),
    ("conda",),
    ("wheels",),
    ("build",),
    ("env",),
    ("shared",),
    ("facts", "doctor"),
    ("smoke",),
    ("verbs",),
    ("image",),
    ("__main__",),
)  # fmt: skip
MOST = 20  # modules of a folder
CLI = "cli"  # one file for each group of verbs


def modules() -> dict[str, Path]:
    """Dotted name below `envbuild` by file; a package is its `__init__`."""
    found = {}
    for path in TOP.rglob("*.py"):
        parts = path.relative_to(TOP).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


FILES = modules()


def imports(name: str) -> set[str]:
    """The modules that one imports anywhere, in functions and for types alone too."""
    found = set()
    for node in ast.walk(ast.parse(FILES[name].read_text())):
        if isinstance(node, ast.Import):
            found |= {each.name.removeprefix("envbuild.") for each in node.names if each.name.startswith("envbuild.")}
        elif isinstance(node, ast.ImportFrom):
            module = _absolute(name, node)
            if module == "envbuild" or module.startswith("envbuild."):
                base = module.removeprefix("envbuild").removeprefix(".")
                below = {f"{base}.{alias.name}".removeprefix(".") for alias in node.names}
                found |= {each if each in FILES else base for each in below}
    return (found & FILES.keys()) - {name, ""}


def _absolute(name: str, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = FILES[name].parent.relative_to(TOP.parent).parts
    return ".".join([*package[: len(package) - node.level + 1], *filter(None, [node.module])])


@cache
def graph() -> dict[str, set[str]]:
    """What each module imports."""
    return {name: imports(name) for name in FILES}


def circles() -> Iterator[list[str]]:
    """Every module that is reached from itself, with the way."""
    done: set[str] = set()
    for start in graph():
        stack, path = [iter([start])], list[str]()
        while stack:
            name = next(stack[-1], None)
            if name is None:
                stack.pop()
                done.update(path[-1:])
                path[-1:] = []
            elif name in path:
                yield [*path[path.index(name) :], name]
            elif name not in done:
                path.append(name)
                stack.append(iter(graph()[name]))


def level(name: str, layers: tuple[tuple[str, ...], ...]) -> int:
    """The number of the row that a module belongs to."""
    fits = {each: n for n, row in enumerate(layers) for each in row if name == each or name.startswith(each + ".")}
    assert fits, f"{name} has no place in the layers"
    return fits[max(fits, key=len)]


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert list(circles()) == []


def test_imports_go_down_only() -> None:
    wrong = [
        f"{name} imports {other}"
        for name, others in graph().items()
        for other in others
        if name and level(other, LAYERS) > level(name, LAYERS)
    ]
    assert wrong == []


def test_rooms_of_the_node_program_import_down_only_and_nothing_of_the_controller() -> None:
    own = {name.removeprefix("node."): others for name, others in graph().items() if name.startswith("node.")}
    outside = {name: others for name, others in own.items() if any(not each.startswith("node") for each in others)}
    assert outside == {}
    wrong = [
        f"{name} imports {other}"
        for name, others in own.items()
        for other in (each.removeprefix("node.") for each in others if each != "node")
        if level(other, NODE) > level(name, NODE)
    ]
    assert wrong == []


def test_every_layer_is_there() -> None:
    rooms = [each for row in LAYERS for each in row] + [f"node.{each}" for row in NODE for each in row]
    assert [each for each in rooms if each not in FILES] == []


def test_no_folder_has_more_modules_than_can_be_looked_over() -> None:
    folders: dict[str, int] = {}
    for path in FILES.values():
        if path.name != "__init__.py":
            folder = path.parent.relative_to(TOP).as_posix()
            folders[folder] = folders.get(folder, 0) + 1
    assert {name: count for name, count in folders.items() if count > MOST and name != CLI} == {}


def test_every_room_says_what_comes_in_and_what_goes_out() -> None:
    for path in TOP.rglob("__init__.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), path
