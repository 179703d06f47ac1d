"""The tree of commands: help, names, options; and the table of environments."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import click
import pytest

import envbuild
from envbuild import __version__, resources
from envbuild.cli import begin, help_code, names
from envbuild.cli.choose import Time
from envbuild.cli.entry import main
from envbuild.cli.env_cmd import _table
from envbuild.cli.help_code import codes, explanation
from envbuild.cli.verbs import COMMANDS, NAMES, SECTIONS, cli
from envbuild.errors import ExitCode
from envbuild.init.write import _SEVERITY
from envbuild.model.common import Level
from envbuild.model.evidence import CheckStatus, Comparison, NodeEvidence
from envbuild.model.finding import Severity
from envbuild.model.plan import Verdict
from envbuild.provision.survey.ask import of_stack
from tests.e2e.world import World
from tests.resolve.test_reachable import given
from tests.support.need import need
from tests.support.programs import completed, executable


def test_every_code_rule_check_status_and_finding_can_be_explained() -> None:
    assert all(explanation(code) for code in codes())
    sources = [path.read_text() for path in Path(envbuild.__file__).parent.rglob("*.py")]

    def named(pattern: str) -> set[str]:
        return {name for text in sources for name in re.findall(pattern, text)}

    decisions = named(r'(?:Ruling|[^_]decision)\(\s*"([a-z0-9-]+)"')
    assert len(decisions) > 30 and decisions <= set(codes()), "a plan refuses by the name of a rule"
    status, verdict = (
        model.model_fields[name].annotation for model, name in ((NodeEvidence, "status"), (Comparison, "verdict"))
    )
    words = (CheckStatus, Level, Severity, Verdict, status, verdict)
    known = {word for choice in words for word in get_args(choice)}
    checks = named(r'(?:_add|\b_?check|_gap|Part|Check)\((?:name=)?"([a-z/-]+)"')
    assert len(checks) > 20 and known | checks | {"stamp", "root", "variant", "kit", "draft"} <= set(codes())
    assert set(_SEVERITY) | {"sudo"} <= set(codes()), "findings of a draft"
    assert all(f"exit code {code}: " in explanation(str(int(code))) for code in ExitCode)


# What `help` explains, how that begins, and what else it says.
EXPLAINED = [
    ("", "Usage: envbuild", "Everyday:"),
    ("lock create", "Usage: envbuild lock create", ""),
    ("env remove", "Usage: envbuild env remove", "your processes, unless it runs"),
    ("disk-full", "disk-full: exit code 75 (try again)", "hint: make room, or name a larger disk"),
    ("drift", "drift: exit code 1 (check failed)", "differs from its lock or stamp"),
    ("torch-python", "torch-python: a rule that decides which variant fits", "has a wheel for this Python"),
    ("needs-nvcc", "needs-nvcc: ", ""),
    ("lock-of-another-stack", "lock-of-another-stack: exit code 1 (check failed)", "the lock is of STACK"),
    ("alpa-draft", "alpa-draft: a finding (stale) about the document of megatron-alpa", "does:  takes"),
    ("sudo", "sudo: a finding of `envbuild init` and `up`", "draft: leaves it to the administrator"),
    ("unpinned-2", "unpinned: ", ""),
    ("unchanged", "unchanged: status of a node", "no step ran"),
    ("8", "exit code 8: partial: ", "If several apply, the exit code is the first of 5, 4, 7, 9, 8, 6, 1, 3, 75. "),
    ("exit", "exit code: the number that a command ends with", ""),
    ("smoke_nodes", "smoke_nodes: ", "`smoke_nodes`: how many nodes take part"),
    ("ported-cu130", "ported-cu130: a profile of megatron-deepspeed-alcf, ", ""),
    ("azure-nd96", "azure-nd96: a shipped target; `envbuild target show azure-nd96`\n", ""),
    ("exclusive", "exclusive: a key of a target file (docs/reference/files.md, Scheduler)\n",
     "  `exclusive`: a job gets whole nodes, which no other job uses."),
    ("time-limit", "time_limit: a key of ", "md, Scheduler)\n  `time_limit`: how long it may run"),
    ("connection.login", "connection.login: a key of a target file", "`login`: the host from which jobs are submitted"),
    ("login", "login: a key of a target file", "which `envbuild help login.KEY` explains: host, user, port"),
    ("scheduler.queues[0].name", "scheduler.queues[0].name: a key of a target file", ""),
    ("connection.login.nowhere", "connection.login: a key of a target file", ""),
    ("profiles.exact.sources[0].git", "profiles.exact.sources[0].git: a key of a stack file", ""),
    ("prefix", "", "\n\nprefix: a key of a tar"),
    ("prefix", "", "\n\nprefix: a parameter of"),
    ("where", "where: a parameter of `launch opt-175b`, for `--set`\n  whose defaults ", ""),
    ("floors", "floor: the least value of a figure that counts as passed\n\nsmoke/floors: ", ""),
    ("stamp", "stamp: the file that marks an environment as complete and tested\n\nstamp: a check: the stamp is", ""),
    ("unverified", "unverified: mark of a finding", ""),
    ("exact", "exact: one variation of a stack", "ported-cu130"),
    ("merkle", "merkle root: one sha256", ""),
    ("GPU hours", "gpu-hours: GPUs of a job times", ""),
    ("tokens", "token: a password", ""),
    ("words/s", "words/s: ", ""),
    ("kept", "kept: a folder below the prefix: your files", ""),
    ("node.pyz", "node.pyz: the Python files of envbuild/node", ""),
    ("machine/gemm", "smoke/machine/gemm: a check: matrix products", ""),
    ("smoke/extensions/rope", "smoke/extensions: a check: compiled kernels", ""),
    ("stack", "stack: a YAML file that says what to reproduce\n\nUsage: envbuild stack", ""),
    ("smoke", "smoke: step of a plan: tests the environment before", ""),
    ("target file", "target file: ", ""),
    ("docs", "docs: the pages of the documentation, on this machine /", ""),
    ("docs/offline.md", "docs/offline.md: a page of the documentation, on this machine /", ""),
    ("troubleshooting", "docs/troubleshooting.md: a page of the documentation, on this machine /", ""),
    ("uninstall", "docs/install.md, under `Uninstall` (on this machine /", ""),
]  # fmt: skip


@pytest.mark.parametrize(("words", "begins", "says"), EXPLAINED, ids=[row[0] or "alone" for row in EXPLAINED])
def test_help_explains_commands_codes_and_words(
    words: str, begins: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["help", *words.split()]) == 0
    out = capsys.readouterr().out
    assert out.startswith(begins) and says in out


def test_every_key_of_target_and_stack_files_has_its_sentence_below_a_heading_of_the_reference() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "files.md").read_text()
    for noun, heading, part in help_code._parts():
        assert re.search(rf"^##+ {heading}$", page, re.MULTILINE)
        for key in part["properties"]:
            told = next((text for text in help_code._of_key(key) if f"md, {heading})" in text), "")
            if not told and heading.endswith("Check"):
                continue  # a key of something else too, which goes first
            head, *sentences = told.split("\n  ")
            assert head == f"{key}: a key of a {noun} file (docs/reference/files.md, {heading})"
            assert sentences and (heading.endswith("Check") or f"`{key}`" in sentences[0]), (heading, key)


def test_help_says_of_a_rule_whether_it_can_refuse() -> None:
    refusing = {rule for rule, verdict in given() if verdict == "refuse"}
    rules = {rule: explanation(rule) for rule in {*help_code._rules()} & {rule for rule, _ in given()}}
    assert {rule for rule, text in rules.items() if "(a refusal: exit code 7)" in text} == rules.keys() & refusing


def options(command: click.Command, context: click.Context) -> Iterator[tuple[click.Context, click.Option]]:
    """All options of a command and of those below it, as its help lists them."""
    for each in command.params:
        if isinstance(each, click.Option) and not each.hidden:
            yield context, each
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from options(found, click.Context(found, context, name))


# A command line that is wrong, and what it is answered.
WRONG = {
    "help disk-ful": "hint: `envbuild help disk-full`",
    "help diff": "hint: `envbuild help report diff`",
    "help undo": "hint: `envbuild --help` lists",
    "provison": "error[command-unknown]: there is no command `envbuild provison`\nhint: `envbuild provision`",
    "env activat": "hint: `envbuild env activate`",
    "env zzz": "hint: `envbuild --help`",
    "check ./lab.yaml": "hint: `envbuild stack check` or `envbuild target check` or `envbuild lock check`",
    "kernel": "hint: `envbuild env kernel`",
    "provision opt-175b x": "hint: see `envbuild provision --help`\n",
    "bench": "hint: `envbuild stack list` names those that are shipped; see `envbuild bench --help`\n",
    "explain": "hint: `envbuild stack list` names those that are shipped; see `envbuild explain --help`\n",
    "run list x": "hint: see `envbuild run list --help`\n",
    "run opt-175b": "hint: `envbuild launch opt-175b`",
    "-r requirements.txt": "hint: see `envbuild --help`; options stand behind a command",
    "plan opt-175b ./my.yaml": "hint: a target file is given as `--target ./my.yaml`",
    "lock diff exact ported-cu130": "two lock files; `envbuild explain STACK --profile NAME` compares",
    "lock diff --jsn a b": "Did you mean '--json'?\nhint: see `envbuild lock diff --help`",
    # An option before the command, which is said once.
    "--json plan opt-175b":
        "error[usage]: --json stands before the command\nhint: write `envbuild plan opt-175b --json`\n",
    "--target=./my.yaml -v plan": "hint: write `envbuild plan --target=./my.yaml -v`\n",
    "lock --profile exact create opt-175b": "hint: write `envbuild lock create opt-175b --profile exact`\n",
    # An option of an old name, of another verb, and one that a command has no use for.
    "verify --deadline 5s": "--deadline is no option of `envbuild verify`\nhint: write --node-timeout instead of ",
    "verify --deadline 5s --node-timeout": "hint: leave --deadline out; --node-timeout does without\n",
    "provision --deadline 5s": "hint: write --step-timeout instead of --deadline: ",
    "bench opt-175b --facts h200": "hint: write --dry-run instead of --facts: ",
    "init lab.yaml --target slurm": "hint: write --extends instead of --target: ",
    "doctor --facts h200":
        "hint: leave --facts out: `envbuild plan --facts FILE|NAME` decides for recorded nodes\n",
    "provision --yes": "hint: leave --yes out: this command asks for no confirmation\n",
    "stack show opt-175b --profile exact":
        "error[usage]: --profile is no option of `envbuild stack show`\nhint: leave --profile out: `envbuild explain ",
    # Another one is taken for a near one alone.
    "plan --wrong 4": "No such option '--wrong'.\n",
    "plan --tagret local": "No such option '--tagret'. Did you mean '--target'?\n",
    "bench opt-175b --gpus 4": "No such option '--gpus'. Did you mean '--gpus-per-node'?\n",
    # What a line of the target stands for.
    "provision --queue gpu": "write `hosts: {slurm: NAME}` for Slurm, `scheduler: {queue: NAME}` for PBS; ",
    "launch --submit --account x": "write `scheduler: {account: …}`; ",
    "plan --gpus 4": "write `expects: {gpus_per_node: 8}`, also for jobs; ",
    "plan -p gpu": "--partition is a matter of the target\nhint: in the target file, write `hosts: {slurm: NAME}`; ",
    "plan --node 2": "write `scheduler: {nodes: …}`; ",
    "strategy megatron-alpa -t local --dry-run": "--gpus is needed",
}  # fmt: skip


@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_command_line_is_answered_with_what_to_type(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line.split()) == 2
    assert WRONG[line] in capsys.readouterr().err


def test_every_option_has_one_name_meaning_and_sentence_and_where_and_what_come_first() -> None:
    unnamed = {"TEXT", "INTEGER", "INTEGER RANGE", "FLOAT", "FILENAME", "DIRECTORY", "[%Y-%m-%d]"}
    first, choices, removing = dict[str, str](), dict[str, set[str]](), set[str]()
    for context, option in options(cli, click.Context(cli, info_name="envbuild")):
        place = f"{context.command_path} {option.opts}"
        assert "--output" not in option.opts or "-o" in option.opts, place
        assert isinstance(option.type, Time) == (option.metavar == "TIME") or "--wait" in option.opts, place
        kind = "flag" if option.is_flag else option.metavar or option.type.name
        choices.setdefault(option.opts[-1], set()).add(kind)
        if (option.opts, option.help) == (["--yes"], "Remove it; without --yes nothing changes."):
            removing.add(context.command_path)
        for value in ("nan", "inf", "-inf", "1e400", "x") if isinstance(option.type, click.FloatRange | Time) else ():
            with pytest.raises(click.BadParameter):
                option.type.convert(value, option, context)
        assert option.is_flag or option.make_metavar(context) not in unnamed, place
        assert option.help and option.help.endswith((".", ")")), place
        first.setdefault(context.command_path, option.opts[0])
    assert {first[f"envbuild {verb}"] for verb in ("plan", "provision", "smoke", "verify", "bench")} == {"-t"}
    several = {name for name, kinds in choices.items() if len(kinds) > 1}
    assert several <= {"--output", "--only", "--wheelhouse", "--from"}
    assert removing == {"envbuild env remove", "envbuild store clean"}, "d110"


def leaves(command: click.Command, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    """All commands that are no group and are shown, with their words."""
    if not isinstance(command, click.Group):
        yield context.command_path, command
        return
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        assert below is not None
        if not below.hidden:
            yield from leaves(below, click.Context(below, context, name))


def test_the_tree_of_commands_is_the_one_that_is_documented() -> None:
    found = {path.removeprefix("envbuild ") for path, _ in leaves(cli, click.Context(cli, info_name="envbuild"))}
    groups = {name: {path.split()[1] for path in found if path.startswith(f"{name} ")} for name in COMMANDS}
    assert {name: words for name, words in groups.items() if words} == {
        "env": {"activate", "run", "use", "remove", "kernel"},
        "report": {"show", "verify", "diff", "sign", "kit"},
        "stack": {"list", "show", "check"},
        "target": {"list", "show", "check"},
        "lock": {"create", "record", "check", "diff", "export"},
        "patch": {"list", "apply"},
        "bundle": {"create", "verify"},
        "image": {"dockerfile", "build", "verify", "pods"},
        "run": {"list", "show"},
        "store": {"list", "verify", "clean"},
        "config": {"show"},
    }
    assert list(SECTIONS) == [
        "Start", "Everyday", "Measure", "Prove", "Describe", "Hand over", "Keep house",
    ]  # fmt: skip
    assert len(found) <= 50


def test_each_summary_is_whole_on_a_terminal_of_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    groups = [name for name in COMMANDS if isinstance(cli.get_command(click.Context(cli), name), click.Group)]
    for words in ([], *([name] for name in groups)):
        assert main([*words, "--help"]) == 0
        listed = capsys.readouterr().out.partition(" Show this message and exit.\n")[2]
        names = COMMANDS if not words else groups
        assert "..." not in listed and max(map(len, listed.splitlines())) <= 80, (words, names)
        rows = [line for line in listed.splitlines() if line.startswith("    ")]
        assert not rows, f"a summary of {words} goes on in a second line"


def test_two_stacks_that_differ_are_a_mistake_and_the_same_twice_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("plan", "provision", "verify", "smoke", "bench", "explain", "data"):
        assert main([command, "opt-175b", "--stack", "megatronapp"]) == 2
        assert capsys.readouterr().err.startswith(
            "error[stack-twice]: two stacks are named: opt-175b and megatronapp\n"
        )
    assert main(["plan", "--stack", "opt-175b", "--stack", "megatronapp"]) == 2
    assert "two stacks are named" in capsys.readouterr().err
    assert main(["explain", "torch-smoke", "-s", "torch-smoke"]) == main(["explain", "-s", "torch-smoke"]) == 0
    assert capsys.readouterr().err == ""


def test_version_is_a_verb_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    assert capsys.readouterr().out == f"envbuild {__version__}\n"


@pytest.mark.parametrize(("typed", "command"), NAMES.items())
def test_an_old_name_and_what_other_tools_call_it_name_the_command(
    typed: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(typed.split()) == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert error == f"error[command-unknown]: there is no command `envbuild {typed}`"
    assert hint == f"hint: `envbuild {command}`"
    words = command.split(" --")[0].split()
    assert main([*words, "--help"]) == 0
    assert f"envbuild {' '.join(words)}" in capsys.readouterr().out


def alone(world: World, *programs: str, **env: str) -> list[str]:
    """The commands that `envbuild` alone names where these programs are, with some variables."""
    for program in programs:
        executable(world.top / "bin" / program)
    done = world.good(env={"PATH": str(world.top / "bin"), **env})
    assert max(map(len, done.out.splitlines())) <= 60
    return [line.strip() for line in done.out.splitlines() if re.match("  [a-z]", line)]


def test_envbuild_alone_names_three_next_steps_that_fit_the_machine(world: World) -> None:
    first = alone(world)
    assert [line.split()[1] for line in first] == ["provision", "up", "init"]
    assert alone(world, "sbatch", SLURM_CONF=str(world.top / "slurm.conf"))[0].startswith("envbuild init")
    (world.prefix / "envs" / "e").mkdir(parents=True)
    (world.prefix / "current").mkdir()
    for name in ("gone", "torch-smoke"):
        (world.prefix / "current" / name).symlink_to(f"../envs/{'e' if name == 'torch-smoke' else 'none'}")
    used = alone(world)
    assert used[:2] == ['eval "$(envbuild env activate torch-smoke)"', "envbuild verify torch-smoke"]
    for name in ("x$(touch pwned)", "a b", "x\x1b[2J", 'x"', "-x", "x\n"):
        (world.prefix / "current" / name).symlink_to("/")
    assert alone(world) == used, "no link that a shell or terminal would read otherwise"
    assert len(first) == len(used) == 3
    for line in [*first, *used]:
        words = line.removeprefix('eval "$(').removesuffix(')"').split()
        assert main([*words[1:], "--help"]) == 0
    (world.work / "envbuild.toml").write_text("not toml")
    done = world.run()
    assert (done.rc, done.out) == (2, "")
    assert done.err.startswith("error[config-invalid]: ")


@pytest.mark.parametrize("program", ["sbatch", "qsub"])
def test_a_program_for_jobs_that_knows_of_no_cluster_is_taken_for_none(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, variables, _, own = begin._SUBMIT[program]
    monkeypatch.setitem(begin._SUBMIT, program, (name, variables, (), own))
    monkeypatch.setenv("PATH", str(executable(tmp_path / "bin" / program).parent))
    for variable in variables:
        monkeypatch.delenv(variable, raising=False)
    assert begin.scheduler_here() == ""
    (tmp_path / own).parent.mkdir()
    (tmp_path / own).touch()
    assert begin.scheduler_here() == name, "a build of its own, with its configuration"


def test_envbuild_called_by_its_path_says_how_a_shell_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = executable(tmp_path / "bin" / "envbuild")
    monkeypatch.setattr(sys, "argv", [str(program)])
    monkeypatch.setenv("PATH", "/usr/bin")
    assert names.off_path() == [f'To call it as `envbuild`: export PATH="{program.parent}:$PATH"']
    assert names.off_path()[0] in begin.text()
    monkeypatch.setenv("PATH", f"/usr/bin:{program.parent}")
    assert names.off_path() == []


def test_an_engine_names_the_environment_in_use_or_the_last_that_it_finished() -> None:
    def item(path: str, day: str, *, conda: bool = False, current: bool = False) -> dict[str, Any]:
        stamp = {"stamped_at": day, "conda": {"packages": {"a": "1"}} if conda else None}
        return {"path": path, "stack": "tiny", "current": current, "stamp": stamp}

    items = [
        item("old", "2026-01-01", conda=True),
        item("new", "2026-02-01", conda=True),
        item("plain", "2026-01-15", current=True),
        {"path": "half", "stack": "tiny", "current": False, "stamp": None},
    ]
    found = {engine: of_stack(items, "tiny", engine) for engine in (None, "venv", "conda")}
    assert {engine: each and each["path"] for engine, each in found.items()} == {
        None: "plain", "venv": "plain", "conda": "new",
    }  # fmt: skip
    used = [*items[:2], item("used", "2025-01-01", conda=True, current=True)]
    assert (of_stack(used, "tiny", "conda") or {})["path"] == "used"
    assert of_stack(items[:2], "tiny", "venv") is None and of_stack(items, "other", None) is None


def test_environments_are_listed_with_size_dates_and_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    stamp = {"conda": {"packages": {}}, "bytes": 741_000_000, "stamped_at": "2026-11-22T10:00:00Z"}
    seen = {"processes": ["7", "8"], "read": "2026-11-23T01:00:00Z", "differed": 0}
    rows = [
        ("gpu01", {"path": "/p/envs/a", "stack": "tiny", "root": "e" * 64, "current": True, "stamp": stamp, **seen}),
        ("gpu2", {"path": "/p/envs/b", "root": None, "current": False, "stamp": None, "processes": []}),
    ]
    head, first, second = _table(rows, many=True).splitlines()
    assert re.split("  +", head) == [
        "NODE", "STACK", "STATE", "USED BY", "ENGINE", "ROOT", "SIZE", "STAMPED", "VERIFIED", "PATH",
    ]  # fmt: skip
    assert re.split("  +", first) == [
        "gpu01", "tiny", "in use", "2 processes", "conda", "e" * 12, "741 MB", "2026-11-22", "2026-11-23", "/p/envs/a",
    ]  # fmt: skip
    assert re.split("  +", second) == ["gpu2", "half built", "/p/envs/b"]
    assert head.index("PATH") == first.index("/p") == second.index("/p")
    assert not _table(rows, many=False).startswith("NODE")
    drifted = [("gpu01", {**rows[0][1], "processes": [], "differed": 3})]
    assert re.split("  +", _table(drifted, many=False))[-2:] == ["3 differed", "/p/envs/a"]
    assert "USED BY" not in _table(drifted, many=False), "an empty column is left out"
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    narrow = _table(rows, many=False).splitlines()
    assert narrow[0].startswith("STACK") and narrow[1].split() == ["VERIFIED", "PATH"]
    assert (narrow[3].split()[-1], narrow[5].split()[-1]) == ("/p/envs/a", "/p/envs/b")
    assert max(map(len, narrow)) <= 80


def test_d110_the_error_is_the_last_that_is_said_where_both_streams_go_into_one_file(tmp_path: Path) -> None:
    place = ["-s", "megatron-alpa", "--profile", "pypi-cu102", "-t", "azure-nd96", "--facts", "azure-nd96"]
    argv = [sys.executable, "-m", "envbuild", "provision", *place, "--print-script"]
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path, check=False)
    lines = done.stdout.splitlines()
    assert (done.returncode, lines[1]) == (7, "#!/usr/bin/env bash")
    assert [line.partition(":")[0].partition("[")[0] for line in lines[-3:]] == ["error", "why", "hint"]


def test_strategy_takes_the_number_of_gpus_from_the_target(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["strategy", "megatron-alpa", "-t", "aws-p3-16xlarge", "--dry-run"]) == 0
    assert "2.6B on 8 x V100" in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("gpu", "says", "hint"),
    [
        ("H100", "H100 fits several GPU models", "--gpu MODEL: H100-SXM5-80GB, H100-PCIE-80GB\n"),
        ("H100-SMX5-80GB", "is not one of envbuild's GPU models", "did you mean `H100-SXM5-80GB`?"),
        ("", "no GPU model is given", "--gpu MODEL: A100"),
    ],
)
@pytest.mark.parametrize("by_target", [False, True])
def test_strategy_says_why_a_gpu_is_no_model(
    gpu: str, says: str, hint: str, by_target: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.yaml"
    expects = f"expects: {{gpu: {gpu}}}\n" if gpu and by_target else ""
    mine.write_text(f"name: mine\nextends: local\n{expects}")
    words = ["--gpu", gpu] if gpu and not by_target else []
    assert main(["strategy", "megatron-alpa", "--gpus", "8", "-t", str(mine), "--dry-run", *words]) == 2
    err = capsys.readouterr().err
    assert says in err and f"hint: {hint}" in err
    assert (f"of the target is {gpu or 'not set'}\n" in err) == (not words)


def test_a_target_file_in_the_place_of_a_stack_and_one_that_is_not_there_name_what_to_type(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "my-azure.yaml"
    mine.write_text("name: mine\nextends: slurm\n")
    assert main(["plan", str(mine)]) == 2
    assert f"hint: commands take it as `--target {mine}`; `envbuild target check {mine}`" in capsys.readouterr().err
    assert main(["plan", "--target", f"{tmp_path}/my-azure.yml"]) == 2
    assert f"hint: did you mean `{mine}`?\n" in capsys.readouterr().err


def test_a_plan_says_whose_nodes_it_shows_and_which_stack_was_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edited = (resources.catalog() / "facts" / "azure-nd96.json").read_text().replace("Ubuntu", "ubuntu")
    (tmp_path / "mine.json").write_text(edited)
    assert main(["plan", "-t", "azure-nd96", "--facts", str(tmp_path / "mine.json")]) == 0
    assert capsys.readouterr().out.startswith("an edited copy of the example facts of azure-nd96: what you did not ")
    assert main(["plan", "-t", "azure-nd96", "--facts", "azure-nd96"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(
        "example facts of azure-nd96: its nodes, GPUs, drivers and user `hpcadmin`, not yours\nplan: opt-175b"
    )
    assert "stack: opt-175b, from the target azure-nd96" in err
    bench = "  bench: `envbuild bench opt-175b --target azure-nd96 --nodes 1`, once it is built"
    bench += ", as a job for at most 2:00:00, 16 GPU-hours"
    where = "on one Standard_ND96amsr_A100_v4 (8 x A100 80 GB), says the document"
    assert out.splitlines()[-1] == f"{bench} (at least 200000 words/s, 2.5 minutes {where})"
    assert main(["plan", "opt-175b", "-t", "azure-nd96", "--facts", "azure-nd96"]) == 0
    assert "stack: " not in capsys.readouterr().err
    (mine := tmp_path / "mine.yaml").write_text("name: mine\nextends: slurm\nhosts: {slurm: hpc}\n")
    (tmp_path / "more.yaml").write_text("name: more\nextends: ./mine.yaml\n")
    for file, stack in ((mine, "torch-smoke"), (tmp_path / "more.yaml", "torch-smoke"), (mine, "")):
        if not stack:
            mine.write_text(mine.read_text() + "stack: torch-smoke\n")
        assert main(["plan", "-t", str(file), "--facts", "azure-nd96"]) == 7
        says = f"stack: {stack}, from the target slurm; for another, name it after the command\n"
        assert capsys.readouterr().err == says * bool(stack)
        assert main(["target", "check", str(file)]) == 0
        assert capsys.readouterr().err == f"{file}: stack: {stack}, from the target slurm\n" * bool(stack)
    assert main(["plan", "opt-175b", "-t", "pbs", "--facts", "polaris"]) == 7
    seen = ", seen with the module conda/2025-09-25 loaded, as jobs of `extends: polaris` load it"
    out = capsys.readouterr().out
    assert out.startswith(f"example facts of polaris: its nodes, GPUs, drivers and user `user`, not yours{seen}\n")
    mine.write_text("name: mine\nextends: azure-nd96\nscheduler: {modules: {load: [cuda/12.4]}}\n")
    for words, code in ((["opt-175b", "-t", str(mine), "--facts", "azure-nd96"], 0),
                        (["megatron-deepspeed-alcf", "-t", "polaris", "--facts", "h200"], 7)):  # fmt: skip
        assert main(["plan", *words]) == code
        assert "facts recorded outside such a job do not show what it brings" in capsys.readouterr().out


TOP = Path(__file__).parents[2]


def test_the_man_page_is_what_the_commands_give_and_man_complains_of_nothing() -> None:
    spec = importlib.util.spec_from_file_location("make_man", TOP / "docs" / "make_man.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    page = TOP / "docs" / "man" / "envbuild.1"
    assert page.read_text(encoding="utf-8") == made.page(), "docs/make_man.py writes it anew (make generated)"
    assert made.roff("a\\b\n  --c") == "a\\eb \\-\\-c" and made.roff(".x") == "\\&.x"
    need("man")
    done = completed(["man", "--warnings", "-l", str(page)], env={"MANWIDTH": "80"})
    assert (done.returncode, done.stderr) == (0, "")
    first = {line.split()[0] for line in done.stdout.splitlines() if line.startswith("       ") and line.split()}
    assert first >= set(COMMANDS)
    assert max(map(len, done.stdout.splitlines())) <= 80
