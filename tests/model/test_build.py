"""How a source is built: what the model takes, and that what came later leaves old digests alone."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from envbuild.lock.files import parse_lock
from envbuild.lock.record import render_lock
from envbuild.model.lock import LockedSource, Variant
from envbuild.model.stack import Build, Source
from envbuild.model.target import Target
from tests.lock.build import lock, variant

PLAIN = {"name": "a", "git": "https://example.org/a.git", "commit": "0" * 40, "tree": "1" * 40}
MODULE = {"name": "fused_cuda", "sources": ["k/a.cpp", "k/a.cu"], "include_dirs": ["k"], "nvcc_flags": ["-O3"]}


def source(**more: Any) -> LockedSource:
    return LockedSource.from_plain({**PLAIN, **more})


def test_every_field_of_a_build_survives_a_lock_file() -> None:
    wheel = {
        "flags": ["cuda_ext"],
        "extensions": ["amp_C"],
        "environment": {"FORCE": "1"},
        "memory_per_job": 4,
        "requires": ["six"],
    }
    one = source(build=wheel)
    two = source(name="b", install="path", build={"kind": "kernels", "modules": [MODULE, {**MODULE, "name": "other"}]})
    made = lock(variant(sources=(one, two)))
    assert parse_lock(render_lock(made), "again") == made


@pytest.mark.parametrize("field", ["extensions", "environment", "memory_per_job", "modules", "requires"])
def test_what_nobody_says_of_a_build_is_no_part_of_the_digest(field: str) -> None:
    (said,) = variant(sources=(source(build={"flags": ["cuda_ext"]}),)).contents()["sources"]
    assert said["build"] == {"kind": "wheel", "flags": ["cuda_ext"]}
    assert field not in said["build"]


@pytest.mark.parametrize(
    ("build", "says"),
    [
        ({"kind": "kernels"}, "modules"),
        ({"kind": "wheel", "modules": [MODULE]}, "modules"),
        ({"kind": "kernels", "modules": [MODULE], "flags": ["x"]}, "no flags"),
        ({"kind": "kernels", "modules": [MODULE, MODULE]}, "same name"),
        ({"kind": "kernels", "modules": [{**MODULE, "sources": ["../a.cu"]}]}, "relative path"),
        ({"extensions": []}, "extensions"),
        ({"extensions": ["-amp"]}, "extensions"),
        ({"memory_per_job": 0}, "memory_per_job"),
    ],
)
def test_a_build_that_cannot_be_meant_is_refused(build: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        Build.from_plain(build)


def test_kernels_need_a_tree_to_stand_beside() -> None:
    build = {"kind": "kernels", "modules": [MODULE]}
    assert Source.from_plain({**PLAIN, "install": "path", "build": build}).build is not None
    with pytest.raises(ValidationError, match="kernels stand beside a tree"):
        Source.from_plain({**PLAIN, "build": build})


def test_the_gpus_that_code_is_compiled_for_are_part_of_the_digest_once_they_are_bound() -> None:
    made = lock(variant(sources=(source(build={"flags": ["cuda_ext"]}),)))
    (plain,) = made.variants
    assert "arch_list" not in plain.contents()
    one, two = (plain.with_arch_list(made.stack, made.profile, archs) for archs in (("9.0",), ("8.0", "9.0+PTX")))
    assert len({plain.digest, one.digest, two.digest}) == 3
    assert one.with_arch_list(made.stack, made.profile, None) == plain
    assert plain.with_arch_list(made.stack, made.profile, None) is plain
    assert Variant.from_plain(two.to_json_dict()) == two
    with pytest.raises(ValidationError, match="arch_list"):
        Variant.from_plain({**two.to_json_dict(), "arch_list": ["sm_90"]})


def test_a_target_says_where_wheels_are_kept_and_how_many_jobs_compile() -> None:
    target = Target.from_plain({"name": "t", "prefix": "/p", "store": "{home}/wheels", "build_jobs": 8})
    assert (target.store, target.build_jobs) == ("{home}/wheels", 8)
    for wrong in ({"store": "wheels"}, {"build_jobs": 0}):
        with pytest.raises(ValidationError):
            Target.from_plain({"name": "t", "prefix": "/p", **wrong})
