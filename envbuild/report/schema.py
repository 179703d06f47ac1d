"""The JSON Schema of evidence, generated from the model: `python -m envbuild.report.schema FILE` writes it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from envbuild.model.evidence import EVIDENCE_VERSION, Evidence


def evidence_schema() -> str:
    """JSON Schema (2020-12) of one evidence document, as text with a last newline."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:envbuild:evidence:{EVIDENCE_VERSION}",
        **Evidence.model_json_schema(mode="validation"),
        "title": f"envbuild evidence {EVIDENCE_VERSION}",
    }
    return json.dumps(schema, indent=2, ensure_ascii=True) + "\n"


def main(argv: list[str]) -> int:
    """Write the schema to the one file named; 2 when called otherwise."""
    if len(argv) != 1:
        sys.stderr.write("usage: python -m envbuild.report.schema FILE\n")
        return 2
    Path(argv[0]).write_text(evidence_schema(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
