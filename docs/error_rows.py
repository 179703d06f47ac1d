"""Every code that a user can meet: read from the sources' syntax trees, through the functions that make errors.

Errors; what does not hold in a report, a kit or a lock; findings of `init` and `up` about a page.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import NamedTuple

from envbuild.container.builders import CAUSES, HINTS
from envbuild.errors import ExitCode
from envbuild.node.protocol import EXITS, Exit
from envbuild.schedule.job import HINTS as JOB_HINTS
from envbuild.schedule.job import SEE_LOG, Failure

PACKAGE = Path(__file__).parents[1] / "envbuild"
# What an attribute adds nothing to: `stack.name` is the stack.
_PARTS = frozenset({"name", "id", "text", "value", "path", "ref", "args", "stem", "parent", "label", "word"})
_SAME = re.findall(
    "[a-z0-9]+",
    """stack node nodes package packages target version source sources host hosts prefix image command environment
    profile profiles variant variants verb program cuda index commit run option engine deadline channel wheel python
    project patch parent nvcc torch compiler gpu gpus digest platform flavour tree rank seconds recipe parameter pattern
    archive job partition queue account user port proxy lock module sha256 root address registry rule check field line
    column""",
)
# Names that are nouns of a reader's, and what stands for them.
_NOUNS = {
    **{
        word: word.upper()
        for word in _SAME
    },
    **dict.fromkeys(("path", "file", "document", "folder", "place", "directory", "dest"), "PATH"),
    **dict.fromkeys(("count", "number", "limit", "size", "amount", "total"), "N"),
    **dict.fromkeys(("reference", "ref", "name"), "NAME"), **dict.fromkeys(("error", "strerror"), "REASON"),
    "loaded": "STACK", "url": "ADDRESS", "missing": "NAMES", "names": "NAMES", "code": "CODE", "tarball": "PATH",
}  # fmt: skip
_TWO = re.compile(r"(…|\b[A-Z][A-Z-]{2,})(?:…|(?<=…)[A-Z][A-Z-]{2,})+")
# What makes a code -> its exit code where neither the code nor the call says it, and what its arguments are.
_ERRORS = dict.fromkeys(("EnvbuildError", "NodeError", "PatchError"), ("", ("code", "what")))
_FINDINGS = {
    "problem": (f"{ExitCode.INTEGRITY:d}", ("code", "topic", "what")),
    "LockFinding": (f"{ExitCode.CHECK_FAILED:d}", ("code", "kind", "subject", "what", "exit_code")),
    "DraftFinding": ("none", ("code", "about", "statements", "what", "hint")),
    **dict.fromkeys(("of_statements", "of_packages", "of_sources"), ("none", ("code", "of", "what", "hint", "about"))),
}
_MAKERS = {**_ERRORS, **_FINDINGS}
_SIGNS = ("%s", "%d", "%r", "%.12s", "%.1f", "%g")


class Row(NamedTuple):
    """One error: its code, the exit code in digits, message, cause and next step, with a word for what is not constant.

    That is a noun in capitals (`STACK`) where the sources name it by one, else "…".
    """

    code: str
    exit: str
    what: str
    why: str
    hint: str


class Value(NamedTuple):
    """An argument: the texts that it can be where all of them are known, and one text with a word for all else."""

    known: tuple[str, ...]
    words: str


Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Module:
    """One file: its functions, the constants of its top, where an imported name comes from."""

    functions: list[Function]
    constants: dict[str, ast.expr]
    imported: dict[str, Path]


Names = Mapping[str, Value]


@cache
def module(path: Path) -> Module:
    """What is in a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, Function)]
    assigned = [node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign) and node.value]
    constants = {
        target.id: node.value
        for node in assigned
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name) and node.value
    }
    imported = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("envbuild"):
            source = PACKAGE.parent / str(node.module).replace(".", "/")
            imported |= {alias.asname or alias.name: _file(source, alias.name) for alias in node.names}
    return Module(functions, constants, imported)


def _file(source: Path, name: str) -> Path:
    """The file of an imported name, which may be a module itself."""
    for path in (source / f"{name}.py", source.with_suffix(".py"), source / "__init__.py"):
        if path.is_file():
            return path
    return source


def value(node: ast.expr | None, names: Names, path: Path) -> Value:
    """What an expression can be, where `names` are known."""
    if node is None:
        return Value(("",), "")
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return Value((node.value,), node.value)
    if isinstance(node, ast.Name):
        return names[node.id] if node.id in names else _constant(node.id, path)
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):
        first, last = node.values[0], node.values[-1]
        known = isinstance(last, ast.Name) and last.id in names
        return Value((), value(last, names, path).words if known else _noun(getattr(first, "attr", "")))
    if isinstance(node, ast.IfExp):
        one, other = value(node.body, names, path), value(node.orelse, names, path)
        return Value(one.known + other.known, one.words or other.words)
    if isinstance(node, ast.JoinedStr):
        parts = [value(p.value if isinstance(p, ast.FormattedValue) else p, names, path) for p in node.values]
        known = tuple("".join(texts) for texts in product(*(part.known for part in parts)))
        return Value(known, _TWO.sub(r"\1", "".join(part.words for part in parts)).replace("NODES nodes", "N nodes"))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return Value((), value(node.left, names, path).words + value(node.right, names, path).words)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return Value((), _filled(value(node.left, names, path).words, node.right, names, path))
    return Value((), _stands_for(node))


def _stands_for(node: ast.expr) -> str:
    """A noun in capitals for what an expression gives: `stack.name` and `few(stack)` are STACK."""
    if isinstance(node, ast.Attribute):
        return _noun(node.attr) if node.attr not in _PARTS else _stands_for(node.value)
    if isinstance(node, ast.Subscript):
        return _stands_for(node.value)
    if isinstance(node, ast.Call):
        method = node.func.value if isinstance(node.func, ast.Attribute) else None
        if _called(node) in ("len", "plural", "sum", "max", "min"):
            return "N"
        inner = node.args[0] if node.args else method
        return "…" if inner is None else _stands_for(inner)
    return _noun(node.id) if isinstance(node, ast.Name) else "…"


def _noun(name: str) -> str:
    return _NOUNS.get(name.strip("_").lower(), "…")


def _constant(name: str, path: Path) -> Value:
    here = module(path)
    if name in here.constants:
        return value(here.constants[name], {}, path)
    there = here.imported.get(name)
    if there is not None and there != path and there.is_file() and name in module(there).constants:
        return value(module(there).constants[name], {}, there)
    return Value((), _noun(name))


def _filled(text: str, right: ast.expr, names: Names, path: Path) -> str:
    """A text of `%`, each sign by the words of its argument."""
    words = [value(part, names, path).words for part in (right.elts if isinstance(right, ast.Tuple) else [right])]
    out, place = "", 0
    while place < len(text):
        sign = next((sign for sign in _SIGNS if text.startswith(sign, place)), "")
        if sign:
            out += words.pop(0) if words else "…"
        out += "" if sign else text[place]
        place += len(sign) or (2 if text.startswith("%%", place) else 1)
    return out


def _called(call: ast.Call) -> str:
    return str(getattr(call.func, "id", getattr(call.func, "attr", "")))


def _calls(function: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(function) if isinstance(node, ast.Call))


@cache
def _callers() -> dict[str, list[tuple[Path, Function, ast.Call]]]:
    """Every call by the name of what is called, with the function that it stands in."""
    callers: dict[str, list[tuple[Path, Function, ast.Call]]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for function in module(path).functions:
            for call in _calls(function):
                callers.setdefault(_called(call), []).append((path, function, call))
    return callers


def _own(function: Function, names: Names, path: Path, call: ast.Call) -> Names:
    """The names that are known at a call: the function's parameters, and what was last assigned above it."""
    assigned = [node for node in ast.walk(function) if isinstance(node, ast.Assign) and len(node.targets) == 1]
    single: dict[str, list[ast.expr]] = {}
    for node in assigned:
        if isinstance(node.targets[0], ast.Name) and node.lineno < call.lineno:
            single.setdefault(node.targets[0].id, []).append(node.value)
    known = dict(names)
    for name, values in single.items():
        if name not in known:
            last = value(max(values, key=lambda node: node.lineno), known, path)
            noun = _noun(name)
            known[name] = last if len(values) == 1 else Value((), last.words if noun == "…" else noun)
    return known


def _asked(node: ast.AST) -> set[str]:
    return {child.id for child in ast.walk(node) if isinstance(child, ast.Name)}


def _given(path: Path, function: Function, needed: set[str], depth: int = 3) -> Iterator[Names]:
    """What a function's parameters are, call by call; a `needed` one that is the caller's, by the caller's calls."""
    parameters = [argument.arg for argument in function.args.args if argument.arg not in ("self", "cls")]
    usual = dict(zip(parameters[::-1], function.args.defaults[::-1], strict=False))
    for place, caller, call in _callers().get(function.name, []):
        here = module(place)
        if path not in (place, here.imported.get(function.name), here.imported.get(_of(call))):
            continue
        named = {str(keyword.arg): keyword.value for keyword in call.keywords}
        arguments = usual | dict(zip(parameters, call.args, strict=False)) | named
        above: Iterator[Names] = iter(({},))
        plain = _own(caller, {}, place, call)
        if any(not value(arguments[name], plain, place).known for name in needed & arguments.keys()):
            theirs = set().union(*(_asked(arguments[name]) for name in needed & arguments.keys()))
            above = _given(place, caller, theirs, depth - 1) if depth and caller is not function else iter(())
        for names in above:
            known = _own(caller, names, place, call)
            yield {name: value(node, known, place) for name, node in arguments.items()}


def _of(call: ast.Call) -> str:
    """`module` of a call `module.function(...)`."""
    return str(getattr(getattr(call.func, "value", None), "id", ""))


def _rows(path: Path, function: Function, call: ast.Call, names: Names) -> Iterator[Row]:
    known = _own(function, names, path, call)
    number, arguments = _MAKERS[_called(call)]
    given = dict(zip(arguments, call.args, strict=False)) | {
        str(keyword.arg): keyword.value for keyword in call.keywords
    }
    ending = given.get("exit_code")
    if ending is not None:
        named = isinstance(ending, ast.Attribute) and ending.attr in ExitCode.__members__
        number = f"{ExitCode[ending.attr]:d}" if named else "…"  # type: ignore[attr-defined]
    elif value(given.get("kind"), known, path).known in (("note",), ("unchecked",)):
        number = f"{ExitCode.OK:d}"
    texts = [value(given.get(key), known, path).words for key in ("what", "why", "hint")]
    for name in value(given["code"], known, path).known:
        by_table = number or str(EXITS.get(name, Exit.USAGE))
        yield Row(name, by_table, *(re.sub("…{2,}", "…", text) for text in texts))


def _of_call(path: Path, function: Function, call: ast.Call) -> Iterator[Row]:
    """The rows of one place that makes an error: with its own words, else with those of the calls of its function."""
    plain = list(_rows(path, function, call, {}))
    yield from plain
    if not plain:
        needed = _asked(call.args[0]) | _asked_locally(function, call.args[0])
        for names in (*_looped(function, path), *_given(path, function, needed)):
            yield from _rows(path, function, call, names)


def _looped(function: Function, path: Path) -> Iterator[Names]:
    """What the names of a loop over written rows are, row by row."""
    for node in ast.walk(function):
        if isinstance(node, ast.For) and isinstance(node.target, ast.Tuple) and isinstance(node.iter, ast.Tuple):
            names = [getattr(target, "id", "") for target in node.target.elts]
            rows = (row.elts for row in node.iter.elts if isinstance(row, ast.Tuple))
            yield from (dict(zip(names, (value(cell, {}, path) for cell in row), strict=True)) for row in rows)


def _asked_locally(function: Function, code: ast.expr) -> set[str]:
    """The names in what a local name of the code was assigned."""
    wanted = _asked(code)
    assigned = (node for node in ast.walk(function) if isinstance(node, ast.Assign))
    return {name for node in assigned if wanted & _asked(node.targets[0]) for name in _asked(node.value)}


def errors() -> set[Row]:
    """All of them; of a rule that refuses, whose name is the code, none."""
    made = _made(_ERRORS) | {Row(code, str(EXITS[code]), means, "…", HINTS.get(code, "")) for _, code, means in CAUSES}
    jobs = {f"job-{failure}": JOB_HINTS.get(failure, SEE_LOG) for failure in Failure} | dict.fromkeys(
        ("job-failed", "job-lost"), SEE_LOG
    )
    return made | {Row(code, str(EXITS[code]), "job … ended as …", "…", hint) for code, hint in jobs.items()}


def findings() -> set[Row]:
    """What commands list and do not raise."""
    return _made(_FINDINGS)


def _form(row: Row) -> tuple[str, ...]:
    return tuple(re.sub("[A-Z]{2,}(?:-[A-Z]+)*", "…", text) for text in row)


def _made(makers: Collection[str]) -> set[Row]:
    """Of rows that differ in the words for what is filled in, the one with the nouns."""
    made: set[Row] = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        for function in module(path).functions:
            for call in _calls(function):
                if _called(call) in makers and call.args:
                    made.update(_of_call(path, function, call))
    return {*{_form(row): row for row in sorted(made, reverse=True)}.values()}
