"""The patch engine: counting, all or nothing, idempotence, bytes that are kept, and what it refuses."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.node.patch import apply, registry, source_text
from envbuild.node.protocol import NodeError
from envbuild.node_program import node_pyz

ALIASES = "import numpy as np\nkinds = [np.float, np.int]\n"


def spec(edit: str = "numpy-aliases", *files: str, least: int = 1, most: int = 9, **more: Any) -> dict[str, Any]:
    part = {"edit": edit, "files": list(files) or ["**/*.py"], "least": least, "most": most}
    return {"name": "the-patch", "parts": [part], **more}


def write(folder: Path, **files: str | bytes) -> None:
    for name, text in files.items():
        path = folder / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_the_result_says_what_happened(tmp_path: Path) -> None:
    write(tmp_path, a=ALIASES, b__c=ALIASES, d="x = 1\n")
    result = apply.apply(str(tmp_path), spec())
    assert (result["changed"], result["already"], result["hits"]) == (True, False, 4)
    assert [(each["path"], each["hits"]) for each in result["files"]] == [("a.py", 2), ("b/c.py", 2)]
    assert (tmp_path / "a.py").read_text() == (
        "import numpy as np\nkinds = [float, int]\n# envbuild patch the-patch: 2 hits\n"
    )
    assert all(each["sha256_before"] != each["sha256_after"] for each in result["files"])
    assert (tmp_path / "d.py").read_text() == "x = 1\n"


def test_the_diff_turns_the_old_file_into_the_new_one(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for folder in (old, new):
        write(folder, a=ALIASES, b__c="import numpy\r\nx = numpy.bool")
    diff = apply.apply(str(new), spec())["diff"]
    done = subprocess.run(["git", "apply", "-p1", "-"], cwd=old, input=diff.encode(), capture_output=True)
    assert done.returncode == 0, done.stderr
    assert contents(old) == contents(new)


def test_a_second_application_changes_nothing_and_says_so(tmp_path: Path) -> None:
    write(tmp_path, a=ALIASES)
    first = apply.apply(str(tmp_path), spec())
    before = contents(tmp_path)
    again = apply.apply(str(tmp_path), spec())
    assert (again["changed"], again["already"], again["hits"], again["diff"]) == (False, True, 2, "")
    assert again["digest"] == first["digest"]
    assert again["files"][0]["sha256_before"] == again["files"][0]["sha256_after"] == first["files"][0]["sha256_after"]
    assert contents(tmp_path) == before


def test_check_writes_nothing_and_gives_the_same_diff(tmp_path: Path) -> None:
    write(tmp_path, a=ALIASES)
    before = contents(tmp_path)
    would = apply.apply(str(tmp_path), spec(), check=True)
    assert contents(tmp_path) == before
    assert (would["changed"], would["already"], would["check"]) == (False, False, True)
    assert would["diff"] == apply.apply(str(tmp_path), spec())["diff"] != ""


def test_what_a_killed_run_left_half_done_is_completed(tmp_path: Path) -> None:
    write(tmp_path, a=ALIASES, b=ALIASES)
    apply.apply(str(tmp_path), spec(least=4, most=4))
    write(tmp_path, b=ALIASES)
    result = apply.apply(str(tmp_path), spec(least=4, most=4))
    assert (result["changed"], result["hits"]) == (True, 4)
    assert [each["already"] for each in result["files"]] == [True, False]
    assert (tmp_path / "a.py").read_bytes() == (tmp_path / "b.py").read_bytes()


@pytest.mark.parametrize(
    ("text", "bounds", "code"),
    [
        ("x = 1\n", {}, "patch-no-hits"),
        (ALIASES, {"least": 3, "most": 3}, "patch-too-few-hits"),
        (ALIASES, {"least": 1, "most": 1}, "patch-too-many-hits"),
        (ALIASES, {"hits": {"least": 3, "most": 4}}, "patch-too-few-hits"),
        (ALIASES, {"hits": {"least": 1, "most": 1}}, "patch-too-many-hits"),
    ],
)
def test_a_wrong_number_of_places_changes_nothing(tmp_path: Path, text: str, bounds: dict[str, Any], code: str) -> None:
    write(tmp_path, a=text)
    with pytest.raises(NodeError) as caught:
        apply.apply(str(tmp_path), spec(**bounds))
    assert (caught.value.code, caught.value.exit_code) == (code, 4)
    assert "**/*.py" in caught.value.why or "a.py" in caught.value.why
    assert contents(tmp_path) == {"a.py": text.encode()}


def test_too_many_places_are_shown(tmp_path: Path) -> None:
    write(tmp_path, a=ALIASES)
    with pytest.raises(NodeError) as caught:
        apply.apply(str(tmp_path), spec(most=1))
    assert "2: kinds = [np.float, np.int]" in caught.value.why


def test_a_missing_file_is_no_success(tmp_path: Path) -> None:
    with pytest.raises(NodeError) as caught:
        apply.apply(str(tmp_path), spec("apex-cuda-check", "setup.py"))
    assert (caught.value.code, caught.value.exit_code) == ("patch-no-hits", 4)
    assert "setup.py" in caught.value.why


def test_one_file_that_does_not_fit_stops_all_of_them(tmp_path: Path) -> None:
    write(tmp_path, a=ALIASES, b=ALIASES + "float = 3\n")
    before = contents(tmp_path)
    with pytest.raises(NodeError) as caught:
        apply.apply(str(tmp_path), spec())
    assert caught.value.code == "patch-precondition"
    assert "b.py gives the name float a meaning of its own" in caught.value.why
    assert contents(tmp_path) == before


def test_a_disk_that_fails_half_way_leaves_every_file_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, a=ALIASES, b=ALIASES)
    before = contents(tmp_path)
    real, calls = os.replace, []

    def failing(source: str, target: str) -> None:
        calls.append(target)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        real(source, target)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(NodeError) as caught:
        apply.apply(str(tmp_path), spec())
    assert (caught.value.code, caught.value.exit_code) == ("patch-not-written", 4)
    assert contents(tmp_path) == before


def test_an_outcome_that_breaks_its_promise_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, a=ALIASES)

    def never(source: source_text.Source) -> None:
        raise source_text.UnfitError("is not as promised", 3)

    find = registry._TABLE["numpy-aliases"][0]
    monkeypatch.setitem(registry._TABLE, "numpy-aliases", (find, never))
    with pytest.raises(NodeError) as caught:
        apply.apply(str(tmp_path), spec())
    assert (caught.value.code, caught.value.exit_code) == ("patch-postcondition", 4)
    assert "1: import numpy as np" in caught.value.why
    assert contents(tmp_path) == {"a.py": ALIASES.encode()}


def test_an_edit_that_breaks_the_syntax_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, a=ALIASES)
    broken = (lambda source: [source_text.Change(0, 6, "(")], lambda source: None)
    monkeypatch.setitem(registry._TABLE, "numpy-aliases", broken)
    with pytest.raises(NodeError, match="does not fit") as caught:
        apply.apply(str(tmp_path), spec())
    assert caught.value.code == "patch-postcondition"
    assert contents(tmp_path) == {"a.py": ALIASES.encode()}


def test_a_patched_file_that_was_changed_back_is_refused(tmp_path: Path) -> None:
    write(tmp_path, a=ALIASES)
    apply.apply(str(tmp_path), spec())
    path = tmp_path / "a.py"
    path.write_text(path.read_text().replace("[float", "[np.float"))
    with pytest.raises(NodeError, match="does not fit") as caught:
        apply.apply(str(tmp_path), spec())
    assert "carries the marker of this patch" in caught.value.why


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("end", [True, False])
def test_line_ends_are_kept(tmp_path: Path, newline: str, end: bool) -> None:
    text = ALIASES.replace("\n", newline) if end else ALIASES.rstrip("\n").replace("\n", newline)
    write(tmp_path, a=text)
    apply.apply(str(tmp_path), spec())
    lines = ["import numpy as np", "kinds = [float, int]", "# envbuild patch the-patch: 2 hits", ""]
    assert (tmp_path / "a.py").read_bytes() == newline.join(lines).encode()
    assert apply.apply(str(tmp_path), spec())["already"]


@pytest.mark.parametrize(
    ("before", "encoding"),
    [("", "utf-8"), ("# -*- coding: latin-1 -*-\n", "latin-1"), ("\ufeff", "utf-8"), ("# coding: cp1252\n", "cp1252")],
)
def test_encodings_are_kept(tmp_path: Path, before: str, encoding: str) -> None:
    text = before + "import numpy as np\nx = 'héé', np.float, 'é'\n"
    write(tmp_path, a=text.encode(encoding))
    apply.apply(str(tmp_path), spec())
    wanted = text.replace("np.float", "float") + "# envbuild patch the-patch: 1 hit\n"
    assert (tmp_path / "a.py").read_bytes() == wanted.encode(encoding)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    write(tmp_path, a=b"import numpy as np\nx = np.float  # \xff\n")
    with pytest.raises(NodeError, match="does not fit") as caught:
        apply.apply(str(tmp_path), spec())
    assert "is no utf-8 text" in caught.value.why


def test_the_mode_of_a_file_is_kept_and_nothing_else_is_left(tmp_path: Path) -> None:
    write(tmp_path, a=ALIASES)
    (tmp_path / "a.py").chmod(0o754)
    apply.apply(str(tmp_path), spec())
    assert stat.S_IMODE((tmp_path / "a.py").stat().st_mode) == 0o754
    assert os.listdir(tmp_path) == ["a.py"]


def test_links_are_neither_followed_nor_changed(tmp_path: Path) -> None:
    outside = tmp_path / "outside.py"
    outside.write_text(ALIASES)
    folder = tmp_path / "source"
    write(folder, a=ALIASES)
    (folder / "link.py").symlink_to(outside)
    (folder / "sub").symlink_to(tmp_path)
    assert apply.apply(str(folder), spec())["hits"] == 2
    assert outside.read_text() == ALIASES
    for name in ("link.py", "sub/outside.py"):
        with pytest.raises(NodeError) as caught:
            apply.apply(str(folder), spec("numpy-aliases", name))
        assert caught.value.code == "patch-precondition"
    assert outside.read_text() == ALIASES


def test_git_folders_are_not_searched(tmp_path: Path) -> None:
    write(tmp_path, **{".git__hooks__a": ALIASES, "b": ALIASES})
    assert [each["path"] for each in apply.apply(str(tmp_path), spec())["files"]] == ["b.py"]


@pytest.mark.parametrize(
    "bad",
    [
        {"name": "Bad Name", "parts": [{"edit": "numpy-aliases", "files": ["a.py"]}]},
        {"name": "x", "parts": []},
        {"name": "x", "parts": [{"edit": "no-such-edit", "files": ["a.py"]}]},
        {"name": "x", "parts": [{"edit": "numpy-aliases", "files": []}]},
        {"name": "x", "parts": [{"edit": "numpy-aliases", "files": ["/etc/passwd"]}]},
        {"name": "x", "parts": [{"edit": "numpy-aliases", "files": ["a/../../b.py"]}]},
        {"name": "x", "parts": [{"edit": "numpy-aliases", "files": ["-rf"]}]},
    ],
)
def test_a_bad_request_is_refused(tmp_path: Path, bad: dict[str, Any]) -> None:
    with pytest.raises(NodeError) as caught:
        apply.apply(str(tmp_path), bad)
    assert (caught.value.code, caught.value.exit_code) == ("request-invalid", 2)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match="not a directory"):
        apply.apply(str(tmp_path / "none"), spec())


def test_the_digest_is_of_the_edit_not_of_the_place_or_the_expected_hits(tmp_path: Path) -> None:
    digest = apply.digest(spec())
    assert digest == apply.digest(spec(hits={"least": 2, "most": 2}, least=2)) == apply.digest(spec(most=3))
    assert digest != apply.digest(spec("numpy-aliases", "a.py"))
    assert digest != apply.digest({**spec(), "name": "other"})
    program = tmp_path / "node.pyz"
    program.write_bytes(node_pyz())
    code = "import json, sys; sys.path.insert(0, sys.argv[1]); from envbuild.node.patch import apply as p"
    code += "; print(p.digest(json.loads(sys.argv[2])))"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, str(program), json.dumps(spec())],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.stdout.strip() == digest, done.stderr


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("**/*.py", "a.py", True),
        ("**/*.py", "a/b/c.py", True),
        ("*.py", "a/b.py", False),
        ("a/*/c.py", "a/b/c.py", True),
        ("a/*/c.py", "a/b/b/c.py", False),
        ("**/a+b.py", "x/a+b.py", True),
        ("**/a.py", "x/axpy", False),
    ],
)
def test_patterns_of_files(pattern: str, path: str, fits: bool) -> None:
    assert bool(apply._as_regex(pattern).match(path)) == fits


_LINES = st.lists(
    st.text(st.characters(codec="utf-8", exclude_characters="\r\n\x0c\x00#'\"\\"), max_size=12), max_size=6
)


@given(_LINES, _LINES, st.sampled_from(["\n", "\r\n", "\r"]))
def test_everything_around_a_place_survives(before: list[str], after: list[str], newline: str) -> None:
    comments = [[f"# {line}" for line in lines] for lines in (before, after)]
    lines = [*comments[0], "import numpy as np", "é = 'ü', np.int  # ü", *comments[1], ""]
    source = source_text.Source("a.py", newline.join(lines).encode())
    changes = registry.find("numpy-aliases", source)
    wanted = newline.join(lines).replace("np.int", "int", 1) if "np.int" not in "".join(comments[0]) else None
    assert len(changes) == 1
    if wanted is not None:
        assert source_text.changed_text(source, changes) == wanted


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ('a = "x{"; // {', 'a = "  ";     '),
        ("/* { */ b", "        b"),
        ("'\\'' {", "'  ' {"),
        ('"\\"{" }', '"   " }'),
    ],
)
def test_comments_and_strings_of_c_are_masked(text: str, masked: str) -> None:
    assert source_text.mask_c(text) == masked
    assert len(source_text.mask_c(text, strings=False)) == len(text)


@pytest.mark.parametrize(
    ("text", "wrong"), [("{[()]}", ""), ("{(})", "a '}' has no partner"), ("((", "a '(' has no partner")]
)
def test_brackets(text: str, wrong: str) -> None:
    assert source_text.unbalanced(text) == wrong
