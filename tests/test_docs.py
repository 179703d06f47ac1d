"""What README and docs name is there: commands, their options, and error codes."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from envbuild import resources
from envbuild.catalog.loader import list_stacks, load_stack, load_target
from envbuild.catalog.node_facts import load_facts, of_target
from envbuild.cli.help_code import explanation
from envbuild.cli.verbs import cli
from envbuild.errors import EnvbuildError
from envbuild.explain.view import Candidates, parameters
from envbuild.hostlist import fold_hosts
from envbuild.lock.files import read_lock
from envbuild.resolve.compat_read import load_compat
from envbuild.schedule.job import Failure
from tests.launch.support import place, started

TOP = Path(__file__).parents[1]
PAGES = [TOP / "README.md", *sorted((TOP / "docs").rglob("*.md"))]
# One line of a block, or words in backticks, that begin a command.
COMMAND = re.compile(r"(?:^(?:\$ | {4,})|`|\"\$\()((?:\.venv/bin/)?envbuild(?= )[^`\n#]*)", re.MULTILINE)
CODE = re.compile(r"`([a-z][a-z0-9]*(?:-[a-z0-9]+)+)`[^`|.]{0,40}\bexit \d")


def commands(text: str) -> Iterator[list[str]]:
    for found in COMMAND.finditer(text.replace("\\\n", " ")):
        line = re.split(r" (?:\||&&|>|;)|\)\"", found[1])[0]
        try:
            yield shlex.split(line)[1:]
        except ValueError:
            continue  # a quote that the page opens for something else


def walked(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that words name, and the words after it; an AssertionError where there is no such command."""
    command: click.Command = cli
    while isinstance(command, click.Group) and words and re.match("[a-z]", words[0]):
        with click.Context(command) as context:
            found = command.get_command(context, words[0])
        assert found is not None, f"no command {words[0]}"
        command, words = found, words[1:]
    return command, words


def _hints(tree: ast.AST) -> Iterator[str]:
    """The texts of hints of a module, with X for what is filled in."""
    every = [*ast.walk(tree)]
    values = [node.value for node in every if isinstance(node, ast.keyword) and node.arg == "hint"]
    for node in every:
        if isinstance(node, ast.Assign) and any(isinstance(at, ast.Name) and at.id == "hint" for at in node.targets):
            values.append(node.value)
    nodes = [each for value in values for each in ast.walk(value)]
    parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node.value


def test_d96_every_hint_that_is_a_command_parses() -> None:
    """Commands in backticks, or after a colon to the end of a clause."""
    seen, wrong = {"help X"}, []  # it explains the code that is filled in
    for path in (TOP / "envbuild").rglob("*.py"):
        for text in _hints(ast.parse(path.read_text(encoding="utf-8"))):
            for found in re.finditer(r"(?:`|(?:it|again|one|them|with): )envbuild ([a-z][^`;\n]*)(?=[`;]|$)", text):
                if "..." in found[1] or found[1] in seen:
                    continue
                seen.add(found[1])
                try:
                    command, rest = walked(shlex.split(found[1]))
                    with click.Context(command) as context:
                        command.parse_args(context, rest)
                except (click.NoSuchOption, click.MissingParameter, AssertionError, ValueError) as error:
                    wrong.append(f"{path.name}: {found[1]}: {error}")
                except click.ClickException:
                    pass  # of a value that stands for another
                except click.exceptions.Exit:
                    pass
    assert len(seen) > 30
    assert wrong == []


def test_variables_of_the_package_are_nouns() -> None:
    empty, fields = {"told", "said", "each", "found", "those"}, {"job.each", "controller.found", "sections.found"}
    # One tree at a time: the million objects of all trees together slow down every garbage collection.
    trees = ((path.stem, ast.parse(path.read_text(encoding="utf-8"))) for path in (TOP / "envbuild").rglob("*.py"))
    named = ((stem, node) for stem, tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name))
    assert {f"{stem}.{node.id}" for stem, node in named if node.id in empty} == fields


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(TOP)))
def test_every_command_of_a_page_is_there_with_its_options(page: Path) -> None:
    for words in commands(page.read_text(encoding="utf-8")):
        if words[0] == "help":  # click's own commands, or an error's code
            assert words[1:] == ["CODE"] or explanation(words[1]), words
            continue
        command, rest = walked(words)
        with click.Context(command) as context:
            there = {name for each in command.get_params(context) for name in (*each.opts, *each.secondary_opts)}
        rest = rest[: rest.index("--")] if "--" in rest else rest
        asked = {word.partition("=")[0] for word in rest if re.match("--?[a-z]", word)}
        assert asked <= there, f"{' '.join(words)}: {sorted(asked - there)}"


def test_the_digest_of_torch_smoke_that_a_page_shows_is_that_of_its_lock() -> None:
    lock = read_lock(resources.lockfiles() / "torch-smoke.exact.lock.toml")
    (digest,) = {each.digest[:12] for each in lock.variants if each.id == "cp311-linux_x86_64-cpu"}
    shown = {
        digest for page in PAGES for digest in re.findall(r"torch-smoke[:-]exact-([0-9a-f]{12})", page.read_text())
    }
    assert shown == {digest}


def test_the_status_page_has_every_profile_plans_as_the_rules_do_and_names_what_is_unknown() -> None:
    page, compat, covered = (TOP / "docs" / "status.md").read_text(encoding="utf-8"), load_compat(), set()
    for row in re.findall(r"^\| ([a-z0-9-]+) \| (`.+`) \| (.+) \| (.+) \| (.+) \|$", page.partition("## How")[0], re.M):
        stack, profiles, _, state, date = row
        covered |= (pairs := {(stack, profile) for profile in re.findall("`([^`]+)`", profiles)})
        assert re.search(r"2026-\d\d-\d\d", date), row
        for _, profile in pairs if (facts := re.search("(?:no plan|planned) with `([^`]+)`", state)) else ():
            target = load_target(facts[1], template=True).target
            nodes, _ = of_target(load_facts(facts[1]), target)
            fits = all(
                each.variant_id
                for each in Candidates(load_stack(stack), nodes, target, compat).decide(profile).resolutions
            )
            assert fits == state.startswith("planned"), row
        if not facts and (built_on := load_stack(stack).stack.built_on):
            assert {profile for _, profile in pairs} <= built_on.keys()
    assert covered == {(name, profile) for name in list_stacks() for profile in load_stack(name).stack.profiles}
    unknown = " ".join(page.partition("## What is unknown")[2].partition("## ")[0].split())
    for lock in map(read_lock, resources.lockfiles().glob("*.lock.toml")):
        for variant in lock.variants:
            loose = [p for p in variant.packages if any(file.sha256 == "unrecorded" for file in p.files)]
            image = variant.image
            names = [f"{package.name} {package.version} ({lock.stack}" for package in loose]
            names += [f"{image.name}` ({lock.stack}"] if image and image.digest == "unrecorded" else []
            names += [f"{lock.stack} `{lock.profile}`"] if variant.conda and variant.conda.unrecorded else []
            assert all(name in unknown and f"`{lock.profile}`" in unknown for name in names), names


def _defined(tree: ast.AST) -> Iterator[str]:
    """Functions, classes and constants of a module, methods as `Class.method`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
            if isinstance(node, ast.ClassDef):
                yield from (f"{node.name}.{name}" for name in _defined(node))
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (each.id for each in targets if isinstance(each, ast.Name))


def test_what_the_page_of_places_names_is_there() -> None:
    """Each file of a cell, and the names behind it; what is in the last table is found by the end of its path."""
    page = TOP / "docs" / "dev" / "where.md"
    decided, _, added = page.read_text(encoding="utf-8").partition("## Where to add what")
    files = [path.relative_to(TOP / "envbuild").as_posix() for path in (TOP / "envbuild").rglob("*") if path.is_file()]
    rows = re.findall(r"`([\w/]+\.(?:py|yaml))`((?:[:,] `[\w.]+`)*)", decided)
    assert len(rows) > 30
    for file, names in rows:
        assert file in files
        wanted = re.findall("`([^`]+)`", names.partition(": ")[2])
        there = set(_defined(ast.parse((TOP / "envbuild" / file).read_text(encoding="utf-8")))) if wanted else set()
        assert set(wanted) <= there, f"{file}: {set(wanted) - there}"
    named = re.findall(r"`([a-z_/]+\.(?:py|sh))`", added)
    named = [each for each in named if not (TOP / each).is_file()]
    assert [each for each in named if not any(f"/{file}".endswith(f"/{each}") for file in files)] == []


@pytest.fixture(scope="module")
def sources() -> str:
    files = (path for end in ("py", "sh", "yaml") for path in (TOP / "envbuild").rglob(f"*.{end}"))
    jobs = "".join(f'"job-{each}"' for each in Failure)
    return "".join(path.read_text(encoding="utf-8") for path in files) + jobs


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(TOP)))
def test_every_error_code_of_a_page_is_one_of_the_program(page: Path, sources: str) -> None:
    codes = {found[1] for found in CODE.finditer(page.read_text(encoding="utf-8"))}
    assert {code for code in codes if f'"{code}"' not in sources and f"id: {code}" not in sources} == set()


def test_d37_the_profiles_for_the_newest_gpus_are_those_that_the_page_names() -> None:
    page = (TOP / "docs" / "stacks.md").read_text()
    sentence = page[page.index("Of the shipped ones") :].partition("\n- ")[0]
    named = set(re.findall(r"`([a-z0-9-]+)` of `([a-z0-9-]+)`", sentence))
    flavours = {
        (profile, stack): contents.torch.flavours
        for stack in set(list_stacks()) - {"torch-smoke"}
        for profile, contents in load_stack(stack).stack.profiles.items()
        if contents.torch is not None
    }
    newest = max((each for row in flavours.values() for each in row), key=lambda flavour: int(flavour[2:]))
    assert named == {place for place, row in flavours.items() if newest in row}


def _sizes_of_opt() -> Iterator[str]:
    """A row for each size of OPT on nodes of eight A100 with 80 GB: where it starts, and how long it takes."""
    reference = load_stack("opt-175b").stack.reference
    assert reference and reference.bench and reference.bench.updates
    peak = 8 * 1e12 * load_compat().gpus["A100-SXM4-80GB"].dense_tflops

    def runs(model: str, nodes: int, gpus: int) -> bool:
        try:
            return bool(started("opt-175b", place(nodes, gpus, gpu="A100-SXM4-80GB"), model_size=model))
        except EnvbuildError:
            return False

    for size in reference.models:
        gpus = [str(count) for count in (1, 2, 4, 8) if runs(size.name, 1, count)]
        nodes = [count for count in range(1, 29) if runs(size.name, count, 8)]
        spent = 6 * parameters(size) * (size.batch_tokens or 0) * reference.bench.updates / peak / nodes[0] / 60
        times = [f"{least:.0f} min" if least >= 1 else "under 1 min" for least in (spent, spent / 0.4)]
        numbers = fold_hosts(map(str, nodes)).strip("[]").replace(",", ", ")
        yield f"| {size.name} | {', '.join(gpus) or 'none'} | {numbers} | {' | '.join(times)} |"


def test_the_page_of_bench_says_where_each_size_and_case_runs_as_the_recipes_do() -> None:
    page = (TOP / "docs" / "measure.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| [0-9.]+[mb]\S* \| .+$", page, re.M) == [*_sizes_of_opt()]
    for name in set(list_stacks()) - {"opt-175b"}:
        reference = load_stack(name).stack.reference
        cases = sorted({(case.gpus, case.model) for case in reference.cases}) if reference else []
        row = "; ".join(f"{model} on {gpus}" for gpus, model in cases)
        assert not cases or f"| {name} | {row} |" in page, row
