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


def mismatches(top: Path, rows: str, **files: bytes) -> list[tuple[str, str]]:
    write_files(top, {f"{INFO}/METADATA": b"Name: Q\nVersion: 1\n\n", f"{INFO}/RECORD": rows.encode()})
    write_files(top, {f"{SITE}/{path}": data for path, data in files.items()})
    entries = merkle.scan(str(top), merkle.Places(str(top), str(top.parent), "/x"))
    return [(each["path"], each["kind"]) for each in installed.check(str(top), entries)[1]]


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
def test_every_row_is_compared(tmp_path: Path, rows: str, kind: str | None) -> None:
    found = mismatches(tmp_path / "e", rows, q=b"")
    assert [each for _, each in found] == ([kind] if kind else [])


@pytest.mark.parametrize(("truth", "kinds"), [(EMPTY, []), ("0" * 64, ["changed"]), (None, ["changed"])])
def test_d02_a_doubtful_row_is_compared_with_the_archive(tmp_path: Path, truth: str | None, kinds: list[str]) -> None:
    mismatches(tmp_path / "e", "q,sha256=AAAA,0\n", q=b"")
    entries = merkle.scan(str(tmp_path / "e"), merkle.Places(str(tmp_path / "e"), "/p", "/x"))
    known = {f"{SITE}/q": hashlib.sha256(b"").hexdigest() if truth == EMPTY else truth} if truth else {}
    assert [each["kind"] for each in installed.check(str(tmp_path / "e"), entries, known)[1]] == kinds


def test_a_second_name_of_a_site_packages_folder_is_no_second_one(tmp_path: Path) -> None:
    """conda-forge's Python 3.10 and newer have lib/python3.1, a link to lib/python3.1x."""
    write_files(tmp_path, {f"{INFO}/METADATA": b"Name: Q\nVersion: 1\n\n", f"{INFO}/RECORD": f"q,{EMPTY},0\n".encode()})
    write_files(tmp_path, {f"{SITE}/q": b""})
    folder = SITE.split("/")[1]
    (tmp_path / "lib" / "python3.1").symlink_to(folder)
    assert installed.site_packages(str(tmp_path)) == [SITE]
    entries = merkle.scan(str(tmp_path), merkle.Places(str(tmp_path), "/p", "/x"))
    assert installed.check(str(tmp_path), entries) == (1, [])


def test_a_package_without_a_record_is_named(tmp_path: Path) -> None:
    write_files(tmp_path, {f"{INFO}/METADATA": b"Name: Q\nVersion: 1\n\n"})
    entries = merkle.scan(str(tmp_path), merkle.Places(str(tmp_path), "/p", "/x"))
    assert installed.check(str(tmp_path), entries)[1][0]["kind"] == "no-record"


def test_dist_infos_that_a_package_vendors_are_plain_files(tmp_path: Path) -> None:
    vendored = f"{SITE}/setuptools/_vendor/w-1.dist-info/RECORD"
    write_files(tmp_path, {vendored: b"../../bin/w,sha256=AAAA,0\n"})
    entries = merkle.scan(str(tmp_path), merkle.Places(str(tmp_path), "/p", "/x"))
    assert entries[vendored].tag == "file"
    assert installed.check(str(tmp_path), entries) == (0, [])


@given(st.from_regex(r"\A[0-9]{1,3}(\.[0-9]{1,3}){0,3}((a|b|rc)[0-9]|\.post[0-9]|\.dev[0-9])?(\+cpu)?\Z"), st.data())
def test_versions_are_equal_exactly_when_packaging_says_so(text: str, data: st.DataObject) -> None:
    other = data.draw(st.sampled_from([text, text.replace(".0", ""), "0" + text, text.upper(), "v" + text, text + "1"]))
    same = Version(text) == Version(other)
    assert (installed.normal_version(text) == installed.normal_version(other)) is same


def test_names_are_compared_in_normal_form() -> None:
    assert installed.normal_name("Flash_Attn.Core--x") == "flash-attn-core-x"
