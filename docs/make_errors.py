"""Writes `errors.md`: every error code in the sources, with what it says and what to do next."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

from envbuild.errors import ExitCode

HERE = Path(__file__).parent
PACKAGE = HERE.parent / "envbuild"
HEAD = """# Error codes

Every error says what happened, why, and what to do next; `--json` has it as `code`, `what`, `why`, `hint`.
This list is made from the sources (`make generated` compares it); "…" stands for a name, a number or a text of
its own. A code with several lines is used for each of them.

| code | exit | what it says | next step |
|---|---|---|---|
"""


def words(node: ast.AST | None) -> str:
    """The constant text of an expression, with "…" for everything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(words(part) if isinstance(part, ast.Constant) else "…" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        text = words(node.left)
        for sign in ("%s", "%d", "%r", "%.12s", "%.1f", "%g"):
            text = text.replace(sign, "…")
        return text.replace("%%", "%")
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return words(node.left) + words(node.right)
    if isinstance(node, ast.IfExp):
        return words(node.body) or words(node.orelse)
    return "…" if node is not None else ""


def _is_name(node: ast.AST) -> TypeGuard[ast.Attribute]:
    return isinstance(node, ast.Attribute) and node.attr in ExitCode.__members__


def errors(path: Path) -> Iterator[tuple[str, str, str, str]]:
    """(code, exit, what, hint) of every error that a module makes with its code in place."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        name = getattr(node, "func", None)
        called = getattr(name, "id", getattr(name, "attr", ""))
        if not isinstance(node, ast.Call) or called not in ("EnvbuildError", "NodeError") or len(node.args) < 2:
            continue
        code = node.args[0]
        if not isinstance(code, ast.Constant) or not isinstance(code.value, str):
            continue
        given = {each.arg: each.value for each in node.keywords}
        exit_code = given.get("exit_code")
        number = "2" if exit_code is None else f"{ExitCode[exit_code.attr]:d}" if _is_name(exit_code) else "…"
        yield code.value, number, words(node.args[1]), words(given.get("hint"))


def page() -> str:
    """The page: one row a code and text, sorted by code."""
    found = {each for path in sorted(PACKAGE.rglob("*.py")) for each in errors(path)}
    rows = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in sorted(found)]
    return HEAD + "".join(f"| `{code}` | {number} | {what} | {hint} |\n" for code, number, what, hint in rows)


if __name__ == "__main__":
    (HERE / "errors.md").write_text(page(), encoding="utf-8")
