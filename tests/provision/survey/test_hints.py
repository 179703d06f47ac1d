"""D78, D79, D84: hints name what was tried on these facts and fits; a test follows each of them."""

from __future__ import annotations

import getpass
import json
import re
import shlex
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from envbuild import resources
from envbuild.catalog.loader import list_stacks, list_targets, load_stack, lock_path
from envbuild.catalog.node_facts import list_facts
from envbuild.cli.run import run
from envbuild.lock.files import read_lock
from envbuild.model.lock import LockedTree
from envbuild.model.stack import Profile
from envbuild.provision.jobs.asked import run_script
from envbuild.provision.survey.ask import refusal
from envbuild.provision.survey.plan_run import plan_recorded
from tests.provision.survey.test_up_to_date import facts, prepared
from tests.resolve.builders import compat, make_lock, node_facts, package, resolve, target
from tests.support.canary import CANARY
from tests.support.files import write_file

TARGETS = sorted(set(list_targets()) & set(list_facts()))


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No configuration of this user; the compatibility data are those of the catalog, read once."""
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("ENVBUILD_RUNS", str(tmp_path / "runs"))
    monkeypatch.setattr("envbuild.resolve.compat_read.load_compat", compat)


class Done(NamedTuple):
    exit_code: int
    stdout: str
    stderr: str


def ask(*words: str) -> Done:
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        code = run(list(words))
    return Done(code, out.getvalue(), err.getvalue())


def errors(result: Done) -> list[dict[str, str]]:
    return list(json.loads(result.stdout)["errors"].values())


@pytest.mark.parametrize("stack", list_stacks())
@pytest.mark.parametrize("target", TARGETS)
def test_d79_where_a_refusal_names_a_profile_that_profile_plans(stack: str, target: str) -> None:
    place = ("plan", "--stack", stack, "--target", target, "--facts", target, "--json")
    profiles = load_stack(stack).stack.profiles
    results = {profile: ask(*place, "--profile", profile) for profile in profiles}
    for result in results.values():
        for error in errors(result) if result.exit_code else ():
            named = re.search(r"`--profile (\S+)` fits", error["hint"])
            assert named or "no other profile of" in error["hint"] or len(profiles) == 1, error["hint"]
            to_write = r"torch \S+ in a profile of your own would"
            rest = error["hint"] if named else re.sub(to_write, "", error["hint"])
            assert not re.search(r"torch [0-9]", rest), "no build of torch that no profile has"
            assert named is None or results[named[1]].exit_code == 0


@pytest.mark.parametrize("profile", ["ported", "module-2025-09-25"])
def test_a_profile_of_a_module_that_the_facts_show_is_named_with_what_the_target_lacks(
    profile: str, tmp_path: Path
) -> None:
    site = "name: mine\nextends: pbs\nprefix: /p/{user}\nstack: megatron-deepspeed-alcf\n"
    site += "scheduler: {queue: q, account: lab, time_limit: 1h, nodes: 2%s}\n"
    mine = write_file(tmp_path / "mine.yaml", site % "")
    place = ("plan", "--target", str(mine), "--facts", "polaris", "--json")
    (error,) = errors(ask(*place, "--profile", profile))
    lacks = "scheduler: {modules: {load: [conda/2025-09-25]}}"
    assert error["hint"].startswith(
        f"`--profile module-2025-09-25` fits with the module conda/2025-09-25, which the facts show: `{lacks}`"
    )
    assert "no other profile" not in error["hint"] and "if the site has it" not in error["hint"]
    write_file(mine, site % f", {lacks.removeprefix('scheduler: {').removesuffix('}')}")
    fits = ask(*place[:-1], "--profile", "module-2025-09-25")
    assert fits.exit_code == 0, fits.stdout
    assert "describe another folder" in fits.stdout
    assert "outside such a job" not in fits.stdout, "they were seen with this module loaded"
    document = "--gpus-per-node N --set MODEL_SIZE_KEY=GPT25B --set SEQ_LEN=4096 --set USE_FLASH_ATTN_V2=1"
    assert f" --profile module-2025-09-25 {document}`, N being the GPUs of a node" in fits.stdout
    write_file(mine, mine.read_text().replace("nodes: 2", "nodes: 20000"))
    assert ask(*place[:-1], "--profile", "module-2025-09-25").exit_code == 0, "as many as a target may have"


def test_d79_another_variant_of_the_lock_is_named_before_another_profile() -> None:
    place = ("plan", "--stack", "torch-smoke", "--target", "h200", "--facts", "h200", "--json")
    refused = 0
    for variant in read_lock(lock_path(load_stack("torch-smoke"), "exact")).variants:
        result = ask(*place, "--variant", variant.id)
        for error in errors(result) if result.exit_code else ():
            named = re.search(r"`--variant (\S+)` fits", error["hint"])
            assert named and ask(*place, "--variant", named[1]).exit_code == 0
            refused += 1
    assert refused


def test_d78_on_the_documents_hardware_its_profile_is_the_default_and_one_command_records_the_hash() -> None:
    result = ask("plan", "-s", "megatron-alpa", "-t", "aws-p3-16xlarge", "--facts", "aws-p3-16xlarge")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "plan: megatron-alpa (exact) on aws-p3-16xlarge" in result.stdout
    assert result.stdout.count("`envbuild lock record megatron-alpa` records it") == 1
    launched = ask("launch", "megatron-alpa", "-t", "aws-p3-16xlarge", "--gpus-per-node", "8")
    assert launched.exit_code == 0 and launched.stdout.startswith("# megatron-alpa, profile exact: ")


@pytest.mark.parametrize("verb", ["launch", "bench", "strategy"])
def test_d78_a_profile_for_imports_is_refused_with_the_command_that_helps(verb: str) -> None:
    words = (verb, "megatron-alpa", "-t", "aws-p3-16xlarge", "--gpus-per-node", "8", "--profile", "pypi-cu102")
    result = ask(*words, *(("--gpus", "8") if verb == "strategy" else ()))
    assert (result.exit_code, "error[profile-cannot-run]" in result.stderr) == (7, True), result.stderr
    command = re.search(r"`(envbuild provision [^`]*)`", result.stderr)
    assert command
    plan = ask(*shlex.split(command[1])[1:], "--dry-run", "--facts", "aws-p3-16xlarge")
    assert plan.exit_code == 0 and "plan: megatron-alpa (exact) on aws-p3-16xlarge" in plan.stdout


def test_d78_the_plan_says_what_its_profile_cannot_do(tmp_path: Path) -> None:
    place = ("plan", "-s", "megatron-alpa", "-t", "aws-p3-16xlarge", "--facts", "aws-p3-16xlarge", "--profile")
    says = "the profile pypi-cu102 says `runs: imports`: `launch`, `bench` and `strategy` refuse it"
    assert says in ask(*place, "pypi-cu102").stdout
    assert "runs:" not in ask(*place, "exact").stdout
    exact = load_stack("megatron-alpa").stack.profiles["exact"].to_json_dict()
    with pytest.raises(ValueError, match="contradict"):  # it has no first step
        Profile.from_plain({**exact, "runs": "imports"})
    cluster = ("plan", "-s", "megatron-deepspeed-alcf", "-t", "pbs", "--facts", "h200", "--profile")
    assert "for one node" not in ask(*cluster, "ported-cu130").stdout
    write_file(tmp_path / "two.yaml", "name: two\nextends: pbs\nscheduler: {nodes: 2, queue: q, account: a}\n")
    two = [str(tmp_path / "two.yaml") if word == "pbs" else word for word in cluster]
    assert "MPI of the profile ported-cu130 is MPICH of a wheel, for one node" in ask(*two, "ported-cu130").stdout
    assert "`--profile ported-cu130` fits (its MPI serves one node)" in ask(*two, "ported").stdout


@pytest.mark.parametrize("verb", ["launch", "bench"])
def test_d78_the_profile_is_that_of_the_environment_in_use(verb: str, tmp_path: Path) -> None:
    words = ("megatron-alpa", "-t", "local", "--prefix", str(tmp_path), "--gpus-per-node", "8")
    stamp = tmp_path / "current" / "megatron-alpa" / ".envbuild" / "stamp.json"
    write_file(stamp, json.dumps({"stack": "megatron-alpa", "profile": "ported"}))
    assert ask("launch", *words).stdout.startswith("# megatron-alpa, profile ported: ")
    assert ask("launch", *words, "--profile", "exact").stdout.startswith("# megatron-alpa, profile exact: ")
    write_file(stamp, json.dumps({"stack": "megatron-alpa", "profile": "pypi-cu102"}))
    result = ask(verb, *words)
    assert (result.exit_code, "error[profile-cannot-run]" in result.stderr) == (7, True)
    assert f"--prefix {tmp_path} --profile exact`" in result.stderr
    stamp.unlink()
    result = ask("bench", *words[:-1], "32")
    assert (result.exit_code, "error[launch-does-not-fit]" in result.stderr) == (7, True), result.stderr
    assert "and 32 were asked for" in result.stderr, "it asks for the GPUs before anything else"


def test_d84_a_script_of_what_is_refused_says_the_reason_of_the_plan_and_recorded_facts_give_nothing_else() -> None:
    place = ("-s", "megatron-alpa", "--profile", "pypi-cu102", "-t", "azure-nd96", "--facts", "azure-nd96")
    [error] = errors(ask("plan", *place, "--json"))
    result = ask("provision", *place, "--print-script")
    assert result.exit_code == 7
    assert f"error[{error['code']}]: {error['what']}" in result.stderr and f"hint: {error['hint']}" in result.stderr
    assert f"# Left out, {error['what']}" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("fail ") and error["why"] in result.stdout.splitlines()[-1]
    place = ("provision", "-s", "megatron-alpa", "--profile", "ported", "-t", "local", "--facts", "h200")
    result = ask(*place, "--print-script")
    says = "warning: example facts of h200: its nodes, GPUs, drivers and user `root`, not yours\n"
    assert (result.exit_code, result.stderr) == (0, says)
    assert result.stdout.startswith("#!/usr/bin/env bash\n") and "--hash=sha256:" in result.stdout
    assert ask(*place).exit_code == 2
    result = ask("provision", "--target", "polaris", "--facts", "polaris", "--print-script")
    assert (result.exit_code, "placeholders: `scheduler.account: <your-account>`" in result.stderr) == (2, True)
    result = ask("provision", "--target", "azure-nd96", "--print-script")
    assert "`envbuild plan --facts FILE|NAME` contacts no host" in result.stderr


@pytest.mark.parametrize(
    ("target", "submit", "job"),
    [
        (
            "polaris",
            "#PBS -l select=1:ncpus=64:ngpus=4:system=polaris",
            "2 nodes of debug for at most 1:00:00, 8 GPU-hours (4 GPUs a node), whole nodes, account lab, "
            "submitted from this machine; "
            "all taken to be like this one; one node builds and all test, then together (`meet`)",
        ),
        (
            "azure-nd96",
            "--gres=gpu:8",
            "1 node of hpc for at most 2:00:00, 16 GPU-hours (8 GPUs a node), whole nodes, account lab, "
            "at each start (`requeue`), submitted from this machine; "
            "`nodes` is not set, so it takes all nodes in service of hpc, and this is of one",
        ),
    ],
)
def test_a_job_is_printed_from_facts_and_target_alone_away_from_its_cluster(
    target: str, submit: str, job: str, tmp_path: Path
) -> None:
    site = "scheduler: {account: lab}\nenvironment: {https_proxy: 'http://proxy:3128'}\n"
    mine = write_file(tmp_path / "mine.yaml", f"name: mine\nextends: {target}\n{site}")
    result = ask("provision", "--target", str(mine), "--facts", target, "--print-script")
    assert (result.exit_code, submit in result.stdout) == (0, True), result.stderr
    assert "the scheduler was not asked. Not known: " in result.stdout and "--hash=sha256:" in result.stdout
    assert f"\n# `{{user}}` is {getpass.getuser()} and `{{home}}` {Path.home()}: " in result.stdout, "as a launch says"
    assert "\n  export https_proxy=http://proxy:3128\n" in result.stdout.partition("uv venv ")[0], "before downloads"
    assert "this file asks for one node, which builds" in result.stdout
    made = ask("plan", "--target", str(mine), "--facts", target).stdout
    assert f"\n  job: {job}; the scheduler was not asked: partition and paths are those of the target" in made
    assert re.search(r"\n  facts: .*1 node|2 nodes of \w+ for at most 0:10:00, .* days\n", made), made
    assert re.search(r"`, once it is built, as a job for at most ([12]:00:00), (8|16) GPU-hours", made), made
    known = r"; how long .* compile there is not known \(`provision` of ported-cu130 took [0-9]+ s on one H100 .*\)\n"
    assert re.search(known, made), made
    the_jobs_of_provision_are_printed(("--target", str(mine), "--facts", target), made, submit[-10:])
    write_file(mine, mine.read_text().replace("account: lab", "account: lab, time_limit: null"))
    made = " ".join(ask("plan", "--target", str(mine), "--facts", target).stdout.split())
    assert "file; no `time_limit`, so four times the estimated seconds, 30 minutes at least; how long" in made
    assert ("no build of the profile exact on a GPU is known, only of `ported-cu130` (one" in made) == (
        target[0] == "a"
    )


def the_jobs_of_provision_are_printed(place: tuple[str, ...], plain: str, submit: str) -> None:
    """`plan -v` has both scripts as they are submitted, and what each rule compared, as `explain` has it."""
    shown = ask("plan", *place, "-v").stdout
    assert shown.startswith(plain) and "\n  allow   the variant is for x86_64 (rule platform: x86_64 against" in shown
    assert "\n`run.sh`, which each node runs (findings.sh asks" in shown and f"\n{run_script()}" in shown
    assert f"\nnode.pyz is a zip file of {resources.node_package()}: read" in shown
    (downloads,) = re.findall(r"\nDownloads come from these addresses.*:\n((?:  .*\n)+)uv and the node program", shown)
    assert "  index pypi  " in downloads and "  source " in downloads
    known = {"opt-175b": "https://github.com/NVIDIA/cutlass.git\n", "megatron-deepspeed-alcf": "Megatron-DeepSpeed\n"}
    assert known[shown.partition("plan: ")[2].split()[0]] in downloads
    scripts = json.loads(ask("plan", *place, "--json").stdout)["jobs"]
    assert list(scripts) == ["envbuild-probe", "envbuild-provision"]
    for (name, script), verbs in zip(scripts.items(), (" probe\n", " install smoke activate\n"), strict=True):
        assert f"\nThe job {name}:\n{script}" in shown
        assert verbs in script and " account lab.\n" in script and submit in script and "/jobs/RUN" in script


def test_a_plan_says_whose_the_number_of_gpus_is_and_what_bench_needs(tmp_path: Path) -> None:
    site = "hosts: {slurm: gpu}\nprefix: /p\nconnection: {login: null}\nscheduler: {nodes: 2, time_limit: 1h}\n"
    mine = write_file(tmp_path / "mine.yaml", f"name: mine\nextends: slurm\n{site}")
    place = ("opt-175b", "--target", str(mine))
    made = ask("plan", *place, "--facts", "azure-nd96").stdout
    assert "target file, which names no `gpus_per_node`: the facts say 8 GPUs a node; " in made
    assert re.search(r"\n  bench: `envbuild bench .* --gpus-per-node N`, N being the GPUs of a node, which the t", made)
    assert "no `gpus_per_node`: how many GPUs a node has is not known" in ask("smoke", *place, "--dry-run").stdout
    own = (resources.catalog() / "facts" / "azure-nd96.json").read_text().replace("slurm-hpc-pg0-1", "n1")
    facts = write_file(tmp_path / "own.json", own.replace("hpcadmin", "mia"))
    made = ask("plan", *place, "--facts", str(facts)).stdout
    assert re.search(r"\n  bench: `envbuild bench .* --gpus-per-node 8`, once it is built", made)
    assert ask("bench", *place, "--nodes", "1", "--gpus-per-node", "8", "--dry-run").exit_code == 0


def test_smoke_prints_the_job_that_it_submits_and_what_that_costs(tmp_path: Path) -> None:
    site = "scheduler: {account: lab, nodes: 24, time_limit: %s}\nconnection: {login: null}\nprefix: /p\n"
    mine = write_file(tmp_path / "mine.yaml", f"name: mine\nextends: azure-nd96\n{site % '3h'}")
    done = ask("smoke", "--target", str(mine), "--dry-run")
    cost = "24 nodes of hpc for at most 3:00:00, 576 GPU-hours (8 GPUs a node), whole nodes, account lab"
    cost += ", at each start (`requeue`)"
    assert done.exit_code == 0 and done.stdout.startswith(f"job: {cost}; the scheduler was not asked"), done.stderr
    assert "run.sh /p/jobs/RUN smoke\n" in done.stdout and "run.sh /p/jobs/RUN meet\n" in done.stdout
    assert f"\n{run_script()}" in done.stdout and not (tmp_path / "runs").exists()
    write_file(
        mine,
        mine.read_text().replace("time_limit: 3h", "time_limit: null").replace("nodes: 24", "nodes: 1, requeue: false"),
    )
    done = ask("smoke", "--target", str(mine), "--dry-run")
    assert (
        "1 node of hpc for at most 1:00:00" in done.stdout
        and "at each start" not in done.stdout
        and " meet\n" not in done.stdout
    )
    assert ask("smoke", "--target", "local", "--dry-run").exit_code == 2


def test_that_no_target_was_named_is_said_first_and_the_target_files_of_the_folder_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first = "no --target was given, so this is about `local`, this machine: "
    for name, text in (("a", "profiles: {}\nextends: slurm\n"), ("b", "services: {extends: slurm}\n")):
        write_file(tmp_path / f"{name}.yaml", text)
    launched = ask("launch", "opt-175b")
    assert (launched.exit_code, f"hint: {first}`envbuild init FILE` writes a target" in launched.stderr) == (7, True)
    write_file(tmp_path / "mine.yaml", "name: mine\nextends: azure-nd96\n")
    planned = ask("plan", "opt-175b", "--facts", "h200")
    (refused,) = errors(ask("plan", "opt-175b", "--facts", "h200", "--json"))
    assert refused["hint"].startswith(f"{first}add `--target ./mine.yaml`; for this machine: `--profile ported-cu130` ")
    for done in (ask("plan", "opt-175b", "--facts", "azure-nd96"), planned):
        assert f"\n{first}add `--target ./mine.yaml`\nplan: " in done.stdout and "  bench: " not in done.stdout
    for words in ((), ("torch-smoke",)):
        assert ask("doctor", *words).stderr.startswith(f"{first}add `--target ./mine.yaml`\n")
    assert first not in ask("doctor", "-t", "local").stderr
    for words in (("launch", "opt-175b", "--submit"), ("launch", "opt-175b"), ("bench", "opt-175b")):
        assert f"\nhint: {first}add `--target ./mine.yaml`; for this machine: " in ask(*words).stderr
    (tmp_path / "envbuild.toml").write_text('target = "./mine.yaml"\n')
    assert first not in ask("launch", "opt-175b").stderr
    for words in (("launch", "opt-175b", "-t", "local"), ("plan", "opt-175b", "-t", "local", "--facts", "h200")):
        assert first not in "".join((ask(*words).stderr, ask(*words).stdout))


def test_a_job_that_ends_before_what_is_known_to_take_longer_is_a_warning(tmp_path: Path) -> None:
    site = "name: mine\nextends: azure-nd96\nexpects: {gpus_per_node: 4}\nscheduler: {nodes: 1, time_limit: %s}\n"
    mine = write_file(tmp_path / "mine.yaml", site % "140s")
    place = ("plan", "--target", str(mine), "--facts", "azure-nd96")
    made = ask(*place).stdout
    assert "\n  warning: the job ends after 140s (`time_limit`): `provision` of ported-cu130 took 517 s on" in made
    assert "; the document's run takes 2.5 minutes on one Standard_ND96amsr_A100_v4 (8 x A100 80 GB)\n" in made
    assert "(8 GPUs a node, 4 requested), whole nodes" in made
    assert "expects 4 GPUs and the node has 8; jobs ask for 4\n" in made
    write_file(mine, site % "10m")
    assert "the job ends after" not in ask(*place).stdout


def test_a_plan_says_which_folder_of_which_machine_takes_what_of_a_bundle(tmp_path: Path) -> None:
    site = "name: mine\nextends: azure-nd96\nplacement: node-local\nprefix: /local/{user}\nshared: /shared/{user}\n"
    mine = write_file(tmp_path / "mine.yaml", f"{site}scheduler: {{nodes: 2}}\n")
    made = ask("plan", "--target", str(mine), "--facts", "azure-nd96", "-v").stdout
    stays = "which stays for later jobs until `envbuild store clean` removes it"
    assert re.search(f" and bring them in a bundle to /shared/hpcadmin/store/[0-9a-f]{{12}}, {stays}\n", made)
    assert re.search(
        r"\n    in all .* files stay in /local/hpcadmin, .*\n(?:    (?:store|tmp|compile) .*\n)+"
        r"    here       at least 228 MB in /.*/artifacts, ",
        made,
    )
    assert " /shared/hpcadmin/jobs/RUN ensure probe smoke verify\n" in made, "as jobs of nodes with disks of their own"


@pytest.mark.parametrize(
    ("driver", "nvcc", "gpu", "torch"),
    [
        ("550.54", "12.4", "NVIDIA H100 80GB HBM3", "torch 2.11.0+cu128"),
        ("550.54", None, "NVIDIA H100 80GB HBM3", None),  # no toolkit: another torch alone would not help
        ("535.10", "11.8", "NVIDIA H100 80GB HBM3", None),
        ("570.10", "12.8", "NVIDIA GeForce RTX 4090", "torch 2.11.0+cu128"),
        ("550.54", "12.4", None, None),  # which code is needed is not known
    ],
)
def test_a_torch_that_no_profile_has_is_named_if_no_rule_refuses_the_node_with_it(
    driver: str, nvcc: str | None, gpu: str | None, torch: str | None, tmp_path: Path
) -> None:
    node = json.loads((resources.catalog() / "facts" / "azure-nd96.json").read_text())
    kind = {"name": gpu, "compute_capability": "8.9" if "4090" in (gpu or "") else "9.0"}
    gpus = [{**row, **(kind if gpu else {"compute_capability": None})} for row in node["gpus"]]
    node |= {"gpus": gpus, "driver": {"version": driver, "cuda_ceiling": "12.4", "problem": None}}
    node["nvcc"] = [{"path": "/usr/local/cuda/bin/nvcc", "version": nvcc}] if nvcc else []
    mine = write_file(tmp_path / "mine.yaml", "name: mine\nextends: slurm\nstack: opt-175b\nhosts: {slurm: p}\n")
    seen = write_file(tmp_path / "seen.json", json.dumps(node))
    result = ask("plan", "--target", str(mine), "--facts", str(seen), "--profile", "ported-cu130", "--json")
    named = [re.findall(r"torch \S+", error["hint"]) for error in errors(result)]
    assert [build for builds in named for build in builds] == ([torch] if torch else [])


@pytest.mark.parametrize(
    ("gpu", "says"),
    [("H100 80GB HBM3", False), ("H200", False), ("RTX 4090", True), ("A100-SXM4-80GB", True)],
)
def test_a_profile_says_where_it_was_built_if_the_target_has_other_gpus(gpu: str, says: bool, tmp_path: Path) -> None:
    text = f"name: mine\nextends: h200\nstack: opt-175b\nexpects: {{gpu: {gpu}, gpus_per_node: 1}}\n"
    mine = write_file(tmp_path / "mine.yaml", text)
    made = " ".join(ask("plan", "--target", str(mine), "--facts", "h200", "--profile", "ported-cu130").stdout.split())
    assert (f"no build of the profile ported-cu130 on {gpu} is known, only on one or two H100" in made) == says
    assert ("says the document; not comparable on other GPUs, as yours)" in made) == (gpu[:4] != "A100")
    assert "no run of the profile ported-cu130 on" not in made
    write_file(mine, f"{text}scheduler: {{nodes: 4}}\n")
    made = " ".join(ask("plan", "--target", str(mine), "--facts", "h200", "--profile", "ported-cu130").stdout.split())
    assert " --profile ported-cu130 --nodes 1`, once it is built" in made
    more = "no run of the profile ported-cu130 on 4 GPUs is known, only on one or two H100 or H200 of one node"
    assert (more in made) == (not says)


def test_a_python_that_is_there_comes_before_a_newer_one_that_envbuild_brings(tmp_path: Path) -> None:
    node = json.loads((resources.catalog() / "facts" / "h200.json").read_text())
    node["pythons"] = [{"path": "/usr/bin/python3.11", "version": "3.11.9", "implementation": "cpython"}]
    mine = write_file(tmp_path / "mine.yaml", "name: mine\nextends: slurm\nstack: opt-175b\nhosts: {slurm: p}\n")
    for pythons, variant in (
        (node["pythons"], "cp311-linux_x86_64-cu130"),
        ([], "cp312-linux_x86_64-cu130-standalone"),
    ):
        seen = write_file(tmp_path / "seen.json", json.dumps({**node, "pythons": pythons}))
        made = ask("plan", "--target", str(mine), "--facts", str(seen), "--profile", "ported-cu130")
        assert f"variant {variant} of the lock" in made.stdout, made.stderr


@pytest.mark.parametrize("named", ["own/own.yaml", "own/../own/own.yaml"])
def test_the_profile_of_a_target_is_taken_however_the_path_of_its_stack_is_written(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = load_stack("opt-175b").path.read_text().replace("name: opt-175b", "name: own")
    write_file(tmp_path / "own" / "own.yaml", text.replace("  ported-cu130:", "  mine:"))
    site = f"name: mine\nextends: slurm\nstack: {named}\nprofile: mine\nhosts: {{slurm: p}}\n"
    write_file(tmp_path / "mine.yaml", site)
    for folder, file, typed in ((".", "./mine.yaml", ("own/own.yaml",)), ("own", "../mine.yaml", ("./own.yaml",))):
        monkeypatch.chdir(tmp_path / folder)
        for stack in ((), typed):
            missing = ask("plan", *stack, "--target", file, "--facts", "h200")
            assert "no lock for the profile mine" in missing.stderr, missing.stderr


def test_what_another_targets_facts_say_of_user_processors_and_cuda_is_not_taken_for_this_one(
    tmp_path: Path,
) -> None:
    site = "name: mine\nextends: pbs\nprefix: /p/{user}\nstack: megatron-deepspeed-alcf\nprofile: ported\n"
    site += "scheduler: {queue: q, account: lab, time_limit: 1h, nodes: 1, modules: {load: [cuda]}%s}\n"
    mine = write_file(tmp_path / "mine.yaml", site % "")
    place = ("--target", str(mine), "--facts", "azure-nd96")
    assert "jobs of mine load cuda: facts recorded outside such a job" in ask("plan", *place).stdout
    built = ask("provision", *place, "--print-script")
    trained = ask("launch", "--target", str(mine), "--gpus-per-node", "8", "--print-script")
    top = f"/p/{getpass.getuser()}"
    assert f" prefix={top}\n" in built.stdout and f". {top}/current/" in trained.stdout
    assert f"\n# {{user}} is {getpass.getuser()}, of this machine: if nodes have another" in trained.stdout
    for done in (built, trained):
        assert "#PBS -l select=1:ngpus=8\n" in done.stdout
        says = "The job asks for no ncpus, as nobody asked the nodes of the target"
        assert f"\n# {says}" in done.stdout and f"warning: {says}" in done.stderr
    write_file(mine, site % ", cpus_per_node: 32")
    for words in (("provision", *place), ("launch", "--target", str(mine), "--gpus-per-node", "8")):
        done = ask(*words, "--print-script")
        assert "#PBS -l select=1:ncpus=32:ngpus=8\n" in done.stdout and "no ncpus" not in done.stdout + done.stderr


@pytest.mark.parametrize(("target", "submits"), [("azure-nd96", "sbatch"), ("polaris", "qsub -v %s")])
def test_no_printed_script_holds_a_secret_of_the_target_by_name_or_value(
    target: str, submits: str, tmp_path: Path
) -> None:
    held = {
        "https_proxy": f"http://me:{CANARY}@proxy:3128",
        "HF_TOKEN": f"x-{CANARY}",
        "HF_HUB_NOTE": f"Bearer {CANARY}",
        "WANDB_API_KEY": CANARY,
    }
    site = "scheduler: {account: lab, time_limit: 1h, nodes: 2}\nconnection: {kind: job, login: null}\nprefix: /p\n"
    site += f"environment: {json.dumps({**held, 'http_proxy': 'http://proxy:3128'})}\n"
    mine = ("--target", str(write_file(tmp_path / "mine.yaml", f"name: mine\nextends: {target}\n{site}")))
    facts = ("--facts", target)
    built, *others = [
        ask("provision", *mine, *facts, "--print-script"), ask("launch", *mine, "--print-script"),
        ask("bench", *mine, "--dry-run"),
        ask("provision", *mine, *facts, "--print-script", "--json"), ask("plan", *mine, *facts, "-v"),
        ask("plan", *mine, *facts, "--json"), ask("image", "dockerfile", *mine), ask("target", "show", *mine[1:]),
    ]  # fmt: skip
    assert [done.exit_code for done in (built, *others)] == [0, 0, 0, 0, 0, 0, 7, 0], [done.stderr for done in others]
    for done in (built, *others):
        assert CANARY not in done.stdout + done.stderr
    names = sorted(held)
    for name in names:
        assert f'export {name}="${{{name}:?this script holds no secrets' in built.stdout.partition("uv venv ")[0]
    assert f"git on PATH, {', '.join(names)} exported" in built.stdout
    assert f"Submit it with `{submits.replace('%s', ','.join(names))} FILE`" in built.stdout
    for done in others[:2]:
        assert "export http_proxy=http://proxy:3128\n" in done.stdout
        assert 'export https_proxy="${https_proxy:?' in done.stdout
        assert f"&& {submits.replace('%s', 'https_proxy')} FILE`" in done.stdout
    assert f"{', '.join(names)} of the target's variables" in " ".join(others[3].stdout.split())


def test_a_script_that_compiles_mpi4py_names_its_programs_and_wants_mpicc() -> None:
    place = ("-s", "megatron-deepspeed-alcf", "--profile", "ported", "-t", "azure-nd96", "--facts", "azure-nd96")
    printed = ask("provision", *place, "--print-script").stdout
    assert ", gcc, nvcc, mpicc to compile, and envbuild" in printed
    assert "|| fail 'mpicc is not on PATH" in printed.partition("uv venv")[0]
    url = "https://download.pytorch.org/whl/cu118"
    assert f"\n# The index pytorch-cu118 is {url}\n" in printed.partition("uv venv")[0]
    wheels = printed.partition("# 1 package from the index pytorch-cu118")[2].partition("  install ")[0]
    assert "\ntorch==2.0.1+cu118 " in wheels and f"--default-index {url})\n" in wheels


def test_a_printed_job_asks_for_a_queue_that_takes_one_node(tmp_path: Path) -> None:
    site = "name: mine\nextends: polaris\nscheduler: {account: lab, nodes: 12, time_limit: %s}\n"
    mine = write_file(tmp_path / "mine.yaml", site % "30m")
    place = ("--target", str(mine), "--facts", "polaris")
    cost = "12 nodes of prod for at most 0:30:00, 24 GPU-hours (4 GPUs a node), whole nodes, account lab"
    made = (
        f"\n  job: {cost}, submitted from this machine; all taken to be like this one; one node builds and all test, "
    )
    made += "then together (`meet`); "
    assert made in ask("plan", *place).stdout
    assert "#PBS -q debug\n" in ask("provision", *place, "--print-script").stdout
    mine.write_text(f"{site}connection: {{kind: job, login: {{host: login1, user: me}}}}\n" % "2h")
    assert ", account lab, submitted from me@login1; all " in ask("plan", *place).stdout
    result = ask("provision", *place, "--print-script")
    assert (result.exit_code, "no queue takes a job of 1 node for 2:00:00" in result.stderr) == (2, True)


def test_a_file_that_is_still_a_template_is_refused_also_where_a_shipped_one_is_looked_at(tmp_path: Path) -> None:
    mine = str(write_file(tmp_path / "mine.yaml", "name: mine\nextends: slurm\nexpects: {gpus_per_node: 8}\n"))
    for words in (
        "plan --facts azure-nd96",
        "explain opt-175b",
        "launch opt-175b",
        "strategy opt-175b",
        "target check",
    ):
        result = ask(*words.split(), *(() if words == "target check" else ("--target",)), mine)
        assert (result.exit_code, "error[target-template]: " in result.stderr) == (2, True), words
        assert f"hint: add `hosts: {{slurm: PARTITION}}` to {mine}" in result.stderr


_LOAD = "`scheduler: modules:`, if the site has it; or `base_python: PATH` in the target"


@pytest.mark.parametrize(
    ("stack", "target", "facts", "hint"),
    [
        (
            "opt-175b",
            "{extends: azure-nd96, base: module}",
            "azure-nd96",
            "`--base none`, or `base: none` in the target",
        ),
        ("megatron-deepspeed-alcf", "{extends: azure-nd96, base: module}", "azure-nd96", _LOAD),
        (
            "megatron-deepspeed-alcf",
            "{extends: polaris, scheduler: {account: me}, profile: exact}",
            "polaris",
            "if the site has it",
        ),
        ("megatron-deepspeed-alcf", "{extends: local}", "h200", "`base_python: PATH` in the target, the python3"),
    ],
)
def test_a_base_that_is_not_there_is_told_with_what_the_target_needs_and_no_hint_contradicts_another(
    stack: str, target: str, facts: str, hint: str, tmp_path: Path
) -> None:
    mine = write_file(tmp_path / "mine.yaml", target.replace("{", "{name: mine, ", 1))
    [error] = errors(ask("plan", stack, "--target", str(mine), "--facts", facts, "--json"))
    assert error["code"] in ("base-asked", "base-module") and hint in error["hint"]
    assert "needs no module" not in error["hint"] and error["hint"].count("profile") == 1


def test_a_node_is_refused_with_the_rule_and_first_with_what_its_disk_lacks() -> None:
    facts = node_facts("cpu-laptop", more={"prefix": {"path": "/data/envbuild", "writable": True, "free_bytes": 1000}})
    row = {"id": "v", "python": "3.11", "packages": [package("six", "1.17.0", size=5_000_000)]}
    error = refusal(resolve(facts, make_lock(row), target(), compat()))
    assert error.code == "disk-space"
    assert error.what.startswith("cpu-laptop: there is too little room: 1 kB free in /data/envbuild, ")
    assert error.what.endswith(" needed")
    assert error.why == "v of demo would fit otherwise"
    assert "`envbuild store clean`" in error.hint
    older = node_facts("cpu-laptop", pythons=["3.9.2"])
    error = refusal(resolve(older, make_lock({"id": "v", "python": "3.11"}), target(), compat()))
    assert (error.code, error.what) == ("python-not-there", "cpu-laptop: no variant of demo fits this node")
    assert "3.11" in error.why


@pytest.mark.parametrize(("where", "warned"), [({}, False), ({"connection": {"kind": "ssh"}, "hosts": ["n1"]}, True)])
def test_a_plan_for_other_hosts_says_that_a_source_is_a_folder_of_this_machine(
    where: dict[str, Any], warned: bool
) -> None:
    given = prepared(**where)
    tree = LockedTree(name="nano", at="/home/me/nano")
    variant = given.lock.variants[0].model_copy(update={"trees": (tree,)})
    given = given._replace(lock=given.lock.model_copy(update={"variants": (variant,)}))
    made, _ = plan_recorded(given, {"n1": facts()})
    says = [text for text in made.warnings if "/home/me/nano of this machine: the nodes need it" in text]
    assert len(says) == warned
