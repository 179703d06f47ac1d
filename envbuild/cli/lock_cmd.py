"""`envbuild lock`: create, record, check, diff, export."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envbuild.cli import choose
from envbuild.cli.output import Ui, common_options
from envbuild.cli.progress import RunProgress
from envbuild.cli.verbs import Group
from envbuild.errors import EnvbuildError, ExitCode, gravest, writing
from envbuild.text import few, plural

if TYPE_CHECKING:
    from envbuild.catalog.loader import LoadedStack
    from envbuild.export.lock_formats import Places
    from envbuild.model.lock import Lock, Variant

_index = choose.pairs_option(
    "--index", "indexes", help_="Another address for a named index.", metavar="NAME=URL", callback=choose.addresses
)
_find_links = click.option(
    "--find-links", "-f", multiple=True, metavar="DIR_OR_URL",
    help="Another folder or page with wheels, besides pip's own.",
)  # fmt: skip


@click.group("lock", cls=Group)
def lock() -> None:
    """Locks: exact contents of a stack, one variant for each Python, torch flavour, base and interpreter."""


@lock.command("create")
@choose.stack_argument(required=True)
@choose.profile_option
@click.option(
    "--as-of", metavar="YYYY-MM-DD", type=click.DateTime(["%Y-%m-%d"]),
    help="Take nothing that was published after this date.",
)  # fmt: skip
@click.option("--upgrade", is_flag=True, help="Forget the versions of the existing lock.")
@click.option("--base-python", type=choose.FILE, help="Interpreter of the base, to record what it provides.")
@_find_links
@_index
@click.option("--allow-build", multiple=True, metavar="NAME", help="Run setup code of this package's sdist here.")
@choose.facts_option
@click.option("--conda-unrecorded", is_flag=True, help="Contact no conda channel; its packages stay unrecorded.")
@click.option(
    "--image", "images", multiple=True, metavar="IMAGE",
    help="Look up the digest of this image in its registry (`all`: of every base image); repeatable.",
)  # fmt: skip
@choose.output_option("Where to write (default: the stack's own lock file).")
@common_options
def create(ui: Ui, /, stack: str, profile: str | None, output: Path | None, **flags: Any) -> None:
    """Resolve STACK and write its lock.

    From a requirements.txt, pyproject.toml, setup.py, Pipfile, Dockerfile or another tool's lock, first drafts a stack
    beside the file, as `init --from` does.

    Keeps versions of an existing lock that still fit; `--upgrade` takes the newest. Resolves nothing if the stack has
    changed only in what is run with the environment (variables, imports, smoke items, deviations), or if patches of the
    catalog have changed.
    """
    from envbuild.catalog.loader import load_stack, lock_path, pick_profile
    from envbuild.container.registry import ask_and_record, images_of
    from envbuild.lock.diff import diff_locks
    from envbuild.lock.record import write_lock

    loaded = load_stack(_drafted(ui, stack))
    name = pick_profile(loaded, profile)
    path = output or lock_path(loaded, name)
    previous = _previous(ui, path)
    made = _made(ui, loaded, name, previous, **flags)
    if images := flags["images"]:
        # Their digests are also written to `images.toml` beside the lock.
        wanted = [image for image in images if image != "all"]
        wanted += images_of(made, shipped=loaded.shipped) if "all" in images else []
        ui.note(f"asking for the digests of {len(wanted)} images")
        made, warnings = ask_and_record(made, path, wanted, upgrade=flags["upgrade"])
        for text in warnings:
            ui.warn(text)
    changed = made != previous
    if changed:
        write_lock(path, made)
    diff = diff_locks(previous, made) if previous else None
    rows = [_row(variant) for variant in made.variants]
    data = {"lock": str(path), "changed": changed, "variants": rows, "diff": diff.as_dict() if diff else None}
    ui.result(data, lambda: _created(path, rows, changed=changed, changes=diff.text() if diff and diff.changes else ""))


def _made(
    ui: Ui,
    loaded: LoadedStack,
    name: str,
    previous: Lock | None,
    *,
    upgrade: bool = False,
    conda_unrecorded: bool = False,
    find_links: tuple[str, ...] = (),
    indexes: dict[str, str] | None = None,
    allow_build: Sequence[str] = (),
    as_of: datetime | None = None,
    base_python: Path | None = None,
    facts: str | None = None,
    **_: Any,
) -> Lock:
    """The lock of a profile, resolved where something of it has changed; what follows from it is said."""
    from envbuild.catalog.node_facts import load_facts
    from envbuild.conda.virtual import of_facts
    from envbuild.lock.check import restated
    from envbuild.lock.create import create_lock, default_supply, standalone_interpreters
    from envbuild.resolve.compat_read import load_compat
    from envbuild.resolve.profile import findings, refuse, refuse_locked
    from envbuild.resolve.rules.packages import sdists

    compat = load_compat()
    refuse(loaded.stack.profiles[name], compat)
    # Options that ask for another lock than the one that is there.
    asked = any((as_of, upgrade, base_python, find_links, indexes, allow_build, facts))
    nodes = load_facts(facts) if facts else {}
    unrecorded = previous and any(variant.conda and variant.conda.unrecorded for variant in previous.variants)
    keep = previous if not asked and (conda_unrecorded or not unrecorded) else None
    same = restated(keep, loaded.stack, ui.warn) if keep else None
    what = f"{loaded.stack.name}, profile {name}"
    if same is not None:
        ui.note(f"nothing to resolve in {what}")
    try:
        with RunProgress(ui) as progress:
            if same is None:
                progress.stage(f"resolving {what}{f', with setup code of {few(allow_build)}' if allow_build else ''}")
            made = same or create_lock(
                loaded.stack,
                name,
                default_supply(find_links, indexes, allow_build),
                as_of=as_of.date() if as_of else None,
                base_python=base_python,
                previous=previous,
                upgrade=upgrade,
                standalone=standalone_interpreters(choose.configured({}).toolchain),
                virtual=tuple(map(of_facts, nodes.values())),
                conda_offline=conda_unrecorded,
                say=lambda text: progress.pause(lambda: ui.warn(text)),
            )
    except EnvbuildError as error:
        if places := _asking_lines(loaded, error):
            error.why = "\n".join(filter(None, (*places, error.why)))
        raise
    refuse_locked(made, compat)
    for text in findings(made, compat):
        ui.warn(text)
    built = sorted({name for variant in made.variants for name in sdists(variant.packages)})
    if built:
        ui.note(f"locked as source distributions, whose setup code runs when they are built: {', '.join(built)}")
    return made


def _asking_lines(loaded: LoadedStack, error: EnvbuildError) -> list[str]:
    """The lines of a stack file that ask for packages which the error of a resolution names: `my.yaml:7: six>=99`."""
    from packaging.utils import canonicalize_name

    from envbuild.catalog.yaml_load import read_yaml
    from envbuild.model.finding import package_name

    if error.code not in ("package-not-found", "resolution-failed", "build-not-allowed"):
        return []
    names = set(map(canonicalize_name, re.findall(r"\w[\w.-]*\w", f"{error.what} {error.why}")))
    document = read_yaml(loaded.path)
    return [
        f"{loaded.path.name}:{document.locate(('profiles', profile, field, index))[0]}: {text}"
        for profile, fields in document.data.get("profiles", {}).items()
        for field in ("packages", "constraints")
        for index, text in enumerate(fields.get(field) or ())
        if package_name(text) in names
    ]


def ensure_lock(ui: Ui, loaded: LoadedStack, name: str, allow: Callable[[Sequence[str]], bool]) -> Path:
    """The lock of a profile, made where there is none or its stack has changed.

    `allow` is asked about packages whose setup code would have to run for that. Raises EnvbuildError as `create_lock`.
    """
    from envbuild.catalog.loader import lock_path, manifest_digest
    from envbuild.lock.diff import diff_locks
    from envbuild.lock.record import write_lock

    path = lock_path(loaded, name)
    previous = _previous(ui, path)
    if previous is not None and previous.manifest_digest == manifest_digest(loaded.stack, name):
        return path
    allowed: list[str] = []
    while True:
        try:
            made = _made(ui, loaded, name, previous, allow_build=allowed)
        except EnvbuildError as error:
            more = sorted(set(error.details.get("packages", ())) - set(allowed))
            if error.code != "build-not-allowed" or not more or not allow(more):
                raise
            allowed += more
        else:
            write_lock(path, made)
            if previous and (diff := diff_locks(previous, made)).changes:
                ui.note(f"changed {path}\n{diff.text()}")
            return path


def _drafted(ui: Ui, reference: str) -> str:
    """A file that lists packages stands for the stack that `init` drafts of it, beside it; others for themselves."""
    from envbuild.init.read import reader_of

    path = Path(reference)
    noun, _ = reader_of(path.name) or ("", None)
    lists = path.suffix in (".txt", ".toml") or noun == "lock" or (noun and path.suffix not in (".yaml", ".yml"))
    if not lists or not path.is_file():
        return reference
    stack = path.with_suffix(".yaml")
    if not stack.exists():
        from envbuild.init.make import draft

        result, _ = draft(reference, stack)
        ui.note(f"drafted {stack}: {len(result.findings)} findings, {len(result.missing)} things not said")
    else:
        ui.note(f"taking {stack}, which is there, for {reference}")
    return str(stack) if "/" in str(stack) else f"./{stack}"


@lock.command("record")
@choose.stack_argument(required=True)
@choose.profile_option
@click.option(
    "--from", "folders", multiple=True, metavar="DIR", type=click.Path(exists=True, file_okay=False),
    help="Take the files from this folder, and contact no index. Repeatable.",
)  # fmt: skip
@_index
@choose.output_option("Where to write (default: your lock of this stack).")
@common_options
def record(
    ui: Ui, stack: str, profile: str | None, folders: tuple[str, ...], indexes: dict[str, str], output: Path | None
) -> None:
    """Record the sha256 of files of STACK whose hash its lock lacks.

    Fetches these files once. For a shipped stack it writes your own copy of the lock, which every command then
    uses; for a stack file, the lock beside it. Files come from find-links folders of pip, else from the index that the
    lock names.
    """
    from envbuild.catalog.loader import load_stack, lock_path, pick_profile, shipped_lock
    from envbuild.lock.files import read_lock
    from envbuild.lock.record import Origin, fetch, filled, recorded, unrecorded
    from envbuild.node import pip_config
    from envbuild.resources import artifact_cache

    loaded = load_stack(stack)
    name = pick_profile(loaded, profile)
    base, users = shipped_lock(loaded, name) if loaded.shipped else (lock_path(loaded, name),) * 2
    path = output or users
    before, lacking = _previous(ui, path), read_lock(base)
    made = filled(lacking, recorded(before) if before else {})
    made = made.model_copy(update={"data": before.data}) if before else made
    links = pip_config.folders(pip_config.alive(pip_config.read(os.environ).find_links))
    origin = Origin(folders or links, artifact_cache() / "packages", indexes, only_folders=bool(folders))
    rows: list[dict[str, Any]] = []
    for package, file in unrecorded(made):
        wheel = fetch(package, file, origin, ui.note)
        made = filled(made, {(package.index, file.file): wheel})
        _write(path, made)  # each at once: what an interrupted run has recorded stays
        rows.append({"file": wheel.file, "sha256": wheel.sha256, "size": wheel.size})
    changed = made != (before or lacking)
    if changed and not rows:
        _write(path, made)
    data = {"lock": str(path if path.is_file() else base), "changed": changed, "recorded": rows}

    def human() -> str:
        if not changed:
            return f"unchanged: {data['lock']}; every file has its hash"
        lines = [f"  {row['file']}  sha256 {row['sha256']}  {row['size'] / 1e6:,.1f} MB" for row in rows]
        return "\n".join([f"wrote {path}", *lines])

    ui.result(data, human)


@lock.command("check")
@choose.stack_argument()
@choose.profile_option
@choose.lock_option
@click.option("--offline", is_flag=True, help="Do not ask indexes and repositories.")
@common_options
def check(ui: Ui, stack: str | None, profile: str | None, lock_file: Path | None, offline: bool) -> int:
    """Compare the lock of STACK with its file, indexes and sources.

    Without STACK, the locks of all profiles of all shipped stacks.
    """
    from envbuild.catalog.loader import list_stacks, load_stack, lock_path

    if stack is not None:
        code, data, text = _check_one(ui, stack, profile, lock_file, offline=offline)
        ui.result(data, lambda: text)
        return code
    if profile or lock_file:
        raise click.UsageError("--profile and --lock are about one STACK: name it")
    shipped = [(loaded, profile) for loaded in map(load_stack, list_stacks()) for profile in loaded.stack.profiles]
    checked = [
        _check_one(ui, loaded.stack.name, profile, None, offline=offline)
        for loaded, profile in shipped
        if lock_path(loaded, profile).exists()
    ]
    data = {"ok": all(row["ok"] for _, row, _ in checked), "locks": [row for _, row, _ in checked]}
    ui.result(data, lambda: "\n".join(text for _, _, text in checked))
    return gravest(code for code, _, _ in checked)


def _check_one(
    ui: Ui, stack: str, profile: str | None, lock_file: Path | None, *, offline: bool
) -> tuple[ExitCode, dict[str, Any], str]:
    """Exit code, data and text of one lock."""
    from envbuild.container.registry import moved
    from envbuild.lock.check import check_lock
    from envbuild.lock.create import default_supply

    loaded, made, path = _read(ui, stack, profile, lock_file)
    findings = check_lock(made, loaded.stack, online=not offline, supply=default_supply())
    findings += [] if offline else moved(made, path, shipped=loaded.shipped)
    problems = [finding for finding in findings if finding.kind == "problem"]
    unchecked = sum(finding.kind == "unchecked" for finding in findings)
    data = {
        "lock": str(path),
        "ok": not problems,
        "problems": len(problems),
        "unchecked": unchecked,
        "online": not offline,
        "findings": [finding.as_dict() for finding in findings],
    }
    lines = [f"{finding.kind}[{finding.code}] {finding.subject}: {finding.says}" for finding in findings]
    sources = {source.name for variant in made.variants for source in variant.sources}
    sources |= {tree.name for variant in made.variants for tree in variant.trees}
    asked = "not asked (--offline)" if offline else f"{unchecked} not checked"
    verdict = plural(len(problems), "problem") if problems else "agrees with its stack"
    counts = f"{plural(len(made.variants), 'variant')}, {plural(len(sources), 'source')}"
    lines.append(f"{path}: {verdict}; {counts}, {asked}")
    return gravest(finding.exit_code for finding in problems), data, "\n".join(lines)


@lock.command("diff")
@click.argument("before", type=choose.FILE_THERE)
@click.argument("after", type=choose.FILE_THERE)
@common_options
def diff(ui: Ui, before: Path, after: Path) -> None:
    """Show what changed from the lock file BEFORE to AFTER."""
    from envbuild.lock.diff import diff_locks
    from envbuild.lock.files import read_lock

    difference = diff_locks(read_lock(before), read_lock(after))
    ui.result(difference.as_dict(), difference.text)


@lock.command("export")
@choose.stack_argument(required=True)
@choose.variant_option
@click.option(
    "--format", "form", type=click.Choice(["pylock", "requirements", "conda-explicit", "conda-lock", "cyclonedx"]),
    default="pylock", show_default=True, help="What the other tool reads.",
)  # fmt: skip
@click.option("--wheelhouse", metavar="DIR", type=choose.FOLDER_THERE, help="Folder with the locked files.")
@choose.profile_option
@choose.lock_option
@_find_links
@choose.output_option("Where to write (default: stdout).")
@common_options
def export(
    ui: Ui, /, stack: str, variant: str | None, form: str, wheelhouse: Path | None, output: Path | None, **flags: Any
) -> None:
    """Write a variant of the lock of STACK for other tools.

    Needs --variant if the lock has several. All formats but requirements and cyclonedx contain addresses: paths in
    the wheelhouse, or those of your configuration. Do not commit them.
    """
    from envbuild.conda.channels import addresses
    from envbuild.export.lock_formats import Places, export_lock, find_variant

    loaded, made, _ = _read(ui, stack, flags["profile"], flags["lock_file"])
    chosen = find_variant(made, variant)
    if output and form == "pylock" and not re.fullmatch(r"pylock\.([^.]*\.)?toml", output.name):
        raise EnvbuildError(
            "name-unusable",
            f"{output.name} is not the file name of a pylock",
            why="PEP 751 wants pylock.toml or pylock.NAME.toml, and NAME has no dot",
            hint=f"use --output {output.with_name(f'pylock.{made.stack}.toml')}",
        )
    places = _places(chosen, flags["find_links"]) if form in ("pylock", "conda-lock") and not wheelhouse else Places()
    profile = loaded.stack.profiles.get(made.profile)
    if chosen.conda and profile and profile.conda:
        places = replace(places, channels=addresses(profile.conda))
    text = export_lock(made, chosen.id, form, wheelhouse, places=places)
    if output:
        with writing(output):
            output.write_text(text, encoding="utf-8")
    data = {"variant": chosen.id, "format": form, "file": str(output) if output else None, "text": text}
    ui.result(data, lambda: f"wrote {output}" if output else text, verbatim=True)


def _read(ui: Ui, stack: str, profile: str | None, lock_file: Path | None) -> tuple[LoadedStack, Lock, Path]:
    from envbuild.catalog.loader import load_stack, lock_path, pick_profile
    from envbuild.lock.files import read_lock

    loaded = load_stack(stack)
    path = lock_file or lock_path(loaded, pick_profile(loaded, profile))
    choose.tell_lock(ui, path)
    return loaded, read_lock(path), path


def _write(path: Path, made: Lock) -> None:
    from envbuild.lock.record import write_lock

    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_lock(path, made)


def _previous(ui: Ui, path: Path) -> Lock | None:
    from envbuild.lock.files import read_lock

    if not path.exists():
        return None
    try:
        return read_lock(path)
    except EnvbuildError as error:
        # Creating it anew is the way out of a damaged lock, so it must not stop here.
        ui.warn(f"the lock that is there is not used: {error.what}")
        return None


def _places(variant: Variant, find_links: tuple[str, ...]) -> Places:
    from envbuild.catalog.indexes import load_indexes
    from envbuild.export.lock_formats import Places
    from envbuild.lock.create import default_supply

    supply = default_supply(find_links)
    used = {package.index for package in variant.packages}
    indexes = {name: index for name, index in load_indexes().items() if name in used}
    # An index that does not answer is left out: the file may still be in a find-links folder.
    return Places(supply.find_links, {name: index for name, index in indexes.items() if supply.reachable(index)})


def _row(variant: Variant) -> dict[str, Any]:
    files, archives = list(variant.files), variant.archives
    return {
        "id": variant.id,
        "digest": variant.digest,
        "packages": len(variant.packages),
        "conda_packages": len(archives),
        "sources": len(variant.sources) + len(variant.trees),
        "bytes": sum(item.size or 0 for item in files) + sum(item.size or 0 for item in archives),
        "unrecorded": [item.file for item in files if item.sha256 == "unrecorded"],
    }


def _created(path: Path, rows: list[dict[str, Any]], *, changed: bool, changes: str) -> str:
    lines = [f"{'wrote' if changed else 'unchanged:'} {path}"]
    width = max(len(row["id"]) for row in rows)
    for row in rows:
        size = f"{row['bytes'] / 1e6:,.1f} MB"
        words = "package " if row["packages"] == 1 else "packages"
        conda = f"  {row['conda_packages']} of conda" if row["conda_packages"] else ""
        lines.append(
            f"  {row['id']:{width}}  digest {row['digest'][:12]}  {row['packages']:3} {words}  {size:>11}{conda}"
        )
        lines += [f"    no recorded hash: {file}" for file in row["unrecorded"]]
    return "\n".join([*lines, *([changes] if changes else [])])
