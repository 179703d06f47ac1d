"""The published schemas are those of the models, and the shipped files fit them."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuild import resources
from envbuild.catalog.schema import MODELS, main, schema_text
from envbuild.catalog.yaml_load import load_yaml
from tests.support.schemas import schema_validator

DOCS = Path(__file__).resolve().parents[2] / "docs" / "schemas"


@pytest.mark.parametrize("noun", MODELS)
def test_the_published_schema_is_current(noun: str) -> None:
    published = (DOCS / f"{noun}.schema.json").read_text(encoding="utf-8")
    assert published == schema_text(noun), "stale: run `python -m envbuild.catalog.schema docs/schemas`"


@pytest.mark.parametrize("noun", MODELS)
def test_shipped_files_fit_the_schema(noun: str) -> None:
    validator = schema_validator(schema_text(noun))
    files = sorted((resources.catalog() / f"{noun}s").glob("*.yaml"))
    assert files
    for path in files:
        validator.validate(load_yaml(path))


def test_an_unknown_key_does_not_fit_the_schema() -> None:
    validator = schema_validator(schema_text("target"))
    assert not validator.is_valid({"name": "x", "prefix": "/x", "prefx": "/y"})


def test_the_command_writes_both_and_needs_a_folder(tmp_path: Path) -> None:
    assert main([]) == 2
    assert main([str(tmp_path / "out")]) == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"stack.schema.json", "target.schema.json"}
