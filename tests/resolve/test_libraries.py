"""A node without the C++ library that wheels load is told so before anything is fetched."""

from __future__ import annotations

from typing import Any

import pytest

from envbuild.model.plan import Decision, Resolution
from envbuild.provision.survey.ask import refusal
from tests.resolve.builders import compat, make_lock, node_facts, package, resolve, target, torch_row


def python(path: str = "/usr/bin/python3.11", *, finds: bool | None = None) -> dict[str, Any]:
    return {"path": path, "version": "3.11.2", "libstdcxx": finds}


def resolution(
    *pythons: dict[str, Any], version: str = "2.13.0+cpu", on: dict[str, Any] | None = None, **variant: Any
) -> Resolution:
    facts = node_facts("cpu-laptop", more={"pythons": list(pythons)})
    return resolve(facts, make_lock({**torch_row(version, "3.11"), **variant}), target(**(on or {})), compat())


def said(found: Resolution) -> list[Decision]:
    return [item for item in found.decisions if item.rule == "libstdcxx-absent"]


def test_torch_is_refused_where_the_loader_has_no_cxx_library_and_the_package_to_install_is_named() -> None:
    error = refusal(resolution(python(finds=False)))
    assert (error.code, error.exit_code) == ("libstdcxx-absent", 7)
    assert error.why == "torch 2.13.0+cpu loads libstdc++.so.6 when it is imported, and this node has none"
    assert error.hint.startswith("install libstdc++.so.6 on that node (Debian, Ubuntu: package libstdc++6; ")


@pytest.mark.parametrize(
    ("version", "environment"), [("2.12.0+cpu", {}), ("2.13.0+cpu", {"LD_LIBRARY_PATH": "/soft/gcc/lib64"})]
)
def test_a_wheel_that_was_not_read_or_a_run_that_sets_the_loaders_path_is_warned_of(
    version: str, environment: dict[str, str]
) -> None:
    found = resolution(python(finds=False), version=version, on={"environment": environment})
    assert (found.refused, [item.verdict for item in said(found)]) == (False, ["warn"])


def test_where_it_is_there_or_was_not_asked_or_nothing_loads_it_nothing_is_said() -> None:
    assert said(resolution(python(finds=True))) == said(resolution(python(finds=None))) == []
    six = {"packages": [package("six", "1.17.0")], "torch": None, "flavour": None}
    assert said(resolution(python(finds=False), **six)) == []


def test_an_interpreter_that_brings_the_library_serves_itself_and_tells_nothing_of_a_standalone_one() -> None:
    conda, system = python("/opt/conda/bin/python3.11", finds=True), python(finds=False)
    assert said(resolution(conda, system, on={"interpreter": conda["path"]})) == []
    standalone = {"kind": "standalone", "name": "cpython-3.11.9", "sha256": "0" * 64}
    assert [item.verdict for item in said(resolution(system, interpreter=standalone))] == ["refuse"]
    assert said(resolution(conda, system, interpreter=standalone)) == []
    assert said(resolution(python(), interpreter=standalone)) == []
