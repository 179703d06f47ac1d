"""What the shipped stacks compile: complete, free of clashes, and the same for the same commit."""

from __future__ import annotations

import pytest

from envbuild.catalog.loader import list_stacks
from envbuild.model.stack import Build
from envbuild.node.build import kernels
from tests.support.stacks import shipped_stack

PROFILES = {
    f"{name}-{profile}": contents.sources
    for name in list_stacks()
    for profile, contents in shipped_stack(name).stack.profiles.items()
    if contents.sources
}
BUILT = {
    f"{profile}-{source.name}": (source, source.build)
    for profile, sources in PROFILES.items()
    for source in sources
    if source.build
}


def promised(build: Build) -> list[str]:
    return [*(build.extensions or ()), *kernels.extensions(build.model_dump(mode="json"))]


def test_there_are_builds_of_every_kind() -> None:
    assert {build.kind for _, build in BUILT.values()} == {"wheel", "inplace", "kernels"}


@pytest.mark.parametrize("built", BUILT)
def test_a_build_says_what_must_come_out(built: str) -> None:
    _, build = BUILT[built]
    # A source of Python alone may need to be told its version, and makes no extension.
    assert promised(build) or (not build.flags and set(build.environment or ()) == {"SETUPTOOLS_SCM_PRETEND_VERSION"})


@pytest.mark.parametrize("built", BUILT)
def test_kernels_are_built_from_files_and_the_source_is_edited_to_take_them(built: str) -> None:
    source, build = BUILT[built]
    if build.kind != "kernels":
        assert "megatron-fused-import" not in source.patches
        return
    cuda = any(path.endswith(".cu") for module in build.modules or () for path in module.sources)
    edits = {"megatron-data-helpers"} | ({"megatron-fused-arch", "megatron-fused-import"} if cuda else set())
    assert edits <= set(source.patches)
    flags = [flag for module in build.modules or () for flag in (*module.nvcc_flags, *module.cxx_flags)]
    assert not [flag for flag in flags if "arch" in flag or "sm_" in flag], "architectures come from the target"


@pytest.mark.parametrize("profile", PROFILES)
def test_no_two_wheels_of_a_profile_hold_the_same_module(profile: str) -> None:
    names = [name for source in PROFILES[profile] if source.build for name in promised(source.build)]
    assert len(set(names)) == len(names)


def test_the_same_commit_and_flags_give_the_same_extensions_everywhere() -> None:
    seen: dict[tuple[str, str, tuple[str, ...]], tuple[str, ...] | None] = {}
    for source, build in BUILT.values():
        if build.flags:
            key = (source.git, source.commit, build.flags)
            assert seen.setdefault(key, build.extensions) == build.extensions
    assert len(seen) >= 6
