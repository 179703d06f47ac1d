"""Edits of Megatron-LM and its forks: the tied embedding's all-reduce, and the fused kernels."""

import ast
import re
from collections.abc import Iterator

from envbuild.node.patch.source_text import Change, Source, UnfitError, called, constant, dotted

_ARCH = re.compile(r"arch=compute_[0-9]+[a-z]?,code=(?:sm|compute)_[0-9]+[a-z]?\Z")
_GENCODE = "_envbuild_gencode"
_GENCODE_HELPER = '''\
_ENVBUILD_ARCHITECTURES = os.environ.get("TORCH_CUDA_ARCH_LIST", "")


def _envbuild_gencode():
    """nvcc's architecture flags: from TORCH_CUDA_ARCH_LIST as it was at import, else from the GPUs that are here."""
    wanted = _ENVBUILD_ARCHITECTURES.replace(";", " ").split()
    if not wanted:
        import torch

        here = {torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())}
        wanted = ["%d.%d" % capability for capability in sorted(here)]
    if not wanted:
        raise RuntimeError("no GPU is visible: set TORCH_CUDA_ARCH_LIST to the architectures of the target, as in 9.0")
    flags = []
    for name in wanted:
        digits = name.replace("+PTX", "").replace(".", "")
        if not digits.rstrip("abcdefghijklmnopqrstuvwxyz").isdigit():
            raise RuntimeError("TORCH_CUDA_ARCH_LIST: %r is not an architecture like 9.0 or 9.0+PTX" % name)
        flags += ["-gencode", "arch=compute_%s,code=sm_%s" % (digits, digits)]
        if name.endswith("+PTX"):
            flags += ["-gencode", "arch=compute_%s,code=compute_%s" % (digits, digits)]
    return flags


'''
_LOAD = "_envbuild_load"
_LOAD_HELPER = '''\
def _envbuild_load(name, **options):
    """The kernel that was built ahead of time, else one built now; either way `import name` finds this very one.

    Other packages, Apex for one, may bring modules of the same names.
    """
    import importlib
    import importlib.util
    import sys

    ahead = "envbuild_kernels." + name
    try:
        there = importlib.util.find_spec(ahead) is not None
    except ModuleNotFoundError:
        there = False
    sys.modules[name] = importlib.import_module(ahead) if there else cpp_extension.load(name=name, **options)
    return sys.modules[name]


'''


def _tied(source: "Source") -> "list[ast.If]":
    """In `train_step`: the `if` about shared word embeddings around the embedding group's all-reduce."""
    return [
        node
        for function in source.functions("train_step")
        for node in source.every(ast.If, function)
        if _names(node.test, "share_word_embeddings") and _reduces(node)
    ]


def _names(node: "ast.AST", attribute: str) -> bool:
    return any(isinstance(each, ast.Attribute) and each.attr == attribute for each in ast.walk(node))


def _reduces(node: "ast.If") -> bool:
    ends = {name.rsplit(".", 1)[-1] for line in node.body for name in called(line)}
    return {"all_reduce", "get_embedding_group"} <= ends


def _is_off(node: "ast.If") -> bool:
    test = node.test
    return isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) and constant(test.values[-1]) is False


def _find_tied(source: "Source") -> "list[Change]":
    changes = []
    for node in [each for each in _tied(source) if not _is_off(each)]:
        start, end = source.span(node.test)
        if not isinstance(node.test, ast.Attribute) or node.orelse:
            raise UnfitError("the condition on share_word_embeddings is not a plain one", start)
        changes.append(Change(end, end, " and False"))
    return changes


def _check_tied(source: "Source") -> None:
    found = _tied(source)
    if len(found) != 1 or not _is_off(found[0]):
        raise UnfitError("the gradient all-reduce of the embedding is not switched off exactly once")


def _gencode_pairs(source: "Source") -> "Iterator[tuple[ast.expr, ast.expr]]":
    """Neighbours `-gencode`, `arch=…` in list literals."""
    for node in source.every(ast.List):
        for number, one in enumerate(node.elts[:-1]):
            if constant(one) == "-gencode" and _ARCH.match(str(constant(node.elts[number + 1]))):
                yield one, node.elts[number + 1]


def _gencode_appends(source: "Source") -> "Iterator[ast.Expr]":
    """Statements `x.append('-gencode')` and `x.append('arch=…')`."""
    for node in source.every(ast.Expr):
        if isinstance(node.value, ast.Call) and len(node.value.args) == 1:
            value = str(constant(node.value.args[0]))
            if dotted(node.value.func).endswith(".append") and (value == "-gencode" or _ARCH.match(value)):
                yield node


def _blanked(source: "Source") -> "list[ast.stmt]":
    """`os.environ["TORCH_CUDA_ARCH_LIST"] = …` at the top of the file."""
    found: list[ast.stmt] = []
    for node in source.top(ast.Assign):
        target = node.targets[0]
        if isinstance(target, ast.Subscript) and source.code(target.value) == "os.environ":
            if "TORCH_CUDA_ARCH_LIST" in source.code(target):
                found.append(node)
    return found


def _find_arch(source: "Source") -> "list[Change]":
    pairs, appends = list(_gencode_pairs(source)), list(_gencode_appends(source))
    if not pairs and not appends:
        return []
    if len(pairs) != 1 or len(appends) % 2:
        found = (len(pairs), len(appends))
        raise UnfitError(
            "expected one fixed -gencode pair in a list and appended pairs, found %d and %d halves" % found
        )
    blanked = _blanked(source)
    if len(blanked) != 1:
        raise UnfitError("TORCH_CUDA_ARCH_LIST is set %d times at the top of the file, not once" % len(blanked))
    changes = [Change(source.span(pairs[0][0])[0], source.span(pairs[0][1])[1], "*%s()" % _GENCODE)]
    for statement in appends:
        arch = constant(statement.value.args[0]) != "-gencode"  # type: ignore[attr-defined]
        changes.append(source.replaced(statement, "pass", arch))
    changes += [source.replaced(call, '("", "0", "0")', hit=False) for call in _idle_versions(source, appends)]
    at = source.line_start(source.span(blanked[0])[0])
    return changes + [Change(at, at, _GENCODE_HELPER, hit=False)]


def _idle_versions(source: "Source", appends: "list[ast.Expr]") -> "list[ast.expr]":
    """The call of nvcc in `load`, when nothing but the flags that go depends on it.

    Kernels that were built ahead of time then start on nodes without nvcc.
    """
    found: list[ast.expr] = []
    for function in [each for each in source.top(ast.FunctionDef) if each.name == "load"]:
        for node in source.every(ast.Assign, function):
            if isinstance(node.value, ast.Call) and isinstance(node.targets[0], ast.Tuple):
                names = {dotted(name) for name in node.targets[0].elts} - {"_"}
                three = len(node.targets[0].elts) == 3 and "bare_metal_version" in dotted(node.value.func)
                if three and _only_in_tests(function, names, set(appends)):
                    found.append(node.value)
    return found


def _only_in_tests(function: "ast.FunctionDef", names: "set[str]", flags: "set[ast.Expr]") -> bool:
    """Whether names are read only in conditions of `if`s that hold nothing but flag statements."""
    idle: set[ast.AST] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.If) and not node.orelse and all(_is_idle(each, flags) for each in node.body):
            idle |= set(ast.walk(node.test))
    reads = [n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id in names and isinstance(n.ctx, ast.Load)]
    return all(read in idle for read in reads)


def _is_idle(node: "ast.stmt", flags: "set[ast.Expr]") -> bool:
    if isinstance(node, ast.If):
        return not node.orelse and all(_is_idle(each, flags) for each in node.body)
    return node in flags


def _check_arch(source: "Source") -> None:
    if any(True for _ in _gencode_pairs(source)) or any(True for _ in _gencode_appends(source)):
        raise UnfitError("a fixed -gencode flag is still there")
    starred = [node.value for node in source.every(ast.Starred)]
    if len([call for call in starred if isinstance(call, ast.Call) and dotted(call.func) == _GENCODE]) != 1:
        raise UnfitError("the flags are not taken from %s exactly once" % _GENCODE)


def _loads(source: "Source") -> "list[ast.Call]":
    """Calls of `cpp_extension.load`, ours left out."""
    ours = [each for each in source.top(ast.FunctionDef) if each.name == _LOAD]
    inside = {node for function in ours for node in ast.walk(function)}
    return [call for call in source.every(ast.Call) if dotted(call.func) == "cpp_extension.load" and call not in inside]


def _find_load(source: "Source") -> "list[Change]":
    changes = []
    for call in _loads(source):
        start, end = source.span(call.func)
        if call.args or "name" not in [keyword.arg for keyword in call.keywords]:
            raise UnfitError("cpp_extension.load is not called with name=…", start)
        changes.append(Change(start, end, _LOAD))
    if not changes:
        return []
    functions = source.top(ast.FunctionDef)
    if not functions:
        raise UnfitError("cpp_extension.load is called outside any function")
    at = source.line_start(source.span(functions[0])[0])
    return changes + [Change(at, at, _LOAD_HELPER, hit=False)]


def _check_load(source: "Source") -> None:
    if _loads(source):
        raise UnfitError("cpp_extension.load is still called directly")


EDITS = {
    "megatron-no-tie": (_find_tied, _check_tied, 1),
    "megatron-fused-arch": (_find_arch, _check_arch, 1),
    "megatron-fused-import": (_find_load, _check_load, 1),
}
