"""A wheel with a member that would lie elsewhere is refused by name before anything unpacks it."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from envbuild.node.packages import uv
from envbuild.node.protocol import NodeError
from tests.e2e.world import snapshot
from tests.node.env_support import Node, locked, make_variant, make_wheel
from tests.support.fails import fails
from tests.support.served import served
from tests.support.wheels import write_wheel

LINK = 0o120777 << 16
UNSAFE = [
    ("../evil.py", 0), ("alpha/../../evil.py", 0), ("/tmp/evil.py", 0), ("alpha-1.0.data/scripts/../../evil", 0),
    ("alpha\\..\\evil.py", 0), ("C:/evil.py", 0), ("alpha/link", LINK), ("alpha/device", 0o020666 << 16),
    ("alpha-1.0.data/elsewhere/evil.py", 0),
]  # fmt: skip
USUAL = ["alpha/..py", "alpha/a..b/x", "alpha-1.0.data/scripts/run", "alpha-1.0.data/data/etc/x", "alpha/sub/"]


def wheel(folder: Path, member: str, attributes: int = 0) -> Path:
    path = write_wheel(folder, "alpha", "1.0", {"alpha/__init__.py": ""})
    with zipfile.ZipFile(path, "a") as archive:
        info = zipfile.ZipInfo("x")
        info.filename = info.orig_filename = member
        info.external_attr = attributes
        archive.writestr(info, "/etc/passwd")
    return path


@pytest.mark.parametrize(("member", "attributes"), UNSAFE)
def test_d28_an_unsafe_member_is_refused_by_its_name(member: str, attributes: int, tmp_path: Path) -> None:
    with fails("wheel-unsafe", 5) as caught:
        uv.refuse_unsafe(str(wheel(tmp_path, member, attributes)))
    assert repr(member) in caught.value.what


def test_usual_members_are_not_and_what_is_no_zip_file_is_left_to_who_reads_it(tmp_path: Path) -> None:
    for member in USUAL:
        uv.refuse_unsafe(str(wheel(tmp_path, member, 0o040755 << 16 if member[-1] == "/" else 0o100755 << 16)))
    (tmp_path / "alpha.whl").write_bytes(b"PK\x05\x06")
    uv.refuse_unsafe(str(tmp_path / "alpha.whl"))
    uv.refuse_unsafe(str(tmp_path / "nowhere.whl"))


@pytest.fixture
def index(tmp_path: Path) -> Iterator[str]:
    """The address of an index over `tmp_path/simple`."""
    with served(tmp_path / "simple") as url:
        yield url


def refused(node: Node, index: str, made: Path, **more: object) -> NodeError:
    """How `install` refuses a wheel that uv itself fetches from an index, over an environment that is in use."""
    in_use = node.build(make_variant([make_wheel(node.wheels)]))
    before = snapshot(in_use.parent)
    (made.parent / "index.html").write_text(f'<a href="{made.name}">{made.name}</a>')
    node.offline, node.run = False, "run-2"
    variant = make_variant([{**locked(made, "alpha", "1.0"), "index": "site"}], environment={"OTHER": "1"})
    artifacts = {"indexes": {"site": {"url": index, "kind": "index"}}}
    with pytest.raises(NodeError) as caught:
        node.install(variant, artifacts=artifacts, **more)
    assert caught.value.exit_code == 5
    assert os.path.realpath(node.prefix / "current" / "demo") == str(in_use)
    assert snapshot(in_use.parent) == before
    return caught.value


def test_d28_a_wheel_that_uv_fetches_from_an_index_is_refused_too(node: Node, index: str, tmp_path: Path) -> None:
    folder = tmp_path / "simple" / "alpha"
    for member in ("../evil.py", "/tmp/evil.py", "alpha-1.0.data/data/../../../x"):
        # The second time uv would take what it has unpacked into its lasting cache.
        for more in ({}, {}, {"cache": None}) if member == "../evil.py" else ({},):
            error = refused(node, index, wheel(folder, member), **more)
            assert (error.code, error.what) == (
                "wheel-unsafe", f"alpha-1.0-py3-none-any.whl holds {member!r}, which leads out of its folder"
            )  # fmt: skip
    in_record = write_wheel(folder, "alpha", "1.0", {"alpha/__init__.py": "", "alpha/../../evil.py": "/etc/passwd"})
    assert refused(node, index, in_record).code == "wheel-unsafe"


def test_d28_a_record_that_leaves_a_folder_it_entered_is_refused_by_the_name(
    node: Node, index: str, tmp_path: Path
) -> None:
    member = "alpha-1.0.data/data/../../evil.py"
    made = write_wheel(tmp_path / "simple" / "alpha", "alpha", "1.0", {"alpha/__init__.py": "", member: "evil"})
    error = refused(node, index, made)
    assert error.code == "record-mismatch"
    assert f"{member} is not what its RECORD says (outside)" in error.what


def test_d28_a_wheel_of_a_folder_is_refused_before_uv_and_leaves_no_environment(node: Node) -> None:
    made = wheel(node.wheels, "alpha-1.0.data/../evil.py")
    error = node.fails(make_variant([locked(made, "alpha", "1.0")]), "wheel-unsafe", 5)
    assert "alpha-1.0.data/../evil.py" in error.what
    assert not any("evil" in path for path in snapshot(node.prefix))
