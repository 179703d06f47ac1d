"""Writes `docs/reference/` from the sources: errors, rules, findings, patches, settings, keys of manifests."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from error_rows import rows as errors
from make_schemas import schema_text

from envbuild.catalog import loader
from envbuild.catalog.patches import load_patch, load_patches
from envbuild.config import KEYS
from envbuild.resolve.engine import RULES
from envbuild.resolve.request import Check

HERE = Path(__file__).parent
ERRORS = """# Error codes

Every error says what happened, why, and what to do next; `--json` has it as `code`, `what`, `why`, `hint`.
This list is made from the sources (`make generated` compares it); "…" stands for a name, a number or a text of
its own. A code with several lines is used for each of them. A rule that refuses a node is an error by the name of the
rule (exit 7): [rules](rules.md), and in `envbuild/resolve/`.

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


def errors_page() -> str:
    """One row a code and text, sorted by code."""
    rows = ((f"`{code}`", number, quoted(what), quoted(hint)) for code, number, what, hint in sorted(errors()))
    return ERRORS + table(("code", "exit", "what it says", "next step"), rows)


def _place(check: Check) -> str:
    return f"{check.__module__.removeprefix('envbuild.resolve.').replace('.', '/')}.py: {check.__name__}"


def rules_page() -> str:
    """One row a rule of `RULES`, in the order in which they are asked, and how many rows the package table has."""
    says = {rule: inspect.getdoc(check) or "" for rule, check in RULES.items()}
    rows = (
        (f"`{rule}`", text.partition(": ")[2].replace("\n\n", " "), f"`{_place(RULES[rule])}`")
        for rule, text in says.items()
    )
    return f"""# Rules

Each rule compares facts of a node with one variant of the lock; `plan` and `explain` name it with what it compared.
These are asked in this order; those of package pairs follow, a row each in `envbuild/catalog/compat/packages.yaml`.
"Decided by" names a file below `envbuild/resolve/` and its function.

{table(("rule", "what it asks", "decided by"), rows)}"""


def findings_page() -> str:
    """One table a stack: what its document says wrongly."""
    parts = [
        "# Findings\n\nWhat the five documents get wrong; `envbuild explain STACK` shows each with its evidence.\n"
    ]
    for name in loader.list_stacks():
        stack = loader.load_stack(name).stack
        if stack.findings:
            rows = ((f"`{each.id}`", each.severity, quoted(each.says), quoted(each.truth)) for each in stack.findings)
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
        (f"`{name}`", quoted(each.summary), quoted(each.why), ", ".join(sorted(used.get(name, ()))) or "none")
        for name, each in patches.items()
    )
    variables = (
        (f"`{variable}`", f"`{name}`", quoted(what))
        for name, each in patches.items()
        for variable, what in each.variables.items()
    )
    places: dict[tuple[str, str], list[str]] = {}
    for name, each in patches.items():
        for tried in each.tried:
            source = tried.git.removeprefix("https://github.com/")
            places.setdefault((source, f"`{tried.commit[:8]}`"), []).append(f"`{name}` {tried.hits}")
    return f"""# Patches of the catalog

What each edits, and why; how they are used and what they promise is in [patches](../patches.md).

{table(("patch", "what it does", "why", "used by"), rows)}
## Variables that edited sources read

{table(("variable", "patch", "what it is"), variables)}
## Places found

At these commits each was really applied, and found so many places.

{table(("source", "commit", "patch and places"), ((*key, ", ".join(said)) for key, said in sorted(places.items())))}"""


def settings_page() -> str:
    """One row a setting."""
    rows = (
        (f"`{name}`", f"`ENVBUILD_{name.upper()}`", key.help, "" if key.default is None else f"`{key.default}`")
        for name, key in KEYS.items()
    )
    return f"""# Settings

A flag beats a variable, a variable the project's `envbuild.toml`, that the user's `config.toml`,
that `/etc/envbuild/config.toml`. `envbuild config show` says which one each value is from.

{table(("key", "variable", "what it is", "default"), rows)}"""


def _kind(field: dict[str, Any]) -> str:
    """What a value has to be, in the words of JSON Schema."""
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return "any JSON value" if name == "JsonValue" else f"[{name}](#{name.lower()})"
    for key in ("anyOf", "oneOf"):
        if key in field:
            return " or ".join(dict.fromkeys(_kind(each) for each in field[key] if each.get("type") != "null"))
    if "enum" in field or "const" in field:
        return ", ".join(f"`{each}`" for each in field.get("enum", [field.get("const")]))
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
        said = "required" if name in model.get("required", ()) else ""
        if isinstance(default, str | int | float) and default != "":
            said = f"`{json.dumps(default)}`"
        rows.append((f"`{name}`", _kind(field), said))
    return table(("key", "value", "default"), rows)


def keys_page(noun: str) -> str:
    """The keys of a `stack` or `target` file: first those of the file, then those of what they hold, by name."""
    schema = json.loads(schema_text(noun))
    parts = [f"# Keys of a {noun} file\n\n{schema['description']}\n\n{_keys(schema)}"]
    for name, model in sorted(schema["$defs"].items()):
        if "properties" in model:
            parts.append(f"\n## {name}\n\n{model.get('description', '')}\n\n{_keys(model)}")
    return "".join(parts)


def main() -> None:
    """Write every page."""
    pages = {
        "errors": errors_page(),
        "rules": rules_page(),
        "findings": findings_page(),
        "patches": patches_page(),
        "settings": settings_page(),
        "stack-file": keys_page("stack"),
        "target-file": keys_page("target"),
    }
    for name, text in pages.items():
        (HERE / "reference" / f"{name}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
