"""The sources in a report: where each comes from, its patches with reasons, how it was built and proven.

A source in the evidence comes from the node (`install`, result `sources`), so every value is read with care.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from packaging.utils import canonicalize_name

from envbuild.model.evidence import Evidence, NodeEvidence
from envbuild.report.verdict import LOOKING
from envbuild.text import few, grouped, minutes, plural

DiffKind = Literal["add", "del", "hunk", "file", ""]
DIFF_LINES = 2000
# What differs between nodes that have the same: who compiled it, how long that took, and where it lies.
_OF_ONE_NODE = frozenset(
    {"from", "seconds", "jobs", "retried", "ccache", "store", "network", "rebuild", "imports", "handed"}
)


@dataclass(frozen=True)
class PatchView:
    """One patch: its digest (sha256), hits, what was decided, the files with their hits, and the diff by line."""

    name: str
    digest: str
    hits: str
    notes: tuple[str, ...]
    files: tuple[tuple[str, str], ...]
    diff: str
    lines: tuple[tuple[DiffKind, str], ...]
    more: int
    """lines of the diff that are left out of `lines`"""


@dataclass(frozen=True)
class SourceView:
    """One source of a group of nodes; `made` is one line, `rows` are (name, value) of its build."""

    name: str
    git: str
    commit: str
    tree: str
    install: str
    made: str
    patches: tuple[PatchView, ...]
    rows: tuple[tuple[str, str], ...]
    extensions: tuple[tuple[str, str], ...]
    """extension and the architectures of its device code"""


def comparable(sources: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Sources without values that differ between equal nodes."""
    out = []
    for source in sources:
        build = mapping(source.get("build"))
        kept = {key: value for key, value in build.items() if key not in _OF_ONE_NODE}
        patches = [{"name": patch.get("name"), "digest": patch.get("digest")} for patch in _patches(source)]
        out.append({key: value for key, value in source.items() if key not in ("build", "bundle", "patches")})
        out[-1] |= {"build": kept, "patches": patches}
    return out


def source_views(nodes: Sequence[NodeEvidence], verb: str) -> tuple[SourceView, ...]:
    """The sources of nodes that have the same, in their order, after a run of `verb`."""
    return tuple(_view(name, holders) for name, holders in _by_name(nodes, verb).items())


def built_names(node: NodeEvidence) -> Iterator[str]:
    """Names of packages that are built from a source instead of locked: the source's, and that of its wheel."""
    for source in node.sources:
        wheel = str(mapping(source.get("build")).get("wheel", "")).rpartition("/")[2]
        yield from (canonicalize_name(name) for name in (str(source.get("name")), wheel.partition("-")[0]))


def summary(evidence: Evidence) -> list[tuple[str, str]]:
    """(source, one line) of every source that was built or came from the wheel store, over all nodes."""
    by_name = _by_name(evidence.nodes, evidence.verb).items()
    return [(name, made + _compared(holders)) for name, holders in by_name if (made := _made(holders))]


_Holders = list[tuple[str, Mapping[str, Any]]]
# How a node came to a wheel: built in this run, built in an earlier one, or not built there at all.
_ORDER = ("built", "earlier")


def _by_name(nodes: Sequence[NodeEvidence], verb: str) -> dict[str, _Holders]:
    """(node, source) wherever a source is, by its name; a node that built it first."""
    holders = ((node.node, _dated(node, source, verb)) for node in nodes for source in node.sources)
    by_name = grouped(holders, lambda holder: field(holder[1], "name"))
    how = [*_ORDER, None]
    return {
        name: sorted(group, key=lambda holder: how.index(came if (came := _came(holder[1])) in how else None))
        for name, group in by_name.items()
    }


def _dated(node: NodeEvidence, source: Mapping[str, Any], verb: str) -> Mapping[str, Any]:
    """The source; what a stamp tells of an unchanged node, or to who only looks, was built `earlier`."""
    if (node.status != "unchanged" and verb not in LOOKING) or _came(source) != "built":
        return source
    return {**source, "build": {**mapping(source.get("build")), "from": "earlier"}}


def _came(source: Mapping[str, Any]) -> object:
    return mapping(source.get("build")).get("from")


def _view(name: str, holders: _Holders) -> SourceView:
    source = holders[0][1]
    with_diff = next((holder for _, holder in holders if any(patch.get("diff") for patch in _patches(holder))), source)
    return SourceView(
        name=name,
        git=field(source, "git"),
        commit=field(source, "commit"),
        tree=field(source, "tree"),
        install=_install(source),
        made=_made(holders),
        patches=tuple(_patch(patch) for patch in _patches(with_diff)),
        rows=tuple((title, value) for title, value in _rows(holders) if value),
        extensions=tuple(_extensions(mapping(source.get("build")))),
    )


def _install(source: Mapping[str, Any]) -> str:
    """How it is installed, and the bundle where it came from one and not from its repository."""
    bundle = field(source, "bundle")
    return (field(source, "install") or "wheel") + (f", from the bundle {bundle[:12]}" if bundle else "")


def _made(holders: _Holders) -> str:
    """`built in 83 s with 16 jobs, 12 extensions, sm_90`, `built earlier, …`, `from the wheel store`, or nothing."""
    builds = [(node, mapping(source.get("build"))) for node, source in holders]
    builds = [(node, build) for node, build in builds if build]
    if not builds:
        return ""
    now, earlier = ([pair for pair in builds if pair[1].get("from") == how] for how in _ORDER)
    what = _contents(builds[0][1])
    made = now or earlier
    if not made:
        return "from the wheel store" + (f": {what}" if what else "")
    words = f"built on {_holders_text(made)}" if len(builds) > 1 else "built"
    words += _effort(made[0][1]) if now else " earlier"
    words += f", {what}" if what else ""
    if now and earlier:
        words += f"; built earlier on {_holders_text(earlier)}"
    if rest := len(builds) - len(now) - len(earlier):
        words += f"; from the wheel store on {plural(rest, 'node')}"
    return words


def _holders_text(group: _Holders) -> str:
    return group[0][0] if len(group) == 1 else plural(len(group), "node")


def _effort(build: Mapping[str, Any]) -> str:
    """` in 83 s with 16 jobs`, as far as it is known."""
    took, jobs = _seconds(build.get("seconds")), _count(build.get("jobs"))
    return (f" in {took}" if took is not None else "") + (f" with {plural(jobs, 'job')}" if jobs else "")


def _compared(holders: _Holders) -> str:
    """`; built again: equal, byte by byte` where somebody asked for it."""
    again = dict.fromkeys(_rebuild(mapping(source.get("build"))) for _, source in holders)
    answer = "; ".join(text for text in again if text)
    return f"; built again: {answer}" if answer else ""


def _contents(build: Mapping[str, Any]) -> str:
    """`12 extensions, sm_90`."""
    names = texts(build.get("extensions"))
    codes = dict.fromkeys(arch for _, archs in _device_code(build) for arch in archs)
    parts = [plural(len(names), "extension")] if names else []
    return ", ".join([*parts, " ".join(codes)] if codes else parts)


def _device_code(build: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    extensions = mapping(mapping(build.get("arch")).get("found"))
    return [(str(name), texts(archs)) for name, archs in sorted(extensions.items(), key=lambda item: str(item[0]))]


def _extensions(build: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    extensions = {name: ", ".join(archs) or "no device code" for name, archs in _device_code(build)}
    for name in dict.fromkeys([*texts(build.get("extensions")), *extensions]):
        yield name, extensions.get(name) or extensions.get(name.rsplit(".", 1)[-1]) or "not looked at"


def _rows(holders: _Holders) -> list[tuple[str, str]]:
    build = mapping(holders[0][1].get("build"))
    if not build:
        return []
    arch = mapping(build.get("arch"))
    wanted = ", ".join(texts(arch.get("wanted"))) or "none demanded"
    proof = field(arch, "how")
    if arch and not texts(build.get("extensions")) and not _device_code(build):
        wanted, proof = "", "not needed: it compiles nothing"
    notes = texts(arch.get("notes"))
    return [
        ("How", _made(holders)),
        ("Route", {"pep517": "PEP 517", "kernels": "kernels, ahead of time"}.get(field(build, "route"), "")
         or field(build, "route")),
        ("Wanted GPUs", wanted if arch else ""),
        ("Proof", "; ".join([f"read by {proof}" if proof and not proof.startswith("not") else proof, *notes])),
        ("Imports", _imports(build)),
        ("Network", field(build, "network")),
        ("Memory", "it ran out once; envbuild halved the jobs and continued" if build.get("retried") is True else ""),
        ("Build path", "not the canonical one, so another build may differ" if build.get("canonical") is False else ""),
        ("ccache", "used" if build.get("ccache") is True else ""),
        ("Second build", _rebuild(build)),
        ("Store", "; ".join(texts(mapping(build.get("store")).get("notes")))),
        ("Wheel", field(build, "wheel").rsplit("/", 1)[-1]),
        ("Build key", field(build, "key")),
        ("sha256", field(build, "sha256")),
    ]  # fmt: skip


def _imports(build: Mapping[str, Any]) -> str:
    """`6 extensions import in the environment; not checked: flash_attn_2_cuda (no driver)`."""
    imports = mapping(build.get("imports"))
    good, plain = texts(imports.get("imported")), texts(imports.get("libraries"))
    rest = sorted(mapping(imports.get("unchecked")).items(), key=str)
    unchecked = [f"{name} ({str(why)[:80]})" for name, why in rest]
    parts = [f"{plural(len(good), 'extension')} imported in the environment"] if good else []
    parts += [f"only loaded: {', '.join(plain)}"] if plain else []
    parts += [f"not checked: {', '.join(unchecked)}"] if unchecked else []
    return "; ".join(parts)


def _rebuild(build: Mapping[str, Any]) -> str:
    """Whether a second build gave the same bytes; empty where nobody asked."""
    again = mapping(build.get("rebuild"))
    if not again:
        return ""
    if again.get("equal") is True:
        return "equal, byte by byte"
    members = texts(again.get("different"))
    more = f"{plural(len(members), 'member')}: {few(members, 8)}" if members else "the order or dates"
    return f"different in {more}"


def _patch(patch: Mapping[str, Any]) -> PatchView:
    text = patch.get("diff") if isinstance(patch.get("diff"), str) else ""
    lines = str(text).splitlines()
    files = _mappings(patch.get("files"))
    return PatchView(
        name=field(patch, "name") or "patch",
        digest=field(patch, "digest"),
        hits=plural(hits, "hit") if (hits := _count(patch.get("hits"))) is not None else "",
        notes=tuple(texts(patch.get("notes"))),
        files=tuple((field(file, "path"), field(file, "hits")) for file in files),
        diff=str(text),
        lines=tuple((_kind(line), line) for line in lines[:DIFF_LINES]),
        more=max(0, len(lines) - DIFF_LINES),
    )


def _kind(line: str) -> DiffKind:
    if line.startswith(("--- ", "+++ ")):
        return "file"
    if line.startswith("@@"):
        return "hunk"
    return "add" if line.startswith("+") else "del" if line.startswith("-") else ""


def _patches(source: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What was applied; a lock's own list of patch names is no such thing."""
    return _mappings(source.get("patches"))


def _mappings(value: object) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, (list, tuple)) else []


def mapping(value: object) -> Mapping[str, Any]:
    """A value from a node if it is an object; else an empty one."""
    return value if isinstance(value, Mapping) else {}


def field(data: Mapping[str, Any], key: str) -> str:
    """One value of foreign data as text, empty if it is missing."""
    value = data.get(key)
    return "" if value is None else str(value)


def texts(value: object) -> list[str]:
    """A list of texts from a node; else none."""
    return [str(item) for item in value] if isinstance(value, (list, tuple)) else []


def numbers(value: object) -> list[float]:
    """A list of numbers from a node; none if one item is anything else."""
    items = value if isinstance(value, list) else []
    good = all(isinstance(item, (int, float)) and math.isfinite(item) for item in items)
    return [float(item) for item in items] if good else []


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _seconds(value: object) -> str | None:
    """`83 s`, `4.2 s`, `12 min 5 s`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e9:
        return None
    if value >= 120:
        return minutes(value)
    return f"{value:.1f} s" if value < 10 else f"{value:.0f} s"
