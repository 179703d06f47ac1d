"""Writes the JSON Schemas (2020-12) of the files that people write or exchange: `docs/schemas/*.schema.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from envbuild.kit.manifest import KIT_VERSION, Manifest
from envbuild.model.common import StrictModel
from envbuild.model.evidence import EVIDENCE_VERSION, Evidence
from envbuild.model.stack import Stack
from envbuild.model.target import Target

FOLDER = Path(__file__).parent / "schemas"
MODELS: dict[str, type[StrictModel]] = {"evidence": Evidence, "kit": Manifest, "stack": Stack, "target": Target}
# Those that say their version, which names the schema.
VERSIONS = {"evidence": EVIDENCE_VERSION, "kit": KIT_VERSION}


def schema_text(noun: str) -> str:
    """The schema of one of `MODELS` as indented JSON with a last newline."""
    head: dict[str, Any] = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    schema = MODELS[noun].model_json_schema(by_alias=True)
    if noun in VERSIONS:
        head["$id"] = f"urn:envbuild:{noun}:{VERSIONS[noun]}"
        schema["title"] = f"envbuild {noun} {VERSIONS[noun]}"
    if noun == "target":
        # What `extends:` brings need not be said again; only the name is never inherited.
        schema["required"] = ["name"]
    return json.dumps(head | schema, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for name in MODELS:
        (FOLDER / f"{name}.schema.json").write_text(schema_text(name), encoding="utf-8")
