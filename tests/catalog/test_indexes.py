"""Named wheel indexes."""

from __future__ import annotations

import pytest

from envbuild.catalog.indexes import DEFAULT_INDEX, index_for_torch, load_indexes
from tests.support.fails import fails


def test_the_default_index_has_no_address() -> None:
    assert load_indexes()[DEFAULT_INDEX].url == ""


def test_every_other_index_has_an_address_without_a_template() -> None:
    for name, entry in load_indexes().items():
        assert name == entry.name
        assert "{" not in name + entry.url
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
