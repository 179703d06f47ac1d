"""JSON Schemas of the files that people write, for editors: `python -m envbuild.catalog.schema docs/schemas`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from envbuild.model.common import StrictModel
from envbuild.model.stack import Stack
from envbuild.model.target import Target

MODELS: dict[str, type[StrictModel]] = {"stack": Stack, "target": Target}


def schema_text(noun: str) -> str:
    """The schema of a `stack` or `target` file as indented JSON."""
    schema = MODELS[noun].model_json_schema(by_alias=True)
    if noun == "target":
        # What `extends:` brings need not be said again; only the name is never inherited.
        schema["required"] = ["name"]
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def write_schemas(folder: Path) -> list[Path]:
    """Write `<noun>.schema.json` for every noun; returns the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for noun in MODELS:
        path = folder / f"{noun}.schema.json"
        path.write_text(schema_text(noun), encoding="utf-8")
        paths.append(path)
    return paths


def main(arguments: list[str]) -> int:
    """Write into the folder that is named."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m envbuild.catalog.schema FOLDER\n")
        return 2
    write_schemas(Path(arguments[0]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
