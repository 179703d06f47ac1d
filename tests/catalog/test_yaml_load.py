"""The one YAML loader: what it reads, what it refuses, and that it refuses cheaply."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuild.catalog.yaml_load import load_yaml, parse_yaml, read_yaml
from envbuild.errors import EnvbuildError, ExitCode
from envbuild.regular_file import MAX_BYTES
from tests.support.fails import fails


def plain(text: str) -> Any:
    return parse_yaml(text.encode(), "my.yaml").data


def refused(content: bytes | str) -> EnvbuildError:
    raw = content.encode() if isinstance(content, str) else content
    with pytest.raises(EnvbuildError) as caught:
        parse_yaml(raw, "my.yaml")
    assert caught.value.exit_code == ExitCode.USAGE
    assert caught.value.why.startswith("my.yaml:")
    return caught.value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("True", "True"),
        ("true", True),
        ("false", False),
        ("~", None),
        ("12:30:45", "12:30:45"),
        ("017", "017"),
        ("1_000", "1_000"),
        ("2001-12-14t21:59:43.10-05:00", "2001-12-14t21:59:43.10-05:00"),
        ("-12", -12),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        ("'1'", "1"),
        ("!!str 5", "5"),
        ("!!float 5", 5.0),
        ("=", "="),
        ("", None),
        ("{a: [1, {b: c}]}", {"a": [1, {"b": "c"}]}),
        ("check: |\n  all:\n  \techo hi\n", {"check": "all:\n\techo hi\n"}),
        ("a: &x [1]\nb: *x", {"a": [1], "b": [1]}),
    ],
)
def test_scalars_mean_what_they_look_like(text: str, value: Any) -> None:
    read = plain(text)
    assert read == value
    assert type(read) is type(value)


def nested_aliases() -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 10)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (b"a: 1\nb: 2\na: 3\n", "3:1"),
        (b"a:\n\tb: 1\n", "2:1"),
        (nested_aliases().encode(), None),
        (b"a: &a [*a]\n", None),
        (b"a: *nowhere\n", "1:4"),
        (b"a: !!python/object/apply:os.system [id]\n", "1:4"),
        (b"a: !!set {x, y}\n", "1:4"),
        (b"a: !mine x\n", "1:4"),
        (b"%TAG !! tag:yaml.org,2002:python/\n---\na: !!none x\n", "3:4"),
        (b"a: caf\xe9\n", "1:7"),
        (b"\xef\xbb\xbfa: 1\n", "1:1"),
        ("a: 1".encode("utf-16"), "1:1"),
        (b"a: x\x00y\n", "1:5"),
        (b"a: 1\nb: \x1b[31m\n", "2:4"),
        (b'a: "\\ud800"\n', None),
        (b"a: .inf\n", "1:4"),
        (b"a: 1e999\n", "1:4"),
        (b"a: 99999999999999999999\n", "1:4"),
        (b"a: !!int abc\n", "1:4"),
        (b"1: x\n", "1:1"),
        (b"? [a, b]\n: x\n", "1:3"),
        (b"a: [1, 2\nb: 3\n", None),
        (b"a: 1\n--- \nb: 2\n", None),
        (b'a: "\\UFFFFFFFF"\n', None),
        (b"[" * 5000, None),
        (b"[" + b"1," * 60_000 + b"]", None),
        (b"#" * (MAX_BYTES + 1), "1:1"),
    ],
)
def test_bad_input_is_refused_with_its_code_and_place(content: bytes, place: str | None) -> None:
    error = refused(content)
    assert error.code == "manifest-invalid", str(error)
    if place:
        assert error.why.partition(": ")[0] == f"my.yaml:{place}" and error.what not in error.why


def test_a_hundred_megabytes_are_refused_without_being_read(tmp_path: Path) -> None:
    big = tmp_path / "big.yaml"
    with big.open("wb") as stream:
        stream.truncate(100_000_000)
    started = time.process_time()
    with fails("manifest-invalid"):
        load_yaml(big)
    assert time.process_time() - started < 0.5


def test_what_is_no_file_is_refused_and_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.yaml")
    named = (tmp_path / name for name in ("fifo.yaml", "none.yaml", "a\0b.yaml"))
    for path in (*named, Path("/dev/zero"), Path("/dev/null"), Path("/")):
        with fails("file-unreadable", ExitCode.USAGE):
            load_yaml(path)


def test_a_place_can_be_asked_for_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("a: 1\nb:\n  - x: 1\n  - y: 2\n")
    document = read_yaml(path)
    assert document.locate(("b", 1, "y")) == (4, 5)
    assert document.locate(("b", 7, "y")) == (2, 1)
    assert document.holds(("b", 0, "x"))
    assert not document.holds(("b", 0, "y"))


ALPHABET = "abc \n\t-:?,[]{}#&*!|>'\"%@`~0123.<=\\/u\r"


@settings(max_examples=150)
@given(st.text(ALPHABET, max_size=60))
def test_yaml_like_text_gives_plain_data_or_a_coded_error(text: str) -> None:
    try:
        data = parse_yaml(text.encode(), "my.yaml").data
    except EnvbuildError as error:
        assert error.exit_code == ExitCode.USAGE
        assert error.code.startswith("manifest-")
    else:
        json.dumps(data, allow_nan=False).encode()
