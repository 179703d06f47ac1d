"""`lock check` and `lock diff`: what differs between a lock, its stack, another lock and the world."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from envbuild.errors import ExitCode
from envbuild.lock.agreement import LockFinding
from envbuild.lock.check import check_lock
from envbuild.lock.diff import diff_locks
from envbuild.lock.sources import pin_patches
from envbuild.model.lock import ArtifactFile, Lock, LockedPatch, LockedSource, LockedSubmodule
from envbuild.model.stack import Base, Build, SmokeItem, Stack
from tests.lock.build import SHA, MakeSupply, lock, make, make_wheel, make_wheels, package, stack, variant
from tests.lock.conftest import Repos


@pytest.fixture
def manifest(tmp_path: Path, repos: Repos) -> Stack:
    make_wheels(tmp_path / "house", "alpha 1.0", "torch 1.0.0+cpu")
    commit = repos.create("a")
    source = {"name": "a", "git": Repos.url("a"), "commit": commit, "ref": "main", "generated": ["v.py"]}
    return stack(
        torch={"version": "1.0.0", "flavours": ["cpu"]},
        packages=["alpha>=1"],
        sources=[source],
        imports=["alpha"],
        environment={"A": "1"},
    )


@pytest.fixture
def made(manifest: Stack, tmp_path: Path, supply: MakeSupply) -> Lock:
    return make(manifest, supply(tmp_path / "house"))


def one(findings: list[LockFinding]) -> LockFinding:
    assert len(findings) == 1, findings
    return findings[0]


def test_a_deleted_branch_is_said_and_a_commit_that_has_gone_is_an_integrity_problem(
    made: Lock, manifest: Stack, repos: Repos
) -> None:
    repos.git("a", "branch", "-m", "main", "trunk")
    assert "is gone" in one(check_lock(made, manifest)).says
    shutil.rmtree(repos.folder / "a")
    repos.create("b")
    repos.commit("b", "other", "history")
    (repos.folder / "b").rename(repos.folder / "a")
    found = {f.code: f.exit_code for f in check_lock(made, manifest)}
    assert found["commit-missing"] == ExitCode.INTEGRITY


def test_a_patch_that_does_something_else_than_when_locked_is_a_problem() -> None:
    pins = [pin.to_json_dict() for pin in pin_patches(("apex-cuda-check",), "0" * 40)]
    for change in ({}, {"digest": "0" * 64}, {"most": 999}):
        text = {"name": "a", "git": "https://example.org/a.git", "commit": "0" * 40, "tree": "1" * 40}
        source = text | {"patches": ["apex-cuda-check"], "patch_pins": [pins[0] | change]}
        made = lock(variant(sources=(LockedSource.from_plain(source),)))
        wanted = stack(sources=[text | {"patches": ["apex-cuda-check"]}])
        codes = {finding.code for finding in check_lock(made, wanted, online=False)} - {"manifest-differs"}
        assert codes == ({"patch-changed"} if change else set())


def test_d23_an_added_package_or_build_need_is_named_by_what_the_index_says(
    manifest: Stack, tmp_path: Path, supply: MakeSupply
) -> None:
    house = make_wheels(tmp_path / "house", "alpha 1.0: beta", "beta 1.0", "extra 1.0")
    made = make(manifest, supply(house))
    make_wheel(house, "beta", "2.0", requires=["gamma"])  # a newer one changes nothing
    assert check_lock(made, manifest, supply=supply(house)) == []
    (old,) = made.variants
    broken = made.model_copy(update={"variants": (old.model_copy(update={"imports": ("x",)}),)})
    found = check_lock(broken, manifest, online=False)
    assert ("lock-digest-mismatch", ExitCode.INTEGRITY) in {(f.code, f.exit_code) for f in found}

    def edited(**changes: object) -> Lock:
        draft = old.model_copy(update=changes)
        honest = draft.model_copy(update={"digest": draft.compute_digest("demo", "exact")})
        return made.model_copy(update={"variants": (honest,)})

    more = edited(packages=(*old.packages, package("extra")))
    finding = one(check_lock(more, manifest, supply=supply(house)))
    assert (finding.code, finding.exit_code) == ("package-not-required", ExitCode.INTEGRITY)
    assert finding.says == "nothing needs extra"
    finding = one(check_lock(more, manifest, supply=supply(tmp_path / "nowhere")))
    assert finding.kind == "unchecked" and "not checked that all are needed" in finding.says
    needs = edited(sources=tuple(each.model_copy(update={"needs": ("extra",)}) for each in old.sources))
    finding = one(check_lock(needs, manifest, supply=supply(house)))
    assert (finding.code, finding.subject) == ("package-not-required", "a")
    assert "extra" in finding.says


def test_an_unrecorded_hash_is_noted(made: Lock, manifest: Stack) -> None:
    variant = made.variants[0]
    gap = ArtifactFile(file="torch-1.0.0+cpu-py3-none-any.whl", sha256="unrecorded", reason="out of reach")
    packages = (variant.packages[0], variant.packages[1].model_copy(update={"files": (gap,)}))
    draft = variant.model_copy(update={"packages": packages})
    draft = draft.model_copy(update={"digest": draft.compute_digest("demo", "exact")})
    finding = one(check_lock(made.model_copy(update={"variants": (draft,)}), manifest))
    assert (finding.code, finding.kind) == ("hash-unrecorded", "note")
    assert "out of reach" in finding.says


SOURCE = LockedSource(name="a", git="https://example.org/a", commit="1" * 40, tree="2" * 40)


def test_packages_sources_variables_interpreter_and_variants_are_compared() -> None:
    submodule = LockedSubmodule(path="s", git="https://example.org/s", commit="3" * 40, tree="4" * 40)
    a = lock(
        variant(
            packages=(package("alpha"), package("beta"), package("delta")),
            sources=(SOURCE,),
            environment={"A": "1", "B": "1"},
        ),
        variant("old"),
    )
    b = lock(
        variant(
            packages=(package("alpha", "1.1"), package("delta", sha=SHA[::-1]), package("gamma")),
            sources=(SOURCE.model_copy(update={"commit": "5" * 40, "submodules": (submodule,)}),),
            environment={"A": "2"},
            base=Base(kind="system"),
        ),
        variant("new"),
        as_of="2026-01-01",
    )
    diff = diff_locks(a, b)
    new, old = b.variants[1].digest[:12], a.variants[1].digest[:12]
    assert diff.text() == "\n".join(
        [
            "lock:",
            "  ~ field as_of None -> 2026-01-01",
            "cp311-linux_x86_64:",
            "  ~ field base kind=none -> kind=system",
            "  ~ package alpha 1.0 -> 1.1",
            "  - package beta 1.0",
            f"  ~ package delta 1.0 (pypi: delta-1.0-py3-none-any.whl sha256 {SHA[:12]}) -> "
            f"1.0 (pypi: delta-1.0-py3-none-any.whl sha256 {SHA[::-1][:12]})",
            "  + package gamma 1.0",
            f"  ~ source a {'1' * 40} -> {'5' * 40}",
            f"  + source a submodule s https://example.org/s {'3' * 40} tree {'4' * 40}",
            "  ~ variable A 1 -> 2",
            "  - variable B 1",
            "old:",
            f"  - variant old {old}",
            "new:",
            f"  + variant new {new}",
        ]
    )
    assert diff.as_dict()["changes"][2] == {
        "variant": "cp311-linux_x86_64",
        "what": "package",
        "name": "alpha",
        "before": "1.0",
        "after": "1.1",
    }


def test_variants_that_change_alike_are_said_once_and_equal_locks_have_no_difference() -> None:
    a, b = (lock(*(variant(name, packages=(package("six", version),)) for name in "xy")) for version in ("1", "2"))
    assert diff_locks(a, b).text() == "x, y:\n  ~ package six 1 -> 2"
    same = diff_locks(a, a.model_copy(update={"created_with": {"uv": "2"}}))
    assert (same.changes, same.text(), same.as_dict()) == ((), "the same contents", {"same": True, "changes": []})


def test_variants_of_another_profile_are_compared_with_the_first_of_their_kind() -> None:
    a = lock(variant("cp39", packages=(package("six"),)), variant("cp39-system", base=Base(kind="system")))
    ported = lock(variant("cp312", packages=(package("six", "2"),)), variant("cp311")).model_copy(
        update={"profile": "ported"}
    )
    gone, new = a.variants[1].digest[:12], ported.variants[1].digest[:12]
    assert diff_locks(a, ported).text().splitlines()[2:] == [
        "cp39 -> cp312:", "  ~ package six 1.0 -> 2",
        "cp39-system:", f"  - variant cp39-system {gone}",
        "cp311:", f"  + variant cp311 {new}",
    ]  # fmt: skip


def test_patches_and_builds_are_said_in_words() -> None:
    def pin(name: str, digest: str, most: int = 1) -> LockedPatch:
        return LockedPatch(name=name, digest=digest * 64, least=1, most=most)

    def source(*pins: LockedPatch, build: Build) -> LockedSource:
        update = {"patches": tuple(each.name for each in pins), "patch_pins": pins, "build": build}
        return SOURCE.model_copy(update=update)

    before = source(pin("cuda-check", "a"), pin("gone", "b"), build=Build(flags=("cpp_ext",)))
    build = Build(flags=("cpp_ext", "cuda_ext"), environment={"FORCE": "1"}, extensions=("amp_C",))
    after = source(pin("cuda-check", "c"), pin("new", "d", 4), build=build)
    unpinned = SOURCE.model_copy(update={"patches": ("cuda-check",)})
    text = diff_locks(lock(variant(sources=(before,))), lock(variant(sources=(after,)))).text().splitlines()
    assert text[1:] == [
        "  ~ source a build kind=wheel flags=cpp_ext -> "
        "kind=wheel flags=cpp_ext,cuda_ext extensions=amp_C environment=(FORCE=1)",
        "  ~ source a patch cuda-check digest aaaaaaaaaaaa, 1 hit -> digest cccccccccccc, 1 hit",
        "  - source a patch gone digest bbbbbbbbbbbb, 1 hit",
        "  + source a patch new digest dddddddddddd, 1 to 4 hits",
    ]
    changes = diff_locks(lock(variant(sources=(unpinned,))), lock(variant(sources=(after,)))).changes
    assert (changes[1].name, changes[1].before) == ("patch cuda-check", "not pinned")


def test_of_smoke_items_only_those_that_differ_are_shown_and_their_order() -> None:
    sound, machine, slow = SmokeItem(name="sound"), SmokeItem(name="machine"), SmokeItem(name="machine", deadline=9.0)
    a = lock(variant(smoke=(sound, machine)))
    assert diff_locks(a, lock(variant(smoke=(sound, slow)))).text().splitlines()[1:] == [
        "  ~ smoke item machine deadline=600.0 -> deadline=9.0"
    ]
    assert diff_locks(a, lock(variant(smoke=(machine, sound)))).text().splitlines()[1:] == [
        "  ~ field smoke sound machine -> machine sound"
    ]
