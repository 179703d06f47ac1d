"""`init`: a first target file from answers or from recorded facts, which loads and says what was said."""

from __future__ import annotations

import json
import os
import pwd
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from envbuild import resources
from envbuild.catalog import target_file
from envbuild.catalog.loader import load_target
from envbuild.catalog.node_facts import list_facts, load_facts, of_target
from envbuild.cli import begin, catalog_cmd, init_target
from envbuild.cli.entry import main
from envbuild.cli.init_cmd import init as command
from envbuild.errors import EnvbuildError
from envbuild.model.target import Partition
from envbuild.resolve.rules.node import unexpected
from tests.support.programs import executable

HOME = pwd.getpwuid(os.geteuid()).pw_dir
FACTS = resources.catalog() / "facts" / "h200.json"


def init(folder: Path, *words: str, answers: tuple[str, ...] = ()) -> Result:
    said = "".join(f"{each}\n" for each in answers)
    return CliRunner().invoke(command, [str(folder / "lab.yaml"), *words], input=said)


@pytest.mark.parametrize(
    ("answers", "wanted"),
    [
        (("local", "", "", ""), {"extends": "local", "prefix": "{data}/envbuild"}),
        (
            ("ssh", "opt-175b", "gpu[01-04], n7", "me", "/p/{user}", "NVIDIA H200", "8"),
            {"stack": "opt-175b", "hosts": ["gpu[01-04]", "n7"], "connection": {"kind": "ssh", "user": "me"},
             "prefix": "/p/{user}", "expects": {"gpu": "H200", "gpus_per_node": 8}},
        ),
        (
            ("slurm", "", "gpu", "1", "login1", "me@login1", "4h", "", "proj", "", "", "-f",
             "/usr/local/cuda", "module load gcc, cuda/11.6", "", "", ""),
            {"hosts": {"slurm": "gpu"}, "connection": {"kind": "job", "login": {"host": "login1"}},
             "scheduler": {"kind": "slurm", "account": "proj", "exclusive": True,
                           "modules": {"load": ["gcc", "cuda/11.6"]}}, "prefix": "{home}/envbuild"},
        ),
        (
            ("pbs", "", "", "debug", "", "proj", "0", "4", "soon", "90m", "home, eagle", "", "", "", ""),
            {"hosts": {"pbs": "nodefile"}, "connection": {"kind": "job"},
             "scheduler": {"kind": "pbs", "queue": "debug", "account": "proj", "exclusive": True, "nodes": 4,
                           "time_limit": "90m", "filesystems": ["home", "eagle"]}},
        ),
        (
            ("azure-nd96", "", "hpc-[1-4]", "", "", "", "", "", "", "", "", ""),
            {"stack": "opt-175b", "profile": None, "hosts": {"slurm": "hpc"},
             "connection": {"kind": "job"}, "expects": {"gpu": "A100-SXM4-80GB", "gpus_per_node": 8}},
        ),
        # An empty account, a relative folder and a home folder are asked again, as the empty queue above.
        (
            ("polaris", "", "debug", "", "", "proj", "", "", "", "envs", "{home}", HOME, "/eagle/envs", "", ""),
            {"scheduler": {"kind": "pbs", "queue": "debug", "account": "proj", "nodes": 2, "time_limit": "1h"},
             "prefix": "/eagle/envs"},
        ),
        (
            ("slurm", "opt-175b", "gpu", "", "", "", "", "", "", "64", "H100 PCIe", ""),
            {"stack": "opt-175b", "profile": "ported-cu130", "expects": {"gpu": "H100 PCIe"}},
        ),
        # Its `exact` stands on a module that jobs of this target do not load.
        (
            ("pbs", "megatron-deepspeed-alcf", "workq", "", "proj", "", "", "", "", "", "A100-SXM4-40GB", "4"),
            {"stack": "megatron-deepspeed-alcf", "profile": "ported"},
        ),
        (
            ("pbs", "megatron-deepspeed-alcf", "workq", "", "proj", "", "", "", "", "", "", "4"),
            {"stack": "megatron-deepspeed-alcf", "profile": "ported", "expects": {"gpus_per_node": 4}},
        ),
    ],
)  # fmt: skip
def test_answers_become_a_commented_file_that_loads(
    tmp_path: Path, answers: tuple[str, ...], wanted: dict[str, Any]
) -> None:
    done = init(tmp_path, answers=answers)
    assert done.exit_code == 0, (done.output, done.exception)
    if profile := wanted.get("profile"):
        assert f"profile: {profile}; exact does not fit: " in done.output
    text = (tmp_path / "lab.yaml").read_text()
    assert text.count("\n#") >= 4 and max(map(len, text.splitlines())) <= 80
    made = load_target(str(tmp_path / "lab.yaml")).target.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    for key, value in wanted.items():
        found = made.get(key)
        assert value.items() <= found.items() if isinstance(found, dict) else found == value, key


@pytest.mark.parametrize("name", list_facts())
def test_facts_become_a_file_that_their_nodes_do_not_differ_from(tmp_path: Path, name: str) -> None:
    done = init(tmp_path, "--facts", name)
    assert done.exit_code == 0, (done.output, done.exception)
    made = load_target(str(tmp_path / "lab.yaml"), template=True).target
    nodes = load_facts(name)
    assert [unexpected(node, made) for node in nodes.values()] == [() for _ in nodes]
    assert made.expects.gpus_per_node == len(next(iter(nodes.values())).gpus)
    assert ("still a template" in done.output) == (made.connection.kind == "job")


@pytest.mark.parametrize(
    ("words", "profile", "says"),
    [
        (("--facts", "h200", "--stack", "opt-175b"), "ported-cu130", "exact does not fit: torch 1.11.0+cu113 has no"),
        (("--facts", "azure-nd96", "--extends", "slurm"), None, "a build's is estimated"),
        (("--facts", "azure-nd96", "--extends", "azure-nd96"), None, "without `nodes` it takes all of the partition"),
        (("--facts", "polaris", "--extends", "polaris"), "module-2025-09-25", "this shipped target"),
    ],
)
def test_the_profile_is_the_one_that_fits_and_the_file_says_why(
    tmp_path: Path, words: tuple[str, ...], profile: str | None, says: str
) -> None:
    assert init(tmp_path, *words).exit_code == 0
    made = load_target(str(tmp_path / "lab.yaml"), template=True).target
    assert (made.profile, made.connection.login) == (profile, None)
    alone = '\nconnection: {"kind": "job", "login": null}\n' in (tmp_path / "lab.yaml").read_text()
    assert alone == (made.connection.kind == "job")
    text = (tmp_path / "lab.yaml").read_text().replace("\n# ", " ")
    assert says in text
    job = made.scheduler if made.connection.kind == "job" else None
    assert ("a build's is estimated" in text) == (job is not None and job.time_limit is None)
    assert made.connection.kind != "job" or made.scheduler.nodes, "else a job takes every node of the partition"


def test_a_stack_that_fits_nowhere_is_said_and_no_profile_named(tmp_path: Path) -> None:
    old = {**json.loads(FACTS.read_text()), "driver": {"version": "450.80.02", "cuda_ceiling": "11.0"}}
    (tmp_path / "old.json").write_text(json.dumps(old))
    done = init(tmp_path, "--facts", str(tmp_path / "old.json"), "--stack", "opt-175b")
    assert done.exit_code == 0 and "no profile of opt-175b fits: exact: torch 1.11.0+cu113 has no" in done.output
    assert "profile" not in (tmp_path / "lab.yaml").read_text()


def test_what_slurm_says_of_partitions_stands_in_brackets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = "printf 'debug|(null)\\ngpu*|gpu:h100:8(S:0-1)\\nodd|gpu:big:4\\n'"
    sinfo = executable(tmp_path / "bin" / "sinfo", f"#!/bin/sh\n{rows}\n")
    monkeypatch.setenv("PATH", f"{sinfo.parent}:/usr/bin:/bin")
    assert init_target.partitions() == {"gpu": ("H100", 8), "debug": ("", 0), "odd": ("", 4)}
    monkeypatch.setattr(begin, "scheduler_here", lambda: "Slurm")
    assert init(tmp_path, answers=("",) * 11).exit_code == 0
    made = load_target(str(tmp_path / "lab.yaml")).target
    assert (made.partition, made.expects.gpu, made.expects.gpus_per_node) == ("gpu", "H100", 8)
    assert made.scheduler.nodes == 1


def test_the_queues_of_pbs_that_take_jobs_are_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (("old", "False"), ("gpu", "True"), ("debug", "True"))
    text = "".join(f"Queue: {name}\n    queue_type = Execution\n    enabled = {takes}\n" for name, takes in rows)
    qstat = executable(tmp_path / "bin" / "qstat", f"#!/bin/sh\ncat <<END\n{text}END\n")
    monkeypatch.setenv("PATH", f"{qstat.parent}:/usr/bin:/bin")
    monkeypatch.setattr(begin, "scheduler_here", lambda: "PBS")
    done = init(tmp_path, answers=("", "opt-175b", "", "", "lab", "", "", "", "", "", "", ""))
    assert done.exit_code == 0 and "PBS queue (gpu, debug) [gpu]" in done.output, done.output
    assert load_target(str(tmp_path / "lab.yaml")).target.partition == "gpu"


@pytest.mark.parametrize("end", ["\r", "\x0c", "\x85", "\u2028"])
def test_an_answer_with_another_end_of_line_in_it_is_refused_as_a_whole(end: str) -> None:
    with pytest.raises(click.BadParameter):
        init_target._each(Partition)(f"gpu{end}debug")
    assert init_target._each(Partition)("  ") == ""


def test_a_gpu_model_that_is_none_is_asked_again_with_the_nearest(tmp_path: Path) -> None:
    result = init(
        tmp_path, answers=("slurm", "opt-175b", "gpu", "", "", "eight", "", "", "", "", "A100-SMX4-40GB", "64", "", "")
    )
    assert result.exit_code == 0, result.output
    assert "'A100-SMX4-40GB' is no GPU model that envbuild knows; did you mean `A100-SXM4-40GB`?" in result.output
    assert "'64' is no GPU model that envbuild knows; known: A100" in result.output
    assert "profile: exact; for another, add `profile:` to the file: exact-" in result.output


def test_a_gpu_s_name_that_fits_several_is_asked_again_with_all_of_them_the_closest_target_s_first(
    tmp_path: Path,
) -> None:
    result = init(tmp_path, "--extends", "azure-nd96", answers=(*[""] * 8, "A100 80 GB", "A100-SXM4-80G", "", ""))
    assert result.exit_code == 0, result.output
    assert "Error: A100 80 GB fits A100-SXM4-80GB, A100 80GB PCIe; name the one" in result.output
    assert result.output.count("; an empty answer takes A100-SXM4-80GB\n") == 2
    assert load_target(str(tmp_path / "lab.yaml")).target.expects.gpu == "A100-SXM4-80GB"


@pytest.mark.parametrize(
    ("text", "code", "warnings", "says"),
    [
        ("extends: local, expects: {gpu: '64'}", 0, 1, "expects.gpu: '64' is no GPU model that envbuild knows"),
        ("extends: slurm, hosts: {slurm: hpc}, connection: {kind: ssh}, prefix: /tmp/envs", 0, 2,
         "does not support hosts named by slurm: hpc yet; write `connection: {kind: job, login: {"),
        ("extends: ssh, hosts: [a], scheduler: {kind: slurm}", 0, 1,
         "`scheduler: {kind: slurm}` gets no job from `provision`"),
        ("extends: pbs, stack: megatron-deepspeed-alcf, profile: exact, scheduler: {queue: q, account: a, nodes: 1}",
         0, 1, "jobs of lab load no module (base-module); `profile: ported` fits"),
    ],
)  # fmt: skip
def test_a_target_file_that_may_not_do_what_it_says_is_warned_of(
    tmp_path: Path, text: str, code: int, warnings: int, says: str
) -> None:
    (tmp_path / "lab.yaml").write_text(f"{{name: lab, {text}}}")
    result = CliRunner().invoke(catalog_cmd.target, ["check", str(tmp_path / "lab.yaml")])
    assert (result.exit_code, result.output.count("warning: ")) == (code, warnings), result.output
    assert says in result.output


def test_a_question_mark_explains_the_key_and_asks_again(tmp_path: Path) -> None:
    answers = ("?", "slurm", "?", "", "?", "hpc", "?", "", "?", "", "?", "2", *("?", "") * 4, "?", "8")
    done = init(tmp_path, answers=answers)
    assert done.exit_code == 0, (done.output, done.exception)
    assert done.output.startswith("an empty answer takes what stands in brackets; `?` explains a question\n")
    assert "`slurm`: all nodes of a partition (`sinfo` lists the names).\n" in done.output
    assert "(without it all that `hosts` names, so `init` writes 1)" in done.output
    assert done.output.count("\n`") == 11 and "Error" not in done.output
    assert "which all nodes share ({home}: your home there) [{home}/envbuild]: " in done.output
    assert "{home} (your home there)" in " ".join((tmp_path / "lab.yaml").read_text().replace("\n# ", " ").split())
    assert load_target(str(tmp_path / "lab.yaml")).target.scheduler.nodes == 2
    (tmp_path / "lab.yaml").unlink()
    ssh = init(tmp_path, "--extends", "ssh", answers=("", "?", "a", "?", "", "", "", ""))
    assert "`hosts`: a list of nodes" in ssh.output and "who logs in" in ssh.output


def test_yes_asks_nothing_and_names_what_is_still_open(tmp_path: Path) -> None:
    result = init(tmp_path, "--extends", "slurm", "--stack", "opt-175b", "--yes")
    assert result.exit_code == 0, result.output
    assert "is still a template: add `hosts` to it; `envbuild target check " in result.output
    assert "only through a proxy, add `environment: {https_proxy: URL}`" in result.output
    assert "Nodes of a job" not in result.output
    assert load_target(str(tmp_path / "lab.yaml"), template=True).target.scheduler.nodes == 1
    (tmp_path / "lab.yaml").unlink()
    asked = init(tmp_path, "--extends", "slurm", "--stack", "opt-175b", answers=("gpu", *[""] * 10))
    figure = "the published figure is of one Standard_ND96amsr_A100_v4 (8 x A100 80 GB)"
    assert f"Nodes of a job (one is enough to build; {figure}) [1]: \n" in asked.output


@pytest.mark.parametrize(
    ("extends", "shown", "hidden"),
    [
        (
            "azure-nd96",
            ['tmp: "/mnt/resource_nvme/envbuild-{user}"', 'environment.NCCL_SOCKET_IFNAME: "eth0"',
             "floors.all_reduce_8192_mib_busbw_gbps: 228", 'expects.driver: ">=470"'],
            ["prefix:", "expects.gpu:", "summary:"],
        ),
        ("polaris", ['environment.http_proxy: "http://', 'profile: "module-2025-09-25"'], ["prefix:"]),
        ("slurm", [], []),
    ],
)  # fmt: skip
def test_what_a_site_s_target_says_unasked_stands_in_the_file(
    tmp_path: Path, extends: str, shown: list[str], hidden: list[str]
) -> None:
    result = init(tmp_path, "--extends", extends, "--yes")
    assert result.exit_code == 0, result.output
    _, _, rest = (tmp_path / "lab.yaml").read_text().partition("# Also from ")
    assert all(f"#   {text}" in rest for text in shown) and not any(f"#   {text}" in rest for text in hidden)
    assert ("`tmp`" in result.output and f"as in {extends}: " in result.output) == bool(shown)
    assert bool(rest) == bool(shown)
    assert ("\n# A figure below its floor fails the smoke test (exit 6)" in rest) == ("floors." in rest)


def test_facts_by_hand_with_a_unit_or_a_key_too_few_are_refused_with_what_to_write(tmp_path: Path) -> None:
    (tmp_path / "own.json").write_text(json.dumps({**json.loads(FACTS.read_text()), "memory_bytes": "2TB"}))
    with pytest.raises(EnvbuildError) as caught:
        load_facts(str(tmp_path / "own.json"))
    assert caught.value.why == "memory_bytes must be a whole number"
    (tmp_path / "own.json").write_text('{"node": "gpu01"}')
    with pytest.raises(EnvbuildError) as caught:
        load_facts(str(tmp_path / "own.json"))
    assert "protocol is missing" in caught.value.why
    assert f"copy {FACTS.with_name('azure-nd96.json')} and edit it" in caught.value.hint


def test_a_place_that_no_lock_names_is_warned_of_in_facts() -> None:
    reached = {"pipy": False, "pypi": False, "https://github.com/NVIDIA/apex": True, "github.com": True}
    facts = {"gpu01": next(iter(load_facts("azure-nd96").values())).model_copy(update={"reachable": reached})}
    _, warnings = of_target(facts, load_target("azure-nd96").target)
    warning, other = (text for text in warnings if "reachable" in text)
    assert "; write an address as https://github.com/NVIDIA/apex; indexes are " in other and " more" in other
    assert warning == (
        'facts of gpu01: `reachable` has "pipy", which is neither an index nor a whole address; did you mean `pypi`?'
    )


def test_a_facts_file_with_a_typing_error_names_the_nearest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.json").write_text("{}")
    for typed in ("mine.josn", "./mone.json"):
        with pytest.raises(EnvbuildError) as caught:
            load_facts(typed)
        assert caught.value.hint == "did you mean `mine.json`?"


def test_a_name_or_option_that_init_lacks_is_answered_with_what_to_write(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "my"]) == 2
    assert "a target file ends in .yaml or .yml: write `my.yaml`" in capsys.readouterr().err
    assert main(["init", "lab.yaml", "--partition", "hpc", "--yes"]) == 2
    assert "hint: leave --partition out, and write `hosts: {slurm: NAME}` into the new file" in capsys.readouterr().err


def test_facts_name_the_kind_of_target_and_the_prefix_for_every_user() -> None:
    node = next(iter(load_facts("pods-rtx4090").values()))
    assert [target_file.of_facts({name: node}).kind for name in ("localhost", "gpu01")] == ["local", "ssh"]
    (node,) = load_facts("azure-nd96").values()
    disk = node.prefix.model_copy(update={"path": f"/scratch/{node.user}/envbuild"})
    made = target_file.of_facts({"a": node.model_copy(update={"prefix": disk})})
    assert (made.kind, made.prefix) == ("slurm", "/scratch/{user}/envbuild")


def test_a_file_that_is_there_and_answers_that_make_no_target_leave_nothing_changed(tmp_path: Path) -> None:
    relative = init(
        tmp_path, answers=("slurm", "", "a", "", "", "", "2:00:00", "2h", "", "relative/prefix", "~/envs", "$HOME")
    )
    assert relative.exit_code == 2 and "Error: must be absolute" in relative.output
    for says in (
        "90s, 40m or 2h; write 2h",
        "{home} or {data}; write {home}/envs",
        "can be used; write {home}/envbuild",
    ):
        assert says in relative.output
    bad = init(tmp_path, answers=("ssh", "", "a -x", "a b; c"))
    assert bad.exit_code == 2 and "Error: must not be empty or start with '-'" in bad.output
    bad = init(tmp_path, answers=("ssh", "", "a, gpu[01-04,07"))
    assert bad.exit_code == 2 and "Error: must have its brackets in pairs, as gpu[01-04]" in bad.output
    bad = init(tmp_path, answers=("slurm", "", "a b", "hpc*", "a", "", "x;y"))
    for says in ("Error: must have letters", "Error: write hpc: with the *"):
        assert says in bad.output
    logins = ("me@", "None", "a@b@login1", "me@login1")
    asked = init(tmp_path, answers=("slurm", "", "hpc", *logins, "", "1", "1h", "", "/p", "", ""))
    assert asked.exit_code == 0 and asked.output.count("is no host, as login1 or me@login1") == 2
    assert "'None' is no host: type its name, or nothing for this machine" in asked.output
    login = load_target(str(tmp_path / "lab.yaml")).target.connection.login
    assert login is not None and (login.user, login.host) == ("me", "login1")
    (tmp_path / "lab.yaml").unlink()
    named = init(tmp_path, answers=("ssh", "", "a", "me@a", "me", "/p", "", ""))
    assert named.exit_code == 0 and "'me@a' is no login name" in named.output
    (tmp_path / "lab.yaml").unlink()
    answers = ("", "hpc", "login1", "", "", "1", "", "", "", "", "")
    assert init(tmp_path, "--extends", "azure-nd96", answers=answers).exit_code == 0
    login = load_target(str(tmp_path / "lab.yaml")).target.connection.login
    assert login is not None and (login.user, login.host) == (None, "login1"), "not the name of the shipped target"
    (tmp_path / "lab.yaml").unlink()
    unknown = init(tmp_path, answers=("local", "opt-176b", "./none.yaml", "", "", ""))
    assert unknown.exit_code == 0 and 'no stack named "opt-176b"; did you mean `opt-175b`?' in unknown.output
    assert 'there is no stack file "' in unknown.output
    (tmp_path / "lab.yaml").unlink()
    mistyped = init(tmp_path, "--extends", "slrum")
    assert isinstance(mistyped.exception, EnvbuildError) and mistyped.exception.code == "target-unknown"
    short = init(tmp_path, answers=("pbs", "", "q", "", ""))
    assert short.exit_code == 2 and "--facts" in short.output
    assert "ended at: Account that jobs are charged to (required); `--yes` takes" in short.output
    assert short.output.count("Error: may not be empty") == 1
    early = init(tmp_path, "--extends", "slurm", "--stack", "gpu", answers=("gpu",))
    assert isinstance(early.exception, EnvbuildError) and early.exception.code == "stack-unknown"
    assert early.output == "", "a wrong name is refused before any question"
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "lab.yaml").write_text("mine\n")
    there = init(tmp_path, answers=("local", "", "", ""))
    assert isinstance(there.exception, EnvbuildError) and there.exception.code == "output-unwritable"
    assert (tmp_path / "lab.yaml").read_text() == "mine\n"
