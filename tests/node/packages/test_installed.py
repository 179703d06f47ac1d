"""Names, versions and RECORD rows as they are compared."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from envbuild.node import merkle
from envbuild.node.packages import installed
from tests.node.test_merkle import SITE
from tests.support.files import write_files

INFO = f"{SITE}/q-1.dist-info"
EMPTY = "sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU"


def checked(top: Path, known: dict[str, str] | None = None) -> tuple[int, list[str]]:
    """How many files agree with their RECORD, and how the others do not."""
    entries = merkle.scan(str(top), merkle.Places(str(top), "/p", "/x"))
    count, wrong = installed.check(str(top), entries, known)
    return count, [row["kind"] for row in wrong]


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """An environment with the empty file `q` of the package Q, which has no RECORD."""
    return write_files(tmp_path / "e", {f"{INFO}/METADATA": b"Name: Q\nVersion: 1\n\n", f"{SITE}/q": b""})


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        (f"q,{EMPTY},0\n", None),
        (f"q,{EMPTY}=,0\n", None),
        ("q,,\n", None),
        ("q,sha256=AAAA,0\n", "changed"),
        ("q,md5=1B2M2Y8AsgTpgAmY7PhCfg,0\n", "changed"),
        ("q,sha512=z4PhNX7vuL3xVChQ1m2AB9Yg5AULVxXcg_SpIdNs6c5H0NE8XYXysP-DGNKHfuwvY7kxvUdBeoGlODJ6-SfaPg,0\n", None),
        (f"gone,{EMPTY},0\n", "missing"),
        (f"../../../../../../etc/passwd,{EMPTY},0\n", "outside"),
        ("__pycache__/q.cpython-311.pyc,sha256=AAAA,0\n", None),
        (f'"q",{EMPTY},0\r\n', None),
    ],
)
def test_every_row_is_compared(top: Path, rows: str, kind: str | None) -> None:
    write_files(top, {f"{INFO}/RECORD": rows.encode()})
    assert checked(top)[1] == ([kind] if kind else [])


def test_d02_a_doubtful_row_is_compared_with_the_archive(top: Path) -> None:
    write_files(top, {f"{INFO}/RECORD": b"q,sha256=AAAA,0\n"})
    for known, kinds in ((hashlib.sha256(b"").hexdigest(), []), ("0" * 64, ["changed"])):
        assert checked(top, {f"{SITE}/q": known})[1] == kinds


def test_a_second_name_of_a_site_packages_folder_is_no_second_one(top: Path) -> None:
    """conda-forge's Python 3.10 and newer have lib/python3.1, a link to lib/python3.1x."""
    assert checked(top) == (0, ["no-record"])
    write_files(top, {f"{INFO}/RECORD": f"q,{EMPTY},0\n".encode()})
    (top / "lib" / "python3.1").symlink_to(SITE.split("/")[1])
    assert installed.site_packages(str(top)) == [SITE]
    assert checked(top) == (1, [])


def test_dist_infos_that_a_package_vendors_are_plain_files(tmp_path: Path) -> None:
    vendored = f"{SITE}/setuptools/_vendor/w-1.dist-info/RECORD"
    write_files(tmp_path, {vendored: b"../../bin/w,sha256=AAAA,0\n"})
    assert merkle.scan(str(tmp_path), merkle.Places(str(tmp_path), "/p", "/x"))[vendored].tag == "file"
    assert checked(tmp_path) == (0, [])


@given(st.from_regex(r"\A[0-9]{1,3}(\.[0-9]{1,3}){0,3}((a|b|rc)[0-9]|\.post[0-9]|\.dev[0-9])?(\+cpu)?\Z"), st.data())
def test_versions_are_equal_exactly_when_packaging_says_so(text: str, data: st.DataObject) -> None:
    other = data.draw(st.sampled_from([text, text.replace(".0", ""), "0" + text, text.upper(), "v" + text, text + "1"]))
    same = Version(text) == Version(other)
    assert (installed.normal_version(text) == installed.normal_version(other)) is same


def test_names_are_compared_in_normal_form() -> None:
    assert installed.normal_name("Flash_Attn.Core--x") == "flash-attn-core-x"
