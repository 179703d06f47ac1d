"""Parses the YAML files of the catalog and the shipped locks for `envbuild/catalog/parsed/`, one JSON file for each."""

from __future__ import annotations

import json
from pathlib import Path

from envbuild import resources
from envbuild.catalog.yaml_load import parse_yaml, parsed_file
from envbuild.lock.files import lock_json
from envbuild.node.paths import write_whole

FOLDER = resources.catalog() / "parsed"


def parsed() -> dict[Path, str]:
    """What the folder has to hold."""
    contents = [path.read_bytes() for path in resources.catalog().rglob("*.yaml")]
    made = {
        parsed_file(each): json.dumps(parse_yaml(each, "").data, separators=(",", ":"), ensure_ascii=False) + "\n"
        for each in contents
    }
    locks = resources.lockfiles().glob("*.lock.toml")
    return made | {
        parsed_file(path.read_bytes()): lock_json(path.read_text("utf-8"), path.name) + "\n" for path in locks
    }


if __name__ == "__main__":
    texts = parsed()
    for old in set(FOLDER.iterdir()) - set(texts):
        old.unlink()
    for path, text in texts.items():
        # Whole or not at all: a command that runs meanwhile reads it.
        if not path.is_file() or path.read_bytes() != text.encode():
            write_whole(str(path), text.encode())
