"""Edits of Alpa's artifact: how it starts the ranks, and the row that it writes."""

import ast

from envbuild.node.patch.source_text import Change, Source, UnfitError, constant, dotted

_OLD, _NEW = "torch.distributed.launch", "torch.distributed.run"
_COUNT = "num_devices_per_host"


def _find_launch(source: "Source") -> "list[Change]":
    changes = []
    for start, _, text in source.string_tokens():
        at = text.find(_OLD)
        if at >= 0:
            changes.append(Change(start + at, start + at + len(_OLD), _NEW))
    return changes


def _check_launch(source: "Source") -> None:
    if _OLD in source.text:
        raise UnfitError("%s is still named" % _OLD, source.text.index(_OLD))


def _row_places(source: "Source") -> "tuple[list[ast.expr], list[ast.expr]]":
    """The wrong device counts (`n % 8` in a choice), and the values under the key `tflops` that are plain names."""
    counts: list[ast.expr] = []
    values: list[ast.expr] = []
    for node in ast.walk(source.tree()):
        if isinstance(node, ast.Assign) and dotted(node.targets[0]) == _COUNT and isinstance(node.value, ast.IfExp):
            if isinstance(node.value.body, ast.BinOp) and isinstance(node.value.body.op, ast.Mod):
                counts.append(node.value.body)
        elif isinstance(node, ast.Dict):
            for number, key in enumerate(node.keys):
                if constant(key) == "tflops" and isinstance(node.values[number], ast.Name):
                    values.append(node.values[number])
    return counts, values


def _find_row(source: "Source") -> "list[Change]":
    counts, values = _row_places(source)
    # All of one host's GPUs: for eight, `8 % 8` would be none.
    changes = [Change(source.span(node.left)[1], source.span(node)[1], "") for node in counts]  # type: ignore[attr-defined]
    # numpy 2 writes np.float64(…), which is no Python literal for the reader of the table.
    return changes + [source.replaced(node, "float(%s)" % source.code(node)) for node in values]


def _check_row(source: "Source") -> None:
    if any(_row_places(source)):
        raise UnfitError("the row is still written as before")


EDITS = {
    "alpa-launch-torchrun": (_find_launch, _check_launch, 1),
    "alpa-result-row": (_find_row, _check_row, 1),
}
