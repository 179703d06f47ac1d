"""Where interpreters and packages come from: the pinned standalone Pythons, and the indexes."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuild.catalog.indexes import DEFAULT_INDEX, index_for_torch, load_indexes
from envbuild.catalog.toolchain import load_toolchain
from envbuild.errors import ExitCode
from tests.support.fails import fails

MINE = """\
pythons:
  - name: my-python.tar.gz
    version: 3.11.7
    arch: x86_64
    libc: gnu
    sha256: {digest}
    size: 12
    url: file:///srv/my-python.tar.gz
    witness: built here
"""


def test_every_supported_minor_is_pinned_once_for_both_machines_and_locks_see_one_of_each() -> None:
    toolchain = load_toolchain()
    for minor in ("3.9", "3.10", "3.11", "3.12", "3.13"):
        for arch in ("x86_64", "aarch64"):
            build = toolchain.find_python(minor, arch, "glibc")
            assert build.minor == minor and build.witness
            assert build.url.startswith("https://github.com/astral-sh/python-build-standalone/releases/download/")
            assert build.url.endswith(build.name.replace("+", "%2B"))
            assert arch in build.name and build.version in build.name
    assert len({build.sha256 for build in toolchain.builds}) == len(toolchain.builds) == 12
    assert set(toolchain.pythons) == {"3.8", "3.9", "3.10", "3.11", "3.12", "3.13"}
    assert all(build.arch == "x86_64" for build in toolchain.pythons.values())
    assert toolchain.by_name(toolchain.pythons["3.12"].name) == toolchain.pythons["3.12"]


def test_a_users_file_of_the_same_shape_replaces_the_shipped_one(tmp_path: Path) -> None:
    path = tmp_path / "toolchain.yaml"
    path.write_text(MINE.format(digest="ab" * 32))
    assert load_toolchain(path).find_python("3.11").url == "file:///srv/my-python.tar.gz"
    assert load_toolchain(path).find_python("3.11.7").size == 12


@pytest.mark.parametrize(
    ("version", "arch", "libc"), [("3.7", "x86_64", "gnu"), ("3.11", "ppc64le", "gnu"), ("3.11", "x86_64", "musl")]
)
def test_an_interpreter_that_is_not_to_be_had_is_refused(version: str, arch: str, libc: str) -> None:
    with fails("interpreter-missing", ExitCode.REFUSED):
        load_toolchain().find_python(version, arch, libc)


@pytest.mark.parametrize(
    ("old", "new"),
    [("sha256: ab", "sha256: zz"), ("url: file", "url: ftp"), ("witness", "witnes"), ("name: my", "name: -my")],
)
def test_a_bad_toolchain_file_is_a_coded_error(tmp_path: Path, old: str, new: str) -> None:
    path = tmp_path / "toolchain.yaml"
    path.write_text(MINE.format(digest="ab" * 32).replace(old, new))
    with fails("manifest-invalid") as caught:
        load_toolchain(path)
    assert str(path) in caught.value.why


def test_every_index_but_the_default_has_an_address_without_a_template() -> None:
    for name, entry in load_indexes().items():
        assert name == entry.name and "{" not in name + entry.url
        assert (entry.url == "") == (name == DEFAULT_INDEX)
        assert name == DEFAULT_INDEX or entry.url.startswith("https://download.pytorch.org/whl/")
        assert (entry.verified != "no") == (name == DEFAULT_INDEX)


@pytest.mark.parametrize(
    ("version", "flavour", "name", "kind"),
    [
        ("1.8.0", "cu111", "pytorch-stable", "find-links"),
        ("1.8.2", "cu111", "pytorch-lts-cu111", "simple"),
        ("1.10.0", "cu113", "pytorch-stable", "find-links"),
        ("1.10.1", "cu113", "pytorch-stable-cu113", "find-links"),
        ("1.11.0", "cu113", "pytorch-cu113", "simple"),
        ("1.12.1", "cu116", "pytorch-cu116", "simple"),
        ("2.13.0", "cpu", "pytorch-cpu", "simple"),
        ("2.13.0", "cu130", "pytorch-cu130", "simple"),
    ],
)
def test_where_a_torch_build_is(version: str, flavour: str, name: str, kind: str) -> None:
    entry = index_for_torch(version, flavour)
    assert (entry.name, entry.kind) == (name, kind)


@pytest.mark.parametrize(("version", "flavour"), [("1.7.0", "cu110"), ("1.8.2", "cu116"), ("2.13.0", "cu999")])
def test_a_build_that_no_index_holds_is_a_coded_error(version: str, flavour: str) -> None:
    with fails("index-unknown"):
        index_for_torch(version, flavour)
