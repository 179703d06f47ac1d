"""Bad manifests on the command line: each has its code and exit code 2, prints no result and changes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuild.catalog.loader import load_stack, load_target
from envbuild.cli.entry import main
from envbuild.errors import EnvbuildError, ExitCode

COMMIT = "0123456789abcdef0123456789abcdef01234567"
GOOD = f"""\
name: mine
summary: a stack
profiles:
  exact:
    python: ["3.11"]
    sources:
      - name: lib
        git: https://example.org/lib.git
        commit: {COMMIT}
    environment: {{A: x}}
"""


def changed(old: str, new: str) -> bytes:
    assert old in GOOD
    return GOOD.replace(old, new, 1).encode()


def alias_bomb() -> bytes:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]" for a, b in zip("abcdefgh", "bcdefghi", strict=True)]
    return "\n".join(lines).encode()


BAD = {
    "unknown key": (changed("summary:", "sumary:"), "manifest-invalid"),
    "wrong type": (changed('["3.11"]', "3.11"), "manifest-invalid"),
    "duplicate key": (GOOD.encode() + b"name: again\n", "manifest-invalid"),
    "tab": (changed("  exact:", "\texact:"), "manifest-invalid"),
    "alias bomb": (alias_bomb(), "manifest-invalid"),
    "python object": (changed("summary: a", "summary: !!python/object:os.system a"), "manifest-invalid"),
    "invalid utf-8": (GOOD.encode() + b"# \xff\n", "manifest-invalid"),
    "non-hex commit": (changed(COMMIT, "z" * 40), "manifest-invalid"),
    "short commit": (changed(COMMIT, COMMIT[:7]), "manifest-invalid"),
    "branch as commit": (changed(COMMIT, "main"), "manifest-invalid"),
    "url with credentials": (changed("https://", "https://bob:hunter22@"), "manifest-invalid"),
    "ext url": (changed("https://example.org/lib.git", '"ext::sh -c touch% pwned"'), "manifest-invalid"),
    "upload-pack url": (changed("https://example.org/lib.git", "--upload-pack=touch"), "manifest-invalid"),
    "ssh option url": (changed("https://example.org", "ssh://-oProxyCommand=touch"), "manifest-invalid"),
    "path with dots": (changed("        git:", "        path: a/../../b\n        git:"), "manifest-invalid"),
    "path with a leading dash": (changed("        git:", "        path: -rf\n        git:"), "manifest-invalid"),
    "name with a newline": (changed("name: mine", 'name: "mine\\nyours"'), "manifest-invalid"),
    "name with braces": (changed("name: mine", "name: 'mine{{ 7*7 }}'"), "manifest-invalid"),
    "value with a newline": (changed("{A: x}", '{A: "x\\ny"}'), "manifest-invalid"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_manifest_exits_2_with_its_code(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content, code = BAD[case]
    path = tmp_path / "my.yaml"
    path.write_bytes(content)
    assert main(["stack", "show", str(path)]) == ExitCode.USAGE
    out, err = capsys.readouterr()
    assert out == ""
    assert f"error[{code}]" in err
    assert f"{path}:" in err
    assert "Traceback" not in err
    assert "hunter22" not in err
    assert [p.name for p in tmp_path.iterdir()] == ["my.yaml"]
    assert path.read_bytes() == content


@pytest.mark.parametrize(("noun", "other", "text"), [
    ("stack", "target", "name: x\nextends: ssh\nhosts: [gpu01]\n"),
    ("target", "stack", GOOD),
])  # fmt: skip
def test_a_file_of_the_other_kind_is_named_with_the_command_for_it(
    noun: str, other: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "my.yaml"
    path.write_text(text)
    assert main([noun, "show", str(path)]) == ExitCode.USAGE
    err = capsys.readouterr().err
    assert f"is a {other} file, not a {noun} file" in err
    assert f"hint: envbuild {other} check {path}" in err


def test_a_single_value_for_a_list_is_told_how_to_write_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "my.yaml").write_bytes(changed('["3.11"]', "3.11"))
    assert main(["stack", "show", str(tmp_path / "my.yaml")]) == ExitCode.USAGE
    assert 'hint: write python: ["3.11"]' in capsys.readouterr().err


def test_a_file_of_100_megabytes_exits_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "my.yaml"
    with path.open("wb") as stream:
        stream.truncate(100_000_000)
    assert main(["stack", "show", str(path)]) == ExitCode.USAGE
    assert "error[manifest-invalid]" in capsys.readouterr().err


@pytest.mark.parametrize(("verb", "near"), [("stack", "torch-smoke"), ("target", "local")])
def test_an_unknown_name_exits_2_with_the_nearest(verb: str, near: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "show", f"{near}x"]) == ExitCode.USAGE
    err = capsys.readouterr().err
    assert f"error[{verb}-unknown]" in err
    assert f"did you mean `{near}`?" in err


def test_a_value_with_a_command_and_quotes_arrives_literally(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    value = "$(touch pwned) `touch pwned` \"'{{ lookup('pipe', 'touch pwned') }}"
    path = tmp_path / "my.yaml"
    path.write_text(GOOD.replace("{A: x}", json.dumps({"A": value})))
    assert main(["stack", "show", str(path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["stack"]["profiles"]["exact"]["environment"] == {"A": value}
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("ref", ["x" * 5000 + ".yaml", "a\0b.yaml", "~nobody-of-that-name/x.yaml", "/root/\n/x.yaml"])
def test_an_impossible_path_is_a_coded_error(ref: str) -> None:
    for load in (load_stack, load_target):
        with pytest.raises(EnvbuildError) as caught:
            load(ref)
        assert caught.value.exit_code == ExitCode.USAGE


@settings(max_examples=60)
@given(content=st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace")))
def test_arbitrary_bytes_are_a_coded_error(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "arbitrary.yaml"
    path.write_bytes(content)
    for load in (load_stack, load_target):
        with pytest.raises(EnvbuildError) as caught:
            load(str(path))
        assert caught.value.exit_code == ExitCode.USAGE


@settings(max_examples=60)
@given(place=st.integers(0, len(GOOD)), text=st.text(max_size=4), cut=st.integers(0, 6))
def test_a_damaged_manifest_loads_or_is_a_coded_error(
    place: int, text: str, cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.yaml"
    path.write_bytes((GOOD[:place] + text + GOOD[place + cut :]).encode("utf-8", "replace"))
    try:
        load_stack(str(path))
    except EnvbuildError as error:
        assert error.exit_code == ExitCode.USAGE
        assert error.code.startswith("manifest-")
