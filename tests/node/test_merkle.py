"""The Merkle root and the one hashing pass: what they cover, and what they normalise out."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.node import merkle
from tests.support.files import write_file, write_files

SITE = "lib/python3.11/site-packages"


def root(top: Path, interpreter: str = "/data/py/bin/python3.11", **more: object) -> str:
    entries = merkle.scan(str(top), merkle.Places(str(top), str(top.parent), interpreter), **more)  # type: ignore[arg-type]
    return merkle.root_of({path: entry.as_list() for path, entry in entries.items()})


BASE = {"a/x.py": b"1\n", "a/y.bin": bytes(3_000_000), "b": b"", "big.txt": b"line\n" * 400_000}


@pytest.mark.parametrize(
    "change",
    [
        lambda top: (top / "a/x.py").write_bytes(b"2\n"),
        lambda top: (top / "a/y.bin").write_bytes(bytes(2_999_999) + b"\1"),
        lambda top: (top / "b").rename(top / "c"),
        lambda top: (top / "b").chmod(0o755),
        lambda top: (top / "a/new").write_bytes(b""),
        lambda top: (top / "b").unlink(),
        lambda top: ((top / "b").unlink(), (top / "b").symlink_to("a/x.py")),
        lambda top: (top / "a/x.py").replace(top / "x.py"),
    ],
)
def test_every_real_change_gives_another_root(tmp_path: Path, change: object) -> None:
    top = write_files(tmp_path / "e", BASE)
    before = root(top)
    change(top)  # type: ignore[operator]
    assert root(top) != before


def _by_definition(files: dict[str, list[Any]], top: str = "") -> str:
    """The root as the design has it: a folder is the sorted lines of what lies in it, each field ended by NUL."""
    here: dict[str, str] = {}
    for path, (tag, digest, _size, executable) in files.items():
        if path.startswith(top):
            name, below, _ = path[len(top) :].partition("/")
            fields = (
                ("folder", _by_definition(files, f"{top}{name}/"), "") if below else (tag, digest, "-x"[executable])
            )
            here[name + below] = "".join(f"{field}\0" for field in (name + below, *fields)) + "\n"
    text = "envbuild-folder-1\0" + "".join(here[name] for name in sorted(here))
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def test_the_root_is_made_folder_by_folder() -> None:
    names = ["z", "a/b/c/d", "a/b.c/d", "a/b-c", "a/b/e\udcff", "a b/\n", "a.py", "b/c/d/e/f/g", "é/a", "b/c/x"]
    files = {path: ["file", f"{number:064}", number, number % 2] for number, path in enumerate(names)}
    assert merkle.root_of(files) == _by_definition(files)
    assert merkle.root_of({}) == _by_definition({})
    assert merkle.root_of({**files, "b/own.so": [merkle.COMPILED, "0" * 64, 1, 0]}) == merkle.root_of(files)


def test_times_umask_threads_and_byte_code_give_the_same_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top = write_files(tmp_path / "e", BASE)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(1))
    before = root(top)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(4))
    os.utime(top / "b", (1, 1))
    (top / "b").chmod(0o600)
    write_files(
        top, {"a/__pycache__/x.cpython-311.pyc": b"x", "z.pyc": b"x", f"{SITE}/q-1.dist-info/direct_url.json": b"{}"}
    )
    write_files(top, {f"{SITE}/q-1.dist-info/uv_cache.json": b"{}", ".envbuild/stamp.json": b"{}"})
    assert root(top) == before
    write_files(top, {"a/__pycache__/planted.py": b"x"})
    assert root(top) != before


def test_places_are_replaced_in_text_links_and_pyvenv_cfg_only(tmp_path: Path) -> None:
    roots = []
    for name, python in (("one/prefix", "/data/py/bin/python3.11"), ("two/a/longer/prefix", "/usr/bin/python3.11")):
        top = tmp_path / name / "envs" / "e"
        script = f"#!{top}/bin/python\n{top}\n".encode()
        if "longer" in name:
            script = f"#!/bin/sh\n'''exec' '{top}/bin/python' \"$0\" \"$@\"\n' '''\n{top}\n".encode()
        cfg = f"home = {os.path.dirname(python)}\nuv = {len(name)}\nversion_info = 3.11.7\n".encode()
        long = b"line\n" * 300_000 + os.fsencode(top)  # more than is read at once
        write_files(top, {"bin/run": script, "pyvenv.cfg": cfg, "long.txt": long})
        write_file(top / f"{SITE}/doc.txt", "#!/usr/bin/python3.11\n")
        (top / "bin" / "python").symlink_to(python)
        (top / "bin" / "inside").symlink_to(top / "bin" / "run")
        roots.append(root(top, python))
    assert roots[0] == roots[1]
    top = tmp_path / "large"
    before = root(write_files(top, {"x": os.fsencode(top) + b"\n" * merkle.TEXT_LIMIT}))
    assert root(write_files(top, {"x": os.fsencode(top) + b"\n" * merkle.TEXT_LIMIT + b"1"})) != before


@pytest.mark.parametrize(
    "contents",
    [lambda top: b"\0" + os.fsencode(top), lambda top: os.fsencode(top) if top.name == "one" else b"@environment@"],
    ids=["a binary is never normalised", "a text with a placeholder is not the text with the path"],
)
def test_what_only_looks_like_the_place_has_another_root(tmp_path: Path, contents: Callable[[Path], bytes]) -> None:
    one, two = (write_files(top, {"x": contents(top)}) for top in (tmp_path / "one", tmp_path / "two"))
    assert root(one) != root(two)


def test_a_record_is_compared_without_order_and_without_what_differs(tmp_path: Path) -> None:
    info = f"{SITE}/q-1.dist-info"
    roots = []
    for name, order in (("one", 1), ("two", -1)):
        top = tmp_path / name
        write_files(top, {"bin/run": f"#!{top}/bin/python\n".encode(), f"{SITE}/q.py": b""})
        rows = [
            f"../../../bin/run,sha256={name},{len(name)}",
            "q.py,sha256=47DEQpj8,0",
            f"q-1.dist-info/direct_url.json,sha256={name},9",
            "q-1.dist-info/RECORD,,",
        ]
        write_files(top, {f"{info}/RECORD": "".join(f"{row}\n" for row in rows[::order]).encode()})
        roots.append(root(top))
    assert roots[0] == roots[1]
    write_files(tmp_path / "one", {f"{info}/RECORD": b"q.py,sha256=another,0\n"})
    assert root(tmp_path / "one") != roots[0]


def test_known_entries_are_used_only_for_untouched_files(tmp_path: Path) -> None:
    top = write_files(tmp_path / "e", BASE)
    places = merkle.Places(str(top), str(tmp_path), "/x/python")
    known = merkle.scan(str(top), places)
    facts = (top / "a/x.py").stat()
    (top / "a/x.py").write_bytes(b"2\n")
    os.utime(top / "a/x.py", ns=(facts.st_atime_ns, facts.st_mtime_ns))
    again = merkle.scan(str(top), places, known=known)
    assert again["a/x.py"].raw != known["a/x.py"].raw
    assert again["b"] is known["b"]


@pytest.mark.parametrize(
    ("path", "pattern", "matches"),
    [
        ("metaseq/version.py", "metaseq/version.py", True),
        ("a/helpers.cpython-311.so", "a/helpers*.so", True),
        ("a/b/helpers.so", "a/*.so", False),
        ("a/b/helpers.so", "**/*.so", True),
        ("helpers.so", "**/*.so", True),
        ("build/x/y", "build/**", True),
        ("built/x", "build/**", False),
    ],
)
def test_generated_patterns_stay_within_folders(path: str, pattern: str, matches: bool) -> None:
    assert merkle.glob_match(path, pattern) is matches


names = st.text(st.characters(blacklist_characters="/\0", blacklist_categories=["Cs"]), min_size=1, max_size=8)
leaves = st.tuples(st.sampled_from(["file", "text"]), st.text("0123456789abcdef", min_size=64, max_size=64))


@given(st.dictionaries(names, leaves, max_size=6), st.dictionaries(names, leaves, max_size=6))
def test_different_file_lists_have_different_roots(
    one: dict[str, tuple[str, str]], two: dict[str, tuple[str, str]]
) -> None:
    roots = [merkle.root_of({k: [tag, d, 0, 0] for k, (tag, d) in files.items()}) for files in (one, two)]
    assert (roots[0] == roots[1]) == (one == two)
