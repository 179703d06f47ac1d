"""The published schemas are those of the models; what envbuild ships and writes fits them."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from envbuild import __version__, resources
from envbuild.catalog.yaml_load import load_yaml
from envbuild.kit.manifest import Manifest, listed, render
from tests.report.samples import evidence
from tests.support.schemas import schema_validator

DOCS = Path(__file__).resolve().parents[1] / "docs"


def published() -> dict[str, str]:
    return {path.name.partition(".")[0]: path.read_text("utf-8") for path in (DOCS / "schemas").glob("*.schema.json")}


def test_every_published_schema_is_what_its_model_gives() -> None:
    spec = importlib.util.spec_from_file_location("make_schemas", DOCS / "make_schemas.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    assert published() == {noun: made.schema_text(noun) for noun in made.MODELS}, "docs/make_schemas.py writes them"


@pytest.mark.parametrize("noun", ["stack", "target"])
def test_shipped_files_fit_the_schema(noun: str) -> None:
    validator = schema_validator(published()[noun])
    files = sorted((resources.catalog() / f"{noun}s").glob("*.yaml"))
    assert files
    for path in files:
        validator.validate(load_yaml(path))
    assert not validator.is_valid({**load_yaml(files[0]), "prefx": "/y"})


def manifest() -> dict[str, Any]:
    form = Manifest(envbuild=__version__, form="published", files=listed({"a": b"", "b/c": b"1"}))
    return dict(json.loads(render(form)))


WRITTEN: dict[str, Any] = {"evidence": evidence().to_json_dict(), "kit": manifest()}


@pytest.mark.parametrize("noun", WRITTEN)
def test_what_is_written_fits_the_schema_and_an_unknown_key_does_not(noun: str) -> None:
    validator = schema_validator(published()[noun])
    validator.validate(WRITTEN[noun])
    assert not validator.is_valid(WRITTEN[noun] | {"surprise": 1})
    assert not validator.is_valid(WRITTEN[noun] | {"schema_version": "99.0"})
    for path in ("../x", "/etc/passwd", "a//b", ".git/config", "-rf", "a\nb") if noun == "kit" else ():
        files = [{**WRITTEN[noun]["files"][0], "path": path}]
        assert not validator.is_valid(WRITTEN[noun] | {"files": files}), path
