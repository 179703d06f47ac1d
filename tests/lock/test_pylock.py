from __future__ import annotations

import pytest

from envbuild.lock.readers.pylock import Offer, OfferedFile, choose_file, parse_pylock, platform_of
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
