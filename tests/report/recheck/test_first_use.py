"""Hashes that the lock does not have: somebody has to be named who trusted them, and they count apart."""

from __future__ import annotations

from typing import Any

import pytest

from envbuild.catalog.loader import load_stack, lock_path
from envbuild.lock.files import parse_lock
from envbuild.model.lock import Lock, Variant
from envbuild.report.recheck.attached import Attached
from envbuild.report.recheck.contents import check_contents
from envbuild.report.recheck.finding import Finding
from tests.report import samples

FIRST, OTHER = "5f" * 32, "ee" * 32


def locked() -> tuple[Lock, Variant]:
    """A shipped lock, and its variant with a hash for the one file that it has none of."""
    lock = parse_lock(lock_path(load_stack("megatron-alpa"), "exact").read_text(), "lock")
    variant = lock.variants[0]
    packages = [each.to_json_dict() for each in variant.packages]
    for file in (file for each in packages for file in each["files"]):
        file["sha256"] = FIRST if file["sha256"] == "unrecorded" else file["sha256"]
    made = Variant.from_plain({**variant.to_json_dict(), "packages": packages})
    return lock, made.model_copy(update={"digest": made.compute_digest(lock.stack, lock.profile)})


def trusted(variant: Variant, sha256: str) -> dict[str, Any]:
    """The row of a node that names who trusted torch."""
    torch = next(each for each in variant.packages if each.name == "torch")
    witness = "first use on 2026-11-21 by this user"
    return {"file": torch.files[0].file, "sha256": sha256, "index": torch.index, "witness": witness}


def findings(told: list[dict[str, Any]], variant: Variant, lock: Lock | None) -> list[Finding]:
    rows = [
        {"name": p.name, "version": p.version, "index": p.index, "file": p.files[0].file, "sha256": p.files[0].sha256}
        for p in variant.packages
    ]
    node = samples.node(
        variant_digest=variant.digest, packages={each.name: each.version for each in variant.packages}, sources=[],
        resolution=None, root=None, first_use=told,
    )  # fmt: skip
    variants = [{"id": variant.id, "digest": variant.digest, "packages": rows}]
    run = samples.evidence(node, stack="megatron-alpa", profile="exact", variants=variants)
    found = check_contents(run, Attached(lock=lock, variants={variant.digest: variant}))
    return [each for each in found if each.topic == "packages"]


@pytest.mark.parametrize("sha256", [None, OTHER])
def test_a_hash_that_the_lock_does_not_have_needs_somebody_who_trusted_it(sha256: str | None) -> None:
    lock, variant = locked()
    [found] = findings([trusted(variant, sha256)] if sha256 else [], variant, lock)
    assert found.code == "report-first-use-missing"
    assert "torch-1.8.2+cu111-cp38-cp38-linux_x86_64.whl" in found.says and FIRST[:12] in found.says


def test_hashes_that_were_trusted_are_counted_apart_from_those_of_the_lock() -> None:
    lock, variant = locked()
    [found] = findings([trusted(variant, FIRST)], variant, lock)
    count = len(variant.packages) - 1
    assert (found.kind, found.says) == (
        "checked", f"on 1 node the locked versions; {count} hashes are those of the lock, 1 was trusted on first use",
    )  # fmt: skip


def test_a_file_without_a_hash_counts_as_none() -> None:
    lock, _ = locked()
    [found] = findings([], lock.variants[0], lock)
    assert found.says.endswith(f"{len(lock.variants[0].packages) - 1} hashes are those of the lock, 1 file has none")


def test_without_its_lock_hashes_are_those_of_the_variant_and_its_own_word_says_which_were_trusted() -> None:
    _, variant = locked()
    [found] = findings([], variant, None)
    assert found.says.endswith(f"{len(variant.packages)} hashes are those of the variant")
    packages = [each.to_json_dict() for each in variant.packages]
    for file in (file for each in packages for file in each["files"] if file["sha256"] == FIRST):
        file["witness"] = "first use on 2026-11-21 by this user"
    [found] = findings([], Variant.from_plain({**variant.to_json_dict(), "packages": packages}), None)
    assert found.code == "report-first-use-missing"
