from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement

from envbuild.lock.check import check_lock
from envbuild.lock.create import create_lock
from envbuild.lock.readers.build_requires import Needs, unmet
from envbuild.lock.readers.pylock import Offer, OfferedFile, choose_file, parse_pylock, platform_of
from envbuild.lock.readers.torch_wheels import Supply
from envbuild.lock.variants import applies, environment
from envbuild.model.stack import Stack
from tests.lock.build import make_wheel
from tests.support.fails import fails

SDIST = OfferedFile("a-1.0.tar.gz", "https://example.org/a-1.0.tar.gz", "0" * 64)


def offer(*tags: str, sdist: bool = True) -> Offer:
    wheels = tuple(OfferedFile(f"a-1.0-{tag}.whl", "", "0" * 64) for tag in tags)
    return Offer("a", "1.0", wheels, SDIST if sdist else None)


@pytest.mark.parametrize(
    ("python", "offered", "chosen"),
    [
        ("3.11", ["cp310-cp310-linux_x86_64", "cp311-cp311-linux_x86_64"], "cp311-cp311-linux_x86_64"),
        ("3.11", ["py3-none-any", "cp39-abi3-manylinux_2_28_x86_64"], "cp39-abi3-manylinux_2_28_x86_64"),
        ("3.11", ["py3-none-manylinux1_x86_64", "py3-none-manylinux_2_28_x86_64"], "py3-none-manylinux_2_28_x86_64"),
        ("3.11", ["cp311-cp311-manylinux_2_34_x86_64", "py2.py3-none-any"], "py2.py3-none-any"),
        ("3.7", ["cp37-cp37m-linux_x86_64", "cp37-cp37-linux_x86_64"], "cp37-cp37m-linux_x86_64"),
        ("3.11", ["1a-py3-none-any", "1b-py3-none-any", "1-py3-none-any"], "1b-py3-none-any"),
        ("3.11", ["9-py3-none-any", "cp311-cp311-linux_x86_64"], "cp311-cp311-linux_x86_64"),
        ("3.11", ["py3-none-any", "py2.py3-none-any"], "py2.py3-none-any"),
    ],
)  # fmt: skip
def test_the_best_wheel_of_the_variant_is_chosen(python: str, offered: list[str], chosen: str) -> None:
    assert choose_file(offer(*offered), platform_of(python, "linux_x86_64")).file == f"a-1.0-{chosen}.whl"


def test_a_source_distribution_is_taken_only_without_a_wheel() -> None:
    platform = platform_of("3.11", "linux_x86_64")
    assert choose_file(offer("py3-none-any"), platform).file.endswith(".whl")
    assert choose_file(offer("cp311-cp311-win_amd64"), platform) == SDIST
    with fails("no-acceptable-file"):
        choose_file(offer("cp311-cp311-win_amd64", sdist=False), platform)


def test_the_file_of_the_previous_lock_is_kept_while_it_is_offered() -> None:
    platform = platform_of("3.11", "linux_x86_64")
    both = offer("py3-none-any", "cp311-cp311-manylinux_2_28_x86_64")
    assert choose_file(both, platform, keep="a-1.0-py3-none-any.whl").file == "a-1.0-py3-none-any.whl"
    assert choose_file(both, platform, keep="a-1.0-other.whl").file == "a-1.0-cp311-cp311-manylinux_2_28_x86_64.whl"


HEAD = 'lock-version = "1.0"\ncreated-by = "uv"\n'


def test_file_names_are_unquoted() -> None:
    (read,) = parse_pylock(
        f'{HEAD}packages = [{{name = "torch", version = "1.0+cpu", wheels = '
        '[{url = "https://example.org/x/torch-1.0%2Bcpu-py3-none-any.whl", hashes = {sha256 = "aa"}}]}]'
    )
    assert (read.name, read.wheels[0].file) == ("torch", "torch-1.0+cpu-py3-none-any.whl")


@pytest.mark.parametrize("text", ["packages = [{}]", "packages = 1", "= 1", 'packages = ["a"]'])
def test_an_answer_that_uv_never_gives_is_an_internal_error(text: str) -> None:
    with fails("installation-broken"):
        parse_pylock(HEAD + text)


@pytest.mark.parametrize(
    ("marker", "holds"),
    [
        ("python_version < '3.10'", True),
        ("python_full_version < '3.10'", True),
        ("python_full_version >= '3.9.1'", False),
        ("implementation_version < '3.10'", True),
        ("platform_machine == 'aarch64'", True),
        ("platform_machine == 'x86_64'", False),
        ("sys_platform == 'linux' and os_name == 'posix' and platform_system == 'Linux'", True),
        ("implementation_name == 'cpython' and platform_python_implementation == 'CPython'", True),
        ("extra == 'test'", False),
    ],
)
def test_a_marker_holds_for_the_python_and_the_platform_of_a_variant(marker: str, holds: bool) -> None:
    assert applies(Requirement(f"alpha; {marker}"), "3.9", "linux_aarch64") is holds


def test_nothing_of_the_machine_that_locks_is_left() -> None:
    assert environment("3.9", "linux_x86_64").keys() == default_environment().keys()


def test_a_lock_is_not_edited_where_a_marker_holds_on_the_machine_that_checks_alone(
    tmp_path: Path, supply: Callable[..., Supply]
) -> None:
    make_wheel(tmp_path / "house", "alpha", "1.0")
    packages = ["tomli; python_full_version >= '3.11'", "alpha; python_full_version < '3.11'"]
    exact = {"python": ["3.10"], "smoke": [], "packages": packages}
    stack = Stack.from_plain({"name": "demo", "summary": "s", "profiles": {"exact": exact}})
    lock = create_lock(stack, "exact", supply=supply(tmp_path / "house"), standalone={})
    assert [package.name for package in lock.variants[0].packages] == ["alpha"]
    assert check_lock(lock, stack, online=False) == []


def test_what_a_build_wants_on_another_platform_is_not_asked_for() -> None:
    needs = [Needs("x", ("cmake; platform_machine == 'x86_64'", "ninja; platform_machine == 'aarch64'"))]
    (said,) = unmet(needs, {}, (), "3.9", "linux_aarch64")
    assert "ninja" in said
