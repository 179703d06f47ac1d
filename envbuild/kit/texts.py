"""The files of a kit that follow from its report, lock and `kit.json` alone: anybody can make them again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from envbuild.catalog.loader import list_stacks, manifest_digest
from envbuild.kit import claims
from envbuild.kit.manifest import ANNOTATED, Manifest
from envbuild.model.evidence import Evidence
from envbuild.model.lock import Lock
from envbuild.model.stack import Stack
from envbuild.report.render import harmless, template
from envbuild.report.sections import every
from envbuild.report.sources import summary as source_summary
from envbuild.report.view import gibibytes, make_view, seconds
from envbuild.text import visible

TEXTS = README, APPENDIX, CITATION, SOURCES = "README.md", "APPENDIX.md", "CITATION.cff", "sources.json"
# Ended by `timeout` in any case, so that "under 30 minutes" holds.
KICK = "timeout 30m envbuild provision --stack torch-smoke --target local"


@dataclass(frozen=True)
class Contents:
    """What the texts are made from; `own`: the stack's file in the kit, where it is none that envbuild ships."""

    manifest: Manifest
    evidence: Evidence
    lock: Lock
    signed: bool
    own: str = ""

    @property
    def lock_name(self) -> str:
        """As envbuild names lock files."""
        return lock_name(self.evidence)


def lock_name(evidence: Evidence) -> str:
    """What the lock of a report is called in its kit."""
    return f"{evidence.stack}.{evidence.profile}.lock.toml"


def stack_name(evidence: Evidence) -> str:
    """What the file of a stack of the authors' own is called in a kit."""
    return f"{evidence.stack}.yaml"


def is_stack_of(stack: Stack, evidence: Evidence, lock: Lock) -> bool:
    """Whether the lock of a report was made from this stack."""
    profile = evidence.profile
    return (
        stack.name == evidence.stack
        and profile in stack.profiles
        and manifest_digest(stack, profile) == lock.manifest_digest
    )


def texts(contents: Contents) -> dict[str, bytes]:
    """By name the bytes of each text. Pure."""
    evidence = harmless(contents.evidence)
    shown = {
        "e": evidence,
        "kit": contents,
        "kick": KICK,
        "annotated": ANNOTATED if contents.manifest.document else "",
        "run": claims.commands(evidence),
        "rows": claims.rows(evidence),
        "view": make_view(evidence),
        "more": every.sections(evidence),
        "sources": contents.lock.sources,
        "gpus": sum(len(node.facts.gpus) for node in evidence.nodes if node.facts),
        "shipped": evidence.stack in list_stacks(),
        "document": contents.manifest.document,
        "built": [f"{name} {how}" for name, how in source_summary(evidence)],
        "took": _took(evidence),
        "disk": gibibytes(max((node.bytes for node in evidence.nodes if node.bytes), default=None)) + " a node",
    }
    made = {
        README: template("kit.md.j2").render(**shown),
        APPENDIX: template("appendix.md.j2").render(**shown),
        CITATION: _citation(evidence, contents.manifest),
        SOURCES: json.dumps(_sources(contents), indent=1) + "\n",
    }
    return {name: text.encode() for name, text in made.items()}


def _took(evidence: Evidence) -> str:
    try:
        began, ended = (datetime.fromisoformat(text) for text in (evidence.started, evidence.finished))
        return seconds((ended - began).total_seconds())
    except (ValueError, TypeError):
        return "unknown"


def _citation(evidence: Evidence, manifest: Manifest) -> str:
    """Citation File Format 1.2.0; without authors `anonymous`, as the format has it."""
    import yaml

    data = {
        "cff-version": "1.2.0",
        "message": "To cite this artifact, use what stands here.",
        "type": "dataset",
        "title": f"{evidence.stack} ({evidence.profile}): reviewer's kit of the run {evidence.run}",
        "authors": [_author(visible(each)) for each in manifest.authors] or [{"name": "anonymous"}],
        "version": evidence.run,
        "date-released": evidence.finished[:10],
        "identifiers": [
            {"type": "other", "value": f"sha256:{evidence.lock_digest}", "description": "the lock"},
        ],
    }
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True)


def _author(text: str) -> dict[str, str]:
    """`Family, Given` is a person; anything else is the name of a group."""
    family, comma, given = (part.strip() for part in text.partition(","))
    return {"family-names": family, "given-names": given} if comma and given else {"name": text.strip()}


def _sources(contents: Contents) -> Mapping[str, Any]:
    """Where everything comes from that is no package: address, commit and tree, submodules and patches with theirs."""
    keep = {"name", "git", "commit", "tree", "ref", "submodules", "patch_pins"}
    document = contents.manifest.document
    sources = contents.lock.sources.values()
    return {
        "document": document.to_json_dict() if document else None,
        "sources": [each.model_dump(mode="json", include=keep, exclude_none=True) for each in sources],
    }
