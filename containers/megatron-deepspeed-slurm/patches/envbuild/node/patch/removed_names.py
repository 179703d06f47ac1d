"""Edits of any Python file: names and defaults that newer numpy, torch and omegaconf no longer have."""

import ast
import re

from envbuild.node.patch.source_text import Change, Source, UnfitError, above, dotted, nothing_left, parents

# What numpy before 1.24 made of these names (its release notes of 1.20): plain Python types.
_ALIASES = {
    "bool": "bool",
    "int": "int",
    "float": "float",
    "complex": "complex",
    "object": "object",
    "str": "str",
    "long": "int",
    "unicode": "str",
}
_IMPORT = re.compile(r"\bnumpy\b(?:\s+as\s+(\w+))?")
# The names of torch._six that are plain numbers.
_SIX = ("inf", "nan")


def _numpy_names(source: "Source") -> "set[str]":
    imported = [alias for node in source.every(ast.Import) for alias in node.names]
    return {alias.asname or alias.name for alias in imported if alias.name == "numpy"}


def _bound(tree: "ast.Module") -> "set[str]":
    """Every name that the file gives a meaning of its own, anywhere in it."""
    out = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            out.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            out.add(node.name)
        elif isinstance(node, ast.arg):
            out.add(node.arg)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            out |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    return out


def _aliases(source: "Source") -> "list[ast.Attribute]":
    # Most files of a tree have none: parsing those would cost seconds, and some trees hold files that do not parse.
    called = {match.group(1) or "numpy" for match in _IMPORT.finditer(source.text)}
    if not any(re.search(r"\b%s[\s\\]*\.[\s\\]*(%s)\b" % (name, "|".join(_ALIASES)), source.text) for name in called):
        return []
    numpy = _numpy_names(source)
    return [
        node
        for node in source.every(ast.Attribute)
        if node.attr in _ALIASES and isinstance(node.value, ast.Name) and node.value.id in numpy
    ]


def _find_aliases(source: "Source") -> "list[Change]":
    found = _aliases(source)
    if not found:
        return []
    bound = _bound(source.tree())
    for node in found:
        if _ALIASES[node.attr] in bound:
            raise UnfitError("gives the name %s a meaning of its own" % _ALIASES[node.attr], source.span(node)[0])
        if not isinstance(node.ctx, ast.Load):
            raise UnfitError("assigns to %s" % dotted(node), source.span(node)[0])
    return [source.replaced(node, _ALIASES[node.attr]) for node in found]


def _check_aliases(source: "Source") -> None:
    left = _aliases(source)
    if left:
        raise UnfitError("%s is still there" % dotted(left[0]), source.span(left[0])[0])


def _six(source: "Source") -> "list[ast.ImportFrom]":
    """Unguarded imports; one inside a `try` has its own way out."""
    known = parents(source.tree())
    return [
        node
        for node in source.every(ast.ImportFrom)
        if node.module == "torch._six" and not any(isinstance(each, ast.Try) for each in above(node, known))
    ]


def _find_six(source: "Source") -> "list[Change]":
    changes = []
    for node in _six(source):
        start, end = source.span(node)
        other = [alias.name for alias in node.names if alias.name not in _SIX]
        if other:
            raise UnfitError("takes %s from torch._six, which has no plain replacement" % ", ".join(other), start)
        where = source.text.index("torch._six", start, end)
        # math, not torch: every torch of every year gives the same float from there.
        changes.append(Change(where, where + len("torch._six"), "math"))
    return changes


def _check_six(source: "Source") -> None:
    if _six(source):
        raise UnfitError("torch._six is still imported", source.span(_six(source)[0])[0])


def _find_primitive(source: "Source") -> "list[Change]":
    """Uses of `is_primitive_type` of the module `_utils` that is imported from omegaconf."""
    modules = [
        alias.asname or alias.name
        for node in source.every(ast.ImportFrom)
        if node.module == "omegaconf"
        for alias in node.names
        if alias.name == "_utils"
    ]
    return [
        source.replaced(node, dotted(node) + "_annotation")
        for node in source.every(ast.Attribute)
        if node.attr == "is_primitive_type" and dotted(node.value) in modules
    ]


def _find_load(source: "Source") -> "list[Change]":
    """Calls of `torch.load` that do not say whether they read weights only."""
    out = []
    for node in source.every(ast.Call):
        if dotted(node.func) != "torch.load" or {"weights_only", None} & {each.arg for each in node.keywords}:
            continue
        values = node.args + [keyword.value for keyword in node.keywords]
        if not values:
            raise UnfitError("calls torch.load without a file", source.span(node)[0])
        end = max(source.span(value)[1] for value in values)
        out.append(Change(end, end, ", weights_only=False"))
    return out


EDITS = {
    "numpy-aliases": (_find_aliases, _check_aliases, 1),
    "megatron-torch-six": (_find_six, _check_six, 1),
    "omegaconf-primitive": (_find_primitive, nothing_left(_find_primitive, "the name of omegaconf 2.1"), 1),
    "torch-load-pickle": (_find_load, nothing_left(_find_load, "a torch.load of today's default"), 1),
}
