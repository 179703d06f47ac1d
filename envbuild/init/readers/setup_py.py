"""setup.py as a syntax tree: what it would ask for, never what it would do."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from packaging.utils import canonicalize_name

from envbuild.init.readers.manifests import Lines
from envbuild.init.readers.requirement import name_of
from envbuild.init.readers.shell import Shell
from envbuild.init.statement import Statement
from envbuild.node.smoke.programs.closure import parsed

_CUDA = frozenset(("CUDAExtension", "CUDA_HOME"))
# Variables by which a setup.py compiles what it would fetch, or leave out where no GPU is.
_FORCED = re.compile(r"\w+_FORCE_BUILD|FORCE_CUDA")
_FILE = re.compile(r"[\w./-]*require[\w./-]*\.(?:txt|in)$")


class _Module:
    """The constants of a module, and what its calls of `setup` hold."""

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.values: dict[str, ast.expr] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                self.values.setdefault(node.targets[0].id, node.value)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
                self.values.setdefault(node.target.id, node.value)

    def setup_keywords(self) -> dict[str, ast.expr]:
        """The keywords of `setup(...)`, those of `**name` where name is a dictionary written out."""
        out: dict[str, ast.expr] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call) and _called(node).rpartition(".")[2] == "setup":
                for keyword in node.keywords:
                    if keyword.arg:
                        out[keyword.arg] = keyword.value
        return out

    def strings(self, node: ast.expr | None, depth: int = 8) -> list[tuple[str, int]]:
        """The texts of a list that is written out, by names and sums too, with their lines."""
        if node is None or depth == 0:
            return []
        if isinstance(node, ast.Constant):
            return [(node.value, node.lineno)] if isinstance(node.value, str) else []
        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            return [item for element in node.elts for item in self.strings(element, depth - 1)]
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return self.strings(node.left, depth - 1) + self.strings(node.right, depth - 1)
        if isinstance(node, ast.Name):
            return self.strings(self.values.get(node.id), depth - 1)
        if isinstance(node, ast.Starred):
            return self.strings(node.value, depth - 1)
        return self._looked_up(node)

    def _looked_up(self, node: ast.expr) -> list[tuple[str, int]]:
        """`deps["torch"]` and `deps_list("torch", "numpy")`: what a list of the module says of these names."""
        if isinstance(node, ast.Subscript):
            keys = [node.slice]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id != "open":
            keys = node.args
        else:
            return []
        names = [canonicalize_name(name) for key in keys if (name := _text(key))]
        lists = [value for value in self.values.values() if isinstance(value, ast.List)]
        listed = [text for value in lists for element in value.elts if (text := _text(element))]
        return [(text, node.lineno) for name in names for text in listed if name_of(text) == name][: len(names)]

    def files(self, node: ast.expr | None, depth: int = 6) -> list[tuple[str, int]]:
        """Names of requirements files that an expression, or a function that it calls, speaks of."""
        if node is None or depth == 0:
            return []
        if out := _files(node):
            return out
        functions = {node.name: node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef)}
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and part.id in self.values and self.values[part.id] is not node:
                out += self.files(self.values[part.id], depth - 1)
            elif isinstance(part, ast.Call) and (name := _called(part)) in functions:
                out += _files(functions[name])
        return list(dict.fromkeys(out))


def _files(node: ast.AST) -> list[tuple[str, int]]:
    constants = [part for part in ast.walk(node) if isinstance(part, ast.Constant)]
    return [(_text(constant), constant.lineno) for constant in constants if _FILE.match(_text(constant))]


def _text(node: ast.AST | None) -> str:
    """The text of a constant; empty for anything else."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _called(node: ast.Call) -> str:
    return ast.unparse(node.func) if isinstance(node.func, ast.Name | ast.Attribute) else ""


def setup_py(text: str, file: str) -> Iterator[Statement]:
    """What a setup.py says about its package, its requirements and its compiled parts."""
    lines, tree = Lines(file, text, "setup.py"), parsed(text)
    if tree is None:
        yield lines.make("unknown", "setup.py", line=1)
        return
    module = _Module(tree)
    keywords = module.setup_keywords()
    for name, line in module.strings(keywords.get("name"))[:1]:
        yield lines.make("trait", "project", name, line=line, name=name)
    for needs, line in module.strings(keywords.get("python_requires"))[:1]:
        yield lines.make("python", needs, line=line, by="requires-python")
    if keywords and "python_requires" not in keywords:
        yield lines.make("trait", "no-python-requires", line=1)
    yield from _required(lines, module, keywords)
    yield from _compiled(lines, tree)
    yield from _commands(lines, tree)


def _required(lines: Lines, module: _Module, keywords: dict[str, ast.expr]) -> Iterator[Statement]:
    listed = keywords.get("install_requires")
    written = module.strings(listed)
    for text, line in written:
        yield from lines.wanted(text, line=line)
    for name, line in [] if written else module.files(listed):
        yield lines.make("file", str(PurePosixPath(PurePosixPath(lines.file).parent, name)), line=line, by="-r")
    extras = keywords.get("extras_require")
    if isinstance(extras, ast.Name):
        yield from _set_extras(lines, module, extras.id)
        extras = module.values.get(extras.id)
    if isinstance(extras, ast.Dict):
        for key, value in zip(extras.keys, extras.values, strict=True):
            name = str(key.value) if isinstance(key, ast.Constant) else ""
            inside = lines.within(f"extra:{name}")
            for text, line in module.strings(value):
                yield from inside.wanted(text, line=line)


def _set_extras(lines: Lines, module: _Module, table: str) -> Iterator[Statement]:
    """`extras["torch"] = deps_list("torch")`, one at a time."""
    for node in ast.walk(module.tree):
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(node, ast.Assign) and isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
            key = _text(target.slice) if target.value.id == table else ""
            inside = lines.within(f"extra:{key}")
            for text, line in module.strings(node.value) if key else ():
                yield from inside.wanted(text, line=line)


def _compiled(lines: Lines, tree: ast.Module) -> Iterator[Statement]:
    names = {node.id: node.lineno for node in ast.walk(tree) if isinstance(node, ast.Name)}
    attributes = {node.attr: node.lineno for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    used = names | attributes
    cuda = _CUDA & used.keys()
    forced = " ".join(sorted(filter(_FORCED.fullmatch, {_text(node) for node in ast.walk(tree)})))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _called(node).rpartition(".")[2].lower().endswith("extension"):
            first = node.args[0] if node.args else next((k.value for k in node.keywords if k.arg == "name"), None)
            if module := _text(first):
                yield lines.make("extension", module, line=node.lineno, cuda="yes" if cuda else "", forced=forced)
    if cuda and "CUDAExtension" in used:
        yield lines.make("trait", "compiles-cuda", line=used["CUDAExtension"])
    for statement in tree.body:
        top = isinstance(statement, ast.Import) and any(name.name.split(".")[0] == "torch" for name in statement.names)
        if top or (isinstance(statement, ast.ImportFrom) and (statement.module or "").split(".")[0] == "torch"):
            yield lines.make("trait", "build-imports-torch", line=statement.lineno)
            break
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and node.orelse and re.search("CUDA_HOME|is_available", ast.unparse(node.test)):
            yield lines.make("trait", "silent-skip", line=node.lineno)


def _commands(lines: Lines, tree: ast.Module) -> Iterator[Statement]:
    """`subprocess.check_call([sys.executable, "-m", "pip", "install", "torch"])` and the like, as what they install."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not re.search(r"(call|run|Popen|system)$", _called(node)) or not node.args:
            continue
        first = node.args[0]
        if isinstance(first, ast.List):
            text = " ".join(_text(element) if isinstance(element, ast.Constant) else "python" for element in first.elts)
        else:
            text = _text(first)
        if "pip" in text.split():
            for statement in Shell(lines.file).read(text, node.lineno):
                if statement.kind in ("package", "source"):
                    marks = dict(statement.options) | {"by": "subprocess"}
                    yield lines.make(statement.kind, statement.value, line=node.lineno, **marks)
