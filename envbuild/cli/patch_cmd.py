"""`envbuild patch`: list, apply."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envbuild.cli import names
from envbuild.cli.output import Ui, columns, common_options
from envbuild.cli.verbs import Group
from envbuild.errors import EnvbuildError, ExitCode

if TYPE_CHECKING:
    from envbuild.model.patch import Patch


@click.group("patch", cls=Group)
def patch() -> None:
    """Patches: edits of pinned sources, counted and checked."""


@patch.command("list")
@common_options
def list_(ui: Ui) -> None:
    """Name every patch, and how many commits it was tried at."""
    from envbuild.catalog.patches import digest_of, load_patches

    patches = load_patches()
    data = {"patches": [{**one.to_json_dict(), "digest": digest_of(name)} for name, one in patches.items()]}
    ui.result(data, lambda: _table(list(patches.values())))


def _table(patches: list[Patch]) -> str:
    return columns([("patch", "commits", "what it does"), *((p.name, str(len(p.tried)), p.summary) for p in patches)])


@patch.command("apply")
@click.argument("name", shell_complete=names.patches)
@click.argument("directory", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--check", is_flag=True, help="Write nothing; exit 1 when the patch is not applied yet.")
@click.option("--diff", is_flag=True, help="Print the unified diff.")
@click.option(
    "--commit", metavar="HASH", help="The commit of DIRECTORY: the expected hits are exact where it was tried."
)
@click.option("--digest", metavar="SHA256", help="Refuse a patch that does something else than when it was locked.")
@common_options
def apply_(
    ui: Ui, /, name: str, directory: Path, check: bool, diff: bool, commit: str | None, digest: str | None
) -> int:
    """Apply the patch NAME to the checkout DIRECTORY.

    With --check nothing is changed, and it prints what would be. All files are changed or none. A patch that is
    applied already is named as applied, and changes nothing.
    """
    from envbuild.catalog.patches import digest_of, load_patch
    from envbuild.node.build.patch_sources import apply
    from envbuild.node.protocol import NodeError

    patch = load_patch(name)
    if digest is not None and digest_of(name) != digest:
        raise EnvbuildError(
            "patch-changed",
            f"the patch {name} is not the one that was locked",
            why=f"it has digest {digest_of(name)[:12]}, wanted is {digest[:12]}",
            hint="`envbuild lock create` locks the patch as it is now, after you know why it differs",
        )
    try:
        (result,) = apply(str(directory), [patch.spec(patch.expected(commit))], check=check)
    except NodeError as error:
        raise EnvbuildError.from_dict(error.as_dict()) from None
    ui.result({"ok": True, **result}, lambda: _said(result, diff=diff))
    return ExitCode.CHECK_FAILED if check and not result["already"] else ExitCode.OK


def _said(result: dict[str, Any], *, diff: bool) -> str:
    from envbuild.text import plural

    done = "already applied" if result["already"] else "would be applied" if result["check"] else "applied"
    lines = [f"{result['name']}: {done}, {plural(result['hits'], 'place')}"]
    for each in result["files"]:
        before, after = each["sha256_before"][:12], each["sha256_after"][:12]
        lines.append(f"  {each['path']}: {each['hits']}, {before if before == after else f'{before} -> {after}'}")
    return "\n".join(lines) + "\n" + (result["diff"] if diff else "")
