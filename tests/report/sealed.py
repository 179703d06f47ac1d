"""A whole report as a run leaves it: evidence, attachments and pages that agree, for as many nodes as wanted."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from envbuild.catalog.loader import load_stack, lock_path, manifest_text
from envbuild.lock.files import parse_lock
from envbuild.model import evidence
from envbuild.model.evidence import Evidence
from envbuild.model.lock import Variant, canonical_json
from envbuild.report.render import render_html, render_json, render_markdown
from tests.report import samples

RUN = "20260302T100000Z-4f2a"
_CHECKS = (("record", "measured"), ("required", "measured"), ("stamp", "stamped"), ("packages", "stamped"),
           ("link", "measured"), ("files", "measured"))  # fmt: skip


def file_rows(variant: Variant, more: int = 40) -> dict[str, list[Any]]:
    """Rows of an environment: what each package has, and `more` files."""
    site = f"lib/python{variant.python}/site-packages"
    rows: dict[str, list[Any]] = {}
    for package in variant.packages:
        for name in ("METADATA", "RECORD", "WHEEL"):
            path = f"{site}/{package.name.replace('-', '_')}-{package.version}.dist-info/{name}"
            rows[path] = ["record" if name == "RECORD" else "file", _sha(path.encode()), 100, 0]
    for number in range(more):
        path = f"{site}/torch/module_{number}.py"
        rows[path] = ["file", _sha(path.encode()), 1000 + number, number % 7 == 0]
    return rows


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Sealed:
    """A run directory below `top` with a report of `nodes` nodes; `data` is its evidence before it is written."""

    def __init__(self, top: Path, nodes: int = 2, files: int = 40, *, first: int = 1, run: str = RUN) -> None:
        """Write everything."""
        self.folder = top / run
        (self.folder / "attachments").mkdir(parents=True)
        loaded = load_stack("torch-smoke")
        lock_file = lock_path(loaded, "exact")
        self.lock = parse_lock(lock_file.read_text(), "lock")
        self.variant = next(each for each in self.lock.variants if each.python == "3.11")
        rows = file_rows(self.variant, files)
        self.root = evidence.root(rows)
        self.files = rows
        self.attachments: list[dict[str, Any]] = []
        self.attach("lock", "attachments/lock.toml", lock_file.read_bytes())
        self.attach("profile", "attachments/profile.json", manifest_text(loaded.stack, "exact"))
        self.attach(
            "variant", "attachments/variant.json", canonical_json(self.variant.to_json_dict()), self.variant.digest
        )
        self.attach("files", "attachments/files.json.gz", evidence.pack(rows), self.root)
        names = [f"gpu{number:02}" for number in range(first, first + nodes)]
        command = ["envbuild", "provision", "--target", "lab"]
        self.attach(
            "plan", "plan.json", json.dumps({"stack": "torch-smoke", "nodes": [{"node": n} for n in names]}).encode()
        )
        events = [{"seq": 1, "kind": "run-started", "data": {"verb": "provision", "command": command}}]
        events += [{"kind": "node-finished", "node": name, "data": {"status": "ok", "exit": 0}} for name in names]
        self.attach("journal", "journal.jsonl", b"".join(json.dumps(event).encode() + b"\n" for event in events))
        with (self.folder / "journal.jsonl").open("ab") as stream:
            stream.write(b'{"kind": "run-finished"}\n')
        profile = loaded.stack.profiles["exact"]
        self.data = samples.evidence(
            *(self.node(name) for name in names),
            run=run, target="lab", command=command, lock_digest=_sha(lock_file.read_bytes()),
            deviations=list(profile.deviations), attachments=self.attachments,
            equality={"root": self.root, "nodes": names} if nodes > 1 else None,
            variants=[{"id": self.variant.id, "digest": self.variant.digest, "packages": self.package_rows()}],
        ).to_json_dict()  # fmt: skip
        self.write()

    def node(self, name: str) -> dict[str, Any]:
        """A node on which all went well."""
        return samples.node(
            name, 8, variant_digest=self.variant.digest, root=self.root, files=len(self.files), sources=[],
            bytes=sum(row[2] for row in self.files.values()),
            packages={package.name: package.version for package in self.variant.packages},
            resolution=samples.resolution(name) | {"variant_id": self.variant.id},
            checks=[*({"name": each, "status": "passed", "says": "", "level": level} for each, level in _CHECKS),
                    *({"name": f"smoke/machine/{each}", "status": "passed", "says": ""} for each in ("gemm", "copies")),
                    *samples.checks(100_000.0)[:3]],
        )  # fmt: skip

    def package_rows(self) -> list[dict[str, Any]]:
        """The first file of each package."""
        return [
            {"name": p.name, "version": p.version, "index": p.index, "file": file.file, "sha256": file.sha256}
            for p in self.variant.packages
            for file in p.files[:1]
        ]

    def attach(self, kind: str, path: str, data: bytes, of: str | None = None) -> None:
        """Write an attachment and list it, in the place of an earlier one of that path."""
        (self.folder / path).write_bytes(data)
        kept = [each for each in self.attachments if each["path"] != path]
        row = {"kind": kind, "path": path, "sha256": _sha(data), "bytes": len(data)} | ({"of": of} if of else {})
        self.attachments[:] = [*kept, row]

    def reattach(self, kind: str, path: str, data: bytes, of: str | None = None) -> None:
        """The same, with evidence and pages that name it."""
        self.attach(kind, path, data, of)
        self.write()

    def forge(self, change: Callable[[dict[str, Any]], object]) -> None:
        """Change the evidence, and make everything else that is made from it anew: a careful forger."""
        change(self.data)
        self.write()

    def write(self) -> None:
        """Write evidence and pages."""
        self.data["attachments"] = self.attachments
        evidence = Evidence.from_plain(self.data)
        (self.folder / "evidence.json").write_text(render_json(evidence))
        (self.folder / "report.html").write_text(render_html(evidence))
        (self.folder / "report.md").write_text(render_markdown(evidence))

    def reforge_files(self, change: Callable[[dict[str, list[Any]]], object]) -> None:
        """Change the list of files, with a digest that holds."""
        change(self.files)
        self.reattach("files", "attachments/files.json.gz", gzip.compress(json.dumps(self.files).encode()), self.root)
