"""Edits of shell scripts and TOML files: whole lines, matched strictly from their first to their last character.

Each rule is a pattern for one line and its replacement; comments never match, because the patterns begin where the
line begins. What a rule must be inside of (a function, a table) is part of the rule.
"""

import ast
import re
from collections.abc import Iterator

from envbuild.node.patch.source_text import Change, Source, UnfitError, constant, dotted, nothing_left

_CYTHON = "cython<3"


def lines(source: "Source") -> "Iterator[tuple[int, str]]":
    """Offset and text (without its end) of every line."""
    start = 0
    for match in re.finditer("\r\n|\r|\n|\\Z", source.text):
        yield start, source.text[start : match.start()]
        start = match.end()


def each_line(source: "Source", pattern: str, new: str) -> "list[Change]":
    """A change for every line that the pattern matches wholly."""
    wanted = re.compile(pattern)
    out = []
    for start, line in lines(source):
        match = wanted.fullmatch(line)
        if match:
            out.append(Change(start, start + len(line), match.expand(new)))
    return out


def _find_hosfile(source: "Source") -> "list[Change]":
    return each_line(source, r'(\s*HOSTFILE="\$\{)HOSFILE(:-\$\{PBS_NODEFILE\}\}")', r"\1HOSTFILE\2")


def _find_wait(source: "Source") -> "list[Change]":
    found = each_line(source, r'(elasticDistributed "\$@" 2>&1) &', r"\1")
    rest = source.text[found[-1].end :] if found else ""
    if rest.strip():
        raise UnfitError("the training is not the last command of the script", found[-1].start)
    return found


def _find_comma(source: "Source") -> "list[Change]":
    """The target list of the fused projection: its first line lacks the comma, so the whole module does not parse."""
    known = list(lines(source))
    out = []
    for number, (start, line) in enumerate(known[:-2]):
        if not re.fullmatch(r"\s+\(query_layer", line) or not re.fullmatch(r"\s+key_layer,", known[number + 1][1]):
            continue
        if re.fullmatch(r"\s+value_layer\) = self\.split_tensor\(mixed_x_layer\)", known[number + 2][1]):
            out.append(Change(start + len(line), start + len(line), ","))
    return out


_HOSTS = r"if \[\[ \$\(hostname\) == nid\* \|\| \$\(hostname\) == login\* \]\]; then"
_FROM_ENVIRONMENT = r"""if [[ -n "${DATA_PARENT:-}" ]]; then
    : "${DATA_TYPE:?DATA_PARENT is set: set DATA_TYPE too, the name of the data without .bin}"
    echo "Data: ${DATA_PARENT}/dataset/${DATA_TYPE}"
elif [["""


def _find_data(source: "Source") -> "list[Change]":
    known = list(lines(source))
    out = []
    for number, (start, line) in enumerate(known[:-1]):
        if re.fullmatch(_HOSTS, line) and re.fullmatch(r'\s+DATA_PARENT=".*"', known[number + 1][1]):
            out.append(Change(start, start + len("if [["), _FROM_ENVIRONMENT))
    return out


def _find_base(source: "Source") -> "list[Change]":
    """In `setupPolaris` only: the module and venv of the guide, not those of another date."""
    inside, out = False, []
    rules = (
        (r'(\s+)DATE_STR="2023-09-29"', r'\1DATE_STR="${ALCF_BASE:-2023-10-04}"'),
        (
            r'(\s+\[ "\$\{CONDA_EXE\}" \] .*)loadCondaEnv "\$\{DATE_STR\}-unstable"(\s*)',
            r'\1loadCondaEnv "${DATE_STR}"\2',
        ),
    )
    for start, line in lines(source):
        if re.match(r"function \w+\(\)|\w+\(\) \{", line):
            inside = line.startswith("function setupPolaris()")
        for pattern, new in rules:
            match = re.fullmatch(pattern, line) if inside else None
            if match:
                out.append(Change(start, start + len(line), match.expand(new)))
    return out


def _find_licence(source: "Source") -> "list[Change]":
    """`license = ""` of the `[project]` table, its line end included."""
    return [
        Change(start, start + len(line) + len(source.newline), "")
        for start, line in _of_table(source, "project")
        if re.fullmatch(r"license\s*=\s*(\"\"|'')\s*(#.*)?", line)
    ]


def _of_table(source: "Source", name: str) -> "Iterator[tuple[int, str]]":
    """As `lines`, those of one table of a TOML file."""
    table = ""
    for start, line in lines(source):
        head = re.fullmatch(r"\s*\[([^\[\]]+)\]\s*(#.*)?", line)
        table = head.group(1).strip() if head else table
        if table == name:
            yield start, line


def _find_cython(source: "Source") -> "list[Change]":
    if source.suffix == "py":
        return _cython_in_setup(source)
    return [
        Change(start + match.start() + 1, start + match.end() - 1, _CYTHON)
        for start, line in _of_table(source, "build-system")
        if re.match(r"requires\s*=", line)
        for match in re.finditer(r"([\"'])[Cc]ython\1", line)
    ]


def _cython_in_setup(source: "Source") -> "list[Change]":
    out = []
    setups = [call for call in source.every(ast.Call) if dotted(call.func).split(".")[-1] == "setup"]
    for keyword in [each for call in setups for each in call.keywords]:
        if keyword.arg in ("setup_requires", "install_requires") and isinstance(keyword.value, ast.List):
            for item in keyword.value.elts:
                if str(constant(item)).lower() == "cython":
                    start, end = source.span(item)
                    out.append(Change(start + 1, end - 1, _CYTHON))
    return out


def _find_short_rows(source: "Source") -> "list[Change]":
    """The softmax of short rows: four elements at a time, where a thread has fewer."""
    found = each_line(source, r"(\s*constexpr int ELEMENTS_PER_LDG_STG = )4;", r"\1(WARP_ITERATIONS < 4) ? 1 : 4;")
    for change in found:
        before = source.text[: change.start].rpartition("template")[2]
        if "constexpr int WARP_ITERATIONS = " not in before:
            raise UnfitError("WARP_ITERATIONS is not known there", change.start)
    return found


_LEFT = "a line that was to be changed"
EDITS = {
    "megatron-softmax-short": (_find_short_rows, nothing_left(_find_short_rows, _LEFT), 1),
    "alcf-transformer-comma": (_find_comma, nothing_left(_find_comma, _LEFT), 1),
    "alcf-hosfile": (_find_hosfile, nothing_left(_find_hosfile, _LEFT), 1),
    "alcf-wait": (_find_wait, nothing_left(_find_wait, _LEFT), 1),
    "alcf-data-path": (_find_data, nothing_left(_find_data, _LEFT), 1),
    "alcf-base-environment": (_find_base, nothing_left(_find_base, _LEFT), 1),
    "ezpz-licence": (_find_licence, nothing_left(_find_licence, _LEFT), 1),
    "metaseq-cython-bound": (_find_cython, nothing_left(_find_cython, _LEFT), 1),
}
