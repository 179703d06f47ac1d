"""The published schema is the model's, and real evidence satisfies it."""

from __future__ import annotations

from pathlib import Path

from envbuild.report.schema import evidence_schema, main
from tests.report.samples import evidence
from tests.support.schemas import schema_validator

PUBLISHED = Path(__file__).parents[2] / "docs" / "schemas" / "evidence.schema.json"


def test_the_published_schema_is_what_the_model_gives() -> None:
    command = "python -m envbuild.report.schema docs/schemas/evidence.schema.json"
    assert PUBLISHED.read_text() == evidence_schema(), f"regenerate it: {command}"


def test_the_command_writes_the_schema_and_refuses_other_arguments(tmp_path: Path) -> None:
    assert main([str(tmp_path / "schema.json")]) == 0
    assert (tmp_path / "schema.json").read_text() == evidence_schema()
    assert main([]) == 2


def test_evidence_satisfies_the_schema_and_an_unknown_key_does_not() -> None:
    validator = schema_validator(evidence_schema())
    data = evidence().to_json_dict()
    assert list(validator.iter_errors(data)) == []
    assert list(validator.iter_errors(data | {"surprise": 1}))
