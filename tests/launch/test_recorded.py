"""The recipes give the command lines of the documents' own scripts, after a short list of differences with reasons.

A difference is a function that changes what a script emitted in the way that its finding names. A case passes when the
recorded words, changed by all of them, are the words of the recipe; a difference that changes nothing anywhere fails.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from envbuild.errors import EnvbuildError
from envbuild.model.launch import Launch
from envbuild.node.smoke.programs.common import OPEN_MPI_OVERSUBSCRIBED
from tests.launch.support import ENVIRONMENT, OUTPUT, place, recorded, stack, started
from tests.support.fails import fails

Words = list[str]
ALCF = "megatron-deepspeed-alcf"
LAUNCHERS = {"Polaris": "mpiexec", "ThetaGPU": "mpirun", "Perlmutter": "srun"}
HOSTFILE = "/var/spool/pbs/aux/1"
REFUSED = "an unknown key"


def set_value(words: Words, option: str, value: str) -> Words:
    at = words.index(option) + 1
    return [*words[:at], value, *words[at + 1 :]]


def replaced(words: Words, old: str, new: str) -> Words:
    return [word.replace(old, new) for word in words]


# --- ALCF ---------------------------------------------------------------------------------------------------------


def alcf_seed(words: Words, row: dict[str, Any]) -> Words:
    return set_value(words, "--seed", "1234")


def alcf_wrong_base(words: Words, row: dict[str, Any]) -> Words:
    return [f"{ENVIRONMENT}/bin/python3" if word == "PYTHON" else word for word in words]


def alcf_flash_attention(words: Words, row: dict[str, Any]) -> Words:
    """The variable is set to 0, which is off here and on in the script."""
    if row["variables"].get("USE_FLASH_ATTN_V2") != "0":
        return words
    return replaced([word for word in words if word != "--use-flash-attn-v2"], "_flashAttn_v2", "")


def alcf_tensor_parallel(words: Words, row: dict[str, Any]) -> Words:
    """An MPSIZE that is said is kept with pipeline stages too; batch and run name follow from it."""
    variables = row["variables"]
    if "MPSIZE" not in variables or "PPSIZE" not in variables:
        return words
    words = set_value(words, "--tensor-model-parallel-size", variables["MPSIZE"])
    batch = row["nodes"] * row["gpus"] // int(variables["MPSIZE"]) // int(variables["PPSIZE"])
    return replaced(
        set_value(words, "--global-batch-size", str(batch)),
        "mp4_pp2_sp1_nl40_hs5120_gb1",
        f"mp2_pp2_sp1_nl40_hs5120_gb{batch}",
    )


def alcf_master_address(words: Words, row: dict[str, Any]) -> Words:
    """Open MPI hands no variable to other nodes that it is not told to, the address of the master among them."""
    if words[0] != "mpirun":
        return words
    names = ("NCCL_DEBUG", "WANDB_CACHE_DIR", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "WANDB_MODE")
    at = words.index("-npernode") + 2
    return [*words[:at], *(word for name in names for word in ("-x", name)), *words[at:]]


ALCF_DIFFERENCES: dict[str, Callable[[Words, dict[str, Any]], Words]] = {
    "alcf-seed": alcf_seed,
    "alcf-wrong-base": alcf_wrong_base,
    "alcf-flash-attention": alcf_flash_attention,
    "alcf-tensor-parallel": alcf_tensor_parallel,
    "alcf-master-address": alcf_master_address,
}


def alcf_launch(row: dict[str, Any]) -> Launch:
    """The recipe on the same nodes with the same variables; a host file of the user's counts for its own nodes."""
    values = {name: text for name, text in row["variables"].items() if name != "HOSTFILE"}
    nodes = 1 if "HOSTFILE" in row["variables"] else row["nodes"]
    values["LAUNCHER"] = LAUNCHERS[row["machine"]]
    if row["machine"] == "Perlmutter":
        values |= {"DATA_DIR": "DATA", "DATA_TYPE": "BookCorpusDataset_text_document"}
    return started(ALCF, place(nodes, row["gpus"], hostfile=HOSTFILE), **values)


def alcf_words(row: dict[str, Any]) -> Words:
    """The recorded words with their places as the recipe has them; run outputs and the configuration lie in OUTPUT."""
    words = shlex.split(row["argv"])
    for name in ("REPO/outputs", "REPO/ds_config"):
        words = replaced(words, name, name.replace("REPO", OUTPUT))
    return replaced(replaced(words, "REPO", f"{ENVIRONMENT}/src/megatron-deepspeed"), "HOSTFILE", HOSTFILE)


ALCF_CASES = [row for row in recorded()["alcf"] if row["case"] != REFUSED]


@pytest.mark.parametrize("row", ALCF_CASES, ids=[row["case"] for row in ALCF_CASES])
def test_alcf_words_are_those_of_the_script(row: dict[str, Any]) -> None:
    words = alcf_words(row)
    for change in ALCF_DIFFERENCES.values():
        words = change(words, row)
    [command] = alcf_launch(row).commands
    assert list(command.argv) == words


@pytest.mark.parametrize("finding", ALCF_DIFFERENCES)
def test_every_difference_is_a_finding_and_changes_something(finding: str) -> None:
    change = ALCF_DIFFERENCES[finding]
    assert finding in {f.id for f in stack(ALCF).findings}
    assert any(change(alcf_words(row), row) != alcf_words(row) for row in ALCF_CASES)


@pytest.mark.parametrize("row", ALCF_CASES, ids=[row["case"] for row in ALCF_CASES])
def test_alcf_variables_are_those_of_the_script(row: dict[str, Any]) -> None:
    made = alcf_launch(row)
    ours = dict(made.commands[0].environment)
    theirs = dict(row["environment"])
    # alcf-wandb: the scripts leave it to the user, and the run then asks for a login.
    assert ours.pop("WANDB_MODE") == "disabled"
    # alcf-master-address: 127.0.0.1 on every node, or on Perlmutter each node's own name, and no port there.
    assert theirs.pop("MASTER_ADDR") in ("127.0.0.1", "nid001")
    assert ours.pop("MASTER_ADDR") == ("10.0.0.1" if made.nodes > 1 else "127.0.0.1")
    assert theirs.pop("MASTER_PORT", ours["MASTER_PORT"]) == ours.pop("MASTER_PORT") == "5432"
    # alcf-hosfile: with a host file of one node the script starts 4 ranks and calls it a world of 8.
    if "HOSTFILE" in row["variables"]:
        assert (theirs.pop("WORLD_SIZE"), ours.pop("WORLD_SIZE")) == ("8", "4")
    # An srun would wait for the other ranks when one fails, and some sites bind each to one processor.
    srun = {key: ours.pop(key) for key in list(ours) if key.startswith("SLURM_")}
    by_srun = made.commands[0].argv[0] == "srun"
    assert srun == ({"SLURM_KILL_BAD_EXIT": "1", "SLURM_CPU_BIND": "none"} if by_srun else {})
    # A job of Slurm or PBS tells Open MPI of one slot a node.
    slots = {key: ours.pop(key) for key in OPEN_MPI_OVERSUBSCRIBED if key in ours}
    assert slots == (OPEN_MPI_OVERSUBSCRIBED if made.commands[0].argv[0] == "mpirun" else {})
    assert ours == theirs


WITH_CONFIG = [row for row in ALCF_CASES if "config" in row]


@pytest.mark.parametrize("row", WITH_CONFIG, ids=[row["case"] for row in WITH_CONFIG])
def test_alcf_configuration_is_that_of_the_script(row: dict[str, Any]) -> None:
    [file] = alcf_launch(row).files
    theirs = json.loads(row["config"])
    # alcf-wandb: off unless somebody turns it on.
    theirs["wandb"]["enabled"] = False
    assert file.path == f"{OUTPUT}/ds_config-gpt.json"
    assert json.loads(file.text) == theirs


def test_alcf_script_launches_empty_sizes_for_an_unknown_key_and_the_recipe_refuses_it() -> None:
    [row] = [row for row in recorded()["alcf"] if row["case"] == REFUSED]
    words = shlex.split(row["argv"])
    assert words[words.index("--num-layers") + 1] == "--hidden-size"
    assert row["exit"] == 0
    with fails("launch-parameter") as caught:
        alcf_launch(row)
    assert caught.value.hint.startswith("did you mean `GPT")


def by_module(words: Words, python: str) -> Words:
    """torchrun as the module that it is: not every environment has a script of that name."""
    return [
        part for word in words for part in ([python, "-m", "torch.distributed.run"] if word == "torchrun" else [word])
    ]


# --- Slurm --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", recorded()["slurm"], ids=[row["case"] for row in recorded()["slurm"]])
def test_slurm_words_are_those_of_the_script(row: dict[str, Any]) -> None:
    nodes = row["nodes"]
    image = "pytorch:22.02-py3-deepspeed"
    made = started("megatron-deepspeed-slurm", place(nodes, master="gpu01", job="123456", image=image))
    source = f"{ENVIRONMENT}/src/megatron-deepspeed"
    outer, inner = shlex.split(row["argv"]), shlex.split(row["shell"])
    # slurm-no-gpus-asked: nodes and GPUs are asked for.
    asked = ["--nodes", str(nodes), "--ntasks-per-node", "1", "--gpus-per-node", "8"]
    # slurm-workspace: what a run writes and its data lie in a folder of their own, which is mounted too.
    mounts = ["--container-mounts", f"{source},{OUTPUT}"]
    assert outer == ["srun", "-l", "--container-image", image, "--container-mounts", "REPO", "bash", "-c"]
    before = ["srun", "-l", *asked, "--container-image", image, *mounts]
    if nodes == 1:
        # slurm-gpus-given: with it DeepSpeed takes the first GPUs of the node.
        at = inner.index("--num_gpus")
        del inner[at : at + 2]
    else:
        # slurm-rendezvous-host: an address that one node listens at, and a rank for each.
        before += ["bash", "-c", 'PET_NODE_RANK=$SLURM_NODEID exec "$@"', "node"]
        meeting = ["--rdzv_id=123456", "--rdzv_backend=c10d", "--rdzv_endpoint=gpu01:57920"]
        at = inner.index(meeting[0])
        assert inner[at : at + 3] == meeting
        inner[at : at + 3] = ["--master_addr", "gpu01", "--master_port", "57920"]
    inner = replaced(inner, "REPO/pretrain_gpt.py", f"{source}/pretrain_gpt.py")
    inner = replaced(inner, "REPO", OUTPUT)
    # slurm-loss-scale: the DeepSpeed file says how the loss is scaled.
    at = inner.index("--loss-scale")
    # No shell reads them: the words reach the program as they are.
    assert list(made.commands[0].argv) == [*before, *by_module([*inner[:at], *inner[at + 2 :]], "python3")]
    assert json.loads(made.files[0].text) == json.loads(row["config"])


# --- MegatronAPP --------------------------------------------------------------------------------------------------


def app_words(row: dict[str, Any]) -> Words:
    """Data and checkpoints outside the sources (app-two-pods), torchrun by its module."""
    words = replaced(shlex.split(row["argv"]), "ngc_models/release_gpt_base", f"{OUTPUT}/checkpoints")
    words = [f"{OUTPUT}/{word}" if word.startswith("datasets/") else word for word in words]
    # app-master-address: the worker calls the address that its author's pod had.
    assert (words[words.index("--master_addr") + 1] == "10.233.103.96") == (row["case"] == "worker")
    words = set_value(words, "--master_addr", "10.0.0.1")
    return by_module(words, f"{ENVIRONMENT}/bin/python3")


@pytest.mark.parametrize("row", recorded()["megatronapp"], ids=[row["case"] for row in recorded()["megatronapp"]])
def test_megatronapp_words_are_those_of_the_script(row: dict[str, Any]) -> None:
    where = place(row["nodes"], 4, master="10.0.0.1")
    if row["options"].get("pipeline_parallel") == "2":
        # app-two-stages: the script starts what the code asserts against.
        assert "--num-layers-per-virtual-pipeline-stage" in row["argv"]
        with pytest.raises(EnvbuildError, match="2 pipeline stages"):
            started("megatronapp", where, **row["options"])
        return
    command = started("megatronapp", where, **row["options"]).commands[row["rank"]]
    assert list(command.argv) == app_words(row)
    assert command.directory == row["directory"].replace("REPO", f"{ENVIRONMENT}/src/megatronapp")
    assert command.environment["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"


# --- Alpa ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", recorded()["alpa"], ids=[row["case"] for row in recorded()["alpa"]])
def test_alpa_words_are_those_of_the_script(row: dict[str, Any]) -> None:
    made = started("megatron-alpa", place(row["nodes"], row["gpus"]))
    command = made.commands[1 if row["nodes"] > 1 else 0]
    words = shlex.split(row["argv"])
    # alpa-shared-tree: the table of results lies outside the sources.
    assert words[-1] == "megatron_results_e2e"
    assert list(command.argv) == [f"{ENVIRONMENT}/bin/python3", *words[1:-1], f"{OUTPUT}/megatron_results_e2e"]
    assert command.directory == row["directory"].replace("REPO", f"{ENVIRONMENT}/src/alpa")


# --- OPT ----------------------------------------------------------------------------------------------------------


def opt_words(words: Sequence[str], row: dict[str, Any]) -> Words:
    """The document's command with its four mistakes mended."""
    out = set_value(list(words), "-n", str(row["nodes"]))  # opt-local-nodes, opt-t-and-n: the nodes that there are
    out = set_value(out, "-t", "1")  # opt-t-and-n: one trial
    out = set_value(out, "-p", f"test-{row['options']['model_size']}")  # opt-prefix
    return [f"{ENVIRONMENT}/bin/opt-baselines", *out[1:], "--checkpoints-dir", f"{OUTPUT}/checkpoints"]


@pytest.mark.parametrize("row", recorded()["opt"], ids=[row["case"] for row in recorded()["opt"]])
def test_opt_words_are_those_of_the_document(row: dict[str, Any]) -> None:
    made = started("opt-175b", place(row["nodes"]), **row["options"])
    assert list(made.commands[0].argv) == opt_words(shlex.split(row["argv"]), row)
