"""What a reviewer asks first, as rows: claims, evidence for badges, pins, and what was not checked.

What was not checked is as large as the rest, because silence reads as a yes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median_low

from packaging.utils import canonicalize_name

from envbuild.model.common import LEFT_OUT
from envbuild.model.evidence import BuiltVariant, Check, Comparison, Evidence, Metric, NodeEvidence
from envbuild.report.claimed import NO_GPU, SAME
from envbuild.report.pictures import rates
from envbuild.report.sources import built_names
from envbuild.report.tables import NodeClass, below_floor, figure, largest
from envbuild.report.verdict import GOOD, all_checks, computed, doubts, far_above, no_document, node_checks, of_logs
from envbuild.resolve.artifacts import same_version
from envbuild.text import few, grouped, number, percent, plural


@dataclass(frozen=True)
class Pin:
    """One package: `wanted` as locked (empty: in no lock), `observed` on `nodes` (empty: missing).

    `same`: whether the two agree; None: nothing to compare with.
    """

    name: str
    wanted: str
    observed: str
    sha256: str
    nodes: tuple[str, ...]
    same: bool | None


def pins(evidence: Evidence) -> tuple[Pin, ...]:
    """Of every variant, differences first, then by name; nodes that have the same are one row."""
    known = {variant.digest: variant for variant in evidence.variants}
    listed = [node for node in evidence.nodes if node.packages]
    groups = grouped(listed, lambda node: (node.variant_digest, tuple(node.packages.items())))
    by_row: dict[tuple[str, str, str, str, bool | None], list[str]] = {}
    for (digest, _), nodes in groups.items():
        for row in _rows(known.get(str(digest)), nodes[0].packages):
            by_row.setdefault(row, []).extend(node.node for node in nodes)
    every = [Pin(*row[:4], nodes=tuple(names), same=row[4]) for row, names in by_row.items()]
    return tuple(sorted(every, key=lambda pin: (pin.same is not False, pin.name)))


def _rows(variant: BuiltVariant | None, packages: dict[str, str]) -> Iterator[tuple[str, str, str, str, bool | None]]:
    versions = {canonicalize_name(name): version for name, version in packages.items()}
    for row in variant.packages if variant else ():
        version = versions.pop(canonicalize_name(row.name), "")
        yield row.name, row.version, version, row.sha256, same_version(version.partition(" ")[0], row.version)
    for name, version in versions.items():
        # Wheels that were built here stand in the lock as sources, by commit and tree.
        yield name, "", version, "", None


@dataclass(frozen=True)
class Badge:
    """One badge, the tone of its evidence, and the evidence in lines."""

    name: str
    tone: str
    says: tuple[str, ...]


UNSTARTED = "none of the code's commands ran"


def badges(evidence: Evidence, rows: tuple[Claim, ...], pins: tuple[Pin, ...]) -> tuple[Badge, ...]:
    """Available, Functional, Reproduced."""
    return _available(evidence, pins), _functional(evidence), _reproduced(evidence, rows)


def _available(evidence: Evidence, pins: tuple[Pin, ...]) -> Badge:
    every = (source for node in evidence.nodes for source in node.sources)
    sources = {(str(source.get("name")), bool(source.get("commit")), bool(source.get("tree"))) for source in every}
    pinned = sum(commit and tree for _, commit, tree in sources)
    due = {canonicalize_name(pin.name) for pin in pins}.difference(*map(built_names, evidence.nodes))
    hashed = due - {canonicalize_name(pin.name) for pin in pins if pin.sha256 in ("", "unrecorded")}
    says = [f"{_share(len(hashed), len(due), 'package')} by sha256"] if hashed else []
    says += [f"{_share(pinned, len(sources), 'source')} by commit and tree"] if sources else []
    # ACM's badge is for an archive under a DOI, which no evidence has.
    return Badge("Available", "amber", (*(says or ["the evidence has no hash and no commit"]), "no DOI of an archive"))


def _share(count: int, total: int, noun: str) -> str:
    """`3 nodes`, or `2 of 3 nodes` where it is not all."""
    return plural(total, noun) if count == total else f"{count:,} of {plural(total, noun)}"


def _functional(evidence: Evidence) -> Badge:
    good = sum(node.status in GOOD for node in evidence.nodes)
    checks = all_checks(evidence)
    passed, failed = (sum(check.status == status for check in checks) for status in ("passed", "failed"))
    total = len(evidence.nodes)
    says = [f"{_share(good, total, 'node')} ready", f"{plural(passed, 'check')} passed, {failed} failed"]
    skipped = len(checks) - passed - failed
    says += [f"{skipped} not run"] if skipped else []
    bad = failed or good < total
    if of_logs(evidence) and not bad:
        return Badge("Functional", "amber", ("nothing ran here: a log was read",))
    # Green says that the code works, so something must have run, and all that it imports be there.
    ran = sum(check.status == "passed" and computed(check) for check in checks)
    says.append(f"{ran} passed by running the environment" if ran else "no smoke test and no benchmark ran")
    unstarted = [
        UNSTARTED + ("" if len(gap.nodes) == total else f" on {_share(len(gap.nodes), total, 'node')}")
        for gap in _unstarted(evidence)
    ]
    says += [*doubts(evidence), *unstarted]
    green = ran and not doubts(evidence) and not unstarted
    return Badge("Functional", "red" if bad else "green" if green else "amber", tuple(says))


def _reproduced(evidence: Evidence, rows: tuple[Claim, ...]) -> Badge:
    claimed = [claim for claim in rows if claim.claimed != "–"]
    floors = [claim for claim in rows if claim.floor != "–"]
    reached, held = (sum(row.tone == "green" for row in rows) for rows in (claimed, floors))
    says = [f"{_share(reached, len(claimed), 'claim')} reached"] if claimed else []
    for verdict, words in (("not comparable", "not comparable"), ("above the claim", "far above")):
        count = sum(claim.verdict == verdict for claim in claimed)
        says += [f"{plural(count, 'claim')} {words}"] if count else []
    says += [f"{_share(held, len(floors), 'floor')} held"] if floors else []
    if not claimed:
        says.append(no_document(evidence) or "no claim of the document was measured in this run")
    tones = {claim.tone for claim in (*claimed, *floors)}
    tone = "red" if "red" in tones else "amber" if not claimed or "amber" in tones else "green"
    return Badge("Reproduced", tone, tuple(says))


_VERDICTS = {
    "reproduced": ("green", "reproduced"), "below": ("red", "below the claim"),
    "far-above": ("amber", "above the claim"), "not-comparable": ("amber", "not comparable"),
    "no-claim": ("", "no claim"),
}  # fmt: skip


@dataclass(frozen=True)
class Claim:
    """One figure: the document's claim, the measured value, the least accepted value; as texts, `–` for none."""

    name: str
    unit: str
    claimed: str
    measured: str
    floor: str
    percent: str
    gpu_hours: str
    where: str
    nodes: str
    verdict: str
    says: str
    tone: str
    compared: bool
    """whether there is a claim or a floor to compare it with"""


def claims(evidence: Evidence) -> tuple[Claim, ...]:
    """Claims first, then what has a floor, then the other figures; nodes with one floor are one line."""
    compared = [_claim(node, check, check.comparison) for node, check in node_checks(evidence) if check.comparison]
    # Smaller sizes are in the table behind their picture.
    figures = (
        _figure(alike, named=len(every) > 1)
        for every in largest(evidence).values()
        for alike in grouped(every, lambda row: row[1].floor).values()
    )
    return (*compared, *sorted(figures, key=lambda claim: not claim.compared))


def _claim(node: NodeEvidence, check: Check, it: Comparison) -> Claim:
    gpu = it.gpu or (NO_GPU if node.facts is not None and not node.facts.gpus else "GPU not known")
    on = f"{'in the log' if check.level == 'not-checked' else 'here'} {_on(it.gpus, gpu, it.share)}"
    if it.claim_gpus:
        on += f"; claimed on {_on(it.claim_gpus, it.claim_gpu or 'GPU not known', it.claim_share)}"
    where = " ".join(part for part in (it.where, f"({it.source})" if it.source else "") if part)
    tone, verdict = _VERDICTS["far-above" if far_above(check) else it.verdict]
    why = it.why.removeprefix(f"{verdict}: ")  # which stands before it
    hours = f"{it.gpus * check.seconds / 3600:.3g}" if check.seconds and it.gpus and gpu != NO_GPU else "–"
    return Claim(
        name=check.name, unit=it.unit, claimed="–" if it.claim is None else number(it.claim, it.measured),
        measured=number(it.measured, it.claim), floor="–",
        percent="–" if it.percent is None else f"{number(it.percent, 100 * SAME)} %",
        gpu_hours=hours, where=where or "the document claims nothing", nodes=node.node,
        verdict=verdict, says=f"{why}; {on}", tone=tone, compared=True,
    )  # fmt: skip


def _on(count: int, gpu: str, share: float | None) -> str:
    return gpu if gpu == NO_GPU else f"{count} × {gpu}" + (f" ({number(share)} % of peak)" if share is not None else "")


def _figure(rows: list[tuple[str, Metric, Check]], *, named: bool) -> Claim:
    """The worst node stands for all: a floor holds where it holds on each."""
    sign, end, other = (-1, "highest", "lowest") if rows[0][1].lower_is_better else (1, "lowest", "highest")
    who, worst, check = min(rows, key=lambda row: sign * row[1].median)
    best = sign * max(sign * metric.median for _, metric, _ in rows)
    bad = sum(below_floor(metric) for _, metric, _ in rows)
    spread = f"median of n = {worst.n}, {number(worst.least)} to {number(worst.greatest)}"
    if len(rows) > 1:
        spread = f"the {end} of {plural(len(rows), 'node')}, on {who}; the {other} is {number(best)}"
    elif named:
        spread = f"on {who}, {spread}"
    says = f"{bad} of {plural(len(rows), 'node')} below the floor; {spread}" if bad else spread
    tone, verdict = "", ""
    if bad:
        tone, verdict = "red", "below the floor"
    elif worst.floor is not None:
        tone, verdict = "green", "floor held"
    of_floor = "–" if not worst.floor else f"{percent(100 * worst.median / worst.floor, 100)} %"
    return Claim(
        name=worst.name, unit=worst.unit, claimed="–", measured=number(worst.median, worst.floor),
        floor="–" if worst.floor is None else number(worst.floor, worst.median), percent=of_floor, gpu_hours="–",
        where=check.name, nodes=who, verdict=verdict, says=says, tone=tone, compared=worst.floor is not None,
    )  # fmt: skip


_LEAST = 3  # Of fewer nodes nobody can say which one is the odd one.


@dataclass(frozen=True)
class Outlier:
    """A figure of a node or of one of its GPUs, and the spread on the median node of its class; `off`: how far off."""

    node: str
    what: str
    measured: str
    usual: str
    off: float
    worse: bool

    @property
    def percent(self) -> str:
        """`-12.8 %`, against the usual median."""
        return f"{100 * self.off:+.1f} %"


@dataclass(frozen=True)
class Outliers:
    """What deviates, worst first, of `figures` compared on `nodes` nodes in all."""

    found: tuple[Outlier, ...]
    figures: int
    nodes: int


def outliers(nodes: Sequence[NodeEvidence], classes: Sequence[NodeClass]) -> Outliers | None:
    """Compare each node with the median one of its class; None without three nodes of a class with the same figure."""
    by_name = {node.node: node for node in nodes}
    result, compared, seen = list[Outlier](), set[str](), set[str]()
    for alike in classes:
        figures = ((node, metric) for node in (by_name[name] for name in alike.nodes)
                   for check in node.checks for metric in check.metrics if metric.n > 1)  # fmt: skip
        groups = grouped(figures, lambda row: row[1].name)
        for name, group in groups.items():
            if len(group) >= _LEAST:
                compared.add(name)
                seen |= {node.node for node, _ in group}
                result += _odd(name, group)
    result.sort(key=lambda it: (not it.worse, -abs(it.off)))
    return Outliers(tuple(result), len(compared), len(seen)) if compared else None


def _odd(name: str, group: Sequence[tuple[NodeEvidence, Metric]]) -> Iterator[Outlier]:
    """What lies outside the least and greatest of the node in the middle."""
    middle = median_low(metric.median for _, metric in group)
    usual = next(metric for _, metric in group if metric.median == middle)
    spread = f"{number(usual.median)} ({number(usual.least)} to {number(usual.greatest)})"
    for node, metric in group:
        figures = [(figure(name), metric.median)]
        figures += [(f"{figure(name)}: GPU {gpu}", value) for gpu, value in rates(node, name)]
        for what, value in figures:
            if not usual.least <= value <= usual.greatest:
                worse = (value > usual.greatest) == metric.lower_is_better
                off = value / usual.median - 1 if usual.median else 0.0
                yield Outlier(node.node, what, f"{number(value)} {metric.unit}", spread, off, worse)


@dataclass(frozen=True)
class Gap:
    """One thing that was not checked, why, and on which nodes."""

    what: str
    why: str
    nodes: tuple[str, ...]


def gaps(evidence: Evidence, claims: tuple[Claim, ...], pins: tuple[Pin, ...]) -> tuple[Gap, ...]:
    """Checks that did not run, contents that were not read, and what this kind of run does not look at."""
    by_gap: dict[tuple[str, str], list[str]] = {}
    for node in evidence.nodes:
        for check in node.checks:
            if check.status in ("skipped", "not-run") or check.level == "not-checked":
                says = "the reason is not published" if check.says == LEFT_OUT else check.says
                by_gap.setdefault((check.name, says), []).append(node.node)
        if node.root and node.root_level != "measured":
            why = "its Merkle root is what the stamp says; the files were not read in this run"
            by_gap.setdefault(("contents", why), []).append(node.node)
        if not node.checks:
            by_gap.setdefault(("everything", f"no check ran; the node is {node.status}"), []).append(node.node)
    out = [Gap(what, why, tuple(dict.fromkeys(nodes))) for (what, why), nodes in by_gap.items()]
    every = tuple(node.node for node in evidence.nodes)
    out += _of_images(evidence)
    copied = {node.node for node, check in node_checks(evidence) if check.details.get("peer_gbps")}
    several = [node.node for node in evidence.nodes if node.facts and len(node.facts.gpus) > 1]
    if unlinked := tuple(name for name in several if name not in copied):
        why = "bandwidth between each two GPUs was not measured; `envbuild smoke --only machine/copies` does it"
        out.append(Gap("links", why, unlinked))
    untried = tuple(node.node for node in evidence.nodes if node.checks and node.status in GOOD
                    and not any(check.name.startswith("smoke/") for check in node.checks))  # fmt: skip
    if evidence.verb in ("verify", "provision", "bench", "strategy") and untried:
        out.append(Gap("smoke", "no smoke test ran in this run; `envbuild smoke` runs it", untried))
    out += _unstarted(evidence)
    if evidence.verb != "verify" and not any(claim.claimed != "–" for claim in claims):
        out.append(Gap("claims", _uncompared(evidence, claims), every))
    if open_ := [figure(claim.name) for claim in claims if not claim.compared]:
        out.append(Gap("floors", f"{plural(len(open_), 'figure')} without a floor: {few(open_, 8, '; ')}", every))
    loose, unread = _unlocked(evidence, pins)
    if loose:
        why = f"{plural(len(loose), 'package')} without a locked file (built here, or of the base): {few(loose, 8)}"
        out.append(Gap("pins", why, every))
    if unread:
        why = f"{plural(unread, 'package')} not compared by hash: this run did not ask which files of the lock fit"
        out.append(Gap("pins", why, every))
    return tuple(out)


def not_started(node: NodeEvidence) -> bool:
    """Whether a smoke test ran, and none of the code's own programs did."""
    ran = {check.name for check in node.checks if check.status in ("passed", "failed") and computed(check)}
    return bool(ran) and all(name.startswith("smoke/") and name != "smoke/step" for name in ran)


def _unstarted(evidence: Evidence) -> Iterator[Gap]:
    coded = (node for node in evidence.nodes if node.sources or (node.facts and node.facts.trees))
    if nodes := tuple(node.node for node in coded if not_started(node)):
        yield Gap(
            "own commands", f"{UNSTARTED}: the smoke test imports modules and runs envbuild's own programs", nodes
        )


def _of_images(evidence: Evidence) -> Iterator[Gap]:
    """What an image has of the one that it is built on."""
    if images := [node for node in evidence.nodes if node.image is not None]:
        many = max(len(node.base_packages) for node in images)
        known = f", but for {plural(many, 'Python package')} by name and version" if many else ""
        why = f"the packages listed are those of the lock; what else the image has of its base was not read{known}"
        yield Gap("image", why, tuple(node.node for node in images))


def _unlocked(evidence: Evidence, pins: tuple[Pin, ...]) -> tuple[list[str], int]:
    """Names of packages that no file of the lock is for, and how many others there are on nodes without facts."""
    built = {name for node in evidence.nodes for name in built_names(node)}
    known = {variant.digest for variant in evidence.variants if variant.packages}
    nodes = {node.node for node in evidence.nodes if node.facts is None and node.variant_digest not in known}
    unlocked = [pin for pin in pins if pin.same is None and not pin.wanted]
    loose = [pin.name for pin in unlocked if canonicalize_name(pin.name) in built or not nodes.issuperset(pin.nodes)]
    return loose, len(unlocked) - len(loose)


def _uncompared(evidence: Evidence, claims: tuple[Claim, ...]) -> str:
    """Why no figure of the document was measured, or what does it."""
    if why := no_document(evidence):
        return why
    if any(claim.verdict == "no claim" for claim in claims):
        return "no figure of the document was measured: it has none for what ran"
    way = "" if evidence.verb == "bench" else "; `envbuild bench` does it, if the stack has a document with figures"
    return f"no figure of a document was measured{way}"
