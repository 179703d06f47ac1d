"""Writes `docs/reference/` from the sources: commands, errors, rules, findings, patches, settings, keys of files."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from error_rows import Row, errors, findings
from make_schemas import schema_text

from envbuild.catalog import loader
from envbuild.catalog.patches import load_patch, load_patches
from envbuild.config import KEYS
from envbuild.resolve.engine import OF_NODE, RULES
from envbuild.resolve.request import Check

HERE = Path(__file__).parent
ERRORS = """# Error codes

Every error says what happened, why, and what to do next; `--json` has it as `code`, `what`, `why`, `hint`.
`envbuild help CODE` prints the rows of a code. Capitals and "…" stand for names, numbers and texts of the failure.
A rule that refuses a node is an error by the name of the rule (exit 7): [rules](rules.md).
What commands list without stopping there has codes too: [findings](findings.md#findings-of-commands).

"""
FINDINGS = """
## Findings of commands

What `report verify` and `lock check` find, and with exit "none" what `init` and `up` find in a setup page. Of a page
the message is what is true, and the next step what the draft does. `envbuild help CODE` prints the rows of a code.

"""


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table; what would end a cell is escaped."""
    lines = [tuple(heads), ("---",) * len(tuple(heads)), *rows]
    cells = ([cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def quoted(text: str) -> str:
    """Text of others as one cell shows it: no link, no HTML, except in backticks, where nothing is read anyway."""
    parts = text.split("`")
    parts[::2] = [part.replace("[", "\\[").replace("<", "&lt;") for part in parts[::2]]
    return "`".join(parts)


def _codes(rows: Iterable[Row]) -> str:
    """One row a code and text, sorted by code."""
    cells = ((f"`{code}`", number, *map(quoted, texts)) for code, number, *texts in sorted(rows))
    return table(("code", "exit", "message", "cause", "next step"), cells)


def _place(check: Check) -> str:
    return f"{check.__module__.removeprefix('envbuild.resolve.').replace('.', '/')}.py: {check.__name__}"


def rules_page() -> str:
    """One row a rule of `RULES`, in the order in which they are asked, and how many rows the package table has."""
    says = {rule: inspect.getdoc(check) or "" for rule, check in RULES.items()}
    rows = (
        (f"`{rule}`", text.partition(": ")[2].replace("\n\n", " "), f"`{_place(RULES[rule])}`")
        for rule, text in says.items()
    )
    return f"""# How fit is decided

![Each rule allows, warns or refuses a variant; the first that nothing refuses is taken](../pictures/decisions.svg)

A lock has several variants of one environment. They differ in Python, CUDA flavour, base and engine. For each node
envbuild goes through the variants in the lock's order. It asks every [rule](#the-rules). A rule compares one value of
the node with one value of the variant, and answers:

- **allow**: it fits. The answer has both values. A rule is named after its failure: `allow` by `nvcc-absent` says that
  there is an nvcc.
- **warn**: it works with a reservation, or the value that would refuse it is not verified.
- **refuse**: it cannot work. The answer names the nearest variant that would.

envbuild takes the first variant that no rule refuses. `plan` shows the refusals that matter to you.
`explain --facts -v` shows every answer, and so does the report.

## Where rules get their knowledge

From tables in `envbuild/catalog/compat/`: which driver runs which CUDA, which PyTorch release has code for which GPU,
which nvcc takes which gcc. Each row names its source. A row that nobody has verified is marked. Such a row can warn,
but it never refuses alone.

## What rules do not decide

Whether it works. envbuild installs the variant, imports it and runs the smoke test before it writes the stamp. An
environment that fails a test is not put into use.

## Nodes of several kinds

Each node gets its own variant. Nodes that are equal in everything that rules compare are decided once. If two kinds
of nodes get environments with different roots, `provision` says so.

## The rules

The rules are asked in this order. Rules about pairs of packages follow, one row each in
`envbuild/catalog/compat/packages.yaml`. "Decided by" names a file in `envbuild/resolve/` and its function.

{table(("rule", "what it asks", "decided by"), rows)}
These look at a variant and its node alone, before or beside the others:

{table(("rule", "what it asks"), ((f"`{rule}`", text) for rule, text in OF_NODE.items()))}"""


def findings_page() -> str:
    """One table a stack: what its document says wrongly."""
    parts = [
        "# Findings and patches\n\nWhat the five documents get wrong. `envbuild explain STACK` shows the evidence.\n"
    ]
    for name in loader.list_stacks():
        stack = loader.load_stack(name).stack
        if stack.findings:
            rows = (
                (f"`{finding.id}`", finding.severity, quoted(finding.says), quoted(finding.truth))
                for finding in stack.findings
            )
            parts.append(f"\n## {name}\n\n{table(('finding', 'kind', 'the document says', 'what is true'), rows)}")
    return "".join(parts)


def patches_page() -> str:
    """Every patch with the stacks that use it, the variables of edited sources, and the places at each commit."""
    used: dict[str, set[str]] = {}
    for stack in map(loader.load_stack, loader.list_stacks()):
        for profile in stack.stack.profiles.values():
            for name in (name for source in profile.sources for name in source.patches):
                used.setdefault(load_patch(name).name, set()).add(stack.stack.name)
    patches = load_patches()
    rows = (
        (f"`{name}`", quoted(patch.summary), quoted(patch.why), ", ".join(sorted(used.get(name, ()))) or "none")
        for name, patch in patches.items()
    )
    variables = (
        (f"`{variable}`", f"`{name}`", quoted(what))
        for name, patch in patches.items()
        for variable, what in patch.variables.items()
    )
    places: dict[tuple[str, str], list[str]] = {}
    for name, patch in patches.items():
        for tried in patch.tried:
            source = tried.git.removeprefix("https://github.com/")
            places.setdefault((source, f"`{tried.commit[:8]}`"), []).append(f"`{name}` {tried.hits}")
    return f"""
## Patches of the catalog

What each patch edits, and why. How to use patches: [patches](../patches.md).

{table(("patch", "what it does", "why", "used by"), rows)}
### Variables that edited sources read

{table(("variable", "patch", "what it is"), variables)}
### Places found

At these commits each was really applied, and found so many places.

{table(("source", "commit", "patch and places"), ((*key, ", ".join(hits)) for key, hits in sorted(places.items())))}"""


def settings_page() -> str:
    """One row a setting."""
    rows = (
        (f"`{name}`", f"`ENVBUILD_{name.upper()}`", key.help, "" if key.default is None else f"`{key.default}`")
        for name, key in KEYS.items()
    )
    return f"""
## Settings

The first of these that has a value wins: the option, the environment variable, `envbuild.toml` of the project,
`config.toml` of the user, `/etc/envbuild/config.toml`. `envbuild config show` prints each value with its source.

{table(("key", "variable", "what it is", "default"), rows)}"""


def _kind(field: dict[str, Any]) -> str:
    """What a value has to be, in the words of JSON Schema."""
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return "any JSON value" if name == "JsonValue" else f"[{name}](#{name.lower()})"
    for key in ("anyOf", "oneOf"):
        if key in field:
            kinds = list(dict.fromkeys(_kind(option) for option in field[key] if option.get("type") != "null"))
            many = len(kinds) == 2 and " or " in kinds[0] and kinds[1] == f"list of {kinds[0]}"
            first, last = (kinds[:1], "list of these") if many else (kinds[:-1], kinds[-1])
            return " or ".join(filter(None, (", ".join(first), last)))
    if "enum" in field or "const" in field:
        return ", ".join(f"`{choice}`" for choice in field.get("enum", [field.get("const")]))
    if field.get("type") == "array":
        return f"list of {_kind(field.get('items') or field.get('prefixItems', [{}])[0])}"
    if field.get("type") == "object":
        inner = [*field.get("patternProperties", {}).values(), field.get("additionalProperties")]
        return f"mapping to {_kind(inner[0])}" if isinstance(inner[0], dict) else "mapping"
    return str(field.get("type", "anything"))


def _keys(model: dict[str, Any]) -> str:
    rows = []
    for name, field in model.get("properties", {}).items():
        default = field.get("default")
        usual = "required" if name in model.get("required", ()) else ""
        if isinstance(default, str | int | float) and default != "":
            usual = f"`{json.dumps(default)}`"
        rows.append((f"`{name}`", _kind(field), usual))
    return table(("key", "value", "default"), rows)


def keys_page() -> str:
    """The keys of stack and target files: first those of the file, then those of what they hold, by name, each once."""
    parts, written = ["# Stack and target files\n"], set[str]()
    for noun in ("stack", "target"):
        schema = json.loads(schema_text(noun))
        parts.append(f"\n## Keys of a {noun} file\n\n{schema['description']}\n\n{_keys(schema)}")
        for name, model in sorted(schema["$defs"].items()):
            if "properties" in model and name not in written:
                parts.append(f"\n### {name}\n\n{model.get('description', '')}\n\n{_keys(model)}")
                written.add(name)
    return "".join(parts)


COMMANDS = """# Commands and settings

Every command with its options, from the program itself; `envbuild COMMAND --help` prints the same. Error codes and
exit codes: [errors](errors.md).

::: mkdocs-click
    :module: envbuild.cli.verbs
    :command: cli
    :prog_name: envbuild
    :depth: 1
"""


def main() -> None:
    """Write every page."""
    pages = {
        "commands": COMMANDS + settings_page(),
        "errors": ERRORS + _codes(errors()),
        "files": keys_page(),
        "findings": findings_page() + FINDINGS + _codes(findings()) + patches_page(),
        "rules": rules_page(),
    }
    for name, text in pages.items():
        (HERE / "reference" / f"{name}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
