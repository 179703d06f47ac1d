"""`envbuild explain`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envbuild.cli import choose
from envbuild.cli.output import Ui, common_options, text_width
from envbuild.errors import ExitCode, writing

if TYPE_CHECKING:
    from envbuild.catalog.loader import LoadedStack
    from envbuild.explain.checks import CheckResult
    from envbuild.explain.view import Decided, RecipeRun
    from envbuild.model.target import Target
    from envbuild.resolve.compat import Compat

_FILE = click.Path(path_type=Path)


@click.command("explain")
@choose.stack_argument()
@choose.profile_option
@choose.target_name
@choose.engine_option
@choose.facts_option
@click.option("--run-checks", is_flag=True, help="Run every check against the upstream sources and the package index.")
@choose.output_option("Write the annotated document (HTML) to this file.")
@click.option("--document", type=_FILE, help="Take the document's text from this file, not from its pinned source.")
@click.option(
    "--other-text",
    is_flag=True,
    help="Annotate --document even if its text differs from the pinned one; the page then says that it does.",
)
@common_options
def explain(
    ui: Ui,
    /,
    stack: str | None,
    run_checks: bool,
    output: Path | None,
    document: Path | None,
    other_text: bool,
    **flags: Any,
) -> int:
    """Explain what the document of STACK gets wrong, and what envbuild does.

    Without STACK, it is that of --target. Decisions for nodes need their --facts;
    --verbose adds the rules that the nodes meet.
    """
    from envbuild.catalog.loader import load_stack, load_target, lock_path, refuse_template
    from envbuild.explain.text import render_summary, render_text
    from envbuild.explain.view import explain as join
    from envbuild.lock.agreement import choose_profile
    from envbuild.resolve.compat_read import load_compat

    if document is not None and output is None:
        raise click.UsageError("--document needs --output")
    if other_text and document is None:
        raise click.UsageError("--other-text needs --document")
    target, engine, facts = flags["target"], flags["engine"], flags["facts"]
    stack = stack or (load_target(target, template=True).target.stack if target else None)
    if stack is None:
        raise choose.missing_stack()
    loaded = load_stack(stack)
    placed = load_target(target or "local", {"engine": engine} if engine else None, template=True)
    refuse_template(placed, contacted=False)
    where = placed.target
    chosen = choose_profile(loaded, flags["profile"], where if target else None)
    name = chosen.name
    choose.tell_lock(ui, lock_path(loaded, name))
    compat = load_compat() if facts or run_checks else None
    decided = _decided(ui, loaded, name, where, facts, compat, placed=target is not None)
    results, recipes = _checked(ui, loaded, name, compat if run_checks else None)
    explanation = join(loaded.stack, name, results=results, decided=decided, recipes=recipes, profile_why=chosen.why)
    if output is not None:
        from envbuild.explain.page import render_page
        from envbuild.explain.source import read_document

        read = read_document(explanation.stack, document, other=other_text)
        page = render_page(explanation, read.text, read.doubt)
        with writing(output):
            output.write_text(page, encoding="utf-8")
        ui.result(
            lambda: {**explanation.as_dict(), "html": str(output)},
            lambda: f"{render_summary(explanation)}annotated document: {output}\n",
        )
    else:
        ui.result(explanation.as_dict, lambda: render_text(explanation, text_width(), met=ui.verbose))
    if any(result.outcome == "broken" for result in results):
        return ExitCode.CHECK_FAILED
    return ExitCode.TRY_AGAIN if any(result.error == "object-missing" for result in results) else ExitCode.OK


def _decided(
    ui: Ui, loaded: LoadedStack, profile: str, target: Target, facts: str | None, compat: Compat | None, *, placed: bool
) -> Decided:
    """Decisions for the nodes of `facts`; `placed`: the user named the target, so its prefix counts."""
    from envbuild.explain.view import Candidates, Decided, without_facts

    if facts is None or compat is None:
        note = "to see the decisions for your nodes, add --facts FILE, or a shipped example: --facts azure-nd96"
        return Decided(note=note, rules=without_facts(loaded, profile))
    from envbuild.catalog.node_facts import load_facts, of_example, of_target
    from envbuild.provision.contact.toolchain import bytes_before

    nodes = load_facts(facts)
    if placed:
        if example := of_example(facts, nodes, target):
            ui.note(example)
        nodes, warnings = of_target(nodes, target)
        for warning in warnings:
            ui.warn(warning)
    decided = Candidates(loaded, nodes, target, compat, tool_bytes=bytes_before).decide(profile)
    alone = "" if placed else "no target was given: `--target TARGET` says what jobs load and which Python is the base"
    return decided._replace(note="; ".join(filter(None, (alone, decided.note))))


def _checked(
    ui: Ui, loaded: LoadedStack, profile: str, compat: Compat | None
) -> tuple[tuple[CheckResult, ...], tuple[RecipeRun, ...]]:
    """Results of the checks, and the document's own edits; both look at nothing outside without `compat`."""
    from envbuild.explain.view import document_recipes

    if compat is None:
        return (), document_recipes(loaded.stack, profile)
    from envbuild.explain.checks import run_checks
    from envbuild.lock.readers.git import git_reader

    ui.note("asking the upstream repositories and the package index")
    with git_reader() as git:
        return run_checks(loaded.stack, compat, git), document_recipes(loaded.stack, profile, git)
