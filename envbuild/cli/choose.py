"""Options that several verbs share: which stack, profile, target and where; flags above configuration."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from envbuild.cli import names

if TYPE_CHECKING:
    from pathlib import Path

    from envbuild.cli.output import Ui
    from envbuild.config import Config
    from envbuild.model.target import Target
    from envbuild.provision.run.context import Settings
    from envbuild.provision.run.findings import Choice, Narrowing, Prepared

F = TypeVar("F", bound=Callable[..., Any])


def options(*each: Callable[[Any], Any]) -> Callable[[F], F]:
    """One decorator for several options, in the order of `--help`."""
    return lambda function: functools.reduce(lambda wrapped, option: option(wrapped), reversed(each), function)


class Amount(click.FloatRange):
    """A number in a range; to click `nan` is one, as no bound refuses it. `inf` is no time and no number of days."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number. Raises click.BadParameter."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a valid number.", param, ctx)
        return number


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
    "--trust", is_flag=True, help="Allow what a target that the folder's envbuild.toml names runs on this machine."
)
target_option = options(
    click.option(
        "-t", "--target", metavar="TARGET", shell_complete=names.targets,
        help="Where: a shipped target, or a file (./lab.yaml).",
    ),
    trust_option,
)  # fmt: skip
engine_option = click.option(
    "--engine",
    type=click.Choice(["venv", "conda", "container"]),
    help="As environments on the nodes, by uv or by conda, or as one image.",
)
installer_option = click.option(
    "--engine", type=click.Choice(["venv", "conda"]), help="Of what this engine makes: uv, or conda."
)
node_options = options(
    click.option(
        "--host",
        "hosts",
        multiple=True,
        metavar="HOSTS",
        shell_complete=names.hosts,
        help="These hosts instead of the target's: gpu[01-04].",
    ),
    click.option(
        "--limit",
        multiple=True,
        metavar="HOSTS",
        shell_complete=names.hosts,
        help="Of the target's hosts only these; repeatable.",
    ),
    click.option(
        "--exclude", multiple=True, metavar="HOSTS", shell_complete=names.hosts, help="Without these hosts; repeatable."
    ),
)
place_options = options(
    target_option,
    click.option(
        "-s",
        "--stack",
        metavar="STACK",
        shell_complete=names.stacks,
        help="What: a shipped stack, or a file (./my.yaml).",
    ),
    click.option("--profile", metavar="NAME", shell_complete=names.profiles, help="Profile of the stack."),
    click.option("--prefix", metavar="DIR", help="Where environments live; instead of the target's."),
    node_options,
    progress_option,
)
build_options = options(
    place_options,
    click.option("--variant", metavar="ID", help="Build this variant of the lock."),
    click.option("--base", type=click.Choice(["none", "system", "prefix", "module"]), help="What to stand on."),
    engine_option,
    click.option("--python", "interpreter", metavar="PATH", help="Interpreter of the environment."),
    click.option("--cache", metavar="DIR", help="Keep what uv unpacks in this folder on the nodes."),
    click.option(
        "--trust-environment",
        is_flag=True,
        help="Set every variable that the stack names, not only those that stacks usually set.",
    ),
    click.option(
        "--jobs",
        type=click.IntRange(min=1),
        metavar="N",
        help="Compile jobs at once on a node; else the target's, else from its cores and memory.",
    ),
    click.option("--wait", type=Amount(min=0), metavar="SECONDS", help="Wait for another envbuild this long."),
)


# Days; a date that many before today there is.
_CENTURY = 36525


def keep_days(default: int) -> Callable[[F], F]:
    """The options of a verb that removes what is old: `--keep-days`, and `--yes`, without which nothing goes."""
    return options(
        click.option(
            "--keep-days", type=Amount(min=0, max=_CENTURY), default=default, show_default=True, metavar="N",
            help="Keep what is of the last N days.",
        ),
        click.option("--yes", is_flag=True, help="Remove it; without this nothing is changed."),
    )  # fmt: skip


def configured(flags: dict[str, Any]) -> Config:
    """Configuration with the flags of a command on top."""
    from envbuild.config import KEYS, load_config

    return load_config({key: value for key, value in flags.items() if key in KEYS and value is not None})


def named_target(ui: Ui, flags: dict[str, Any], config: Config) -> str:
    """The target that is meant: of the command line, else of the configuration; what it runs here is shown or asked.

    Raises EnvbuildError `target-untrusted` (exit 7), and as `load_target` does.
    """
    from envbuild.catalog.loader import is_path, load_target
    from envbuild.provision.survey import implicit

    reference = flags.get("target") or config.target
    ours = {key for key in ("target", "prefix") if flags.get(key) or config.settings[key].origin != str(config.project)}
    if "prefix" in ours and not is_path(reference):
        return reference
    loaded, brought = load_target(reference, template=True), ""
    if config.project is not None and len(ours) < 2:
        brought = implicit.brought_prefix(loaded.target, config.prefix or loaded.target.prefix, config.project)
    asked = implicit.question(loaded, brought)
    if asked is None:
        return reference
    if config.project is None or ("target" in ours and not brought):
        for text in asked.runs:
            ui.note(f"{asked.target} {text}")
        return reference
    if flags.get("trust") or implicit.is_allowed(asked):
        return reference
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise implicit.refusal(asked, config.project)
    for text in (f"{config.project} names the target {asked.target}, which", *asked.runs, *asked.lets):
        ui.warn(text)
    if not click.confirm("Allow this?", default=False, err=True):
        raise implicit.refusal(asked, config.project)
    implicit.allow(asked)
    return reference


def choice_of(ui: Ui, flags: dict[str, Any], config: Config) -> Choice:
    """What the user asked for, flags above configuration."""
    from envbuild.provision.run.findings import Choice

    return Choice(
        target=named_target(ui, flags, config),
        # A stack from a configuration file must not replace what a target named on the command line stands for.
        stack=flags.get("stack") or (None if flags.get("target") else config.stack),
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
    )


def prepared_of(ui: Ui, flags: dict[str, Any], config: Config, **more: bool) -> Prepared:
    """Stack, profile, target and lock from `prepare(…, **more)`; notes where the lock is one that the user recorded."""
    from envbuild.provision.survey.prepare import prepare

    prepared = prepare(choice_of(ui, flags, config), **more)
    tell_lock(ui, prepared.lock_file)
    return prepared


def tell_lock(ui: Ui, path: Path) -> None:
    """Say that a lock is this user's copy of a shipped one."""
    from envbuild import resources

    if path.is_relative_to(resources.user_locks()):
        ui.note(f"lock: {path} (recorded by you)")


def narrowing_of(flags: dict[str, Any]) -> Narrowing:
    """What `--limit` and `--exclude` say."""
    from envbuild.provision.run.findings import Narrowing

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


def settings_of(config: Config) -> Settings:
    """How the run of this command line behaves. Raises EnvbuildError `share-invalid` (exit 2)."""
    from envbuild.cli import interrupts
    from envbuild.plan.rollout import Batches, parse_share
    from envbuild.provision.run.context import Settings

    interrupts.watch()
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
        cancel=interrupts.seen,
    )
