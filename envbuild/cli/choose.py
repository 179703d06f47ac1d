"""Options that several commands share: stack, profile, target and place; flags win over configuration."""

from __future__ import annotations

import functools
import getpass
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from envbuild import resources
from envbuild.cli import names
from envbuild.config import KEYS, load_config
from envbuild.errors import EnvbuildError
from envbuild.text import seconds_of

if TYPE_CHECKING:
    from envbuild.cli.output import Ui
    from envbuild.config import Config
    from envbuild.model.target import Target
    from envbuild.provision.run.context import Narrowing, Prepared, Settings

F = TypeVar("F", bound=Callable[..., Any])
_LONGEST = 3.2e9  # seconds, a hundred years
FILE = click.Path(path_type=Path, dir_okay=False)
THERE = click.Path(path_type=Path, exists=True)
FILE_THERE = click.Path(path_type=Path, exists=True, dir_okay=False)
FOLDER_THERE = click.Path(path_type=Path, exists=True, file_okay=False)


def options(*decorators: Callable[[Any], Any]) -> Callable[[F], F]:
    """One decorator for several options, in the order of `--help`."""
    return lambda function: functools.reduce(lambda wrapped, option: option(wrapped), reversed(decorators), function)


class Count(click.IntRange):
    """A whole number in a range; help names it N."""

    name = "whole number"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Of the help."""
        return "N"


class Amount(click.FloatRange):
    """A number in a range; to click `nan` is one, as no bound refuses it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number. Raises click.BadParameter."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a valid number.", param, ctx)
        return number


class Time(click.ParamType[float]):
    """A time with its unit, `90s`, `5m`, `2h` or `30d`, as seconds from `least` to `most`."""

    name = "time"

    def __init__(self, least: float, most: float) -> None:
        """Both in seconds."""
        self.least, self.most = least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The seconds. Raises click.BadParameter."""
        seconds = seconds_of(value) if isinstance(value, str) else float(value)
        if seconds is None:
            self.fail(f"{value!r} is not a time: write 90s, 5m, 2h or 30d.", param, ctx)
        if not self.least <= seconds <= self.most:
            self.fail(f"{value!r} is not between {self.least:g}s and {self.most:g}s.", param, ctx)
        return seconds


def pairs(_: click.Context, option: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    """The values of a repeatable option KEY=VALUE, by key. Raises click.BadParameter."""
    out: dict[str, str] = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not (key and sign):
            raise click.BadParameter(f"it takes {option.metavar}, not {text!r}")
        if key in out:
            raise click.BadParameter(f"{key} is given twice")
        out[key] = value
    return out


def addresses(context: click.Context, option: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    """As `pairs`, for an option NAME=URL: a name without an address is refused too."""
    urls = pairs(context, option, texts)
    for name, url in urls.items():
        if not url:
            raise click.BadParameter(f"it takes {option.metavar}, not '{name}='")
    return urls


def pairs_option(
    *words: str, help_: str, metavar: str = "KEY=VALUE", callback: Callable[..., dict[str, str]] = pairs
) -> Callable[[F], F]:
    """A repeatable option KEY=VALUE, read by `pairs` or `addresses`."""
    return click.option(*words, multiple=True, metavar=metavar, callback=callback, help=help_)


def time_option(*words: str, least: float = 0.0, most: float = _LONGEST, **more: Any) -> Callable[[F], F]:
    """An option for a time from `least` to `most` seconds; its default is shown."""
    return click.option(*words, type=Time(least, most), metavar="TIME", show_default="default" in more, **more)


def _hosts_option(*words: str, help_: str) -> Callable[[F], F]:
    return click.option(*words, multiple=True, metavar="HOSTS", shell_complete=names.hosts, help=help_)


def missing_stack() -> click.MissingParameter:
    """The error for a command that needs its STACK."""
    context = click.get_current_context()
    param = next(param for param in context.command.params if param.name == "stack")
    return click.MissingParameter(ctx=context, param=param, param_hint="'STACK'")


def own_file(reference: str) -> str:
    """The file of a user's own stack for its name: `./proj.yaml` for `proj`, which envbuild does not ship."""
    if "/" in reference or reference in names.shipped("stacks"):
        return reference
    return next((f"./{reference}{end}" for end in (".yaml", ".yml") if Path(f"{reference}{end}").is_file()), reference)


def configured_stack(target: str | None, config: Config) -> str | None:
    """The stack of the configuration or of this folder, for a `--target`, if any.

    It must not replace what such a target stands for; `local` names this machine alone.
    """
    return config.stack if target in (None, "local") else None


def usual_stack(target: str | None, config: Config) -> str | None:
    """The stack of the configuration, else the one that the target names."""
    from envbuild.catalog.loader import load_target

    return configured_stack(target, config) or load_target(target or config.target, template=True).target.stack


def _stack_to_run(flags: dict[str, Any]) -> str | None:
    """The stack of a command that runs one, where STACK is left out; None where nothing names one."""
    config = configured(flags)
    named = flags["target"] or config.stack or config.target != "local"
    return usual_stack(flags["target"], config) if named else None


def stack_argument(
    *, required: bool = False, run: bool = False, complete: names.Completion = names.stacks
) -> Callable[[F], F]:
    """The first argument of a command: STACK, a shipped name or a file. `--stack` is another way to write it.

    `run`: the command runs it, and takes the one of the configuration or of a target that is named.
    """

    def decorate(function: F) -> F:
        @click.argument("stack", required=False, metavar="STACK" if required else "[STACK]", shell_complete=complete)
        @click.option(
            "-s", "--stack", "more", metavar="STACK", multiple=True, hidden=True, help="The argument STACK."
        )  # fmt: skip
        @functools.wraps(function)
        def wrapper(*args: Any, stack: str | None, more: tuple[str, ...], **kwargs: Any) -> Any:
            named = [*filter(None, [stack]), *more]
            given = list(dict.fromkeys(named if complete is names.used else map(own_file, named)))
            if len(given) > 1:
                raise EnvbuildError(
                    "stack-twice",
                    f"two stacks are named: {given[0]} and {given[1]}",
                    why="STACK and --stack mean the same",
                    hint="name one stack, as the first argument",
                )
            stack = given[0] if given else None
            if run and stack is None:
                stack = _stack_to_run(kwargs)
            if (required or run) and stack is None:
                raise missing_stack()
            return function(*args, stack=stack, **kwargs)

        return cast(F, wrapper)

    return decorate


PROGRESS = "envbuild.progress"


def _keep(context: click.Context, _: click.Parameter, value: str) -> None:
    context.meta[PROGRESS] = value


progress_option = click.option(
    "--progress",
    type=click.Choice(["auto", "plain", "json", "none"]),
    default="auto",
    show_default=True,
    expose_value=False,
    callback=_keep,
    help="Rows on a terminal, else lines (auto); lines; one JSON object a line; or nothing.",
)
trust_option = click.option(
    "--trust", is_flag=True, help="Allow the commands of a target that this folder's envbuild.toml names."
)
# Of a command that asks none of its nodes.
target_name = click.option(
    "-t",
    "--target",
    metavar="TARGET",
    shell_complete=names.targets,
    help="Where: a shipped target, or a file (./lab.yaml).",
)
target_option = options(target_name, trust_option)
profile_option = click.option("--profile", metavar="NAME", shell_complete=names.profiles, help="Profile of the stack.")
prefix_option = click.option("--prefix", metavar="DIR", help="Folder for environments (default: the target's).")
lock_option = click.option("--lock", "lock_file", type=FILE, help="The lock file, when it is not the stack's own.")
variant_option = click.option("--variant", metavar="ID", help="Use this variant of the lock.")
deadline_option = time_option(
    "--node-timeout", "deadline", least=0.1, help="How long to wait for a node's answer; the others do not wait for it."
)
facts_option = click.option(
    "--facts",
    metavar="FILE|NAME",
    shell_complete=names.facts,
    help="Facts of nodes (JSON file), or a shipped example (recorded or from public pages); contacts no node.",
)
engine_option = click.option(
    "--engine",
    type=click.Choice(["venv", "conda", "container"]),
    help="Install with uv (venv) or conda on the nodes, or as one image (container).",
)
installer_option = click.option(
    "--engine", type=click.Choice(["venv", "conda"]), help="Only environments of this engine (uv: venv)."
)
node_options = options(
    _hosts_option("--host", "hosts", help_="Use these hosts instead of the target's: gpu[01-04]."),
    _hosts_option("--limit", help_="Use only these of the target's hosts; repeatable."),
    _hosts_option("--exclude", help_="Leave out these hosts; repeatable."),
)
# Which nodes are asked.
nodes_of_target = options(target_option, prefix_option, node_options)
# The environment of a stack on the nodes of a target; STACK comes before.
where_options = options(target_option, profile_option, prefix_option, node_options, progress_option)
place_options = options(stack_argument(), where_options)
trust_environment_option = click.option(
    "--trust-environment",
    is_flag=True,
    help="Set every variable that the stack names, not only those that stacks usually set.",
)
build_options = options(
    place_options,
    engine_option,
    variant_option,
    click.option(
        "--base",
        type=click.Choice(["none", "system", "prefix", "module"]),
        help="Build on these packages: none, or those of the system's Python, a prefix or a module.",
    ),
    click.option("--python", "interpreter", metavar="PATH", help="Interpreter of the environment."),
    click.option("--cache", metavar="DIR", help="Keep what uv unpacks in this folder on the nodes."),
    trust_environment_option,
    click.option(
        "--compile-jobs",
        "jobs",
        type=click.IntRange(min=1),
        metavar="N",
        help="Compile N files at once on a node (default: the target's, else from cores and memory).",
    ),
    click.option("--wait", metavar="TIME", help="Wait for another envbuild this long: 90s, 10m."),
)


def configured(flags: dict[str, Any]) -> Config:
    """Configuration with the flags of a command on top."""
    return load_config({key: value for key, value in flags.items() if key in KEYS and value is not None})


def described_target(flags: dict[str, Any]) -> Target:
    """The target that is meant, shipped templates too, for verbs that look up what its file says."""
    from envbuild.catalog.loader import load_target, refuse_template

    loaded = load_target(flags["target"] or configured(flags).target, template=True)
    if not flags.get("hosts"):  # these fill in what a template leaves open
        refuse_template(loaded, contacted=False)
    return loaded.target


def absolute(path: str) -> str:
    """A path of this machine from its root, `~` filled in. Links stay: the environment in use is one."""
    return os.path.abspath(Path(path).expanduser())  # noqa: PTH100 - resolve() would follow them


def submitter(target: Target) -> str:
    """The user who is meant by `{user}` of a target away from its nodes: who logs in there, else who asks here."""
    from envbuild.model.target import login_connection

    return (login_connection(target) or target.connection).user or getpass.getuser()


def named_target(ui: Ui, flags: dict[str, Any], config: Config) -> str:
    """The target that is meant: of the command line, else of the configuration; what it runs here is shown or asked.

    Raises EnvbuildError `target-untrusted` (exit 7), and as `load_target` does.
    """
    from envbuild.catalog.loader import is_path, load_target
    from envbuild.provision.survey import hosts

    reference = flags.get("target") or config.target
    ours = {key for key in ("target", "prefix") if flags.get(key) or config.settings[key].origin != str(config.project)}
    if "prefix" in ours and not is_path(reference):
        return reference
    loaded, brought = load_target(reference, template=True), ""
    if config.project is not None and len(ours) < 2:
        brought = hosts.brought_prefix(loaded.target, config.prefix or loaded.target.prefix, config.project)
    asked = hosts.trust_question(loaded, brought)
    if asked is None:
        return reference
    if config.project is None or ("target" in ours and not brought):
        for text in asked.runs:
            ui.note(f"{asked.target} {text}")
        return reference
    if flags.get("trust") or hosts.is_trusted(asked):
        return reference
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise hosts.untrusted(asked, config.project)
    for text in (f"{config.project} names the target {asked.target}, which", *asked.runs, *asked.lets):
        ui.warn(text)
    if not click.confirm("Allow this?", default=False, err=True):
        raise hosts.untrusted(asked, config.project)
    hosts.trust(asked)
    return reference


def prepared_of(ui: Ui, flags: dict[str, Any], config: Config, **more: bool) -> Prepared:
    """Stack, profile, target and lock from `prepare(…, **more)`, as flags and configuration ask for them.

    Notes where the lock is one that the user recorded.
    """
    from envbuild.catalog.loader import load_target
    from envbuild.provision.run.context import Choice
    from envbuild.provision.survey.prepare import prepare

    choice = Choice(
        target=named_target(ui, flags, config),
        stack=flags.get("stack") or configured_stack(flags.get("target"), config),
        profile=flags.get("profile") or config.profile,
        prefix=config.prefix,
        variant=flags.get("variant"),
        interpreter=flags.get("interpreter"),
        base=flags.get("base"),
        engine=flags.get("engine"),
        cache=config.cache,
        hosts=tuple(flags.get("hosts") or ()),
        trust_environment=bool(flags.get("trust_environment", True)),
        narrowing=narrowing_of(flags),
        unnamed=names.unnamed_target(flags.get("target"), config),
    )
    prepared = prepare(choice, **more)
    if choice.stack is None and (lender := load_target(choice.target, template=True).lender):
        other = config.stack or "another"
        ui.note(f"stack: {prepared.reference}, from the target {lender}; for {other}, name it after the command")
    elif not flags.get("stack") and choice.stack:
        ui.note(f"stack: {prepared.reference}, of {config.settings['stack'].origin}")
    tell_lock(ui, prepared.lock_file)
    return prepared


def tell_lock(ui: Ui, path: Path) -> None:
    """Note that a lock is the user's copy of a shipped one."""
    if path.is_relative_to(resources.user_locks()):
        ui.note(f"lock: {path} (recorded by you)")


def prefix_here(flags: dict[str, Any]) -> str:
    """The prefix as it is for whoever asks here, and the user who logs in; on other machines the home may differ."""
    target = described_target(flags)
    prefix = configured(flags).prefix or target.prefix
    data = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    prefix = prefix.replace("{home}", str(Path.home())).replace("{data}", data)
    if "{user}" in prefix:
        prefix = prefix.replace("{user}", submitter(target))
    return absolute(prefix)


def filled_here(flags: dict[str, Any]) -> str:
    """What stands in a prefix where no node was asked for its user and home."""
    from envbuild.model.target import login_connection

    target = described_target(flags)
    prefix = configured(flags).prefix or target.prefix
    other = "of this machine: if nodes have another, set an absolute `prefix:`."
    user = submitter(target)
    words = {"{user}": f"{user}, {other}", "{home}": f"{Path.home()}, {other}"}
    if (login_connection(target) or target.connection).user:
        words["{user}"] = f"{user}."
    return "".join(f"\n{name} is {text}" for name, text in words.items() if name in prefix)


def output_option(help_: str, *, folder: bool = False) -> Callable[[F], F]:
    """`-o/--output`: where a command writes."""
    metavar, kind = ("DIR", click.Path(path_type=Path, file_okay=False)) if folder else ("FILE", FILE)
    return click.option("-o", "--output", metavar=metavar, type=kind, help=help_)


def narrowing_of(flags: dict[str, Any]) -> Narrowing:
    """What `--limit` and `--exclude` say."""
    from envbuild.provision.run.context import Narrowing

    return Narrowing(tuple(flags.get("limit") or ()), tuple(flags.get("exclude") or ()))


def target_of(ui: Ui, flags: dict[str, Any], *, jobs: bool | Callable[[Target], bool] | None = False) -> Target:
    """The target of a verb that asks its nodes and needs no stack, its hosts listed and narrowed.

    `jobs` as for `hosts.reach`. What `--limit` and `--exclude` left is told on stderr.
    """
    from envbuild.provision.survey.hosts import reach

    config = configured(flags)
    overrides: dict[str, Any] = {"prefix": config.prefix} if config.prefix else {}
    if flags.get("hosts"):
        overrides["hosts"] = list(flags["hosts"])
    target, selection = reach(named_target(ui, flags, config), overrides, narrowing_of(flags), jobs=jobs)
    if selection is not None:
        ui.note(str(selection))
    return target


def prefix_target(ui: Ui, flags: dict[str, Any]) -> Target:
    """The target of a verb about what lies under its prefix: a shared one can be seen without a job."""
    return seen_from_login(ui, target_of(ui, flags, jobs=lambda target: target.placement == "shared"))


def seen_from_login(ui: Ui, target: Target) -> Target:
    """`as_login`, with a note where this machine lacks the prefix: it may be none of the cluster."""
    from envbuild.doctor.node import NO_LOGIN
    from envbuild.model.target import as_login
    from envbuild.node.protocol import expand_prefix

    seen = as_login(target)
    if target.connection.kind == "job" and target.connection.login is None:
        prefix = expand_prefix(seen.prefix)
        if not Path(prefix).exists():
            ui.note(f"warning: this machine has no {prefix}; {NO_LOGIN}")
    return seen


def settings_of(config: Config) -> Settings:
    """How the run of this command line behaves. Raises EnvbuildError `share-invalid` (exit 2)."""
    from envbuild.cli.run import interrupted, watch_interrupts
    from envbuild.model.plan import Batches, parse_share
    from envbuild.provision.run.context import Settings

    watch_interrupts()
    size, most = config.batch, config.max_fail
    return Settings(
        runs_root=config.runs_root,
        toolchain_file=config.toolchain,
        wait=config.wait,
        batches=Batches(
            None if size is None else parse_share(size, "--batch", least=1),
            None if most is None else parse_share(most, "--max-fail", least=0),
        ),
        command=("envbuild", *sys.argv[1:]),
        cancel=interrupted,
    )
