"""`envbuild init`: a first target file, or a stack drafted from a page or a checkout; `up`: all that follows too."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envbuild.cli import choose, names
from envbuild.cli.output import Ui, common_options
from envbuild.cli.progress import RunProgress
from envbuild.errors import EnvbuildError
from envbuild.node.redact import redact_text
from envbuild.regular_file import read_file
from envbuild.text import few, plural

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from envbuild.init.assemble import Result
    from envbuild.model.lock import Lock


# What Python says of a name that a module lacks, or of a module that a package lacks, after what was imported.
_LACKS = re.compile(
    r"(?P<test>import [\w.]+): .*?(?:cannot import name '(?P<name>\w+)' from '(?P<module>[\w.]+)'|"
    r"No module named '(?P<parent>[\w.]+)\.(?P<child>\w+)')",
    re.DOTALL,  # transformers says in a second line why
)
_flavour = click.option(
    "--flavour", metavar="FLAVOUR", help="Use this build of torch instead: cpu, or cu121 for CUDA 12.1."
)


@click.command("init")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), required=False)
@choose.facts_option
@click.option(
    "--extends",
    metavar="TARGET",
    shell_complete=names.targets,
    help="The shipped target that is closest: ssh, slurm, pbs, azure-nd96, … (`envbuild target list`).",
)
@click.option(
    "-s", "--stack", metavar="STACK", shell_complete=names.stacks, help="What is built there when no stack is named."
)
@click.option(
    "--from",
    "sources",
    multiple=True,
    metavar="PAGE|FOLDER|GIT[@REF]",
    help="Draft a stack from a setup page or a checkout; repeatable.",
)
@_flavour
@click.option("--yes", is_flag=True, help="Take defaults for what is not said, and ask nothing.")
@click.option("--offline", is_flag=True, help="Do not look up guesses in an index or commits in a repository.")
@click.option("--with-lock", "locks", is_flag=True, help="Also resolve the draft and write its lock.")
@common_options
def init(
    ui: Ui,
    /,
    file: Path | None,
    facts: str | None,
    extends: str | None,
    stack: str | None,
    sources: tuple[str, ...],
    yes: bool,
    locks: bool,
    **flags: Any,
) -> None:
    """Write a first file FILE, with comments. Never replaces a file.

    Without --from, writes a target: from at most thirteen answers, or from facts of its nodes. With --from, drafts a
    stack by fixed rules, and runs nothing from the page or checkout. FILE is then NAME.yaml by default.
    """
    if not sources:
        if file is None:
            raise click.UsageError(
                "name the target file to write, as in `envbuild init my-cluster.yaml --extends slurm`, "
                "or `--from` a page, folder or repository"
            )
        from envbuild.cli.init_target import first_target

        first_target(ui, file, facts, extends, stack, yes=yes)
        return
    for option, value in (("--facts", facts), ("--extends", extends), ("--stack", stack)):
        if value is not None:
            raise click.UsageError(f"{option} describes a target; with --from a stack is drafted")
    from envbuild.init.make import draft, reference

    ask = not yes and not ui.json and sys.stdin.isatty()
    result, path = draft(sources[0], file, ask=_asked if ask else None, also=sources[1:], **flags)
    lock = _locked(ui, reference(path)) if locks else ""
    ui.result(lambda: _data(result, path, lock), lambda: _summary(result, reference(path), lock))


def _asked(result: Result) -> Result:
    """Answers to what nothing says, at the terminal; an empty line takes the default."""
    draft = result.draft
    for missing in result.missing:
        choice = getattr(draft, missing.what) if missing.what in ("python", "torch", "flavour") else None
        if choice is not None:
            question = f"Which {missing.what.replace('python', 'Python')}? Default: {missing.why}"
            parse = _python if missing.what == "python" else None
            value = click.prompt(question, default=missing.default, err=True, value_proc=parse)
            draft = replace(draft, **{missing.what: replace(choice, value=value)})
    return replace(result, draft=draft)


def _python(text: str) -> str:
    """An answer that is a Python of 3.x. Raises click.BadParameter, and the question is asked again."""
    if not re.fullmatch(r"3\.[0-9]{1,2}", text.strip()):
        raise click.BadParameter(f"{text!r} is not of the form 3.12")
    return text.strip()


def _locked(ui: Ui, reference: str) -> str:
    """The lock's path; empty where it does not resolve, which is a sentence and no failure of the draft."""
    from envbuild.catalog.loader import load_stack, pick_profile
    from envbuild.cli.lock_cmd import ensure_lock

    loaded = load_stack(reference)
    try:
        return str(ensure_lock(ui, loaded, pick_profile(loaded, None), lambda _: False))
    except EnvbuildError as error:
        ui.warn(f"not locked: {error.what}" + (f"\n{error.why}" if error.why else ""))
        if error.hint:
            ui.note(f"`envbuild lock create {reference}`: {error.hint}")
        return ""


def _data(result: Result, path: Path, lock: str) -> dict[str, object]:
    known, every = result.understood
    return {
        "path": str(path),
        "lock": lock or None,
        "understood": {"statements": every, "understood": known},
        "read": result.collected.used,
        "offered": list(result.collected.choices),
        "left_out": result.left_out,
        "missing": [
            {"what": question.what, "default": question.default, "why": question.why} for question in result.missing
        ],
        "imports": [
            {"module": closing.imported.module, "firmness": closing.imported.firmness, "how": closing.how}
            for closing in result.closed
        ],
        "findings": [finding.as_json() for finding in result.findings],
        "statements": [statement.as_json() for statement in result.draft.statements],
    }


def _summary(result: Result, reference: str, lock: str) -> str:
    step = f"envbuild provision {reference} --target local" if lock else f"envbuild lock create {reference}"
    return f"{_learned(result, reference)}\nnext: {step}"


def _learned(result: Result, reference: str) -> str:
    from envbuild.catalog.loader import load_stack

    draft, (known, every) = result.draft, result.understood
    lost = f"; {every - known} not understood" if known < every else ""
    torch = (
        f"torch {draft.torch.value} {draft.flavour.value if draft.flavour else ''}".strip()
        if draft.torch
        else "no torch"
    )
    added = [package for package in draft.from_imports if draft.package(package) is not None]
    still = [
        f"{closing.imported.module} ({closing.where})"
        for closing in result.closed
        if closing.how == "open" and closing.imported.firmness == "required"
    ]
    (profile,) = load_stack(reference).stack.profiles.values()
    lines = [
        f"wrote {reference} from {plural(every, 'statement')} of {few(list(result.collected.used))}{lost}",
        f"  decided   Python {draft.python.value}, {torch}, {plural(len(profile.packages), 'package')}, "
        f"{plural(len(profile.sources), 'source')}",
    ]
    if added:
        lines.append(
            f"  imports   {plural(len(added), 'more package')}, as the code imports them: {', '.join(added[:6])}"
        )
    if still:
        lines.append(f"  open      no package is known that provides {', '.join(still[:8])}")
    if result.blocked:
        needs = (f"{module}, which needs {need}" for module, need in result.blocked.items())
        lines.append(f"  untested  not imported as a test: {'; '.join(needs)}")
    if result.missing:
        lines.append(
            "  not said  "
            + "; ".join(f"{question.what}: {question.default or 'open'}" for question in result.missing[:5])
        )
    if profile.working_trees:
        origin = draft.origin
        way = f"envbuild up {origin.url or 'ADDRESS'}@{origin.commit or 'COMMIT'}"
        lines.append(
            f"  kit       holds no code, so nobody can build from it: push first, then `{way}` in another folder"
        )
    if result.left_out:
        lines.append(f"  left out  {plural(len(result.left_out), 'file')}; the draft names them")
    rules = list(dict.fromkeys(finding.rule for finding in result.findings))
    if rules:
        lines.append(f"  findings  {len(result.findings)}: {', '.join(rules[:8])}")
    return "\n".join(lines)


@click.command("up")
@click.argument("source", required=False, metavar="[PAGE|FOLDER|GIT|STACK]", shell_complete=names.stacks)
@choose.where_options
@choose.trust_environment_option
@_flavour
@click.option(
    "--yes", is_flag=True, help="Take defaults, allow setup code of packages, and run the plan without asking."
)
@common_options
def up(ui: Ui, /, source: str | None, yes: bool, **flags: Any) -> int:
    """Build, test and verify what a page or repository describes.

    Does `init`, `lock create` and `provision` in one, for a setup page, a folder, a repository
    or a stack. A repository is an https or ssh address, such as https://HOST/OWNER/NAME@REF. Draft and lock are
    written into this folder, or used if they exist. The plan is shown, and you confirm it once. A second `up`
    changes nothing.
    """
    from envbuild.cli.provision_cmd import carry_out, show_built

    asks = not yes and not ui.json and sys.stdin.isatty() and sys.stderr.isatty()
    config = choose.configured(flags)
    stack = source or choose.configured_stack(flags.get("target"), config)
    if stack is not None:
        stack = stack if Path(stack).exists() else choose.own_file(stack)
        if not _is_stack(stack):
            # A target that is none is refused before anything is written.
            here = choose.described_target(flags).connection.kind == "local"
            stack = _draft_of(ui, stack, flags["flavour"], ask=asks, here=here)
        elif folder := _folder_of(stack):
            _drafted(ui, folder)
        if flags["flavour"]:
            _refuse_other_flavour(stack, flags.get("profile") or config.profile, flags["flavour"])
        _lock(ui, stack, flags.get("profile") or config.profile, _asking(yes, asks))
    settings, confirm = choose.settings_of(config), None if yes else _confirm(asks)
    while True:
        prepared = choose.prepared_of(ui, {**flags, "stack": stack}, config, jobs=True)
        evidence, run = carry_out(ui, prepared, settings, confirm)
        error = next((node.error for node in evidence.nodes if node.error), None)
        if stack is None or error is None or not _mended(ui, stack, error, prepared.lock, _asking(yes, asks)):
            code = show_built(ui, settings, evidence, run)
            if stack is not None and not code:
                _tell_starts(ui, stack)
            return code
        _lock(ui, stack, prepared.profile, _asking(yes, asks))


def _is_stack(source: str) -> bool:
    """Whether a name or file is a stack itself; a name that is nothing is taken for one, and so its error is."""
    from envbuild.catalog.loader import list_stacks
    from envbuild.catalog.yaml_load import load_yaml
    from envbuild.init.read import reader_of
    from envbuild.init.tree import is_address

    path = Path(source).expanduser()
    if source in list_stacks():
        return True
    if is_address(source) or path.is_dir():
        return False
    if path.suffix in (".yaml", ".yml") and path.is_file():
        data = load_yaml(path)
        listing = reader_of(path.as_posix()) or (isinstance(data, dict) and "dependencies" in data)
        return not listing or not isinstance(data, dict) or "profiles" in data
    return not path.exists() and "/" not in source


def _tell_starts(ui: Ui, stack: str) -> None:
    """The commands of the page that a draft has as comments: a smoke test runs none of them."""
    from envbuild.catalog.loader import load_stack
    from envbuild.kit.make import STARTS

    loaded = load_stack(stack)
    if starts := STARTS.findall(read_file(loaded.path).decode()):
        way = f"`envbuild env run {loaded.stack.name} -- COMMAND` in a checkout (docs/use-an-environment.md)"
        texts = [f"{start}  ({where})" for start, where in starts]
        ui.note(f"  not run {few(texts, 2, between='; ')}: {way}")


def _refuse_other_flavour(stack: str, profile: str | None, flavour: str) -> None:
    """Raise `usage` where a stack file has another flavour than the one asked for, as nothing changes the file."""
    from envbuild.catalog.loader import load_stack, pick_profile

    loaded = load_stack(stack)
    torch = loaded.stack.profiles[pick_profile(loaded, profile)].torch
    if torch is not None and torch.flavours != (flavour,):
        change = (
            f"write `flavours: [{flavour}]` into {stack} and type the command again without `--flavour`; for a new "
            f"draft without your edits, `mv {stack} {stack}.old`, then give its page, folder or address"
        )
        raise EnvbuildError(
            "usage",
            f"`--flavour` is for a new draft, and {stack} has `flavours: [{', '.join(torch.flavours)}]`",
            hint="leave `--flavour` out" if loaded.shipped else change,
        )


def _folder_of(stack: str) -> str:
    """The folder of code that a stack file has as a source; empty where it has none."""
    from envbuild.catalog.loader import load_stack

    loaded = load_stack(stack)
    trees = [tree for profile in loaded.stack.profiles.values() for tree in profile.working_trees]
    return str(loaded.path.parent / trees[0].path) if trees else ""


def _drafted(ui: Ui, source: str) -> str:
    """The stack file that was drafted from an input before, or nothing; says what changed and what is open."""
    from envbuild.init.make import drafted_before

    target, changed, still = drafted_before(source)
    if changed:
        ui.warn(
            f"{few(changed, 4)} changed after {target} was drafted: `mv {target} {target}.old`, then "
            f"`envbuild up {shlex.quote(source)}`; the new draft has no edits of yours"
        )
    elif target:
        ui.note(
            f"drafted before: {target}" + (f"; its comments leave open: {few(still, between='; ')}" if still else "")
        )
    return target


def _draft_of(ui: Ui, source: str, flavour: str | None, *, ask: bool, here: bool) -> str:
    """The stack file of an input, drafted unless it is there."""
    from envbuild.init.make import draft, reference

    if target := _drafted(ui, source):
        return target
    with RunProgress(ui) as progress:
        progress.stage(f"reading {redact_text(source)}")

        def asked(result: Result) -> Result:
            answers: list[Result] = []
            progress.pause(lambda: answers.append(_asked(result)))
            return answers[0]

        result, path = draft(source, None, ask=asked if ask else None, flavour=flavour, here=here)
    ui.note(_learned(result, reference(path)))
    return reference(path)


def _asking(yes: bool, asks: bool) -> Callable[[str], bool]:
    return lambda question: yes or (asks and click.confirm(question, default=False, err=True))


def _lock(ui: Ui, stack: str, profile: str | None, ask: Callable[[str], bool]) -> None:
    """The lock of a stack file, made where it is needed; requirements of a draft that exclude each other give way."""
    from envbuild.catalog.loader import load_stack, pick_profile
    from envbuild.cli.lock_cmd import ensure_lock
    from envbuild.lock.files import read_lock

    def allow(packages: Sequence[str]) -> bool:
        return ask(f"No wheel fits for {few(packages, 8)}. Run setup code of each here, to learn what it needs?")

    while not (loaded := load_stack(stack)).shipped:
        try:
            path = ensure_lock(ui, loaded, pick_profile(loaded, profile), allow)
            refuse_unrecorded_torch(read_lock(path), read_file(loaded.path).decode())
        except EnvbuildError as error:
            changed, says = _given_way(read_file(loaded.path).decode(), error)
            if not says or not ask(f"{error.what}. {says}?"):
                raise
            loaded.path.write_text(changed, encoding="utf-8")
            ui.warn(f"{error.what}. {says}: {loaded.path.name} was changed")
        else:
            break


def refuse_unrecorded_torch(lock: Lock, draft: str) -> None:
    """Raise `index-unreachable` where a draft's torch is of an index out of reach, and the default one has another."""
    from envbuild.init.write import relaxed
    from envbuild.lock.record import unrecorded
    from envbuild.resolve.compat_read import load_compat

    for package, _ in unrecorded(lock):
        version, _, flavour = package.version.partition("+")
        release = load_compat().torch.get(version) if package.name == "torch" else None
        instead = release.pypi_flavour if release else None
        if instead and relaxed(draft, flavour, instead) != draft:
            raise EnvbuildError(
                "index-unreachable",
                f"no hash of torch {package.version} is known, because `{package.index}` cannot be reached",
                why="envbuild installs no file without a recorded hash",
                hint=f"run `envbuild lock record` where the index is reached, or take {instead} of the default index",
                details={"relaxations": [{"was": flavour, "becomes": instead}]},
            )


def _given_way(text: str, error: EnvbuildError) -> tuple[str, str]:
    """A draft that could not be locked with one requirement less or wider, and which; empty where nothing gives way."""
    from envbuild.init.write import relaxed, without_guess

    if error.code not in ("resolution-failed", "package-not-found", "index-unreachable"):
        return text, ""
    changed, name = without_guess(text, f"{error.what} {error.why}")
    if name and error.code != "index-unreachable":
        return changed, f"Leave out {name}, which only imports suggest"
    change = next(iter(error.details.get("relaxations", ())), {"was": "", "becomes": ""})
    changed = relaxed(text, change["was"], change["becomes"])
    return changed, f"Take {change['becomes']} for {change['was']}" if changed != text else ""


def _mended(ui: Ui, stack: str, error: Mapping[str, Any], lock: Lock, ask: Callable[[str], bool]) -> bool:
    """Whether the draft of an environment that failed was changed: a guess or a bound that stopped it gives way."""
    from envbuild.catalog.loader import load_stack
    from envbuild.init.write import without_guess

    loaded = load_stack(stack)
    text, what = "" if loaded.shipped else read_file(loaded.path).decode(), str(error.get("what", ""))
    changed, says = text, ""
    if error.get("code") == "build-failed":
        why = str(error.get("why", "")).partition("\n")[0]
        changed, name = without_guess(text, what, f"could not be built: {why}")
        says = f"Leave out {name}, which only imports suggest" if name else ""
        hint = str(error.get("hint", ""))
        what = f"{what}: {why}" + (f" ({hint})" if hint.startswith("install ") else "")
    elif error.get("code") == "smoke-failed":
        what, changed, says = _without_bounds(text, what, lock)
    if says and ask(f"{what}. {says}?"):
        loaded.path.write_text(changed, encoding="utf-8")
        ui.warn(f"{what}. {says}: {loaded.path.name} was changed")
        return True
    if error.get("code") == "smoke-failed" and what:
        ui.warn(f"{what}. Try a release that has it")
    return False


def _without_bounds(text: str, output: str, lock: Lock) -> tuple[str, str, str]:
    """What locked package lacks the name that an import wanted, and the draft without the bounds that keep it out.

    The last is what is done, and empty where no release of the lock's day has the name.
    """
    from envbuild.catalog.indexes import distributions
    from envbuild.init.index import newest_with
    from envbuild.init.write import bounds_of, relaxed

    match = _LACKS.search(output)
    locked = {package.name: package for variant in lock.variants for package in variant.packages}
    module, name = (match["module"] or match["parent"], match["name"] or match["child"]) if match else ("", "")
    package = next((locked[item] for item in distributions(module.partition(".")[0]) if item in locked), None)
    if match is None or package is None:
        return "", text, ""
    bounds, place = bounds_of(text, package.name)
    asked = f", which {place} asks for as `{bounds}`," if bounds else ""
    lacks = f"{package.name} {package.version}{asked} has no {name} in {module}"
    lacks = f"the environment is built, and `{match['test']}` fails: {lacks}"
    wider = re.split(r"[<>=!~; ]", bounds)[0]
    version = newest_with(wider, lock, module, name) if bounds else ""
    newer = f"{wider}>={version}"  # a lock keeps its versions where they fit
    if not version or newer == bounds:
        return lacks, text, ""
    return lacks, relaxed(text, bounds, newer, f"which has no {name} in {module}"), f"Take {newer} for {bounds}"


def _confirm(asks: bool) -> Callable[[], None]:
    """Asks whether the plan, which was shown, is carried out. Raises EnvbuildError `plan-unconfirmed` (exit 7)."""

    def confirm() -> None:
        if asks and click.confirm("Carry this plan out?", default=True, err=True):
            return
        raise EnvbuildError(
            "plan-unconfirmed",
            "nothing was built; the stack file and its lock are kept",
            why="the plan was declined" if asks else "there is no terminal to ask whether the plan is carried out",
            hint="`--yes` runs it without asking",
        )

    return confirm
