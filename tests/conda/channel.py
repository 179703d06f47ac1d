"""Channels of records alone: what a solver reads. Nothing of them can be installed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from envbuild.conda.channels import Place

LINUX = {"__unix": "0", "__linux": "5.10", "__glibc": "2.28", "__archspec": "1=x86_64"}


def record(name: str, version: str, build: str = "0", *depends: str, **fields: Any) -> dict[str, Any]:
    """One record as repodata has it; `file` and `ext` name the archive, `None` takes a field away."""
    ext = fields.pop("ext", ".conda")
    file = fields.pop("file", f"{name}-{version}-{build}{ext}")
    data = {
        "name": name, "version": version, "build": build, "build_number": 0, "depends": list(depends),
        "subdir": "linux-64", "sha256": hashlib.sha256(file.encode()).hexdigest(), "size": 1000,
        "timestamp": 1_600_000_000_000,
    } | fields  # fmt: skip
    return {"fn": file} | {key: value for key, value in data.items() if value is not None}


def channel(folder: Path, *records: dict[str, Any]) -> Place:
    """A channel with these records in their order; what is written before is forgotten."""
    usual = ("linux-64", "linux-aarch64", "noarch")
    for subdir in usual:
        # A record of no usual folder lies in that of Linux, as no honest channel has it.
        own = [
            dict(each)
            for each in records
            if (each.get("subdir") if each.get("subdir") in usual else usual[0]) == subdir
        ]
        by_format: dict[str, dict[str, Any]] = {"packages": {}, "packages.conda": {}}
        for each in own:
            file = each.pop("fn")
            by_format["packages.conda" if file.endswith(".conda") else "packages"][file] = each
        (folder / subdir).mkdir(parents=True, exist_ok=True)
        text = json.dumps({"info": {"subdir": subdir}, **by_format, "repodata_version": 1})
        (folder / subdir / "repodata.json").write_text(text)
    return Place(folder.name, ((folder.as_uri(),),))


PYTHONS = (record("python", "3.9.18"), record("python", "3.8.18", ext=".tar.bz2"))
