"""The patch engine: counting, all or nothing, idempotence, bytes that are kept, and what it refuses."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from envbuild.catalog.patches import load_patches
from envbuild.node.build import patch as engine
from envbuild.node.build import patch_sources
from envbuild.node.build.patch import PatchError, digest
from tests.node.env_support import git
from tests.node.patch_support import refused, samples
from tests.support.fails import fails
from tests.support.files import write_file
from tests.support.programs import executable

ALIASES = "import numpy as np\nkinds = [np.float, np.int]\n"


FIND = r"\bnp\.(float|int)\b"


def spec(*files: str, least: int = 1, most: int = 9, **more: Any) -> dict[str, Any]:
    edit = {"files": list(files) or ["**/*.py"], "find": FIND, "write": r"\1", "times": [least, most]}
    return {"name": "the-patch", "hits": [1, 99], "after": [], "edits": [edit], **more}


def apply(folder: Path, *specs: dict[str, Any], check: bool = False, **more: Any) -> dict[str, Any]:
    return engine.apply(str(folder), list(specs) or [spec()], check, **more)[-1]


def write(folder: Path, **files: str | bytes) -> None:
    for name, text in files.items():
        path = folder / (name.replace("__", "/") + ".py")
        write_file(path, text)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_patch_says_what_it_would_change_changes_it_once_and_its_diff_is_the_difference(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for folder in (old, new):
        write(folder, a=ALIASES, b__c="import numpy as np\nx = np.int", d="x = 1\n")
    would = apply(new, spec(), check=True)
    assert contents(new) == contents(old)
    assert (would["changed"], would["already"], would["check"]) == (False, False, True)

    first = apply(new, spec())
    assert (first["changed"], first["already"], first["hits"], first["diff"]) == (True, False, 3, would["diff"])
    assert [(each["path"], each["hits"]) for each in first["files"]] == [("a.py", 2), ("b/c.py", 1)]
    assert all(each["sha256_before"] != each["sha256_after"] for each in first["files"])
    after = contents(new)
    assert after["a.py"] == b"import numpy as np\nkinds = [float, int]\n# envbuild patch the-patch: 2 hits\n"

    again = apply(new, spec())
    assert (again["changed"], again["already"], again["hits"], again["diff"]) == (False, True, 3, "")
    assert again["digest"] == first["digest"] == digest(spec())
    assert again["files"][0]["sha256_before"] == again["files"][0]["sha256_after"] == first["files"][0]["sha256_after"]
    done = subprocess.run(["git", "apply", "-p1", "-"], cwd=old, input=first["diff"].encode(), capture_output=True)
    assert done.returncode == 0, done.stderr
    assert contents(old) == contents(new) == after


def test_what_a_killed_run_left_half_done_is_completed(tmp_path: Path) -> None:
    write(tmp_path, a=ALIASES, b=ALIASES)
    apply(tmp_path, spec(least=4, most=4))
    write(tmp_path, b=ALIASES)
    result = apply(tmp_path, spec(least=4, most=4))
    assert (result["changed"], result["hits"]) == (True, 4)
    assert [each["already"] for each in result["files"]] == [True, False]
    assert (tmp_path / "a.py").read_bytes() == (tmp_path / "b.py").read_bytes()


@pytest.mark.parametrize(
    ("text", "bounds"),
    [
        ("x = 1\n", {}),
        (ALIASES, {"least": 3, "most": 3}),
        (ALIASES, {"least": 1, "most": 1}),
        (ALIASES, {"hits": [3, 4]}),
        (ALIASES, {"hits": [1, 1]}),
    ],
)
def test_a_wrong_number_of_places_changes_nothing(tmp_path: Path, text: str, bounds: dict[str, Any]) -> None:
    write(tmp_path, a=text)
    with fails("patch-hits", 4) as caught:
        patch_sources.apply(str(tmp_path), [spec(**bounds)])
    assert "the-patch" in caught.value.what
    assert "**/*.py" in caught.value.why or "a.py: 2" in caught.value.why
    with fails("patch-hits") as caught:
        apply(tmp_path, spec("setup.py"))
    assert caught.value.why == f"none in setup.py; pattern {FIND}"
    assert contents(tmp_path) == {"a.py": text.encode()}


def test_one_patch_that_does_not_fit_stops_all_of_them(tmp_path: Path) -> None:
    write(tmp_path, a=ALIASES)
    with pytest.raises(PatchError):
        apply(tmp_path, spec(), spec("b.py", name="other"))
    assert contents(tmp_path) == {"a.py": ALIASES.encode()}


def test_d88_a_patch_that_needs_another_is_refused_alone_with_its_name(tmp_path: Path) -> None:
    write(tmp_path, a=ALIASES + "y = 1\n")
    second = {**spec(name="second", after=["the-patch"])}
    second["edits"] = [{**second["edits"][0], "find": "^y = 1$", "write": "y = 2"}]
    with fails("patch-precondition", match="patch second needs patch the-patch before it"):
        apply(tmp_path, second)
    with pytest.raises(PatchError, match="needs patch the-patch"):
        apply(tmp_path, second, spec())
    assert apply(tmp_path, spec(), second)["hits"] == 1
    assert (tmp_path / "a.py").read_text().splitlines()[2:] == [
        "y = 2",
        "# envbuild patch the-patch: 2 hits",
        "# envbuild patch second: 1 hit",
    ]


def test_a_helper_counts_as_no_place_and_has_to_be_there(tmp_path: Path) -> None:
    write(tmp_path, a=ALIASES)
    helper = {"files": ["a.py"], "find": r"\A", "write": "import os\n", "times": [1, 1], "helper": True}
    edits = [*spec()["edits"], helper]
    assert apply(tmp_path, spec(edits=edits))["hits"] == 2
    assert (tmp_path / "a.py").read_text().startswith("import os\nimport numpy as np\nkinds = [float, int]\n# envbuild")
    assert apply(tmp_path, spec(edits=edits))["already"]


def test_the_outcome_must_be_the_pinned_tree_where_the_tree_before_is_known(tmp_path: Path) -> None:
    folder = tmp_path / "source"
    write(folder, a=ALIASES, b__c="x = 1\n", b__x_y="")
    executable(folder / "b.sh", "echo\n")
    (folder / "b-link").symlink_to("b/c.py")
    write_file(folder / "sub" / "inner.py", "x = np.float\n")
    git(folder, "init", "--quiet")
    git(folder, "add", "-A", ":!sub")
    git(folder, "update-index", "--add", "--cacheinfo", f"160000,{'7' * 40},sub")
    before, links = git(folder, "write-tree"), {"sub": "7" * 40}
    assert engine.tree_id(engine.entries(str(folder), links)) == before
    (folder / ".git").rename(tmp_path / "git")
    (folder / "out").symlink_to("/nowhere")
    pin = {"before": before, "after": "1" * 40, "links": links, "outputs": ["out"]}
    one = spec("a.py")
    with fails("patch-postcondition", match="the patches the-patch do not give the pinned tree") as caught:
        apply(folder, one, pin=pin)
    assert (folder / "a.py").read_text() == ALIASES
    after = caught.value.why.split(",")[0].removeprefix("tree ")
    assert apply(folder, one, pin={**pin, "after": after})["changed"]
    assert apply(folder, one, pin={**pin, "after": after})["already"]
    (tmp_path / "git").rename(folder / ".git")
    git(folder, "add", "a.py")
    assert git(folder, "write-tree") == after
    write(folder, b__c="another tree\n")
    assert apply(folder, one, pin={**pin, "after": "1" * 40})["already"], "of another tree the hits decide"


@pytest.mark.parametrize("name", load_patches())
def test_a_patch_finds_nothing_more_in_what_it_changed(tmp_path: Path, name: str) -> None:
    """Its places, that is; a file without the marker is then refused and not patched twice."""
    patch = load_patches()[name]
    loose = patch.spec((0, 999)) | {"after": []}
    loose["edits"] = [{**edit, "times": [0, 999]} for edit in loose["edits"]]
    changed = 0
    for number, sample in enumerate(samples(name)):
        folder = tmp_path / str(number)
        file = folder / sample["path"]
        write_file(file, sample["before"].encode())
        try:
            result = engine.apply(str(folder), [loose])[0]
        except PatchError:
            continue
        changed += result["changed"]
        text = file.read_bytes()
        assert engine.apply(str(folder), [loose])[0]["already"] or not result["hits"]
        file.write_bytes(text.replace(f"envbuild patch {name}:".encode(), b"other:"))
        places = {**loose, "edits": [edit for edit in loose["edits"] if not edit["helper"]]}
        assert engine.apply(str(folder), [places])[0]["hits"] == 0
    assert changed, "no sample that it changes"


OTHERS = {
    f"{name}: {sample['refused']}, {number}": (name, {sample["path"]: sample["before"], **sample.get("beside", {})})
    for name in load_patches()
    for number, sample in enumerate(samples(name))
    if "refused" in sample
}


@pytest.mark.parametrize(("name", "files"), OTHERS.values(), ids=OTHERS)
def test_another_shape_is_refused_and_left_alone(tmp_path: Path, name: str, files: dict[str, str]) -> None:
    refused(tmp_path, name, files)


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
    with fails("patch-not-written"):
        apply(tmp_path, spec())
    assert contents(tmp_path) == before


def test_an_edit_that_breaks_the_syntax_is_not_written(tmp_path: Path) -> None:
    write(tmp_path, a=ALIASES)
    broken = [{**spec()["edits"][0], "write": "("}]
    with fails("patch-postcondition", match=r"after patch the-patch a\.py does not compile"):
        apply(tmp_path, spec(edits=broken))
    assert contents(tmp_path) == {"a.py": ALIASES.encode()}


def test_a_patched_file_that_was_changed_back_is_refused(tmp_path: Path) -> None:
    write(tmp_path, a=ALIASES)
    apply(tmp_path, spec())
    path = tmp_path / "a.py"
    path.write_text(path.read_text().replace("[float", "[np.float"))
    with pytest.raises(PatchError, match=r"a\.py has the comment of patch the-patch, and unchanged places"):
        apply(tmp_path, spec())


def test_bytes_and_the_mode_of_a_file_are_kept_and_nothing_else_is_left(tmp_path: Path) -> None:
    text = b"\xef\xbb\xbfimport numpy as np\nx = np.float  # \xff\r\ny = 'h\xc3\xa9'"
    write(tmp_path, a=text)
    (tmp_path / "a.py").chmod(0o754)
    apply(tmp_path, spec())
    after = text.replace(b"np.float", b"float") + b"\n# envbuild patch the-patch: 1 hit\n"
    assert (tmp_path / "a.py").read_bytes() == after
    assert stat.S_IMODE((tmp_path / "a.py").stat().st_mode) == 0o754
    assert os.listdir(tmp_path) == ["a.py"]


def test_links_are_neither_followed_nor_changed_and_git_folders_not_searched(tmp_path: Path) -> None:
    outside = tmp_path / "outside.py"
    outside.write_text(ALIASES)
    folder = tmp_path / "source"
    write(folder, a=ALIASES, **{".git__hooks__a": ALIASES})
    (folder / "link.py").symlink_to(outside)
    (folder / "sub").symlink_to(tmp_path)
    assert apply(folder, spec())["hits"] == 2
    assert outside.read_text() == ALIASES
    for name in ("link.py", "sub/outside.py"):
        with fails("patch-precondition"):
            apply(folder, spec(name))
    assert outside.read_text() == ALIASES


def test_a_bad_request_and_a_folder_that_is_not_there_are_refused(tmp_path: Path) -> None:
    paths = [{"edits": spec(file)["edits"]} for file in ("/etc/x", "a/../../b.py", "-rf")]
    for bad in ({"name": "Bad Name"}, {"edits": []}, *paths):
        with fails("request-invalid", 2):
            patch_sources.apply(str(tmp_path), [{**spec(), **bad}])
    with pytest.raises(PatchError, match="not a directory"):
        apply(tmp_path / "none", spec())


def test_the_digest_is_of_the_name_and_the_edits_not_of_the_expected_hits() -> None:
    assert digest(spec()) == digest(spec(hits=[2, 2]))
    assert len({digest(spec()), digest(spec("a.py")), digest(spec(name="other")), digest(spec(most=3))}) == 4


def test_patterns_of_files() -> None:
    paths = ["a.py", "a/b.py", "a/b/c.py", "a/b/b/c.py", "x/a+b.py", "x/axpy"]
    for pattern, fits in {
        "**/*.py": ["a.py", "a/b.py", "a/b/c.py", "a/b/b/c.py", "x/a+b.py"],
        "*.py": ["a.py"],
        "a/*/c.py": ["a/b/c.py"],
        "**/a+b.py": ["x/a+b.py"],
        "**/a.py": ["a.py"],
    }.items():
        assert engine.named([pattern], paths) == fits
