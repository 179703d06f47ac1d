"""What of the installed tools decides what a node needs."""

from __future__ import annotations

import importlib.metadata
import sysconfig
from pathlib import Path

import pytest

from envbuild.provision.contact import toolchain


@pytest.mark.parametrize("there", [("2.18.1",), ("2.18.1", "2.21.0"), ()])
def test_the_version_of_ansible_core_is_read_where_not_exactly_one_folder_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: tuple[str, ...]
) -> None:
    for version in there:
        (tmp_path / f"ansible_core-{version}.dist-info").mkdir()
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"purelib": str(tmp_path)})
    monkeypatch.setattr(importlib.metadata, "version", {"ansible-core": "2.19.0"}.__getitem__)
    assert toolchain._ansible_core() == ("2.18.1" if len(there) == 1 else "2.19.0")
