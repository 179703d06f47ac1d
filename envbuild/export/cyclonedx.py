"""A variant as a bill of materials (CycloneDX 1.5, JSON): its packages by hash, its sources by commit.

Nothing in it says when it was made, so one variant gives one file.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from envbuild.model.lock import Lock, LockedPackage, LockedSource, Variant


def cyclonedx(lock: Lock, variant: Variant) -> str:
    """The document; a package that may be one of several files has no hash there."""
    parts = [*map(_package, variant.packages), *map(_source, variant.sources)]
    for each in variant.conda.packages if variant.conda else ():
        purl = (
            f"pkg:conda/{each.name}@{quote(each.version)}?subdir={each.subdir}&channel={quote(each.channel, safe='')}"
        )
        parts.append(_component(each.name, each.version, purl, [each.sha256]))
    top = {"type": "application", "name": lock.stack, "version": variant.digest, "bom-ref": variant.id}
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": top, "tools": {"components": [{"type": "application", "name": "envbuild"}]}},
        "components": parts,
        "dependencies": [{"ref": variant.id, "dependsOn": [part["bom-ref"] for part in parts]}],
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _package(package: LockedPackage) -> dict[str, Any]:
    purl = f"pkg:pypi/{package.name}@{quote(package.version)}"
    return _component(package.name, package.version, purl, [file.sha256 for file in package.files])


def _source(source: LockedSource) -> dict[str, Any]:
    where = quote(f"git+{source.git}@{source.commit}", safe="")
    found = _component(source.name, source.commit, f"pkg:generic/{source.name}@{source.commit}?vcs_url={where}", [])
    patches = [{"type": "unofficial", "resolves": [{"type": "defect", "name": name}]} for name in source.patches]
    return found | ({"pedigree": {"patches": patches}} if patches else {})


def _component(name: str, version: str, purl: str, hashes: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "library", "name": name, "version": version, "purl": purl, "bom-ref": purl}
    if len(hashes) == 1:
        found["hashes"] = [{"alg": "SHA-256", "content": hashes[0]}]
    return found
