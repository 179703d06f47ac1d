"""A folder of the user as a source: its state is read, and it is linked, used and left as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from envbuild.node import git_source
from envbuild.node.env import remove
from tests.e2e.world import snapshot
from tests.node.env_support import Node, git, make_repository, make_variant, run_python
from tests.node.test_git_source import PROJECT
from tests.support.files import write_file


def trees(place: Path, install: str = "path") -> dict[str, Any]:
    return {"trees": [{"name": "mine", "install": install, "at": str(place)}]}


def test_the_state_counts_what_differs_from_the_commit(tmp_path: Path) -> None:
    commit, _ = make_repository(tmp_path, {"a.py": "1\n", "b.py": "2\n", "c.py": "3\n", "sub/d.py": "4\n"})
    state = git_source.tree_state(str(tmp_path))
    assert (state["commit"], state["changed"], state["problem"], state["unknown"]) == (commit, 0, "", "")
    assert git_source.state_words(state) == f"commit {commit[:12]} on {state['branch']}, no changes"
    (tmp_path / "a.py").write_text("other\n")
    (tmp_path / "b.py").unlink()
    git(tmp_path, "mv", "c.py", "renamed.py")
    write_file(tmp_path / "data" / "x", "")
    (tmp_path / "data" / "y").write_text("")
    state = git_source.tree_state(str(tmp_path))
    assert (state["changed"], state["untracked"]) == (3, 1), "a new folder counts as one"
    words = git_source.state_words(state)
    assert words.endswith(", 3 files changed, 1 not in git: a.py, b.py, renamed.py, …")
    for own in ("my.yaml", "my.yaml.old", "my.exact.lock.toml", "kit-my-20261129T021447Z-0217/kit.json", "kit/kit.json",
                "kit.tar", "__pycache__/a.cpython-311.pyc"):  # fmt: skip
        write_file(tmp_path / own, "")
    assert git_source.state_words(git_source.tree_state(str(tmp_path))) == words, (
        "what envbuild and Python wrote is left out"
    )
    assert git_source.tree_state(str(tmp_path / "sub"))["changed"] == 0, "only what is in the folder"
    for own in ("sub/my.yaml", "sub/my.lock.toml"):
        write_file(tmp_path / own, "1")
        git(tmp_path, "add", own)
    for edited in ("sub/my.yaml", "sub/other.yaml"):
        write_file(tmp_path / edited, "2")
    state = git_source.tree_state(str(tmp_path / "sub"))
    assert state["names"] == ["sub/other.yaml"], "a draft is left out also where it is in git"
    git(tmp_path, "checkout", "--quiet", "--detach")
    assert "on no branch" in git_source.state_words(git_source.tree_state(str(tmp_path)))


def test_a_folder_without_git_and_one_that_is_not_there(tmp_path: Path) -> None:
    assert git_source.state_words(git_source.tree_state(str(tmp_path))) == "no git repository"
    assert git_source.tree_state(str(tmp_path / "gone"))["problem"] == "is not there"
    (tmp_path / "file").write_text("")
    assert git_source.tree_state(str(tmp_path / "file"))["problem"] == "is no folder"


def test_looking_runs_nothing_that_the_repository_names_and_writes_nothing(tmp_path: Path) -> None:
    make_repository(tmp_path / "r", {"a.py": "1\n"})
    ran = tmp_path / "ran"
    git(tmp_path / "r", "config", "core.fsmonitor", f"touch {ran}")
    (tmp_path / "r" / "a.py").touch()
    before = snapshot(tmp_path / "r")
    assert git_source.tree_state(str(tmp_path / "r"))["changed"] == 0
    assert snapshot(tmp_path / "r") == before
    assert not ran.exists()


def test_a_working_tree_is_no_part_of_the_root_and_a_link_that_leads_elsewhere_or_nowhere_is_told(node: Node) -> None:
    roots = set()
    for name in ("one", "two"):
        tree = node.top / name / "clone"
        make_repository(tree, {"mine.py": f"NAME = {name!r}\n"})
        environment = node.build(make_variant([], **trees(tree)))
        assert run_python(environment, "import mine; print(mine.NAME)") == name
        roots.add(node.verify(deep=True)["root"])
        if name == "one":
            remove.run(node.request("remove", environment=str(environment), force=True))
    assert len(roots) == 1
    link = environment / "src" / "mine"
    link.unlink()
    link.symlink_to(node.top)
    result = node.verify(deep=True)
    assert not result["ok"]
    assert {each["path"]: each["kind"] for each in result["drift"]} == {"src/mine": "changed"}
    link.unlink()
    link.symlink_to(tree)
    assert node.verify(deep=True)["ok"]
    tree.rename(node.top / "moved")
    (check,) = [check for check in node.verify()["checks"] if check["name"] == "working-tree"]
    assert (check["status"], check["says"]) == ("failed", f"the working tree of source mine, {tree}, is not there")


def test_an_editable_working_tree_is_built_where_it_lies_and_one_inside_an_environment_is_refused(node: Node) -> None:
    tree = node.top / "clone"
    make_repository(tree, PROJECT)
    environment = node.build(make_variant([], **trees(tree, "editable")))
    assert run_python(environment, "import lib; print(lib.VALUE)") == "41"
    assert node.verify(deep=True)["ok"]
    (tree / "lib" / "__init__.py").write_text("VALUE = 42\n")
    assert run_python(environment, "import lib; print(lib.VALUE)") == "42"
    inside = node.top / "prefix/envs/other/src"
    inside.mkdir(parents=True)
    error = node.fails(make_variant([], **trees(inside)), "source-unreachable", 7)
    assert str(inside) in error.what
