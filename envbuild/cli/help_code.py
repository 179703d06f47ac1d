"""What a code or word means: `envbuild help CODE`, from tables of the docs, the rules and the findings."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from envbuild import resources
from envbuild.catalog.loader import list_stacks, list_targets, load_stack
from envbuild.catalog.yaml_load import load_yaml
from envbuild.errors import ExitCode
from envbuild.launch.recipes import parameters_of
from envbuild.model.stack import Stack
from envbuild.model.target import Target
from envbuild.regular_file import read_text
from envbuild.resolve.compat_read import load_compat
from envbuild.resolve.engine import OF_NODE, RULES

# The head of the table of checks; those of other words say of each what it is.
_COMPARES = "what it compares"
_HOLDS = "what it holds"
# The pages whose tables say what codes of errors and findings, and words of the glossary mean; that of exit codes.
_TABLES = ("docs/reference/errors.md", "docs/reference/findings.md", "docs/concepts.md")
_EXITS = "docs/troubleshooting.md"


def explanation(code: str) -> str:
    """What a code, an exit code, a word, a key of a target file or a shipped name means; of an error its messages too.

    Of the name of a page, or a word of a heading or in bold, where it is. Empty for what is none of these.
    """
    keys = [*_of_key(code.replace("-", "_"))]
    own = [text for text in keys if ": a key of a target file" in text]
    parts = [*meanings(code), *_of_errors(code), *_of_exit(code), *_of_rule(code), *_of_finding(code), *own]
    parts += [*_of_parameter(code), *(text for text in keys if text not in own), *_of_name(code), *_of_page(code)]
    # The second finding of one rule in a draft; what is below a key that has no keys.
    if not parts and (match := re.search(r"-\d+$|\.[^.]*$", code)):
        return explanation(code[: match.start()])
    hyphenated = "-".join(code.lower().split())
    if not parts and " " in code and hyphenated in codes():
        return explanation(hyphenated)
    return "\n\n".join(parts or _with_word(code) or _under_heading(code))


def _with_word(text: str) -> list[str]:
    """What the tables say of names of which a word is one of these words, also in the plural."""
    asked = {word.removesuffix("s") for word in text.lower().split()}
    names = [name for name in _words() if asked & {word.removesuffix("s") for word in name.split()}]
    return [meaning for name in names for meaning in meanings(name)]


def meanings(word: str) -> list[str]:
    """What the tables of the glossary say of a word.

    It may be in the plural. A check may be named without its `smoke/`, and one of many by what is above it.
    """
    own = dict.fromkeys((word.lower(), word.lower().removesuffix("s"), f"smoke/{word}"))
    names = [name for name in own if name in _words()] or [word.rpartition("/")[0]]
    return [f"{name}: {meaning}" for name in names for meaning in _words().get(name, ())]


def _of_errors(code: str) -> Iterator[str]:
    rows = [row for row in _rows() if row[0] == code]
    if not rows:
        return
    # Of codes whose messages are those of the check or program that failed.
    means = load_yaml(Path(__file__).with_name("meanings.yaml")).get(code)
    lines = [f"{code}: {_ending({row[1] for row in rows})}", *([f"  {means}"] if means else ())]
    for _, number, what, why, hint in rows:
        if means and not re.search("[a-z]{2}", what):
            continue
        label = "  draft: " if number == "none" else "  hint: "
        labelled = [
            (label, text)
            for label, text in (("", what), ("  why:  ", why), (label, hint))
            if re.search("[a-z]{2}", text)
        ]
        lines += ["", *(f"  {label}{text}" for label, text in labelled)] if labelled else []
    yield "\n".join([*lines, "", "Capitals and … stand for names, numbers and texts of the failure itself."])


def _of_exit(code: str) -> Iterator[str]:
    """Of an exit code what the table of exit codes says, and which of several wins."""
    if code in map(str, map(int, ExitCode)):
        _, _, table = read_text(resources.pages()[_EXITS]).partition("\n## Exit codes\n")
        (meaning,) = re.findall(rf"^\| {code} \| (.+) \|$", table, re.MULTILINE)
        wins = table.strip().splitlines()[-1]
        several = f"{wins} " if re.search(rf"\b{code}\b", wins) else ""
        yield f"exit code {code}: {meaning}\n  {several}All exit codes: {_EXITS}"


def _of_finding(code: str) -> Iterator[str]:
    """Of a finding about the document of a shipped stack what `explain` says of it."""
    for stack in _stacks():
        for finding in stack.findings:
            if finding.id == code:
                texts = (("says", finding.says), ("truth", finding.truth), ("does", finding.does))
                lines = [f"  {label + ':':7}{text}" for label, text in texts if text]
                about = f"{code}: a finding ({finding.severity}) about the document of {stack.name}"
                yield "\n".join([about, "", *lines])


def _of_parameter(code: str) -> Iterator[str]:
    """Of a parameter of `launch --set` what it sets, for each stack that has it."""
    for stack in _stacks():
        data = stack.reference.launch if stack.reference else None
        for name, field in parameters_of(data).model_fields.items() if data else ():
            if code == (field.alias or name):
                yield f"{code}: a parameter of `launch {stack.name}`, for `--set`\n  {field.description}"


def _of_key(code: str) -> Iterator[str]:
    """Of a key of a target or stack file where it stands, what is said of it, else of its part, and the keys in it.

    It may be named with what is above it, as errors do: `connection.login`, `profiles.exact.sources[0].git`.
    """
    above, _, key = re.sub(r"\[\d+\]", "", code).rpartition(".")
    rows = [row for row in _parts() if key in row[2]["properties"]]
    if above:
        rows = [row for row in rows if row[1] in _parts_of(above.rpartition(".")[2])]
    # Checks of findings share keys with everything.
    for noun, name, part in [row for row in rows if not row[1].endswith("Check")] or rows:
        head = f"{code}: a key of a {noun} file (docs/reference/files.md, {name})"
        inner = [own for _, other, part in _parts() if other in _parts_of(key, name) for own in part["properties"]]
        below = f"keys in it, which `envbuild help {code}.KEY` explains: {', '.join(dict.fromkeys(inner))}"
        yield "\n  ".join([head, *_named(key, part), *([below] if inner else [])])


def _parts_of(key: str, heading: str = "") -> set[str]:
    """The parts of files that stand below a key, of the part with this heading only where one is given."""
    fields = [part["properties"].get(key) for _, name, part in _parts() if name == (heading or name)]
    return set(re.findall(r'/\$defs/(\w+)"', json.dumps(fields)))


def _named(key: str, part: dict[str, Any]) -> list[str]:
    """The sentences about a key in the description of its part."""
    sentences = re.split(r"(?<=\.) |(?<=;) (?=`)", " ".join(part["description"].split()))
    own = [sentence for sentence in sentences if re.match(rf"(`[^`]+`(?:,| and) )*`{key}`", sentence)]
    return own or [sentence for sentence in sentences if f"`{key}`" in sentence] or sentences[:1]


def key_meaning(key: str) -> str:
    """What `explanation` says of a key of a target file (`prefix`), or of one of its parts (`Scheduler.nodes`)."""
    name, _, own = key.rpartition(".")
    part = next(part for noun, heading, part in _parts() if heading == (name or "Keys of a target file"))
    return " ".join(_named(own, part))


def _of_name(code: str) -> Iterator[str]:
    """Of a shipped stack, target or profile what shows it."""
    for noun, shipped in (("stack", list_stacks()), ("target", list_targets())):
        if code in shipped:
            yield f"{code}: a shipped {noun}; `envbuild {noun} show {code}`"
    if stacks := [stack.name for stack in _stacks() if code in stack.profiles]:
        yield f"{code}: a profile of {', '.join(stacks)}; `envbuild stack show STACK` says what each profile needs"


def _of_page(name: str) -> Iterator[str]:
    """Of a page of the documentation where it is and what it has; of `docs` where all pages are."""
    pages = resources.pages()
    own = f"docs/{name.removeprefix('docs/').removesuffix('.md')}.md"
    if own in pages:
        headings = "; ".join(_headings(pages[own]))
        yield f"{own}: a page of the documentation, on this machine {pages[own]}\n  {headings}"
    elif name.strip("/") in ("docs", "documentation"):
        yield f"docs: the pages of the documentation, on this machine {pages[_EXITS].parent}\n  {', '.join(pages)}"


def _under_heading(text: str) -> list[str]:
    """The headings of pages that have one of these words, in the heading or in bold below it.

    A short word, which may be any, counts where it is typed in capitals.
    """
    asked = {word.lower() for word in text.split() if len(word) > 4 or word.isupper()}
    return [
        f"{name}, under `{heading}` (on this machine {path})"
        for name, path in resources.pages().items()
        for heading, bold in _headings(path).items()
        if any(asked & set(re.findall(pattern, f"{heading} {bold}".lower())) for pattern in (r"[\w-]+", r"\w+"))
    ]


def _headings(page: Path) -> dict[str, str]:
    """The headings of a page, without what a console prints; of each what stands in bold below it."""
    text = re.sub(r"^```.*?^```", "", read_text(page), flags=re.DOTALL | re.MULTILINE)
    _, *parts = re.split("^#+ (.+)$", text, flags=re.MULTILINE)
    bold = (" ".join(re.findall(r"\*\*(.+?)\*\*", part)) for part in parts[1::2])
    return dict(zip(parts[::2], bold, strict=True))


def codes() -> list[str]:
    """Every code of an error, a rule or a finding, every word of the glossary and every name of a check."""
    findings = {finding.id for stack in _stacks() for finding in stack.findings}
    return sorted({row[0] for row in _rows()} | _rules().keys() | _words().keys() | findings)


def key_names() -> set[str]:
    """Every key of a target file and of its parts."""
    return {key for noun, _, part in _parts() if noun == "target" for key in part["properties"]}


@cache
def _stacks() -> list[Stack]:
    return [load_stack(name).stack for name in list_stacks()]


@cache
def _parts() -> list[tuple[str, str, dict[str, Any]]]:
    """`target` or `stack`, heading in the reference, and JSON schema of such a file and of each of its parts.

    A part that a file has itself comes before the parts of parts.
    """
    schemas = {model.__name__.lower(): model.model_json_schema(by_alias=True) for model in (Target, Stack)}
    whole = [(noun, f"Keys of a {noun} file", schema) for noun, schema in schemas.items()]
    parts = [(noun, name, part) for noun, schema in schemas.items() for name, part in schema["$defs"].items()]
    first = {row[1]: row for row in reversed(parts) if "properties" in row[2]}
    below = [*reversed(first.values())]
    own = json.dumps([schema["properties"] for schema in schemas.values()])
    return [*whole, *sorted(below, key=lambda row: f'/{row[1]}"' not in own)]


def _ending(numbers: set[str]) -> str:
    """`exit code 75 (try again)`; a "…" where the exit code is that of the check which failed."""
    if "none" in numbers:
        return "a finding of `envbuild init` and `up` about a setup page"
    known = [f"{number} ({ExitCode(int(number)).name.lower().replace('_', ' ')})" for number in sorted(numbers - {"…"})]
    return f"exit code {' or '.join(known)}" if known else "the exit code depends on what failed"


@cache
def _rows() -> list[list[str]]:
    """Code, exit code, what, why and hint of each row."""
    return [row for row in _tables() if len(row) == 5]


@cache
def _words() -> dict[str, list[str]]:
    """What each word of the glossary, of plans and of reports means, and each name of a check."""
    words: dict[str, list[str]] = {}
    kind = ""
    kinds = {"meaning": "", _COMPARES: "a check: ", _HOLDS: "a folder below the prefix: "}
    for names, meaning, *more in (row for row in _tables() if len(row) in (2, 4)):
        if meaning in kinds:
            kind = kinds[meaning]
            continue
        if bool(more) != (kind == kinds[_HOLDS]):
            continue  # a table of a page that explains no words
        for name in names.split(", "):
            words.setdefault(name.strip("`").lower(), []).append(kind + meaning.replace("`", ""))
    return words


@cache
def _tables() -> list[list[str]]:
    """The rows of all tables, without the escapes of Markdown."""
    pages = resources.pages()
    lines = [line for name in _TABLES for line in read_text(pages[name]).splitlines() if line[:2] == "| "]
    rows = (re.split(r" (?<!\\)\| ", line.removeprefix("| ").removesuffix(" |")) for line in lines)
    plain = (
        [cell.strip().replace("\\|", "|").replace("\\[", "[").replace("&lt;", "<") for cell in row] for row in rows
    )
    return [[row[0].strip("`"), *row[1:]] for row in plain if row[0] not in ("code", "---")]


def _of_rule(code: str) -> Iterator[str]:
    if says := _rules().get(code):
        refuses = "" if "never refuses" in says else " (a refusal: exit code 7)"
        yield f"{code}: a rule that decides which variant fits a node{refuses}\n\n{says}"


@cache
def _rules() -> dict[str, str]:
    """What each rule asks, by its name."""
    never = {"warn": "; never refuses"}
    pairs = {
        row.id: f"{row.says}; what works: {row.fix}{never.get(row.verdict, '')}" for row in load_compat().package_rules
    }
    return {
        **pairs,
        **OF_NODE,
        **{rule: (inspect.getdoc(check) or "").partition(": ")[2] for rule, check in RULES.items()},
    }
