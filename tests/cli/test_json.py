"""`--json`: one JSON document on stdout, whatever the verb and however it ends."""

from __future__ import annotations

import pytest

from envbuild.cli.verbs import COMMANDS
from envbuild.model.evidence import EVIDENCE_VERSION
from tests.e2e.world import World

GOOD = [
    "plan ./tiny.yaml",
    "doctor --facts-out facts.json",
    "provision --stack ./tiny.yaml --dry-run",
    "doctor",
    "explain torch-smoke",
    "stack show torch-smoke",
    "stack check torch-smoke ./tiny.yaml",
    "target check local ssh",
    "lock create ./tiny.yaml",
    "lock check ./tiny.yaml",
    "lock diff ./tiny.lock.toml ./tiny.lock.toml",
    "lock export ./tiny.yaml --format requirements",
    "patch list",
    "launch opt-175b --gpus-per-node 8",
    "launch megatronapp --parameters",
    "init new.yaml --facts h200",
    "status --all",
    "store clean --target local",
    "image dockerfile ./tiny.yaml",
    "image pods megatronapp --image example.org/x:1",
    "run list",
    "config show",
    "completion bash",
]
BAD = {
    "plan --stack torch-smok": 2,
    "doctor --facts-out facts.json --target locale": 2,
    "provision --no-such-option": 2,
    "up ./none.yaml": 2,
    "smoke --stack ./tiny.yaml": 1,
    "verify --stack ./tiny.yaml": 1,
    "stack check ./none.yaml": 2,
    "target check locale": 2,
    "lock create ./none.yaml": 2,
    "lock diff ./none.toml ./none.toml": 2,
    "lock export ./tiny.yaml --variant none": 2,
    "patch apply none .": 2,
    "launch ./tiny.yaml": 2,
    "bench ./tiny.yaml --gpus-per-node 1": 2,
    "trace ./tiny.yaml": 2,
    "data opt-175b": 7,
    "strategy opt-175b --gpus 8 --gpu H200 --dry-run": 2,
    "launch opt-175b --gpus-per-node 8 --set model_size=175b": 7,
    "status": 1,
    "env activate tiny": 1,
    "env use none": 2,
    "env remove none": 2,
    "bundle verify none.tar": 2,
    "store list --target locale": 2,
    "store clean --keep -1d": 2,
    "plan ./tiny.yaml --stack ./other.yaml": 2,
    "cache clean": 2,
    "image dockerfile megatron-alpa --profile exact": 5,
    "image dockerfile megatron-deepspeed-alcf --profile exact": 7,
    "image pods torch-smoke --image example.org/x:1": 2,
    "run show none": 2,
    "report show none": 2,
    "completion tcsh": 2,
    "no-such-verb": 2,
}


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(tmp_path_factory.mktemp("json"))
    world.tiny()
    return world


@pytest.mark.parametrize("line", GOOD)
def test_a_result_is_one_json_document(locked: World, line: str) -> None:
    done = locked.run(*line.split(), "--json")
    assert done.json["schema"] == 1
    assert done.rc in ({0, 1} if line == "doctor" else {0}), done.err
    assert not locked.prefix.exists()


@pytest.mark.parametrize(("line", "code"), BAD.items())
def test_an_error_is_one_json_document_too(locked: World, line: str, code: int) -> None:
    done = locked.run(*line.split(), "--json")
    assert done.rc == code, done.err
    assert "Traceback" not in done.err
    told = done.json
    # Evidence names its own schema.
    assert told.get("schema") == 1 or told["schema_version"] == EVIDENCE_VERSION
    if "error" in told:
        assert told["error"]["exit"] == code
        assert told["error"]["code"] == done.code
    else:
        # A verb over several things tells the error of each.
        assert line.startswith(("stack check", "target check", "verify", "smoke", "status"))
    assert not locked.prefix.exists()


def test_every_verb_is_asked_for_a_result_or_an_error() -> None:
    asked = {line.split()[0] for line in (*GOOD, *BAD)}
    assert asked >= set(COMMANDS)
