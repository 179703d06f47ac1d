"""Edits of Apex's setup.py: its CUDA check, its version parser, and its nvcc calls where there is no CUDA."""

import ast

from envbuild.node.patch.source_text import Change, Source, UnfitError, above, constant, dotted, nothing_left, parents

_CHECK = "check_cuda_torch_binary_vs_bare_metal"
_PARSER = "get_cuda_bare_metal_version"
_OURS = "_envbuild_cuda_check"
_HELPER = '''\
def _envbuild_cuda_check(check, cuda_dir):
    """Let a difference of CUDA minor versions inside one major pass; everything else is the check's to judge."""
    import os
    import re
    import subprocess

    import torch

    built = re.match(r"([0-9]+)\\.([0-9]+)", torch.version.cuda or "")
    if built is None or cuda_dir is None:
        print("envbuild: torch was built with CUDA {}, CUDA_HOME is {}: the check runs".format(
            torch.version.cuda, cuda_dir))
        return check(cuda_dir)
    said = subprocess.check_output([os.path.join(cuda_dir, "bin", "nvcc"), "-V"], universal_newlines=True)
    nvcc = re.search(r"release ([0-9]+)\\.([0-9]+)", said)
    if nvcc is None or nvcc.group(1) != built.group(1) or nvcc.groups() == built.groups():
        print("envbuild: nvcc {}, torch built with CUDA {}: the check runs".format(
            "unknown" if nvcc is None else ".".join(nvcc.groups()), torch.version.cuda))
        return check(cuda_dir)
    print("envbuild: nvcc {}, torch built with CUDA {}: same major, the check is passed over".format(
        ".".join(nvcc.groups()), torch.version.cuda))


'''


def _calls(source: "Source", name: str) -> "list[ast.Call]":
    found = [node for node in source.every(ast.Call) if dotted(node.func) == name]
    return sorted(found, key=lambda node: (node.lineno, node.col_offset))


def _wrapped(source: "Source") -> "list[ast.Call]":
    return [call for call in _calls(source, _OURS) if call.args and dotted(call.args[0]) == _CHECK]


def _find_check(source: "Source") -> "list[Change]":
    definitions, calls = source.functions(_CHECK), _calls(source, _CHECK)
    if not calls:
        return []
    if len(definitions) != 1:
        raise UnfitError("%s is defined %d times, not once" % (_CHECK, len(definitions)), source.span(calls[0])[0])
    known = parents(source.tree())
    changes = []
    for call in calls:
        if any(isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Lambda)) for node in above(call, known)):
            raise UnfitError("%s is called inside a function" % _CHECK, source.span(call)[0])
        if len(call.args) != 1 or call.keywords or dotted(call.args[0]).split(".")[-1] != "CUDA_HOME":
            raise UnfitError("%s is not called with CUDA_HOME alone" % _CHECK, source.span(call)[0])
        argument = source.span(call.args[0])[0]
        changes.append(Change(source.span(call)[0], argument, "%s(%s, " % (_OURS, _CHECK)))
    outermost = above(calls[0], known)[-2] if len(above(calls[0], known)) > 1 else calls[0]
    at = source.line_start(source.span(outermost)[0])
    return changes + [Change(at, at, _HELPER, hit=False)]


def _check_check(source: "Source") -> None:
    if _calls(source, _CHECK):
        raise UnfitError("%s is still called directly" % _CHECK)
    if [len(found) for found in (source.functions(_CHECK), source.functions(_OURS), _wrapped(source))] != [1, 1, 1]:
        raise UnfitError("expected one definition of the check, one of %s and one call of it" % _OURS)


def _one_digit(source: "Source") -> "list[ast.Subscript]":
    """`release[1][0]`: one character of the minor version."""
    found = []
    for node in source.every(ast.Subscript):
        inner = node.value
        if _index(node) == 0 and isinstance(inner, ast.Subscript) and _index(inner) == 1:
            if dotted(inner.value) == "release":
                found.append(node)
    return found


def _index(node: "ast.Subscript") -> object:
    index: ast.AST = node.slice
    # Python 3.8 wraps an index in ast.Index.
    return constant(getattr(index, "value", index) if type(index).__name__ == "Index" else index)


def _find_minor(source: "Source") -> "list[Change]":
    # The token is `11.4,` split at the dots: the second part is all digits and a comma.
    return [Change(source.span(n.value)[1], source.span(n)[1], '.split(",")[0]') for n in _one_digit(source)]


def _unguarded(source: "Source") -> "list[ast.Call]":
    """Calls of nvcc while setup.py is read, whatever is asked for, without a question whether there is one."""
    known, out = parents(source.tree()), []
    for call in _calls(source, _PARSER):
        chain = above(call, known)
        if any(isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Lambda)) for node in chain):
            continue
        tests = [source.code(node.test) for node in chain if isinstance(node, (ast.If, ast.IfExp))]
        if any(word in test for test in tests for word in ("sys.argv", "has_flag", "CUDA_HOME")):
            continue
        out.append(call)
    return out


def _find_home(source: "Source") -> "list[Change]":
    calls = _unguarded(source)
    if not calls:
        return []
    returns = [node for function in source.functions(_PARSER) for node in source.every(ast.Return, function)]
    sizes = {len(node.value.elts) if isinstance(node.value, ast.Tuple) else 0 for node in returns}
    if sizes == {2} and _imports(source, "packaging.version", "parse"):
        nothing = '("", parse("0"))'
    elif sizes == {3}:
        nothing = '("", "0", "0")'
    else:
        raise UnfitError("%s returns neither two values with packaging's parse nor three" % _PARSER)
    changes = []
    for call in calls:
        if len(call.args) != 1 or dotted(call.args[0]).split(".")[-1] != "CUDA_HOME":
            raise UnfitError("%s is not called with CUDA_HOME alone" % _PARSER, source.span(call)[0])
        home, old = source.code(call.args[0]), source.code(call)
        changes.append(source.replaced(call, "(%s if %s is None else %s)" % (nothing, home, old)))
    return changes


def _imports(source: "Source", module: str, name: str) -> bool:
    return any(
        node.module == module and any(a.name == name and not a.asname for a in node.names)
        for node in source.top(ast.ImportFrom)
    )


def _check_home(source: "Source") -> None:
    if _unguarded(source):
        raise UnfitError("nvcc is still called without asking whether it is there")


EDITS = {
    "apex-cuda-check": (_find_check, _check_check, 1),
    "apex-cuda-minor-parse": (_find_minor, nothing_left(_find_minor, "one character of the minor version"), 1),
    "apex-cuda-home-none": (_find_home, _check_home, 1),
}
