"""`envbuild up`: from a page, a folder or a repository to a verified environment and its report."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envbuild.cli import names
from envbuild.cli.choose import configured, prepared_of, settings_of, where_options
from envbuild.cli.output import Ui, common_options
from envbuild.errors import EnvbuildError
from envbuild.text import few

if TYPE_CHECKING:
    from collections.abc import Callable


@click.command("up")
@click.argument("source", required=False, metavar="[PAGE|FOLDER|GIT|STACK]", shell_complete=names.stacks)
@where_options
@click.option("--yes", is_flag=True, help="Take defaults, allow setup code of packages, carry the plan out unasked.")
@common_options
def up(ui: Ui, /, source: str | None, yes: bool, **flags: Any) -> int:
    """Build, test and verify what SOURCE describes: `init`, `lock create` and `provision` in one.

    SOURCE is a setup page, a folder, a repository (https://HOST/OWNER/NAME@REF) or a stack. Its draft and lock are
    written into this folder, and used where they are there. The plan is shown and asked about once. A second `up`
    changes nothing.
    """
    from envbuild.catalog.loader import load_stack, pick_profile
    from envbuild.cli.lock_cmd import ensure_lock
    from envbuild.cli.provision_cmd import carry_out

    asks = not yes and not ui.json and sys.stdin.isatty() and sys.stderr.isatty()
    config = configured(flags)
    stack = source or (None if flags.get("target") else config.stack)
    if stack is not None:
        if not _is_stack(stack):
            from envbuild.cli.init_cmd import ensure_draft

            stack = ensure_draft(ui, stack, ask=asks)
        loaded = load_stack(stack)
        if not loaded.shipped:
            ensure_lock(ui, loaded, pick_profile(loaded, flags.get("profile") or config.profile), _allowing(yes, asks))
    prepared = prepared_of(ui, {**flags, "stack": stack}, config, jobs=True, ahead=True)
    return carry_out(ui, prepared, settings_of(config), None if yes else _confirm(asks))


def _is_stack(source: str) -> bool:
    """Whether a name or file is a stack itself; a name that is nothing is taken for one, and so its error is."""
    from envbuild.catalog.loader import list_stacks
    from envbuild.catalog.yaml_load import load_yaml
    from envbuild.init.input import is_address

    path = Path(source).expanduser()
    if source in list_stacks():
        return True
    if is_address(source) or path.is_dir():
        return False
    if path.suffix in (".yaml", ".yml") and path.is_file():
        data = load_yaml(path)
        return not isinstance(data, dict) or "profiles" in data
    return not path.exists() and "/" not in source


def _allowing(yes: bool, asks: bool) -> Callable[[Sequence[str]], bool]:
    def allow(packages: Sequence[str]) -> bool:
        listed = few(packages, 8)
        question = f"No wheel fits for {listed}. Run setup code of each here, to learn what it needs?"
        return yes or (asks and click.confirm(question, default=False, err=True))

    return allow


def _confirm(asks: bool) -> Callable[[], None]:
    """Asks whether the plan, which was shown, is carried out. Raises EnvbuildError `plan-unconfirmed` (exit 7)."""

    def confirm() -> None:
        if asks and click.confirm("Carry this plan out?", default=True, err=True):
            return
        raise EnvbuildError(
            "plan-unconfirmed",
            "nothing was changed",
            why="the plan was declined" if asks else "there is no terminal to ask whether the plan is carried out",
            hint="`--yes` carries it out unasked",
        )

    return confirm
