"""Small data for a stack's own run: which files and commands, and nothing half made."""

from __future__ import annotations

import hashlib
import json
import lzma
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from envbuild.catalog.loader import load_stack, shipped_lock
from envbuild.cli.verbs import cli
from envbuild.errors import EnvbuildError
from envbuild.launch.recipes import preparation
from envbuild.launch.request import Place
from envbuild.lock.files import read_lock
from envbuild.lock.record import render_lock
from envbuild.node.smoke import training_data
from envbuild.provision.training_data import make
from tests.launch.support import place, stack
from tests.support.fails import fails
from tests.support.files import write_file

SLURM = "megatron-deepspeed-slurm"
# Stands in for the stack's tool: it has to find its own imports beside it and its input where it is started.
TOOL = """
import argparse, hashlib, json, os, sys
parser = argparse.ArgumentParser()
for name in ("input", "output-prefix", "vocab-file", "merge-file", "tokenizer-type", "workers"):
    parser.add_argument("--" + name, required=True)
if "Megatron/" not in sys.argv[0]:
    parser.add_argument("--dataset-impl", required=True)
parser.add_argument("--append-eod", action="store_true", required=True)
args = parser.parse_args()
if os.environ.get("BREAK"):
    open("half.bin", "w").close()
    # As the tool of megatron-deepspeed-alcf does, whose work is that of a process of its own.
    sys.exit(0 if os.environ["BREAK"] == "softly" else "the tool broke: " + os.environ["BREAK"])
vocabulary = json.load(open(args.vocab_file))
texts = [json.loads(line)["text"] for line in open(args.input)]
for end in (".bin", ".idx"):
    with open(args.output_prefix + "_text_document" + end, "w") as file:
        file.write(end + hashlib.sha256("".join(texts).encode()).hexdigest() + str(len(vocabulary)))
"""


@pytest.fixture
def built(tmp_path: Path) -> Place:
    """A place whose environment has the tool in the source's folder."""
    environment = tmp_path / "env"
    for source in ("megatron-deepspeed", "megatronapp/Megatron"):
        tools = environment / "src" / source / "tools"
        write_file(tools / "preprocess_data.py", TOOL)
    (environment / ".envbuild").mkdir()
    (environment / "bin").mkdir()
    (environment / "bin/python").symlink_to(sys.executable)
    (environment / ".envbuild/activate.sh").write_text(f"PATH={environment}/bin:$PATH; export PATH\n")
    return place(environment=str(environment), output=str(tmp_path / "data"))


def test_the_data_have_the_names_that_launch_reads_and_are_the_same_every_time(built: Place) -> None:
    found = preparation(stack(SLURM), built)
    assert found.files == {"oscar-1GB.jsonl": "corpus", "gpt2-vocab.json": "vocabulary", "gpt2-merges.txt": "merges"}
    (command,) = found.commands
    assert command.argv[:2] == ("python", f"{built.environment}/src/megatron-deepspeed/tools/preprocess_data.py")
    assert (command.directory, command.argv[-3:]) == (built.output, ("--append-eod", "--workers", "8"))
    made = make(stack(SLURM), built)
    name = stack(SLURM).reference.launch.defaults["data_name"]  # type: ignore[union-attr]
    assert {f"{name}.bin", f"{name}.idx", "gpt2-vocab.json", "gpt2-merges.txt"} <= made.keys()
    folder = Path(built.output)
    assert {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()} == made
    assert make(stack(SLURM), built) == made


def test_the_data_of_megatronapp_have_the_names_that_its_launch_reads(built: Place) -> None:
    made = make(stack("megatronapp"), built)
    words = [word for word in stack("megatronapp").reference.launch.arguments if isinstance(word, str)]  # type: ignore[union-attr]
    read = [word.removeprefix("{data}/") for word in words if word.startswith("{data}/")]
    assert read == ["gpt-large-cased-vocab-small_text_document", "vocab.json", "merges.txt"]
    assert {f"{read[0]}.bin", f"{read[0]}.idx", *read[1:]} <= made.keys()


def test_the_data_of_alcf_have_the_names_that_its_launch_reads_and_need_no_module_that_its_tool_does_not_use(
    built: Place,
) -> None:
    tool = Path(built.environment, "src/megatron-deepspeed/tools/preprocess_data.py")
    # As the tool does: it takes a class of what it may not have, for a way that is not gone.
    tool.write_text(
        "try:\n    import nltk\nexcept ImportError:\n    pass\n"
        "class Kept(nltk.tokenize.punkt.PunktLanguageVars):\n    pass\n"
        "assert nltk.__spec__.origin.startswith(__import__('os').getcwd())\n"
        + TOOL.replace('("input",', '("json-keys", "input",').replace('parser.add_argument("--dataset-impl"', "print(")
        .replace(", required=True)\nparser", ")\nparser").replace('["text"]', '["sequence"]')
        .replace('"_text_document"', '"_" + args.json_keys + "_document"')
    )  # fmt: skip
    made = make(stack("megatron-deepspeed-alcf"), built)
    defaults = stack("megatron-deepspeed-alcf").reference.launch.defaults  # type: ignore[union-attr]
    name = defaults["DATA_TYPE"]
    assert {f"{name}.bin", f"{name}.idx", "gpt2-vocab.json", "gpt2-merges.txt"} <= made.keys()
    assert {path.name for path in Path(built.output).iterdir()} == set(made), (
        "what stands in for nltk is not among them"
    )


def test_what_stands_in_for_a_module_lends_classes_and_does_nothing(tmp_path: Path) -> None:
    training_data.write_file("unused", str(tmp_path / "nltk.py"))
    text = (tmp_path / "nltk.py").read_text()
    space: dict[str, Any] = {}
    exec(compile(text, "nltk.py", "exec"), space)
    name = space["__getattr__"]("tokenize").punkt.PunktLanguageVars
    assert issubclass(type("Kept", (name,), {}), name)
    with pytest.raises(AttributeError, match="stands in"):
        name().tokenize("a sentence")


@pytest.mark.parametrize("name", ["megatron-alpa", "opt-175b"])
def test_a_stack_whose_tool_cannot_make_data_says_why(built: Place, name: str) -> None:
    with pytest.raises(EnvbuildError) as caught:
        make(stack(name), built)
    told = stack(name).reference
    assert told is not None and told.no_data is not None
    assert (caught.value.code, int(caught.value.exit_code), caught.value.why) == ("data-not-made", 7, told.no_data)


def test_a_tool_that_fails_leaves_what_was_there(built: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BREAK", "softly")
    with fails("data-failed") as caught:
        make(stack(SLURM), built)
    assert caught.value.what.endswith("preprocess_data.py failed: exit code 0, half.bin is empty")
    assert list(Path(built.output).iterdir()) == []
    monkeypatch.delenv("BREAK")
    before = make(stack(SLURM), built)
    monkeypatch.setenv("BREAK", "on purpose")
    with fails("data-failed", 1) as caught:
        make(stack(SLURM), built)
    assert "the tool broke: on purpose" in caught.value.why
    assert sorted(path.name for path in Path(built.output).iterdir()) == sorted(before)


def test_without_an_environment_or_for_a_stack_that_does_not_say_how_nothing_is_made(
    built: Place, tmp_path: Path
) -> None:
    known = stack(SLURM)
    assert known.reference is not None
    silent = known.model_copy(update={"reference": known.reference.model_copy(update={"prepare": ()})})
    for each, where, code in (
        (known, built.model_copy(update={"environment": str(tmp_path / "none")}), "environment-unknown"),
        (silent, built, "no-recipe"),
    ):
        with fails(code) as caught:
            make(each, where, host="login1")
        assert ("the prefix is on login1: run this command there" in caught.value.hint) == (each is known)
        assert not Path(built.output).exists()


@pytest.mark.parametrize("name", [SLURM, "megatronapp"])
def test_the_tokenizer_covers_the_corpus_and_every_part_of_the_document_s_split_has_a_document(
    name: str, tmp_path: Path
) -> None:
    for kind in ("vocabulary", "merges", "corpus"):
        training_data.write_file(kind, str(tmp_path / kind))
    vocabulary = json.loads((tmp_path / "vocabulary").read_text())
    merges = (tmp_path / "merges").read_text().splitlines()
    assert merges[0] == "#version: 0.2"
    assert sorted(vocabulary.values()) == list(range(256 + len(merges[1:]) + 1))
    assert all(merge.replace(" ", "") in vocabulary for merge in merges[1:])
    texts = [json.loads(line)["text"] for line in (tmp_path / "corpus").read_text().splitlines()]
    assert len(set(texts)) > 20 and all(merge.replace(" ", "") in " ".join(texts) for merge in merges[1:])
    # Megatron builds a data set of each part that is not 0, and asserts that it has a document.
    reference = stack(name).reference
    assert reference is not None and reference.launch is not None
    words = [word for word in reference.launch.arguments if isinstance(word, str)]
    parts = [float(part) for part in words[words.index("--split") + 1].split(",")]
    ends = [round(len(texts) * sum(parts[: number + 1]) / sum(parts)) for number in range(len(parts))]
    sizes = [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
    assert all(size >= 1 for part, size in zip(parts, sizes, strict=True) if part), sizes


def test_the_data_of_the_smoke_item_have_the_same_tokenizer(tmp_path: Path) -> None:
    training_data.write_gpt2(str(tmp_path))
    training_data.write_file("vocabulary", str(tmp_path / "v"))
    assert (tmp_path / "gpt2-vocab.json").read_bytes() == (tmp_path / "v").read_bytes()
    assert (tmp_path / "data_text_document.bin").stat().st_size == 200 * 401 * 2


def test_a_folder_that_cannot_be_made_is_said_and_no_mistake_of_envbuild(built: Place, tmp_path: Path) -> None:
    output = Path(built.environment, "bin", "python", "below")
    asked = ["data", SLURM, "--environment", built.environment, "--output", str(output)]
    done = CliRunner().invoke(cli, asked, standalone_mode=False)
    assert getattr(done.exception, "code", done.exception) == "output-unwritable"


# --- the document's own files (D82) -------------------------------------------------------------------------------

CORPUS = "".join(json.dumps({"text": f"document {n}"}) + "\n" for n in range(9)).encode()
REAL = {
    "oscar-1GB.jsonl.xz": lzma.compress(CORPUS),
    "gpt2-vocab.json": json.dumps({"a": 0, "b": 1}).encode(),
    "gpt2-merges.txt": b"#version: 0.2\na b\n",
}


@pytest.fixture
def carried(tmp_path: Path) -> Path:
    folder = tmp_path / "stick"
    folder.mkdir()
    for name, content in REAL.items():
        (folder / name).write_bytes(content)
    return folder


def data(built: Place, *words: str) -> tuple[int, dict[str, Any], str]:
    arguments = ["data", SLURM, "--environment", built.environment, "--output", built.output, "--json", *words]
    done = CliRunner().invoke(cli, arguments)
    if isinstance(done.exception, EnvbuildError):
        return int(done.exception.exit_code), {"error": done.exception.as_dict()}, done.stderr
    return done.exit_code, json.loads(done.stdout or "{}"), done.stderr


@pytest.fixture
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("envbuild.resources.user_locks", lambda: tmp_path / "locks")
    return tmp_path / "locks" / f"{SLURM}.{stack(SLURM).default_profile}.lock.toml"


def test_d82_real_data_are_unpacked_preprocessed_recorded_and_compared(
    built: Place, carried: Path, locks: Path
) -> None:
    code, made, _ = data(built, "--real", "--from", str(carried))
    assert (code, made["kind"]) == (0, "real")
    name = stack(SLURM).reference.launch.defaults["data_name"]  # type: ignore[union-attr]
    texts = "".join(f"document {n}" for n in range(9))
    assert Path(built.output, f"{name}.bin").read_text() == f".bin{hashlib.sha256(texts.encode()).hexdigest()}2"
    assert Path(built.output, "oscar-1GB.jsonl").read_bytes() == CORPUS
    assert read_lock(locks).data == {each: hashlib.sha256(content).hexdigest() for each, content in REAL.items()}
    assert data(built, "--real")[0] == 0, "what is there and right is not fetched again"
    for file in REAL:
        Path(built.output, file).unlink()
    (carried / "gpt2-merges.txt").write_text("another\n")
    code, said, _ = data(built, "--real", "--from", str(carried))
    assert (code, said["error"]["code"]) == (5, "hash-mismatch")


def test_d82_recorded_data_outlive_lock_record_and_a_new_lock(built: Place, carried: Path, locks: Path) -> None:
    data(built, "--real", "--from", str(carried))
    before = read_lock(locks)
    done = CliRunner().invoke(cli, ["lock", "record", SLURM, "--from", str(carried)])
    assert read_lock(locks).data == before.data, done.output
    assert (
        render_lock(before.model_copy(update={"data": {}})) == shipped_lock(load_stack(SLURM), "exact")[0].read_text()
    )


def test_d82_without_a_network_the_error_says_what_to_carry(
    built: Place, tmp_path: Path, locks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, said, _ = data(built, "--real", "--from", str(tmp_path))
    assert (code, said["error"]["code"]) == (7, "data-not-made")
    assert "--from DIR (it is at https://huggingface.co/" in said["error"]["hint"]
    failure = EnvbuildError("download-failed", "cannot download x", hint="check the network")

    def refuse(*_: Any, **__: Any) -> None:
        raise failure

    monkeypatch.setattr("envbuild.provision.training_data.download", refuse)
    code, said, _ = data(built, "--real")
    assert (code, said["error"]["hint"]) == (
        75, "check the network; or carry oscar-1GB.jsonl.xz here and name its folder: --from DIR"
    )  # fmt: skip
    assert not locks.exists()


def test_d82_synthetic_data_say_that_they_are(built: Place) -> None:
    code, made, said = data(built)
    assert (code, made["kind"]) == (0, "synthetic")
    assert "synthetic; --real takes the document's own" in said
    assert data(built, "--from", built.output)[0] == 2
