"""Recipes: what is refused, what is said aloud, and what follows from the parameters."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuild.catalog.loader import list_stacks, load_stack
from envbuild.errors import EnvbuildError, ExitCode
from envbuild.launch.recipes import RECIPES, document_values, launch, launch_data
from envbuild.launch.request import Place
from envbuild.model.launch import Launch
from envbuild.model.stack import Stack
from tests.launch.support import ENVIRONMENT, OUTPUT, place, recorded, stack, started
from tests.node.patch_support import write
from tests.support.fails import fails
from tests.support.programs import completed

ALCF, APP, OPT = "megatron-deepspeed-alcf", "megatronapp", "opt-175b"
SLURM, ALPA = "megatron-deepspeed-slurm", "megatron-alpa"
WITH_RECIPE = [name for name in list_stacks() if name != "torch-smoke"]
MANUAL = stack(ALPA).reference.manual  # type: ignore[union-attr]


SIZES = """from types import SimpleNamespace
TOKENS = {"8m": 2**17, "125m": 2**19, "350m": 2**19}
MODEL_SIZES = {name: SimpleNamespace(model_parallel=2, batch_size=tokens) for name, tokens in TOKENS.items()}
"""
BASELINES = """from types import SimpleNamespace
from metaseq.launcher.opt_job_constants import MODEL_SIZES

def get_grid(args):
    if args.num_gpus < 2:
        raise ValueError("Need at least two gpus to run model parallel code")
    assert args.benchmark and args.max_update is None and not args.disable_validation
    flag = SimpleNamespace(name="--full-megatron-init", values=[True], binary_flag=True)
    size = MODEL_SIZES[args.model_size]
    copies = args.num_gpus * args.num_nodes // size.model_parallel
    others = {"--task": "dummy_lm", "--batch-size": size.batch_size // copies // 2048}
    first, last = [SimpleNamespace(name=n, values=[v], binary_flag=False) for n, v in others.items()]
    return [first, flag, last]
"""


def refusal(name: str, where: Place, /, **values: str) -> EnvbuildError:
    with pytest.raises(EnvbuildError) as caught:
        started(name, where, **values)
    return caught.value


def said(made: Launch) -> dict[str, str]:
    return {default.name: default.value for default in made.defaults}


def test_every_document_has_a_recipe_and_the_default_stack_says_that_it_has_none() -> None:
    assert {launch_data(stack(name))[1].recipe for name in WITH_RECIPE} == set(RECIPES) - {"command"}
    with fails("no-recipe", ExitCode.USAGE):
        started("torch-smoke", place())


@pytest.mark.parametrize("name", WITH_RECIPE)
def test_defaults_in_the_file_are_parameters_and_deviations_name_findings(name: str) -> None:
    _, data = launch_data(stack(name))
    known = RECIPES[data.recipe].parameters.names()
    assert set(data.defaults) - set(known) <= {"chunks_of_one", "chunks_of_many"}
    made = started(
        name,
        place(2, 8, image="img" if name == SLURM else None),
        **({"row": "1", "model": "2.6B"} if name == ALPA else {}),
    )
    assert made.deviations
    assert {deviation.finding for deviation in made.deviations} <= {finding.id for finding in stack(name).findings}


@pytest.mark.parametrize("name", WITH_RECIPE)
def test_the_working_directory_is_a_source_that_stays_a_folder(name: str) -> None:
    _, data = launch_data(stack(name))
    for profile in stack(name).profiles.values():
        [source] = [source for source in profile.sources if source.name == data.source]
        assert source.install in ("path", "editable")


def test_alcf_defaults_are_those_of_the_variables_table() -> None:
    reference, data = launch_data(stack(ALCF))
    table = {v.name: v.default for v in reference.variables if v.default and v.name in data.defaults}
    assert table == {name: data.defaults[name] for name in table}
    assert set(table) >= {"MODEL_SIZE_KEY", "SEQ_LEN", "MICRO_BATCH", "GAS", "SP_TYPE", "ZERO_STAGE", "PPSIZE"}


@pytest.mark.parametrize("name", WITH_RECIPE)
def test_an_unknown_parameter_is_refused_with_the_nearest_name(name: str) -> None:
    known = RECIPES[launch_data(stack(name))[1].recipe].parameters.names()[0]
    found = refusal(name, place(), **{known[:-1] + "x": "1"})
    assert (found.code, found.exit_code) == ("launch-parameter", ExitCode.USAGE)
    assert known in found.hint


@pytest.mark.parametrize(
    ("name", "values"),
    [
        (ALCF, {"SEQ_LEN": "many"}),
        (ALCF, {"GAS": "0"}),
        (ALCF, {"ZERO_STAGE": "4"}),
        (ALCF, {"USE_FLASH_ATTN_V2": "maybe"}),
        (APP, {"addresses": "10.0.0.1;reboot"}),
        (OPT, {"prefix": "-p"}),
        (SLURM, {"global_batch": ""}),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_by_its_name(name: str, values: dict[str, str]) -> None:
    found = refusal(name, place(), **values)
    assert found.code == "launch-parameter"
    assert next(iter(values)) in found.what
    assert found.why


FIVE = {"global_batch": "32", "dp": "2", "tmp": "2", "pp": "4", "microbatches": "4", "model": "2.6B"}


@pytest.mark.parametrize(
    ("name", "where", "values", "words"),
    [
        (ALCF, place(2, 4), {"MPSIZE": "3"}, "does not divide 8 GPUs"),
        (ALCF, place(1, 3), {"MODEL_SIZE_KEY": "GPT25B"}, "64 attention heads"),
        (ALCF, place(2, 4), {"PPSIZE": "8", "MODEL_SIZE_KEY": "GPT145B_12L"}, "12 layers"),
        (ALCF, place(2, 4), {"ZERO_STAGE": "2", "PPSIZE": "2"}, "ZeRO 2"),
        (ALCF, place(2, 4), {"SP_TYPE": "ds", "MPSIZE": "2"}, "SP_TYPE=ds"),
        (ALCF, place(2, 4), {"USE_FLASH_ATTN_V1": "1", "USE_FLASH_ATTN_V2": "1"}, "at once"),
        (APP, place(1, 4), {"pipeline_parallel": "3"}, "do not divide the 32 layers"),
        (APP, place(1, 4), {"pipeline_parallel": "2"}, "too few for virtual stages"),
        (APP, place(1, 4), {"pipeline_parallel": "8"}, "does not divide 4 GPUs"),
        (APP, place(1, 4), {"global_batch": "10"}, "no multiple of the 4 stages"),
        (APP, place(1, 4), {"tensor_parallel": "4"}, "does not divide 4 GPUs"),
        (APP, place(2, 4), {"addresses": "10.0.0.1,10.0.0.2,::1"}, "3 InfiniBand addresses for 2 nodes"),
        (OPT, place(2, 1), {}, "two GPUs"),
        (OPT, place(1, 4), {"model_size": "66b"}, "multiple of 8 GPUs"),
        (OPT, place(128), {}, "a batch of 0"),
        (OPT, place(2), {"submit": "local"}, "submit=local"),
        (OPT, place(2, job="9", direct=True), {}, "this target has no Slurm"),
        (SLURM, place(), {"zero_stage": "2"}, "ZeRO 2"),
        (SLURM, place(1, 2), {}, "needs 4 GPUs"),
        (SLURM, place(4, 2), {"tensor_parallel": "4"}, "more than the 2 GPUs of a node"),
        (SLURM, place(1, 8), {"tensor_parallel": "3"}, "does not divide 8 GPUs"),
        (SLURM, place(3, 8), {"pipeline_parallel": "3"}, "8 layers"),
        (SLURM, place(3, 8), {"pipeline_parallel": "2"}, "no multiple of 12"),
        (SLURM, place(4, 8), {"model": "52b"}, "needs 64 GPUs and 4 x 8 are there"),
        (ALPA, place(2), {**FIVE, "dp": "3"}, "is not 16 GPUs"),
        (ALPA, place(2), {**FIVE, "dp": "1", "tmp": "16", "pp": "1"}, "more than the 8 GPUs of a node"),
        (ALPA, place(2), {**FIVE, "microbatches": "3"}, "no multiple of"),
        (ALPA, place(2), {**FIVE, "row": "1"}, "at once"),
    ],
)
def test_what_cannot_run_is_refused_with_what_can(name: str, where: Place, values: dict[str, str], words: str) -> None:
    found = refusal(name, where, **values)
    assert (found.code, found.exit_code) == ("launch-does-not-fit", ExitCode.REFUSED)
    assert words in found.what and found.hint
    assert "ZeRO" not in words or "zero-needs-no-pipeline" in found.why


@pytest.mark.parametrize(
    ("name", "key", "near"),
    [(ALCF, "MODEL_SIZE_KEY", "GPT25B"), (OPT, "model_size", "175b"), (APP, "model", "gpt-small")],
)
def test_an_unknown_model_is_refused_with_the_nearest_row(name: str, key: str, near: str) -> None:
    found = refusal(name, place(), **{key: near + "x"})
    assert (found.code, found.hint) == ("launch-parameter", f"did you mean `{near}`?")


@pytest.mark.parametrize("name", WITH_RECIPE)
def test_two_nodes_need_an_address(name: str) -> None:
    values = {"row": "1", "model": "2.6B"} if name == ALPA else {}
    if name == OPT:
        assert started(name, place(2, master=None)).nodes == 2, "metaseq finds its nodes itself"
        return
    assert refusal(name, place(2, master=None), **values).code == "launch-parameter"


# --- ALCF ---------------------------------------------------------------------------------------------------------


def test_tensor_parallel_over_all_gpus_is_said_aloud() -> None:
    made = started(ALCF, place(2, 4))
    assert made.commands[0].ends is None, "its exit code says how it ended"
    assert made.degrees == {"tensor": 8, "pipeline": 1, "sequence": 1, "data": 1, "global-batch": 1, "micro-batch": 1}
    [row] = [default for default in made.defaults if default.name == "MPSIZE"]
    assert (row.value, row.why) == ("8", "tensor parallel: all 8 GPUs of the job")
    assert "MPSIZE" not in said(started(ALCF, place(2, 4), MPSIZE="4"))
    assert "--zero-stage=2" in started(ALCF, place(2, 4), ZERO_STAGE="2").commands[0].argv


def test_wandb_is_off_unless_somebody_turns_it_on() -> None:
    assert '"enabled": true' not in started(ALCF, place()).files[0].text.split('"wandb"')[1]
    on = started(ALCF, place(), WANDB_MODE="online")
    assert '"enabled": true' in on.files[0].text.split('"wandb"')[1]
    assert on.commands[0].environment["WANDB_MODE"] == "online"


def test_a_host_file_is_handed_on_and_its_absence_is_said() -> None:
    assert "--hostfile" not in started(ALCF, place(2, 4)).commands[0].argv
    assert any("no host file" in note for note in started(ALCF, place(2, 4)).notes)
    assert not any("no host file" in note for note in started(ALCF, place(2, 4, hostfile="/n")).notes)


# --- MegatronAPP --------------------------------------------------------------------------------------------------


def test_addresses_and_job_are_variables() -> None:
    made = started(APP, place(2, 4, job="77"), addresses="192.168.0.2,192.168.0.7")
    assert {c.environment["MEGATRONAPP_NODE_ADDRESSES"] for c in made.commands} == {"192.168.0.2,192.168.0.7"}
    assert {c.environment["MEGATRONAPP_JOB"] for c in made.commands} == {"77"}
    assert [_told(made, "app-unfinished-gradients"), _told(made, "app-sharded-embedding")] == [True, True]
    assert len(made.notes) == 2, "none about addresses"
    assert any("InfiniBand" in note for note in started(APP, place(2, 4, job="77")).notes)
    assert "MEGATRONAPP_NODE_ADDRESSES" not in started(APP, place(1, 4)).commands[0].environment


def test_megatronapp_on_one_gpu_has_no_virtual_stages_and_says_so() -> None:
    one, four = started(APP, place(1, 1), pipeline_parallel="1"), started(APP, place(1, 4))
    assert "--num-layers-per-virtual-pipeline-stage" not in one.commands[0].argv
    assert "--num-layers-per-virtual-pipeline-stage" in four.commands[0].argv
    assert (one.degrees["pipeline"], one.degrees["chunks"], one.degrees["microbatches"]) == (1, 1, 16)
    assert any(note.startswith("one stage: no pipeline") for note in one.notes)
    assert ["one stage" in each.does for each in one.deviations if each.finding == "app-two-stages"] == [True]
    assert "too few" in refusal(APP, place(1, 1), pipeline_parallel="1", model_chunks="2").what


def test_megatronapp_refuses_tensor_parallel_with_virtual_stages_where_no_edit_lets_its_ranks_agree() -> None:
    found = refusal(APP, place(1, 8), tensor_parallel="2")
    assert (found.code, found.exit_code) == ("launch-does-not-fit", ExitCode.REFUSED)
    assert "app-tensor-order" in str(found.why)
    edit = "megatronapp-tensor-order"
    assert found.hint == f"tensor_parallel=1; or --profile ported-cu130, which has the edit {edit}"
    # Which profile has it is read from the stack: of a user's own it may be another, or none.
    profiles = stack(APP).profiles
    for others, hint in (
        (
            {"exact": profiles["exact"], "mine": profiles["ported-cu130"]},
            f"; or --profile mine, which has the edit {edit}",
        ),
        ({"exact": profiles["exact"]}, ""),
    ):
        with pytest.raises(EnvbuildError) as caught:
            launch(stack(APP).model_copy(update={"profiles": others}), "exact", {"tensor_parallel": "2"}, place(1, 8))
        assert caught.value.hint == f"tensor_parallel=1{hint}"
    assert started(APP, place(1, 2), tensor_parallel="2", pipeline_parallel="1").degrees["tensor"] == 2
    agreeing = started(APP, place(1, 8), profile="ported-cu130", tensor_parallel="2")  # an edit
    assert agreeing.degrees["tensor"] == 2


def test_a_batch_that_is_offered_instead_is_accepted() -> None:
    hint = refusal(APP, place(1, 4), global_batch="10").hint
    key, _, value = hint.partition("=")
    assert started(APP, place(1, 4), **{key: value}).degrees["microbatches"] % 4 == 0


# --- OPT ----------------------------------------------------------------------------------------------------------


def test_d86_one_rule_says_how_many_nodes_175b_needs() -> None:
    found = refusal(OPT, place(4), model_size="175b")
    assert found.exit_code == ExitCode.REFUSED
    runs = "by memory and softmax 175b runs with 8 GPUs a node on so many nodes: 24, 25, 26, 27, 28, 29, 30, 31, ..."
    assert found.hint == f"`--nodes 24`, or a smaller model; {runs}"
    assert "is too large for 4 nodes of 8 GPUs" in found.what
    assert "wants 5 nodes at least (finding opt-175b-nodes)" in found.why
    for nodes in range(1, 24):
        found = refusal(OPT, place(nodes), model_size="175b")
        assert (found.exit_code, found.hint[:12]) == (ExitCode.REFUSED, "`--nodes 24`")
    assert "3.00 times the scores" in refusal(OPT, place(8), model_size="175b").why
    assert started(OPT, place(24), model_size="175b").degrees["data"] == 24
    assert "softmax" in refusal(OPT, place(3), model_size="175b", gpu_gb="141").what


@pytest.mark.parametrize(
    ("where", "model", "needs"),
    [
        (place(1, 8, gpu="V100-SXM2-16GB"), "13b", "too large for 1 node of 8 GPUs; wants 2 nodes; of GPUs with 16 GB"),
        (place(1, 1), "13b", "too large for 1 node of 1 GPU; wants 3 nodes; of GPUs with 80 GB"),
        (place(1, 8, gpu="H200"), "66b", ""),  # 8 x 141 GB
        (place(1, 8), "13b", ""),
    ],
)
def test_every_size_is_refused_where_the_memory_model_says_it_does_not_fit(
    where: Place, model: str, needs: str
) -> None:
    if not needs:
        assert started(OPT, where, model_size=model)
        return
    found = refusal(OPT, where, model_size=model)
    assert all(part in f"{found.what}; {found.why}" for part in needs.split("; "))


@pytest.mark.parametrize(
    ("nodes", "job", "submit", "flag"),
    [(1, None, "local", "--local"), (2, "9", "salloc", "--salloc"), (2, None, "sbatch", "")],
)
def test_how_opt_is_submitted_follows_from_the_place(nodes: int, job: str | None, submit: str, flag: str) -> None:
    made = started(OPT, place(nodes, job=job))
    assert said(made)["submit"] == submit
    assert {word for word in made.commands[0].argv if word in ("--local", "--salloc")} == ({flag} if flag else set())
    assert any("submits a job of its own" in note for note in made.notes) == (submit == "sbatch")
    assert any("skips a run" in note for note in made.notes) == (submit != "local")


def test_through_slurm_opt_asks_for_the_processors_that_are_said_or_a_note_tells_whose_it_takes() -> None:
    asking = "--cpus-per-task"
    for where, own in (("azure", 12), ("fair", 10)):
        untold = started(OPT, place(2, job="9"), where=where)
        assert asking not in untold.commands[0].argv
        (note,) = [each for each in untold.notes if "--set cpus_per_gpu=N" in each]
        assert f"asks Slurm for {own} processors a GPU and binds ranks as on the nodes of {where}" in note
    told = started(OPT, place(2, job="9"), cpus_per_gpu="6")
    argv = told.commands[0].argv
    assert argv[argv.index(asking) :][:4] == (asking, "6", "--cpu-bind", "none")
    assert not [each for launch in (told, started(OPT, place(1))) for each in launch.notes if "cpus_per_gpu" in each]


# --- Slurm --------------------------------------------------------------------------------------------------------


def test_deepspeed_takes_the_gpus_that_slurm_gives_and_counts_them_where_slurm_knows_of_none() -> None:
    def counts(**where: bool) -> bool:
        return "--num_gpus" in started(SLURM, place(1, **where)).commands[0].argv

    assert (counts(), counts(gres=False)) == (False, True)


@pytest.mark.parametrize(
    ("name", "values"), [(SLURM, {}), (ALCF, {"LAUNCHER": "srun", "MODEL_SIZE_KEY": "GPT125M", "DATA_DIR": "/d"})]
)
def test_a_step_asks_for_gpus_only_where_slurm_hands_them_out(name: str, values: dict[str, str]) -> None:
    def asked(gres: bool) -> set[str]:
        words = started(name, place(2, gres=gres), **values).commands[0].argv
        before = words[: next(at for at, word in enumerate(words) if "python" in word)]
        assert before[0] == "srun"
        return {word for word in before if word.startswith("--gpus")}

    assert "--gpus-per-node" in asked(True)
    assert asked(False) == set()
    deviations = {each.finding: each.does for each in started(SLURM, place(2, gres=False)).deviations}
    assert deviations["slurm-no-gpus-asked"] == "srun asks for the nodes alone, as Slurm knows of no GPUs here"


@pytest.mark.parametrize(
    ("where", "words"),
    [
        (place(2, 2), "1.50 times the scores that it counts"),
        (place(3, 8), "a multiple of 4 of sequences x 6 heads"),
    ],
)
def test_d86_what_the_pinned_softmax_does_not_take_is_refused_on_several_nodes(where: Place, words: str) -> None:
    found = refusal(OPT, where, model_size="125m")
    assert words in f"{found.what} {found.why}" and followed(found.hint, where, model_size="125m")


READ = {
    APP: {"datasets/gpt-large-cased-vocab-small_text_document", "datasets/merges.txt", "datasets/vocab.json"},
    SLURM: {"gpt2-merges.txt", "gpt2-vocab.json", "my-gpt2_text_document"},
}


@pytest.mark.parametrize("name", WITH_RECIPE)
def test_a_trial_writes_into_a_folder_of_its_own_and_finds_data_where_they_were(name: str) -> None:
    values = {OPT: {"model_size": "125m"}, ALCF: {"DATA_DIR": "/data/set"}}.get(name, {})
    made = started(name, place(1, 4).below("trial"), **values)
    words = [word for each in made.commands for word in (*each.argv, each.directory)]
    named = {word.partition(f"{OUTPUT}/")[2] for word in words if OUTPUT in word}
    assert {path for path in named if path.partition("/")[0] != "trial"} == READ.get(name, set())
    assert all(file.path.startswith(f"{OUTPUT}/trial/") for file in made.files)
    assert named > READ.get(name, set()), "there is something that it writes"


@pytest.mark.parametrize(
    ("gpus", "model", "parallel", "batch", "parts"),
    [
        (1, "8m", 1, 64, 1),
        (1, "125m", 1, 32, 8),
        (2, "125m", 2, 64, 4),  # 256 sequences x 6 heads x 2048 x 2048 are 3.0 times 2**31
        (6, "350m", 2, 17, 5),
    ],
)
def test_opt_on_few_gpus_is_what_opt_baselines_would_start(
    gpus: int, model: str, parallel: int, batch: int, parts: int, tmp_path: Path
) -> None:
    made = started(OPT, place(1, gpus), model_size=model)
    [command], [file] = made.commands, made.files
    train = f"{ENVIRONMENT}/src/metaseq/metaseq/cli/train.py"
    torchrun = (f"{ENVIRONMENT}/bin/python3", "-m", "torch.distributed.run", "--nproc_per_node", f"{gpus}")
    assert command.argv[:5] == torchrun
    # A folder of its own, as opt-baselines has it: a run goes on from the checkpoint that it finds.
    folder = f"{OUTPUT}/checkpoints/test-{model}.ngpu{gpus}"
    assert command.argv[-12:-6] == (file.path, model, str(gpus), train, "--save-dir", folder)
    assert command.ends == "done training in"
    assert "opt-few-gpus" in {each.finding for each in made.deviations}
    # The sweep's own words, from a launcher in the shape of metaseq's, and after them what few GPUs need.
    script = write(tmp_path, "train.py", "import sys\nprint(*sys.argv[1:])\n")
    write(tmp_path, "metaseq/launcher/opt_job_constants.py", SIZES)
    write(tmp_path, "metaseq/launcher/opt_baselines.py", BASELINES)
    own = write(tmp_path, "few_gpus.py", file.text)
    words = [str(script) if word == train else word for word in command.argv[-11:]]
    ran = completed([sys.executable, str(own), *words], check=True, env={"PYTHONPATH": str(tmp_path)})
    # Its own batch is that of all parts; on one GPU that of the two it wants at least.
    its = f"--task dummy_lm --full-megatron-init --batch-size {batch * parts}"
    ours = f"--model-parallel-size {parallel} --batch-size {batch} --update-freq {parts}"
    assert ran.stdout == f"{its} --save-dir {folder} {ours}\n"


@pytest.mark.parametrize(("model", "gpus"), [("8m", 1), ("8m", 2), ("125m", 2), ("125m", 4), ("125m", 8), ("66b", 8)])
def test_words_a_second_are_of_the_documents_tokens_and_few_gpus_start_another_program(model: str, gpus: int) -> None:
    # A row of the log counts the tokens of all parts and copies of the model, a copy's once however many ranks share
    # it: so its words/s are those of all GPUs together, as the document's claim is.
    made = started(OPT, place(1, gpus), model_size=model, gpu_gb="999")
    degrees = made.degrees
    assert degrees["tensor"] * degrees["data"] == gpus
    [row] = [row for row in stack(OPT).reference.models if row.name == model]  # type: ignore[union-attr]
    # opt-baselines itself starts a batch that the softmax takes.
    itself = made.commands[0].argv[0] == f"{ENVIRONMENT}/bin/opt-baselines"
    assert itself == ((model, gpus) in (("8m", 2), ("125m", 8))) == (not made.files)
    if not itself:
        counted = degrees["data"] * degrees["parts-of-a-step"] * degrees["sequences-a-rank"] * (row.sequence or 0)
        assert counted == row.batch_tokens


@pytest.mark.parametrize(
    ("gpus", "values", "what", "hint"),
    [
        (6, {}, "leaves each rank 85 sequences, no part of which", "--gpus-per-node 4"),
        (1, {"model_size": "175b"}, "is too large for 1 node of 1 GPU", "nodes of more GPUs, or a smaller model"),
        (2, {"submit": "sbatch"}, "submit, trials, where and cpus_per_gpu are opt-baselines' own", "leave out submit"),
        (2, {"where": "aws", "trials": "2"}, "submit, trials, where and cpus_per_gpu", "leave out trials and where"),
    ],
)
def test_few_gpus_are_refused_what_they_cannot_have(gpus: int, values: dict[str, str], what: str, hint: str) -> None:
    found = refusal(OPT, place(1, gpus), **values)
    assert found.exit_code == ExitCode.REFUSED
    assert what in found.what and hint in found.hint


MODELS = [row.name for row in stack(OPT).reference.models]  # type: ignore[union-attr]


def followed(hint: str, where: Place, /, **values: str) -> Launch:
    """What starts where the words of a hint are added to the command that was refused."""
    words = hint.split("`")[1].split()
    options = dict(zip(words[::2], words[1::2], strict=True))
    assert options and options.keys() <= {"--nodes", "--gpus-per-node"}, hint
    nodes = int(options.get("--nodes", where.nodes))
    return started(OPT, place(nodes, int(options.get("--gpus-per-node", where.gpus_per_node))), **values)


@pytest.mark.parametrize("model", MODELS)
def test_a_hint_of_opt_leads_to_what_starts_and_does_not_crash(model: str) -> None:
    for gpus in range(1, 17):
        try:
            started(OPT, place(1, gpus), model_size=model)
        except EnvbuildError as found:
            if gpus == 1:
                assert found.hint == "nodes of more GPUs, or a smaller model", "several nodes of one GPU are refused"
            else:
                assert followed(found.hint, place(1, gpus), model_size=model)


@pytest.mark.parametrize(
    ("where", "model", "options", "numbers"),
    [
        (place(1, 3), "125m", "--gpus-per-node 2", "1, 4, 6, 7, "),
        (place(1, 7), "125m", "--gpus-per-node 4", "1, 2, 3, 4, "),  # not 6: no part of 85 sequences x 6 heads
        (place(1, 2), "2.7b", "--nodes 16", "16, 18, "),  # fewer leave a rank more sequences than the softmax takes
        (place(1, 9), "175b", "--nodes 24 --gpus-per-node 8", "24, 25, "),
        (place(128), "125m", "--nodes 32", "1, 2, 4, "),
        (place(3, 1), "125m", "--nodes 1", "1"),
        (place(3, 3), "125m", "--nodes 4 --gpus-per-node 2", "1, 4, "),
        # Without Slurm it names one node.
        (place(1, 7, direct=True), "1.3b", "--gpus-per-node 6", "1"),
        (place(3, 7, direct=True), "1.3b", "--nodes 1 --gpus-per-node 6", "1"),
        (place(1, 8, direct=True), "175b", "", ""),
    ],
)
def test_a_hint_of_opt_is_the_nearest_place_that_the_softmax_takes_and_names_all(
    where: Place, model: str, options: str, numbers: str
) -> None:
    hint = refusal(OPT, where, model_size=model).hint
    if not options:
        assert hint == "nodes of more GPUs, or a smaller model"
        return
    assert hint.startswith(f"`{options}`") and f" a node on so many nodes: {numbers}" in hint, hint
    assert followed(hint, where, model_size=model)


def test_few_gpus_say_that_a_run_goes_on_from_the_checkpoint_and_no_defaults_that_they_do_not_use() -> None:
    def told(gpus: int, **fields: Any) -> list[str]:
        return [note for note in started(OPT, place(1, gpus, **fields)).notes if note.startswith("started again")]

    folder = f"{OUTPUT}/checkpoints/test-125m.ngpu2"
    assert told(2) == [
        f"started again in the same folder, it goes on from its checkpoint in {folder}: `--set prefix=NAME` begins anew"
    ]
    assert told(2, job="9") == [note.replace("test-125m", "test-125m-9") for note in told(2)]
    assert not told(8)
    unused = {"where", "trials", "submit"}
    assert [len(unused & said(started(OPT, place(1, gpus))).keys()) for gpus in (2, 8)] == [0, 3]


@pytest.mark.parametrize(
    ("model", "gpus", "words"),
    [
        ("1.3b", 14, "1 of 73 sequences at a time"),
        ("66b", 1, "4 of 1024 sequences at a time"),
        ("13b", 1, ""),
    ],
)
def test_parts_of_few_sequences_are_told_to_be_no_measure(model: str, gpus: int, words: str) -> None:
    notes = started(OPT, place(1, gpus), model_size=model, gpu_gb="999").notes
    found = [note for note in notes if "no measure of the document's run" in note]
    assert [note.startswith(words) for note in found] == ([True] if words else [])


def test_the_values_of_the_document_need_no_note_and_a_wheel_s_mpi_is_refused_on_several_nodes() -> None:
    guide = next(case["variables"] for case in recorded()["alcf"] if case["case"] == "the guide's command")
    lacks = {**guide, "USE_FLASH_ATTN_V2": "0"}
    for nodes, profile, values, words in (
        (2, "exact", guide, ()),
        (1, "module-2025-09-25", guide, ()),
        (1, "ported-cu130", lacks, ("not the document's values: USE_FLASH_ATTN_V2",)),
        (1, "exact", {**guide, "SEQ_LEN": "1024"}, ("not the document's values: SEQ_LEN 1024, not 4096",)),
    ):
        notes = started(ALCF, place(nodes, 4), profile, **values).notes
        named = [note for note in notes if note.startswith("not the document's")]
        assert len(named) == len(words) and all(map(str.startswith, named, words)), named
    stack, sets = load_stack("megatron-deepspeed-alcf").stack, {"USE_FLASH_ATTN_V2": "1"}
    (unasked,) = (
        text.rstrip(".") for text in stack.profiles["module-2025-09-25"].deviations if text.startswith("flash-attn ")
    )
    noted = {name: unasked in started(ALCF, place(1, 4), name, **sets).notes for name in ("exact", "module-2025-09-25")}
    assert noted == {"exact": False, "module-2025-09-25": True}
    assert unasked not in started(ALCF, place(1, 4), "module-2025-09-25").notes
    document = {"MODEL_SIZE_KEY": "GPT25B", "SEQ_LEN": "4096", **sets}
    assert document_values(stack, "module-2025-09-25", place(2, 4)) == document
    assert document_values(stack, "ported-cu130", place(1, 4)) == {}, "it is refused: no flash-attn"
    assert document_values(load_stack("opt-175b").stack, "exact", place(1, 8)) == {}
    with fails("launch-does-not-fit", match="2 nodes: MPI of the profile ported-cu130 is MPICH of a wheel, for one"):
        started(ALCF, place(2, 4), "ported-cu130", **lacks)
    with pytest.raises(EnvbuildError) as caught:
        started(ALCF, place(1, 4), "ported-cu130", **guide)
    assert (caught.value.code, caught.value.exit_code) == ("launch-does-not-fit", ExitCode.REFUSED)
    assert caught.value.hint.startswith("leave USE_FLASH_ATTN_V2 out, or `--profile exact`, or `--profile ported`")


def test_each_node_of_several_is_told_its_rank() -> None:
    # By itself c10d has the node listen that finds its own name in the address.
    argv = started(SLURM, place(2)).commands[0].argv
    words = argv[argv.index("bash") : argv.index(f"{ENVIRONMENT}/bin/python3")]
    told = completed([*words, "env"], env={"SLURM_NODEID": "7"})
    assert "PET_NODE_RANK=7" in told.stdout.splitlines()
    assert "--container-image" not in argv


# --- Alpa ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", MANUAL, ids=[f"{table.gpus}-{table.model}" for table in MANUAL])
def test_every_row_of_the_manual_list_can_be_launched(table: Any) -> None:
    where = place(max(1, table.gpus // 8), min(table.gpus, 8))
    for row, (batch, dp, tmp, pp, microbatches) in enumerate(table.cases, 1):
        made = started(ALPA, where, model=table.model, row=str(row))
        argv = made.commands[0].argv
        case = argv[argv.index("benchmark_gpt_one_case.py") + 1]
        assert case.startswith(f"('gpt', {batch}, 1024, "), row
        assert f"51200, {dp}, {tmp}, 1, {tmp}, {pp}, {microbatches}, False, True, " in case, row
        assert len(made.commands) == where.nodes, row
        assert any(f"PP {pp}: " in note and ("drift apart" in note) == (pp > 1) for note in made.notes), row


@pytest.mark.parametrize("gpus", [2, 64])
def test_counts_without_a_best_case_name_the_candidates(gpus: int) -> None:
    found = refusal(ALPA, place(max(1, gpus // 8), min(gpus, 8)))
    assert found.exit_code == ExitCode.REFUSED
    assert "row=1" in found.hint


def test_degrees_of_ones_own_are_allowed_and_said_to_be_unpublished() -> None:
    five = {**FIVE, "global_batch": "40", "pp": "2"}
    assert any("not a row of the manual list" in note for note in started(ALPA, place(), **five).notes)
    del five["microbatches"]
    assert "microbatches is not said" in refusal(ALPA, place(), **five).what


def test_the_forks_marker_line_is_expected_of_the_fork_only() -> None:
    assert any("with the fork's line" in note for note in started(ALPA, place()).notes)
    assert any("without a marker line" in note for note in started(ALPA, place(), profile="upstream-edit").notes)


def test_ported_starts_its_ranks_as_newer_torch_does() -> None:
    assert "torch.distributed.launch" in started(ALPA, place()).commands[0].argv
    assert "torch.distributed.run" in started(ALPA, place(), profile="ported").commands[0].argv


# --- all ----------------------------------------------------------------------------------------------------------

_NAMES = {name: RECIPES[launch_data(stack(name))[1].recipe].parameters.names() for name in WITH_RECIPE}
_VALUES = st.sampled_from(["1", "2", "3", "4", "8", "0", "-1", "64", "x", "", "{rank}", "true", "GPT25B", "175b"])


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(WITH_RECIPE),
    st.data(),
    st.integers(1, 16),
    st.integers(1, 16),
    st.sampled_from([None, "1", "123456.pbs"]),
    st.sampled_from([None, "image"]),
)
def test_anything_ends_in_commands_or_in_a_coded_refusal(
    name: str, data: st.DataObject, nodes: int, gpus: int, job: str | None, image: str | None
) -> None:
    values = data.draw(st.dictionaries(st.sampled_from(_NAMES[name]), _VALUES, max_size=4))
    try:
        made = started(name, place(nodes, gpus, job=job, image=image), **values)
    except EnvbuildError as error:
        assert error.code.startswith("launch-")
        assert error.exit_code in (ExitCode.USAGE, ExitCode.REFUSED)
        return
    assert made.commands[0].argv[0]
    assert not any("{" in word and "{rank}" not in word for c in made.commands for word in c.argv)
    assert {c.node for c in made.commands} in ({None}, {0}, set(range(nodes)))
    assert all(c.directory.startswith((ENVIRONMENT, OUTPUT)) for c in made.commands)


def own_stack(name: str, **launch_data: Any) -> Stack:
    """A shipped stack with other launch data, as a user's own file may have them."""
    shipped = stack(name)
    assert shipped.reference is not None and shipped.reference.launch is not None
    data = shipped.reference.launch.model_copy(update=launch_data)
    return shipped.model_copy(update={"reference": shipped.reference.model_copy(update={"launch": data})})


@pytest.mark.parametrize(
    ("name", "data", "lacks"),
    [
        (OPT, {"arguments": ("{no_such}",)}, "'no_such'"),
        (OPT, {"defaults": {}}, "model_size has no value"),
        (ALCF, {"before": {}}, "'mpiexec'"),
        (ALCF, {"configs": {}}, "'zero'"),
    ],
)
def test_launch_data_of_ones_own_that_lack_something_are_told(name: str, data: dict[str, Any], lacks: str) -> None:
    with fails("launch-parameter" if "defaults" in data else "launch-data", ExitCode.USAGE) as caught:
        launch(own_stack(name, **data), "exact", {}, place())
    assert lacks in caught.value.what


@pytest.mark.parametrize(("profile", "known"), [("ported-cu130", False), ("ported", True), ("exact", True)])
def test_alcf_says_deepspeed_mpi_only_to_a_deepspeed_that_knows_it(profile: str, known: bool) -> None:
    made = started(ALCF, place(1, 4), profile=profile, MODEL_SIZE_KEY="GPT125M")
    assert ("--deepspeed_mpi" in made.commands[0].argv) is known
    assert made.commands[0].argv[-1] == "--deepspeed"


@pytest.mark.parametrize("name", [ALCF, SLURM])
@pytest.mark.parametrize(
    ("profile", "stages", "timers"), [("ported-cu130", 1, True), ("ported-cu130", 2, False), ("exact", 2, True)]
)
def test_a_new_deepspeed_has_no_timers_in_a_pipeline(name: str, profile: str, stages: int, timers: bool) -> None:
    alcf = {"PPSIZE": str(stages), "MPSIZE": "2", "MODEL_SIZE_KEY": "GPT125M"}
    slurm = {"pipeline_parallel": str(stages), "tensor_parallel": "2"}
    made = started(name, place(1, 4), profile=profile, **(alcf if name == ALCF else slurm))
    config = json.loads(made.files[0].text)
    assert config["wall_clock_breakdown"] is timers
    # The profiler starts the same timers: with it on, and the breakdown off, the first backward pass stopped on a GPU.
    assert name == SLURM or config["flops_profiler"]["enabled"] is timers
    assert any("wall_clock_breakdown is off" in note for note in made.notes) is not timers


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"PMI_RANK": "3", "MPI_LOCALRANKID": "1"}, "3 1"),
        ({"PALS_RANKID": "5", "PMI_RANK": "5", "PALS_LOCAL_RANKID": "0"}, "5 0"),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}, "0 0"),
        ({"PMI_RANK": "3"}, "None None"),
    ],
)
def test_alcf_tells_deepspeed_its_rank_so_that_it_takes_the_port(
    variables: dict[str, str], told: str, tmp_path: Path
) -> None:
    made = started(ALCF, place(1, 4), profile="ported-cu130", MODEL_SIZE_KEY="GPT125M")
    argv, [_, file] = made.commands[0].argv, made.files
    at = argv.index(file.path)
    assert argv[at - 1] == argv[at + 1] == f"{ENVIRONMENT}/bin/python3"
    assert argv[at + 2].endswith("/pretrain_gpt.py")
    assert {"MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE"} <= set(made.commands[0].environment)
    assert "alcf-deepspeed-port" in {each.finding for each in made.deviations}
    own = write(tmp_path, "mpi_ranks.py", file.text)
    say = "import os; print(os.environ.get('RANK'), os.environ.get('LOCAL_RANK'))"
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PMI", "MPI", "PALS", "OMPI"))}
    ran = completed([sys.executable, str(own), sys.executable, "-c", say], check=True, env={**clean, **variables})
    assert ran.stdout == told + "\n"
    assert len(started(ALCF, place(1, 4), profile="exact").files) == 1, "0.10.3 is told --deepspeed_mpi"


def _told(made: Launch, finding: str) -> bool:
    return any(f"finding {finding}" in note for note in made.notes)


def test_alcf_tells_of_a_pipeline_whose_deepspeed_scales_gradients_at_every_stage() -> None:
    shipped = stack(ALCF)
    ported = shipped.profiles["ported-cu130"]

    def told(release: str, stages: str = "2") -> bool:
        """Of a stack of one's own that pins this release."""
        pinned = (*(text for text in ported.packages if "deepspeed" not in text), f"deepspeed=={release}")
        own = shipped.model_copy(update={"profiles": {"mine": ported.model_copy(update={"packages": pinned})}})
        values = {"PPSIZE": stages, "MPSIZE": "2", "MODEL_SIZE_KEY": "GPT125M"}
        return _told(launch(own, "mine", values, place(1, 4)), "alcf-pipeline-gradients")

    assert [release for release in ("0.10.3", "0.18.3", "0.19.0", "0.19.2", "0.19.3", "0.19.4") if told(release)] == [
        "0.18.3",
        "0.19.0",
        "0.19.2",
    ]
    assert not told("0.19.0", "1")


SMALL = {"MODEL_SIZE_KEY": "GPT125M"}
STAGES = {**SMALL, "PPSIZE": "2", "MPSIZE": "2"}


@pytest.mark.parametrize(
    ("finding", "name", "profile", "where", "values", "told"),
    [
        *(("alcf-pipeline-gradients", ALCF, profile, place(1, 4), STAGES, False)  # none pins such a DeepSpeed
          for profile in ("ported-cu130", "ported", "exact")),
        ("alcf-no-mask", ALCF, "exact", place(1, 4), {**SMALL, "SEQ_LEN": "8192"}, True),
        ("alcf-no-mask", ALCF, "exact", place(1, 4), {**SMALL, "SEQ_LEN": "4096"}, False),
        ("alcf-no-mask", ALCF, "exact", place(1, 4), {**SMALL, "SEQ_LEN": "8192", "USE_FLASH_ATTN_V2": "1"}, False),
        ("alcf-no-mask", ALCF, "exact", place(1, 4), {**STAGES, "SEQ_LEN": "8192"}, False),  # a pipeline makes its own
        ("app-unfinished-gradients", APP, "exact", place(1, 4), {}, True),
        ("app-unfinished-gradients", APP, "exact", place(1, 1), {"pipeline_parallel": "1"}, False),
        ("app-unfinished-gradients", APP, "ported-cu130", place(1, 4), {}, False),  # an edit
        ("app-sharded-embedding", APP, "exact", place(2, 4), {}, True),
        ("app-sharded-embedding", APP, "exact", place(1, 4), {}, False),  # data parallel 1
        ("app-sharded-embedding", APP, "exact", place(1, 4), {"pipeline_parallel": "1"}, False),
    ],
)  # fmt: skip
def test_a_note_tells_of_a_finding_where_it_comes_up(
    finding: str, name: str, profile: str, where: Place, values: dict[str, str], told: bool
) -> None:
    assert _told(started(name, where, profile=profile, **values), finding) is told


def test_an_embedding_is_not_cut_where_the_optimizer_is_not_distributed() -> None:
    words = tuple(each for each in launch_data(stack(APP))[1].arguments if each != "--use-distributed-optimizer")
    assert not _told(launch(own_stack(APP, arguments=words), "exact", {}, place(2, 4)), "app-sharded-embedding")


def test_slurm_refuses_zero_0_where_deepspeed_has_another_name_for_the_loss_scale() -> None:
    with pytest.raises(EnvbuildError) as caught:
        started(SLURM, place(), profile="ported-cu130", zero_stage="0")
    assert (caught.value.exit_code, caught.value.hint) == (ExitCode.REFUSED, "zero_stage=1")
    assert "slurm-zero-none" in str(caught.value.why)
    assert "--zero-stage=0" in started(SLURM, place(), zero_stage="0").commands[0].argv  # DeepSpeed 0.6.3
