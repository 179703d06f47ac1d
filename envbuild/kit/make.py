"""Makes a kit, and checks one as somebody who trusts nobody.

A kit holds the report and a README made from it: each claim with its command, what to expect, what was found, and what
it costs.
"""

from __future__ import annotations

import io
import re
import shlex
import tarfile
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from envbuild import __version__
from envbuild.catalog.loader import list_stacks, load_stack, manifest_digest
from envbuild.errors import EnvbuildError
from envbuild.kit.manifest import (
    LARGEST,
    MEASURED,
    NAME,
    REPORT,
    Manifest,
    check_files,
    invalid,
    listed,
    manifest_of,
    opened,
    parse,
    render,
)
from envbuild.kit.wheel import own_wheel, wheel_name
from envbuild.lock.files import parse_lock
from envbuild.model.evidence import Check, Evidence
from envbuild.model.lock import Lock
from envbuild.model.stack import Stack
from envbuild.node.git_source import tree_state
from envbuild.regular_file import MAX_BYTES, read_file, read_manifest
from envbuild.report.claimed import SAME
from envbuild.report.equality import sentence
from envbuild.report.evidence_file import SIGNATURE
from envbuild.report.formats import FORMATS
from envbuild.report.publish import copy_report, published, require_holding, sign_report
from envbuild.report.recheck.opened import Finding, Opened, checked, not_checked, open_report, problem, read_attachment
from envbuild.report.recheck.verify import other_build, verify_report
from envbuild.report.render import shown, template, write_new
from envbuild.report.sections import Claim, not_started
from envbuild.report.tables import figure, seconds
from envbuild.report.verdict import all_checks, computed, no_document
from envbuild.report.view import View, python_version, run_words
from envbuild.resolve.artifacts import platform_of
from envbuild.resolve.estimate import disk_words, estimate, fetch_words
from envbuild.resources import own_source
from envbuild.text import plural

README = "README.md"
UNKNOWN = "not measured"
CONTENTS = "the environment holds what the lock says"
# How a draft names commands and where it read them. The bounds stop a hostile file.
STARTS = re.compile(r"^ *# starts: (.{1,400})  \((.{1,200})\)$", re.M)
# Checks that compute nothing.
_IMPORTS = ("sound", "extensions/imports")
# What each command of a kit calls.
_VERBS = {"provision": "provision", "verify": "verify", "figures": "smoke"}
# Ended by `timeout` in any case, so that "under 30 minutes" holds.
_KICK = "timeout 30m envbuild provision {} --target local"


@dataclass(frozen=True)
class Row:
    """One claim; `here` is what this run found, `hours` GPU-hours as measured, `none` or `not measured`."""

    claim: str
    command: str
    expected: str
    here: str
    hours: str


def lock_name(evidence: Evidence) -> str:
    """The file name of a report's lock in its kit."""
    return f"{evidence.stack}.{evidence.profile}.lock.toml"


def stack_name(evidence: Evidence) -> str:
    """The file name of the authors' own stack in a kit."""
    return f"{evidence.stack}.yaml"


def readme(
    manifest: Manifest,
    evidence: Evidence,
    lock: Lock | None,
    *,
    signed: bool,
    own: bytes | None,
    measured: Evidence | None = None,
) -> bytes:
    """The text; `own`: the file of a stack that envbuild does not ship, `measured`: the second report, or none."""
    view = shown(evidence)
    stack = evidence.stack if own is None else f"./{stack_name(evidence)}"
    run, cost = commands(evidence, stack), _cost(measured or evidence, lock)
    beyond = _beyond(evidence, lock, cost, own=own is not None)
    variants = lock.variants if lock else ()
    read = [*(source.name for one in variants for source in one.sources if source.install != "wheel"),
            *(tree.name for one in variants for tree in one.trees)]  # fmt: skip
    file = (own or b"").decode(errors="replace")
    code, starts = list(dict.fromkeys(read)), STARTS.findall(file)[:12]
    claims = rows(view, run)
    if measured is not None:
        inside = rows(shown(measured), commands(measured, stack))
        proven = (replace(row, here=f"{row.here}, in {MEASURED}/") for row in inside)
        claims = (*proven, *(row for row in claims if row.claim != CONTENTS))
    source = f"git+{manifest.address}@{manifest.commit}" if manifest.address else f"./{wheel_name(manifest.envbuild)}"
    kick = _KICK.format("torch-smoke" if beyond else f"{stack} --profile {evidence.profile}")
    # Built a second time in the same place, it would be a run that finds all there, and has nothing to compare.
    whole = not beyond and {*shlex.split(run["provision"])} <= {*shlex.split(kick)}
    return template("kit.md.j2").render(
        view=view, measured=measured, rows=claims, kit=manifest, source=source, signed=signed, run=run,
        lock_name=lock_name(evidence), undocumented=no_document(evidence), kick=kick, whole=whole, beyond=beyond,
        own="" if own is None else stack_name(evidence), shipped=evidence.stack in list_stacks(),
        trees=any(variant.trees for variant in variants), code=code,
        gits={source.name: (source.git, source.commit) for one in variants for source in one.sources},
        starts="\n".join(f"{_inside(view.enter, code, start)}  # {where}" for start, where in starts),
        untried=[start for start, _ in starts if any(map(not_started, evidence.nodes))],
        guessed=tuple(_guessed(file))[:20], cost=cost, took=_took(measured or evidence),
        gpus=sum(len(node.facts.gpus) for node in evidence.nodes if node.facts),
    ).encode()  # fmt: skip


def _inside(enter: str, code: Sequence[str], start: str) -> str:
    """What runs a command in the environment and in the folder of the code; the command alone where it has several."""
    if not enter or len(code) != 1:
        return start
    there = shlex.quote(f'cd "$VIRTUAL_ENV/src/{code[0]}" && {start}')
    return f"{enter.removesuffix('COMMAND')}sh -c {there}"


def _guessed(file: str) -> Iterator[tuple[str, str]]:
    """The values of a draft that its document does not say, each with why it is this one."""
    for line in file.splitlines():
        value, sign, why = line.strip()[:400].partition("not said: ")
        value, comment, _ = value.partition("# ")
        if sign and comment:
            yield value.strip().removeprefix("- "), why.replace("not said: ", "")


def _cost(evidence: Evidence, lock: Lock | None) -> str:
    """What the environment of a node takes, by the sizes in the lock; empty where no variant is known."""
    for node in evidence.nodes:
        for variant in lock.variants if lock else ():
            if node.facts and variant.digest == node.variant_digest:
                it = estimate(variant, platform_of(variant, node.facts))
                disk = disk_words(it.disk_bytes, it.unsized, rough=it.rough)
                return f"{fetch_words(it.fetch_bytes, it.unsized)}, {disk} on disk"
    return ""


def _took(evidence: Evidence) -> str:
    """How long the installation took on the slowest node; empty where this run installed nothing."""
    steps = (step for node in evidence.nodes for step in node.steps if step.name == "install")
    took = max((step.seconds for step in steps if step.status == "changed" and step.seconds), default=None)
    return seconds(took) if took else ""


def _beyond(evidence: Evidence, lock: Lock | None, cost: str, *, own: bool) -> str:
    """Why the stack of a kit is not for any machine without a GPU; empty where it is."""
    if lock is None or not (own or evidence.stack in list_stacks()):
        return "the stack or its lock is not in this kit"
    if any(variant.trees for variant in lock.variants):
        return "the code of this stack is a folder of the authors"
    if all(variant.uses_cuda or variant.base.kind != "none" for variant in lock.variants):
        if all(node.facts and not node.facts.gpus for node in evidence.nodes):
            size = f" ({cost})" if cost else ""
            return (
                f"the lock of this stack has a CUDA build of torch{size}. That build also runs on a CPU, as in this run"
            )
        return "this stack is for machines with GPUs"
    return ""


def commands(evidence: Evidence, stack: str) -> dict[str, str]:
    """What builds the environment, reads it, and tries its figures, of `stack` at the same place.

    The command that was given stands for its own verb.
    """
    given, (program, _, *place) = (_with_stack(words, evidence.stack, stack) for words in run_words(evidence))
    run = {name: shlex.join([program, verb, *place]) for name, verb in _VERBS.items()}
    own = {"provision": "provision", "bench": "figures", "strategy": "figures", "smoke": "figures"}.get(evidence.verb)
    return {**run, own: shlex.join(given)} if own else run


def _with_stack(words: Sequence[str], name: str, stack: str) -> list[str]:
    """The words of a command, with `stack` where its first argument is the stack `name`."""
    return [*words[:2], *(stack if word == name else word for word in words[2:3]), *words[3:]]


def rows(view: View, run: Mapping[str, str]) -> tuple[Row, ...]:
    """The contents first, then every figure that has a claim or a floor; `run`: the commands."""
    claims = (claim for claim in view.claims if claim.claimed != "–" or claim.floor != "–")
    figures = (_figure(view.evidence, claim, run) for claim in claims)
    return (*_contents(view.evidence, run), *_smoke(view.evidence, run), *figures)


def _contents(evidence: Evidence, run: Mapping[str, str]) -> Iterator[Row]:
    rooted = [node for node in evidence.nodes if node.root]
    if rooted:
        roots = ", ".join(dict.fromkeys(str(node.root)[:12] for node in rooted))
        levels = ", ".join(dict.fromkeys(str(node.root_level or "stamped") for node in rooted))
        here = sentence(evidence) or f"{plural(len(rooted), 'node')}, root {roots} ({levels})"
        of = ", ".join(
            dict.fromkeys(f"Python {python_version(node)}, variant {str(node.variant_digest)[:12]}" for node in rooted)
        )
        expected = f"exit code 0, and the root {roots} with {of}. Another Python or variant gives another root"
        yield Row(CONTENTS, run["verify"], expected, here, "none")


def _smoke(evidence: Evidence, run: Mapping[str, str]) -> Iterator[Row]:
    ran = [check for check in all_checks(evidence)
           if check.name.startswith("smoke/") and check.status not in ("not-run", "skipped")]  # fmt: skip
    if ran:
        counts = Counter(check.status for check in ran)
        here = ", ".join(f"{count} {status}" for status, count in counts.items())
        hours = _hours(evidence, lambda check: check in ran)
        names = dict.fromkeys(check.name.removeprefix("smoke/") for check in ran)
        does = "imports" if all(name.startswith(_IMPORTS) for name in names) else "computes"
        claim = f"it {does}: the checks {', '.join(names)} of the smoke test"
        claim += "; training is of envbuild's own test model" if "training" in names else ""
        yield Row(claim, run["figures"], "exit code 0, no check failed", here, hours)


def _figure(evidence: Evidence, claim: Claim, run: Mapping[str, str]) -> Row:
    expected = f"at least {claim.floor} {claim.unit}"
    if claim.floor == "–":
        worse = f"or no more than {100 - 100 * SAME:.0f} % worse, on the hardware that it was claimed for"
        expected = f"{claim.claimed} {claim.unit}, {worse}"
    here = f"{claim.measured} {claim.unit}; {claim.says}"
    hours = claim.gpu_hours
    if hours == "–":
        hours = _hours(evidence, lambda check: claim.name in (check.name, *(metric.name for metric in check.metrics)))
    label = figure(claim.name)
    words = f": {label}" if label != claim.name else ""
    what = f"{claim.name}: the figure of {claim.where}" if claim.floor == "–" else f"{claim.name}, {claim.where}{words}"
    return Row(what, run["figures"], expected, here, hours)


def _hours(evidence: Evidence, counts: Callable[[Check], bool]) -> str:
    """GPUs of the nodes times what these checks took; an hour of a GPU counts whether it was busy or not."""
    checks = [(node.facts, check.seconds) for node in evidence.nodes for check in node.checks if counts(check)]
    known = [len(facts.gpus) * seconds for facts, seconds in checks if facts is not None and seconds is not None]
    if not known or len(known) < len(checks):
        return UNKNOWN
    return f"{sum(known) / 3600:.2g}" if any(known) else "none"


def default_name(path: Path) -> str:
    """The default name of a kit of the report at `path`: its stack and run."""
    evidence = open_report(path).evidence
    return f"kit-{evidence.stack}-{evidence.run}"


def _reports(runs: Sequence[Path]) -> Iterator[tuple[Path, Evidence]]:
    """The runs that have a report, each with its evidence."""
    for path in runs:
        with suppress(EnvbuildError):
            yield path, open_report(path).evidence


def run_of(runs: Sequence[Path], stack: Stack) -> Path:
    """The newest run of exactly this stack, else of its name. Raises EnvbuildError `evidence-missing` (exit 2)."""
    named = None
    for path, evidence in _reports(runs):
        if evidence.stack == stack.name:
            named = named or path
            profiles = {manifest_digest(stack, evidence.profile)} if evidence.profile in stack.profiles else {}
            if any(item.kind == "profile" and item.sha256 in profiles for item in evidence.attachments):
                return path
    if named is None:
        what, hint = f"no run of the stack {stack.name} has a report", "`envbuild provision` makes one"
        raise EnvbuildError("evidence-missing", what, hint=hint)
    return named


def computed_run(runs: Sequence[Path]) -> Path:
    """Of runs, newest first, the newest; a good one before it of the same stack where only that one computed."""
    return runs[0] if _computed(open_report(runs[0]).evidence) else passed_run(runs) or runs[0]


def passed_run(runs: Sequence[Path]) -> Path | None:
    """The newest good run that computed, before the first of `runs`, newest first, and of the same stack."""
    newest = open_report(runs[0]).evidence
    for path, earlier in _reports(runs[1:]):
        same = (earlier.stack, earlier.profile, earlier.target) == (newest.stack, newest.profile, newest.target)
        if same and not earlier.exit and _computed(earlier):
            return path
    return None


def measured_run(runs: Sequence[Path], run: Path) -> Path | None:
    """A good run of the same environments that measured their contents, where `run` took them from stamps.

    The newest that also ran the smoke test, else the newest; none whose report does not hold.
    """
    places = _contents_of(run)
    if {level for *_, level in places} <= {"measured"}:
        return None
    wanted = {(*place, "measured") for *place, _ in places}
    first = None
    for path in runs:
        if wanted <= _contents_of(path):
            with suppress(EnvbuildError):
                if _computed(require_holding(path).evidence):
                    return path
                first = first or path
    return first


def _contents_of(run: Path) -> set[tuple[str | None, ...]]:
    """Node, environment, root and its level of a good run; of another, or one without a report, nothing."""
    nodes = [node for _, evidence in _reports([run]) if not evidence.exit for node in evidence.nodes if node.root]
    return {(node.node, node.environment, node.root, node.root_level) for node in nodes}


def _computed(evidence: Evidence) -> bool:
    return any(computed(check) and check.status != "not-run" for check in all_checks(evidence))


def make_kit(
    path: Path,
    output: Path,
    *,
    publish: bool = True,
    stack: str | None = None,
    key: Path | None = None,
    measured: Path | None = None,
) -> tuple[dict[str, bytes], list[str]]:
    """Write the kit of the report at `path` to `output`: a folder, or a tar file where its name ends in `.tar`.

    `stack`: the stack's file, where envbuild ships none; `key`: an SSH key that signs the reports in the kit;
    `measured`: the run of `measured_run`, whose report goes along. Returns its files, and in sentences what was left
    out or failed. The same reports give the same bytes.
    Raises EnvbuildError `output-exists`, `kit-stack-differs` (exit 2), `report-not-holding`, `kit-invalid` (exit 5),
    `kit-without-lock` (exit 7), `output-unwritable`, and what reading the report and the stack raises.
    """
    left = list(_moved(require_holding(path).evidence))
    places = {REPORT: path, **({} if measured is None else {MEASURED: measured})}
    with tempfile.TemporaryDirectory(prefix="envbuild-kit-") as scratch:
        for name, place in places.items():
            _, more = copy_report(place, Path(scratch, name), publish=publish, beside=("stack",))
            left += more
            if key is not None:
                sign_report(Path(scratch, name), key)
        paths = [file for file in Path(scratch).rglob("*") if file.is_file()]
        files = {file.relative_to(scratch).as_posix(): read_file(file) for file in paths}
        report, *other = (open_report(Path(scratch, name)) for name in places)
    evidence, left = report.evidence, list(dict.fromkeys(left))
    files[lock_name(evidence)] = _lock(files, evidence)
    lock = parse_lock(files[lock_name(evidence)].decode(), lock_name(evidence))
    own, file = _own(path, evidence, lock, stack), f"./{stack_name(evidence)}"
    for name in dict.fromkeys(tree.name for variant in lock.variants for tree in variant.trees):
        left.append(
            f"the folder of the source {name} is not in the kit, so it can be checked but not built again: push the "
            "folder. Then `envbuild up ADDRESS@COMMIT` in another folder; or write `git:` (https:// or ssh://) and "
            f"`commit:` instead of `path:` in the stack file, `envbuild lock create {file}`, "
            f"`envbuild provision {file}`. And make the kit again"
        )
    if evidence.exit:
        left.append(f"the run {evidence.run} failed (exit {evidence.exit}): the kit shows a failure")
    if not own and evidence.stack not in list_stacks():
        left.append(f"{stack_name(evidence)} is not in the kit: --stack FILE names the stack's file")
    source = own_source()
    manifest = Manifest(
        envbuild=__version__,
        commit=source.get("vcs_info", {}).get("commit_id", ""),
        address=source.get("url", ""),
        form="published" if publish else "full",
    )
    files |= own
    if not manifest.address and (wheel := own_wheel()):
        files[wheel_name(__version__)] = wheel
    elif not manifest.address:
        left.append(f"{wheel_name(__version__)} is not in the kit: envbuild is not installed here, so hand it along")
    files[README] = readme(
        manifest,
        evidence,
        lock,
        signed=report.signature is not None,
        own=next(iter(own.values()), None),
        measured=next((item.evidence for item in other), None),
    )
    files[NAME] = render(manifest.model_copy(update={"files": listed(files)}))
    parse(files[NAME])  # a kit that nobody could read is not written
    write_new(output, _tar(files, output.stem) if output.suffix == ".tar" else files)
    return files, left


def _moved(evidence: Evidence) -> Iterator[str]:
    """The folders of code that are at another commit now than in the run."""
    trees = {name: tree for node in evidence.nodes if node.facts for name, tree in node.facts.trees.items()}
    for name, tree in trees.items():
        now = tree_state(tree.path)["commit"]
        if tree.commit and now and now != tree.commit:
            was = f"was at commit {tree.commit[:12]} in the run {evidence.run}, which the kit is of"
            yield f"the folder of the source {name} {was}; it is at {now[:12]} now"


def _lock(files: Mapping[str, bytes], evidence: Evidence) -> bytes:
    item = next((attachment for attachment in evidence.attachments if attachment.kind == "lock"), None)
    data = files.get(f"{REPORT}/{item.path}") if item is not None else None
    if data is None:
        raise EnvbuildError(
            "kit-without-lock",
            "there is no lock to put into the kit",
            why="the report has no lock beside it",
            hint="give the run's folder, not its page alone",
        )
    return data


def _own(path: Path, evidence: Evidence, lock: Lock, stack: str | None) -> dict[str, bytes]:
    """The file of a stack that envbuild does not ship, as it is: the one that is named, else what the run has kept."""
    if stack is None:
        report = open_report(path)
        item = next((attachment for attachment in report.evidence.attachments if attachment.kind == "stack"), None)
        data = read_attachment(report.folder, item.path, MAX_BYTES) if item is not None else None
        return {} if data is None else {stack_name(evidence): data}
    loaded = load_stack(stack)
    if not is_stack_of(loaded.stack, evidence, lock):
        raise EnvbuildError(
            "kit-stack-differs",
            f"{loaded.ref} is not the stack that the report's lock was made from",
            hint=f"`{shlex.join(['envbuild', 'report', 'kit', str(path)])}` takes the file that the run kept; "
            f"`envbuild provision {shlex.quote(stack)}` makes a run of this one",
        )
    return {} if loaded.shipped else {stack_name(evidence): read_manifest(loaded.path)}


def is_stack_of(stack: Stack, evidence: Evidence, lock: Lock) -> bool:
    """Whether the lock of a report was made from this stack."""
    known = stack.name == evidence.stack and evidence.profile in stack.profiles
    return known and manifest_digest(stack, evidence.profile) == lock.manifest_digest


def _tar(files: Mapping[str, bytes], top: str) -> bytes:
    """The files below the folder `top`: no times, no owners, in one order."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in sorted(files.items()):
            member = tarfile.TarInfo(f"{top}/{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return out.getvalue()


def verify_kit(path: Path, *, run: str | None = None, signers: Path | None = None) -> tuple[Opened, list[Finding]]:
    """Check a kit, a folder or a tar file; then as `verify_report` does for the report in it.

    Raises EnvbuildError with exit 5: `kit-missing`, `kit-invalid`, and
    what `verify_report` raises.
    """
    with opened(path) as (folder, sizes):
        manifest = manifest_of(folder)
        if f"{REPORT}/evidence.json" not in sizes:
            raise invalid(NAME, f"{REPORT}/evidence.json is not there")
        findings = check_files(folder, sizes, manifest)
        maker = (manifest.envbuild, manifest.commit)
        report, more = verify_report(folder / REPORT, run=run, signers=signers, maker=maker)
        reports = {REPORT: report}
        if f"{MEASURED}/evidence.json" in sizes:
            reports[MEASURED], others = verify_report(folder / MEASURED, signers=signers, maker=maker)
            others.append(_same_contents(report.evidence, reports[MEASURED].evidence))
            # What holds for both is said once.
            more += [replace(finding, says=f"{MEASURED}/: {finding.says}") for finding in others if finding not in more]
        findings += _unknown(manifest, reports)
        findings += _together(folder, manifest, reports)
        return report, [*findings, *more]


def _same_contents(evidence: Evidence, measured: Evidence) -> Finding:
    """Whether the run in `environment/` measured the contents that the other run has from the stamp."""
    stamped = {(node.variant_digest, node.root, "measured") for node in evidence.nodes if node.root}
    known = {(node.variant_digest, node.root, node.root_level) for node in measured.nodes if not measured.exit}
    if stamped and stamped <= known:
        return checked("root", f"the run {measured.run} measured the contents that {evidence.run} used, by their root")
    return problem("report-root-differs", "root", f"it did not measure the contents of the run {evidence.run}")


def _unknown(manifest: Manifest, reports: Mapping[str, Opened]) -> Iterator[Finding]:
    """Files that `kit.json`, which no signature covers, lists and no kit of these reports has."""
    inside = {"evidence.json", SIGNATURE, "report.html", "report.md", *(name for name, _ in FORMATS.values())}
    evidence = reports[REPORT].evidence
    known = {README, lock_name(evidence), stack_name(evidence)}
    for name, report in reports.items():
        known |= {f"{name}/{path}" for path in inside | {item.path for item in report.evidence.attachments}}
    wheel = wheel_name(manifest.envbuild)
    for file in manifest.files:
        if file.path == wheel:
            yield not_checked(
                "kit", f"{wheel}, the authors' copy of envbuild, which judges its own kit; ask them for its repository"
            )
        elif file.path not in known:
            yield problem("kit-file-unlisted", "kit", f"{file.path} belongs to no kit of this report")


def _together(folder: Path, manifest: Manifest, reports: Mapping[str, Opened]) -> Iterator[Finding]:
    report = reports[REPORT]
    name, own_name, evidence = lock_name(report.evidence), stack_name(report.evidence), report.evidence
    data, own = (read_attachment(folder, file, LARGEST) for file in (name, own_name))
    lock, wrong = None, ""
    try:
        lock = parse_lock((data or b"").decode(errors="replace"), name)
    except EnvbuildError as error:
        wrong = f"{name}: {error.what}: {error.why}"
    measured = reports[MEASURED].evidence if MEASURED in reports else None
    made = readme(manifest, evidence, lock, signed=report.signature is not None, own=own, measured=measured)
    yield _readme(read_attachment(folder, README, LARGEST) == made, manifest)
    if manifest.form == "published":
        yield from {_form(item.evidence): None for item in reports.values()}
    if data is None:
        yield problem("kit-file-missing", "kit", f"{name}, the lock of the report, is not there")
        return
    item = next((attachment for attachment in evidence.attachments if attachment.kind == "lock"), None)
    if item is None or data != read_attachment(report.folder, item.path, LARGEST):
        yield problem("kit-lock-differs", "kit", f"{name} is not the lock of the report")
        return
    yield checked("kit", f"{name} is the lock of the report")
    if own is not None:
        yield (
            problem("report-lock-invalid", "kit", wrong) if lock is None else _stack(folder / own_name, evidence, lock)
        )
    elif evidence.stack not in list_stacks():
        yield not_checked("stack", f"{own_name}, the authors' own stack, is not in the kit")


def _readme(same: bool, manifest: Manifest) -> Finding:
    """README, made again: no signature covers it."""
    if same:
        return checked("kit", f"{README} says what the report does")
    if other := other_build(manifest.envbuild, manifest.commit):
        return not_checked(
            "kit", f"{README}: {other}. Trust no command or figure in it; the other checks do not need it"
        )
    says = f"{README} is not what report and lock give; if one of them differs, that is why"
    return problem("kit-text-differs", "kit", says)


def _form(evidence: Evidence) -> Finding:
    """Whether the report is a published one, as `kit.json` says, which no signature covers."""
    if published(evidence) == evidence:
        return checked("kit", "the report has only fields that are public")
    says = "the report has fields that are not public; do not pass it on"
    return problem("kit-form-differs", "kit", f"{NAME} calls it published: {says}")


def _stack(path: Path, evidence: Evidence, lock: Lock) -> Finding:
    """The file of a stack of the authors' own, which is what the lock was made from."""
    try:
        same = is_stack_of(load_stack(str(path)).stack, evidence, lock)
        says = f"{path.name} is{' not' * (not same)} the stack that the lock was made from"
    except EnvbuildError as error:
        same, says = False, error.what.replace(f"{path.parent}/", "")
    return checked("stack", says) if same else problem("kit-stack-differs", "stack", says)
