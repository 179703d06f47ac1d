from __future__ import annotations

from envbuild.lock.diff import diff_locks
from envbuild.model.lock import LockedPatch, LockedSource, LockedSubmodule
from envbuild.model.stack import Base, Build, SmokeItem
from tests.lock.build import SHA, lock, package, variant

SOURCE = LockedSource(name="a", git="https://example.org/a", commit="1" * 40, tree="2" * 40)


def test_equal_locks_have_no_difference_whatever_made_them() -> None:
    a = lock(variant(packages=(package("six"),)), created_with={"uv": "1"})
    b = lock(variant(packages=(package("six"),)), created_with={"uv": "2"})
    assert diff_locks(a, b).changes == ()
    assert diff_locks(a, b).text() == "the same contents"
    assert diff_locks(a, b).as_dict() == {"same": True, "changes": []}


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


def test_variants_that_change_alike_are_said_once() -> None:
    a = lock(variant("x", packages=(package("six"),)), variant("y", packages=(package("six"),)))
    b = lock(variant("x", packages=(package("six", "2"),)), variant("y", packages=(package("six", "2"),)))
    assert diff_locks(a, b).text() == "x, y:\n  ~ package six 1.0 -> 2"


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
