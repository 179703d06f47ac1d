"""A locked package that neither the stack asks for nor an installed package requires is refused by its name."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from envbuild.node.env import packages
from envbuild.node.packages import installed
from tests.node.env_support import Node, locked, make_variant
from tests.support.wheels import write_wheel


def wheel(node: Node, name: str, *requires: str, **files: str) -> dict[str, Any]:
    contents = {f"{name.replace('-', '_')}.py": "", **files}
    return locked(write_wheel(node.wheels, name, "1.0", contents, requires=requires), name, "1.0")


def test_d23_added_packages_are_named_before_their_code_can_run_where_it_is_said_what_is_asked_for(
    node: Node, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    lines = {"extra.pth": f"import pathlib; pathlib.Path({str(ran)!r}).touch()\n"}
    good, added = wheel(node, "alpha"), wheel(node, "extra", **lines)
    assert node.install(make_variant([good]))[1]["required"] == {}
    in_use = node.build(make_variant([good]))
    others = [wheel(node, "one", "two"), wheel(node, "two", "one")]  # two that require each other
    error = node.fails(make_variant([good, added, *others]), "package-not-required", 5, asked=["alpha"])
    assert "extra 1.0" in error.what + error.why and "alpha" not in error.what + error.why
    assert "one 1.0, two 1.0" in error.why
    assert not ran.exists()
    assert os.listdir(in_use.parent) == [in_use.name]
    assert os.path.realpath(node.prefix / "current" / "demo") == str(in_use)


def test_a_package_that_an_installed_one_requires_is_not(node: Node) -> None:
    """Under whatever marker or extra: this is to find what nobody wanted, not to resolve again."""
    says = ["Beta_x>=1", "delta.x[more]; python_version < '3'", "epsilon-x (>=0.1) ; extra == 'all'"]
    others = [wheel(node, name, "gamma") for name in ("beta-x", "delta-x", "epsilon-x")]
    variant = make_variant([wheel(node, "alpha", *says), *others, wheel(node, "gamma")])
    result = node.install(variant, asked=["alpha"])[1]
    assert result["required"] == {"asked": 1, "required": 4}


def test_what_the_base_requires_counts(tmp_path: Path) -> None:
    kept = [{"name": "Gamma", "version": "1"}]
    assert packages.check_required(str(tmp_path), kept, [], {"gamma"}) == {"asked": 0, "required": 1}


def test_requirements_are_read_of_every_distribution_and_of_its_headers_alone(tmp_path: Path) -> None:
    info = tmp_path / "lib" / f"python3.{sys.version_info[1]}" / "site-packages" / "A_b-1.dist-info"
    info.mkdir(parents=True)
    assert installed.requires(str(tmp_path)) == {}
    (info / "METADATA").write_text("Name: A_b\nRequires-Dist: C.d>1\nrequires-dist: e\n\nRequires-Dist: text\n")
    assert installed.requires(str(tmp_path)) == {"a-b": {"c-d", "e"}}
    # A blank line within a header ends none: the text of a licence has such lines; matplotlib's does.
    (info / "METADATA").write_text("License: one\n        \n\ttwo\n  Requires-Dist: text\nName: a\nRequires-Dist: b\n")
    assert installed.requires(str(tmp_path)) == {"a": {"b"}}
    assert list(installed.installed(str(tmp_path))) == ["a"]
