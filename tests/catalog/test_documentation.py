"""The examples in the guides are complete and valid."""

from __future__ import annotations

import re
from pathlib import Path

from envbuild.catalog.loader import load_stack, load_target
from envbuild.catalog.yaml_load import parse_yaml
from envbuild.model.stack import SmokeItem

DOCS = Path(__file__).resolve().parents[2] / "docs"


def examples(name: str) -> list[str]:
    return re.findall(r"^```yaml\n(.*?)^```", (DOCS / name).read_text(encoding="utf-8"), re.S | re.M)


def test_the_example_of_a_stack_loads(tmp_path: Path) -> None:
    [text, *_], [conda], [_, launch] = (examples(name) for name in ("stacks.md", "conda.md", "launch.md"))
    path = tmp_path / "my.yaml"
    path.write_text(text.replace("findings:\n", conda + "findings:\n", 1) + launch, encoding="utf-8")
    stack = load_stack(str(path)).stack
    assert stack.reference is not None and stack.reference.launch is not None
    assert stack.reference.launch.source in {source.name for source in stack.profiles["exact"].sources}
    assert stack.reference.bench is not None and stack.reference.bench.figure == "iteration-time"
    profile = stack.profiles["exact"]
    assert stack.name == "tiny-gpt"
    assert profile.python == ("3.11", "3.12")
    assert profile.environment["WANDB_NOTES"] == "$(arrives as it is written)"
    assert profile.conda is not None and profile.conda.channels[0].name == "conda-forge"
    assert stack.findings[0].severity == "unpinned"


def test_the_examples_of_a_target_and_of_a_first_step_load(tmp_path: Path) -> None:
    text, *_ = examples("targets.md")
    path = tmp_path / "my-target.yaml"
    path.write_text(text, encoding="utf-8")
    target = load_target(str(path)).target
    assert (target.connection.kind, target.connection.user) == ("ssh", "builder")
    assert target.hosts == ("gpu01", "gpu02")
    [block, _] = examples("launch.md")
    [item] = parse_yaml(block.encode(), "launch.md").data
    step = SmokeItem.from_plain(item).step
    assert step is not None and (step.source, step.steps) == ("trainer", 10)
