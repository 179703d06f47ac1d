"""Evidence -> the view that every form of the report renders: words and rows, no markup."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from envbuild.catalog.loader import list_stacks
from envbuild.model.common import LEFT_OUT
from envbuild.model.evidence import Check, Evidence, NodeEvidence
from envbuild.model.plan import Decision
from envbuild.report.equality import python_of, sentence
from envbuild.report.pictures import Picture, pictures
from envbuild.report.sections import Badge, Claim, Gap, Outliers, Pin, badges, claims, gaps, outliers, pins
from envbuild.report.sources import SourceView, comparable, source_views, summary, texts
from envbuild.report.tables import NodeClass, Table, classes, gibibytes, image_rows, tables
from envbuild.report.verdict import GOOD, Verdict, all_checks, exit_meaning, make_verdict
from envbuild.resolve.compat_read import load_compat
from envbuild.resolve.rules.packages import advice, install_words
from envbuild.text import few, grouped, plural

MARKS = {"passed": "✓", "failed": "✗", "skipped": "–", "not-run": "○"}
NODE_MARKS = {"ok": "✓", "unchanged": "✓", "failed": "✗", "unreachable": "✗", "refused": "✗", "not-begun": "○"}


def mark(check: Check) -> str:
    """The sign before a check: `!` where it passed and found a deviation."""
    return "!" if check.status == "passed" and check.details.get("deviation") else MARKS[check.status]


@dataclass(frozen=True)
class Build:
    """What one group of nodes has: their environment, contents and decisions are equal."""

    nodes: tuple[str, ...]
    first: NodeEvidence
    identity: tuple[tuple[str, str], ...]
    decisions: tuple[Decision, ...]
    refused: tuple[tuple[str, tuple[Decision, ...]], ...]
    sources: tuple[SourceView, ...] = ()


@dataclass(frozen=True)
class Alike:
    """Nodes that are equal in all that `first` shows in the table of nodes, or in their error."""

    nodes: tuple[str, ...]
    first: NodeEvidence


class View:
    """Everything that a report says of one run. Pure; each part is made when it is asked for, once.

    All forms of a report render this, and compute nothing of their own.
    """

    def __init__(self, evidence: Evidence) -> None:
        """Of evidence as it is to be shown."""
        self.evidence = evidence

    @cached_property
    def verdict(self) -> Verdict:
        """The headline."""
        return make_verdict(self.evidence)

    @cached_property
    def summary(self) -> tuple[tuple[str, str], ...]:
        """What identifies the run, as rows of (name, value)."""
        evidence, nodes = self.evidence, self.evidence.nodes
        return (
            ("Stack", evidence.stack),
            ("Profile", evidence.profile),
            ("Target", f"{evidence.target}, {plural(len(nodes), 'node')}".removeprefix(f"{LEFT_OUT}, ")),
            ("Variant", _values(_variant(node, evidence) or "" for node in nodes)),
            ("Python", _values(map(python_version, nodes))),
            ("torch", _values(map(torch_version, nodes))),
            ("Started", _whole_seconds(evidence.started)),
            ("Finished", _whole_seconds(evidence.finished)),
            ("Run", evidence.run),
            ("Exit code", f"{evidence.exit} ({exit_meaning(evidence.exit)})"),
            ("Variant digest", _values(node.variant_digest or "" for node in nodes)),
            ("Merkle root", _values(map(root_text, nodes))),
            *((("Equality", equal),) if (equal := sentence(evidence)) else ()),
            *image_rows(evidence),
            ("Lock digest", evidence.lock_digest),
        )

    @cached_property
    def level(self) -> str:
        """How sure the contents are, when they were checked, and the result for the document's claims."""
        return " ".join(filter(None, (_level(self.evidence, self.built_in), _compared(self.claims))))

    @cached_property
    def built_in(self) -> tuple[str, ...]:
        """The earlier runs that built what this one used."""
        stamps = (check for check in all_checks(self.evidence) if check.name == "stamp")
        runs = dict.fromkeys(str(check.details.get("built_in", "")) for check in stamps)
        return tuple(run for run in runs if run not in ("", self.evidence.run))

    @cached_property
    def claims(self) -> tuple[Claim, ...]:
        """Every figure beside its claim and floor."""
        return claims(self.evidence)

    @cached_property
    def badges(self) -> tuple[Badge, ...]:
        """The evidence for each badge."""
        return badges(self.evidence, self.claims, self.pins)

    @cached_property
    def pins(self) -> tuple[Pin, ...]:
        """Packages, locked and installed."""
        return pins(self.evidence)

    @cached_property
    def gaps(self) -> tuple[Gap, ...]:
        """What was not checked."""
        return gaps(self.evidence, self.claims, self.pins)

    @cached_property
    def classes(self) -> tuple[NodeClass, ...]:
        """Nodes with equal facts."""
        return classes(self.evidence.nodes)

    @cached_property
    def outliers(self) -> Outliers | None:
        """Nodes and GPUs that deviate from their class."""
        return outliers(self.evidence.nodes, self.classes)

    @cached_property
    def pictures(self) -> tuple[Picture, ...]:
        """Figures with their floors, GPUs, loss."""
        return pictures(self.evidence)

    @cached_property
    def tables(self) -> tuple[Table, ...]:
        """Measurements without a picture."""
        return tables(self.evidence)

    @cached_property
    def builds(self) -> tuple[Build, ...]:
        """What was built, once for equal nodes."""
        built = [node for node in self.evidence.nodes if node.environment is not None or node.resolution is not None]
        return tuple(_build(tuple(group), self.evidence) for group in grouped(built, _build_key).values())

    @cached_property
    def nodes_by_need(self) -> tuple[NodeEvidence, ...]:
        """Failed nodes first, then nodes with a failed check, then the rest."""

        def need(node: NodeEvidence) -> tuple[bool, bool, bool]:
            failed = any(check.status == "failed" for check in node.checks)
            return node.status in GOOD, node.status == "not-begun", not failed

        return tuple(sorted(self.evidence.nodes, key=need))

    @cached_property
    def outcomes(self) -> tuple[Alike, ...]:
        """The same nodes, grouped by outcome and root."""

        def outcome(node: NodeEvidence) -> Hashable:
            return node.status, node.exit, node.variant_digest, node.root, node.root_level, node.files, node.bytes

        return _alike(self.nodes_by_need, outcome)

    @cached_property
    def errors(self) -> tuple[Alike, ...]:
        """Nodes with an error, grouped by error."""
        return _alike([node for node in self.nodes_by_need if node.error], _error)

    @cached_property
    def commands(self) -> tuple[str, ...]:
        """The command that repeats the run, and the one that verifies it."""
        return tuple(map(shlex.join, run_words(self.evidence)))

    @cached_property
    def enter(self) -> str:
        """What runs a command in the environment, where the run built one; a shell without `-- COMMAND`."""
        if not any(node.root and node.image is None for node in self.evidence.nodes):
            return ""
        place = run_words(self.evidence)[1][2:]
        options = place[len(place) % 2 :]  # behind the stack, which may have come from the target
        pairs = (pair for pair in zip(options[::2], options[1::2], strict=True) if pair[0] != "--profile")
        words = ["envbuild", "env", "run", *(word for pair in pairs for word in pair), self.evidence.stack]
        return f"{shlex.join(words)} -- COMMAND"

    @cached_property
    def sources(self) -> list[tuple[str, str]]:
        """(source, one line) of every source that was built or came from the wheel store, over all nodes."""
        return summary(self.evidence)


def _alike(nodes: Sequence[NodeEvidence], key: Callable[[NodeEvidence], Hashable]) -> tuple[Alike, ...]:
    return tuple(Alike(tuple(node.node for node in group), group[0]) for group in grouped(nodes, key).values())


def _error(node: NodeEvidence) -> Hashable:
    """The error without the node's own name, which stands in most of them; digits alone may be something else."""
    text, name = json.dumps(node.error, sort_keys=True, ensure_ascii=False), re.escape(node.node)
    # `\n` before a name is the end of a line in JSON.
    return text if node.node.isdigit() else re.sub(rf"(?:(?<![\w-])|(?<=\\n)){name}(?![\w-])", "", text)


def _values(values: Iterable[str]) -> str:
    """The values that occur, in order, without repeats."""
    return ", ".join(dict.fromkeys(value for value in values if value)) or "–"


def torch_version(node: NodeEvidence) -> str:
    """The torch of a node: installed, or provided by its base."""
    if "torch" in node.packages:
        return node.packages["torch"]
    return f"{node.base_packages['torch']} (from the base)" if "torch" in node.base_packages else ""


def python_version(node: NodeEvidence) -> str:
    """The interpreter's version as a check or the probe saw it, else its path."""
    path = (node.resolution.interpreter or "") if node.resolution else ""
    known = {python.path: python.version for python in node.facts.pythons} if node.facts else {}
    return python_of(node) or known.get(path, path)


def _variant(node: NodeEvidence, evidence: Evidence) -> str | None:
    """Its name in the lock: as it was chosen, or, of a run that chose nothing, of the digest that its stamp has."""
    if node.resolution:
        return node.resolution.variant_id
    return next((variant.id for variant in evidence.variants if variant.digest == node.variant_digest), None)


def root_text(node: NodeEvidence) -> str:
    """The root and how sure it is: `1061… (measured)`; empty without one."""
    return f"{node.root} ({node.root_level or 'stamped'})" if node.root else ""


def _whole_seconds(moment: str) -> str:
    return re.sub(r"\.[0-9]+Z\Z", "Z", moment)


def _build_key(node: NodeEvidence) -> str:
    decisions = node.resolution.model_dump(mode="json", exclude={"node"}) if node.resolution else {}
    every = [decisions, *decisions.get("candidates", ())]
    for decision in (decision for build in every for decision in build.get("decisions", ())):
        if decision["verdict"] == "allow":
            del decision["compared"]  # how many bytes are free, for one: no two nodes have as many
    parts: list[Any] = [node.variant_digest, node.root, node.environment, node.packages, node.base_packages]
    return json.dumps([*parts, comparable(node.sources), decisions, node.status], sort_keys=True, default=str)


def _build(group: tuple[NodeEvidence, ...], evidence: Evidence) -> Build:
    first = group[0]
    resolution = first.resolution
    rows = (
        ("Environment", first.environment),
        ("Variant", _variant(first, evidence)),
        ("Interpreter", resolution.interpreter if resolution else None),
        ("Files", f"{first.files:,}, {gibibytes(first.bytes)}" if first.files is not None else None),
        ("Variant digest", first.variant_digest),
        ("Merkle root", root_text(first)),
    )
    refused = tuple(
        (candidate.variant_id, candidate.decisions)
        for candidate in (resolution.candidates if resolution else ())
        if not candidate.chosen
    )
    identity = (*((name, value) for name, value in rows if value), *_root_rows(first))
    decisions = resolution.decisions if resolution else ()
    return Build(tuple(n.node for n in group), first, identity, decisions, refused, source_views(group, evidence.verb))


def _root_rows(node: NodeEvidence) -> tuple[tuple[str, str], ...]:
    """(name, value) for the report; empty without a root."""
    if not node.root:
        return ()
    python = f" ({version})" if (version := python_version(node)) else ""
    covers = "path, content and executable bit of every file, and the interpreter's full version"
    generated = [
        f"src/{source.get('name')}/{pattern}"
        for source in node.sources
        if source.get("install") in ("editable", "path")
        for pattern in texts(source.get("generated"))
    ]
    # Two compilers give two files: each environment's own stamp has them.
    compiled = sum(len(texts(source.get("compiled"))) for source in node.sources)
    stamped = f" ({plural(compiled, 'compiled module')} among them compared with this stamp alone)" if compiled else ""
    left_out = ", ".join(("byte code", "notes of the installer", "its own path", "times", *generated)) + stamped
    return (
        ("Root covers", f"{covers}{python}: another version gives another root"),
        ("Root leaves out", left_out),
    )


_NO_LIBRARY = re.compile(r"\b(lib[\w.+-]+): cannot open shared object file")
_NO_MODULE = re.compile(r"\bNo module named '([\w.]+)'")
_PLACE_OPTIONS = {"-s": "--stack", "-t": "--target"} | {
    word: word
    for word in ("--stack", "--target", "--profile", "--prefix", "--engine", "--host", "--limit", "--exclude")
}


def place_words(command: Sequence[str], stack: str = "") -> list[str]:
    """STACK and the options that say where, as `envbuild VERB …` has them; a file is named as it was.

    `stack`: the name of the stack, where it may have come from the target.
    """
    named, place = "", list[str]()
    words = iter(command[2:])
    for index, word in enumerate(words):
        name, sign, value = word.partition("=")
        if name in _PLACE_OPTIONS:
            given = value if sign else next(words, "")
            if _PLACE_OPTIONS[name] == "--stack":
                named = given
            else:
                place += [_PLACE_OPTIONS[name], given]
        elif not named and not word.startswith("-"):
            named = word if not index or word == stack or word.endswith((".yaml", ".yml")) else ""
    if list(command[1:2]) == ["up"] and stack not in ("", named) and not named.endswith((".yaml", ".yml")):
        named = f"./{stack}.yaml"  # what `up` drafted of a page, folder or repository
    return [*filter(None, [named]), *place]


def to_add(modules: Sequence[str], place: Sequence[str]) -> str:
    """What to type where no package provides these modules; empty for a stack that is no file of the user.

    `place`: as `place_words` has it.
    """
    file = next(iter(place), "")
    if not modules or not file.endswith((".yaml", ".yml")):
        return ""
    build = shlex.join(["envbuild", "provision", *place])
    return (
        f"add what brings {few(modules, 3)} to `packages:` of {file}, then `envbuild lock create {file}` and `{build}`"
    )


def cure(says: str, place: Sequence[str], again: str, printed: str = "") -> str:
    """What to do about a failure: what a rule knows of it, or what it looked for in vain, and the command `again`.

    `says`: its sentence; `printed`: all output; `place`: as `place_words` has it.
    """
    library, module = _NO_LIBRARY.search(says), _NO_MODULE.search(says)
    known = advice(printed or says, load_compat()) or (install_words(library[1]) if library else "")
    add = to_add([module[1]] if module and not known else [], place)
    return add or "; ".join(filter(None, (known, again)))


def run_words(evidence: Evidence) -> tuple[Sequence[str], Sequence[str]]:
    """The command that was given, and the verify of the same stack and place, as words."""
    if evidence.command:
        return evidence.command, ["envbuild", "verify", *place_words(evidence.command, evidence.stack)]
    # An author's own stack is a file, as in a kit.
    stack = evidence.stack if evidence.stack in list_stacks() else f"./{evidence.stack}.yaml"
    named = [stack, "--profile", evidence.profile]
    named += ["--target", evidence.target] if evidence.target != LEFT_OUT else []
    runs = (check.details["launch"] for check in all_checks(evidence) if "launch" in check.details)
    # A published report has no command, and a launch wants its number of GPUs.
    run: Mapping[str, Any] = next(runs, {})
    size = [word for name in ("nodes", "gpus_per_node") if name in run
            for word in (f"--{name.replace('_', '-')}", str(run[name]))]  # fmt: skip
    return ["envbuild", evidence.verb, *named, *size], ["envbuild", "verify", *named]


def _compared(claims: tuple[Claim, ...]) -> str:
    """How the claims of a document came out; empty where none was measured."""
    words = [claim.verdict.replace(" the claim", " its claim") for claim in claims if claim.claimed != "–"]
    counts = ", ".join(f"{len(alike)} {word}" for word, alike in grouped(words, str).items())
    return f"{plural(len(words), 'claim')}: {counts}." if counts else ""


def _level(evidence: Evidence, built_in: Sequence[str]) -> str:
    """`Contents measured on 2 nodes, 2026-03-02 10:00 UTC.`"""
    rooted = [node for node in evidence.nodes if node.root]
    measured = sum(node.root_level == "measured" for node in rooted)
    if not rooted:
        return "Contents not checked."
    when = f"{evidence.finished[:10]} {evidence.finished[11:16]} UTC"
    if measured == len(rooted):
        return f"Contents measured on {plural(measured, 'node')}, {when}."
    if measured:
        return f"Contents measured on {measured} of {plural(len(rooted), 'node')}, {when}; stamped on the others."
    by = f" by run {few(built_in)}" if built_in else ""
    return f"Contents stamped on {plural(len(rooted), 'node')}{by}, not measured in this run."


def failures(check: Check) -> list[str]:
    """Everything that a check found wrong, if it lists it."""
    reasons = check.details.get("failures")
    return [str(text) for text in reasons] if isinstance(reasons, list) else []


def output(check: Check) -> str:
    """The last lines that a failing program printed."""
    return str(check.details.get("output") or "").strip("\n")


# What a page has in words, or as a picture.
_ELSEWHERE = frozenset({"output", "failures", "only_floors", "losses", "step_seconds", "peer_gbps"})


def details(check: Check) -> str:
    """The remaining details of a check as indented JSON, empty when there are none."""
    kept = {key: item for key, item in check.details.items() if key not in _ELSEWHERE}
    return json.dumps(kept, indent=2, ensure_ascii=False) if kept else ""
