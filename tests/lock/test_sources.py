from __future__ import annotations

import socket
from pathlib import Path

import pytest

from envbuild import resources
from envbuild.catalog.loader import load_stack
from envbuild.catalog.patches import digest_of, load_patch
from envbuild.errors import EnvbuildError, ExitCode
from envbuild.lock import sources
from envbuild.lock.check import restated
from envbuild.lock.files import read_lock
from envbuild.lock.readers import git
from envbuild.lock.readers.git import git_reader, output_of, resolve_ref
from envbuild.lock.sources import absolute_url, pin_patches
from envbuild.model.lock import LockedSource
from envbuild.model.stack import Source
from envbuild.node import git_source
from envbuild.node.build.patch import PatchError
from envbuild.node.git_source import STALLED
from tests.lock.conftest import Repos, locked
from tests.support.programs import executable

FIX = "apex-cuda-check"


def source(name: str, commit: str, **fields: object) -> Source:
    return Source.from_plain({"name": name, "git": Repos.url(name), "commit": commit} | fields)


def refusal(wanted: Source) -> EnvbuildError:
    with pytest.raises(EnvbuildError) as caught:
        locked(wanted)
    return caught.value


def test_d76_a_server_that_takes_the_connection_and_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    assert STALLED == ("http.lowSpeedLimit=1", "http.lowSpeedTime=60")
    assert set(STALLED) <= set(git._SAFE) & set(git_source._SAFE)
    monkeypatch.setattr(git, "_SAFE", tuple(word.replace("Time=60", "Time=1") for word in git._SAFE))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        done = git.run_git(["ls-remote", f"http://127.0.0.1:{silent.getsockname()[1]}/a"])
    assert done.returncode != 0 and git_source._TRANSPORT.search(done.stderr), done.stderr


def test_a_commit_becomes_commit_tree_and_pins_of_its_patches_with_everything_else_kept(
    repos: Repos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = repos.create("a")
    repos.git("a", "tag", "-a", "v1", "-m", "v1")
    later = repos.commit("a", "x", "later")
    for ref, found in (("main", later), ("v1", commit), ("none", None)):
        assert resolve_ref(Repos.url("a"), ref) == found
    made = locked(source("a", commit, ref="main", install="path", path="lib", patches=[FIX], generated=["v.py"]))
    assert (made.commit, made.tree) == (commit, repos.tree("a", commit))
    assert (made.git, made.ref, made.install, made.path) == (Repos.url("a"), "main", "path", "lib")
    assert (made.patches, made.generated) == ((FIX,), ("v.py",))
    (pin,), patch = made.patch_pins, load_patch(FIX)
    assert (pin.name, pin.digest, (pin.least, pin.most)) == (FIX, digest_of(FIX), patch.expected())
    tried = patch.tried[0]
    (exact,) = pin_patches((FIX,), tried.commit)
    assert (exact.least, exact.most) == (tried.hits, tried.hits)
    # A commit that no branch has any more is found where the server keeps it.
    repos.git("a", "reset", "-q", "--hard", commit)
    assert locked(source("a", later)).tree == repos.tree("a", later)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert refusal(source("a", commit)).code == "git-missing"


def test_what_cannot_be_pinned_is_refused_with_both_sides(repos: Repos) -> None:
    first, second = repos.create("a"), repos.commit("a", "x", "2")
    tree, unknown = repos.tree("a", first), "1" * 40
    both = f"tree {tree} at {Repos.url('a')}, {unknown} in the stack"
    for wanted, code, exit_code, says in (
        (source("a", first, patches=["no-such-patch"]), "patch-unknown", ExitCode.USAGE, ""),
        (source("a", first, tree=unknown), "tree-mismatch", ExitCode.INTEGRITY, both),
        (source("a", unknown), "commit-missing", ExitCode.INTEGRITY, ""),
        (source("a", tree), "commit-missing", ExitCode.INTEGRITY, "is a tree"),
        (source("a", first, contains=[second]), "ancestor-missing", ExitCode.INTEGRITY, f"contain {second}"),
        (source("a", second, contains=[unknown]), "ancestor-missing", ExitCode.INTEGRITY, ""),
        (source("none", first), "source-unreachable", ExitCode.TRY_AGAIN, "insteadOf"),
    ):
        error = refusal(wanted)
        assert (error.code, error.exit_code) == (code, exit_code)
        assert says in f"{error.what} {error.why} {error.hint}"
    assert locked(source("a", first, tree=tree)).commit == first
    assert locked(source("a", second, contains=[first, second])).commit == second


def test_a_server_that_sends_only_what_is_asked_for_is_enough(repos: Repos) -> None:
    commit = repos.create("a")
    repos.git("a", "config", "uploadpack.allowFilter", "true")
    repos.git("a", "config", "uploadpack.allowAnySHA1InWant", "true")
    later = repos.commit("a", "x", "2")
    assert locked(source("a", later)).tree == repos.tree("a", later)
    assert locked(source("a", later, contains=[commit])).tree == repos.tree("a", later)
    with git_reader() as reader:
        place = reader.repository(Repos.url("a"), later, "commit")
        assert "tree" not in output_of(place, "cat-file", "--batch-all-objects", "--batch-check").split()


def test_submodules_are_pinned_all_the_way_down_and_a_hostile_address_is_refused_before_git_sees_it(
    repos: Repos,
) -> None:
    inner = repos.create("inner")
    repos.create("middle")
    repos.git("middle", "submodule", "add", "-q", "../inner", "deep")
    middle = repos.commit("middle", "m", "1")
    repos.create("outer")
    repos.git("outer", "submodule", "add", "-q", Repos.url("middle"), "third/party")
    outer = repos.commit("outer", "o", "1")
    # The relative URL was resolved against the folder; what is committed is what a clone of the upstream would read.
    made = locked(source("outer", outer, submodules=True))
    assert [(s.path, s.git, s.commit, s.tree) for s in made.submodules] == [
        ("third/party", Repos.url("middle"), middle, repos.tree("middle", middle)),
        ("third/party/deep", Repos.url("inner"), inner, repos.tree("inner", inner)),
    ]
    assert locked(source("outer", outer)).submodules == ()
    text = (repos.folder / "middle" / ".gitmodules").read_text().replace("../inner", "ext::sh -c id")
    commit = repos.commit("middle", ".gitmodules", text)
    assert refusal(source("middle", commit, submodules=True)).code == "submodule-invalid"
    for parent, url, expected in (
        ("https://x.org/a/b.git", "../c.git", "https://x.org/a/c.git"),
        ("https://x.org/a/b", "./c", "https://x.org/a/b/c"),
        ("ssh://git@x.org/a/b", "../../c/d", "ssh://git@x.org/c/d"),
    ):
        assert absolute_url(parent, url) == expected


def test_a_git_that_runs_us_does_not_lend_its_repository(
    repos: Repos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = repos.create("a")
    repos.create("mine")
    monkeypatch.setenv("GIT_DIR", str(repos.folder / "mine" / ".git"))
    assert locked(source("a", commit)).commit == commit
    monkeypatch.delenv("GIT_DIR")
    assert repos.git("mine", "remote") == ""


def test_hooks_and_prompts_of_the_user_s_configuration_never_run(repos: Repos, home: Path, tmp_path: Path) -> None:
    commit = repos.create("a")
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for name in ("reference-transaction", "post-checkout", "pre-auto-gc"):
        executable(hooks / name, f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    with (home / ".gitconfig").open("a") as stream:
        stream.write(f"[core]\nhooksPath = {hooks}\n")
    repos.git("a", "tag", "proof")
    assert (tmp_path / "ran").exists()
    (tmp_path / "ran").unlink()
    assert locked(source("a", commit)).commit == commit
    assert not (tmp_path / "ran").exists()


def test_a_lock_of_other_patches_gets_todays_pins_and_trees_without_a_resolution(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = read_lock(resources.lockfiles() / "megatron-alpa.exact.lock.toml")
    stack = load_stack("megatron-alpa").stack
    assert restated(now, stack, pytest.fail) is None

    def older(source: LockedSource) -> LockedSource:
        pins = tuple(pin.model_copy(update={"digest": "0" * 64}) for pin in source.patch_pins)
        return source.model_copy(update={"patch_pins": pins, "patched_tree": "1" * 40 if pins else None})

    variants = (each.model_copy(update={"sources": tuple(map(older, each.sources))}) for each in now.variants)
    old = now.model_copy(update={"variants": tuple(variants)})
    trees = {source.name: source.patched_tree for source in now.sources.values()}
    monkeypatch.setattr(sources, "_patched_tree", lambda _reader, source: trees[source.name])
    assert restated(old, stack, pytest.fail) == now
    renamed = restated(now, stack.model_copy(update={"name": "other"}), pytest.fail)
    assert renamed and renamed.stack == "other" and renamed.manifest_digest != now.manifest_digest
    assert all(each.digest == each.compute_digest("other", "exact") for each in renamed.variants)


def test_a_patched_tree_that_cannot_be_had_is_told_and_not_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> str:
        raise PatchError("patch-hits", "patch x found 0 places")

    monkeypatch.setattr(sources, "_patched_tree", refused)
    told: list[str] = []
    apex = read_lock(resources.lockfiles() / "megatron-alpa.exact.lock.toml").sources["apex"]
    with git_reader() as reader:
        (made,) = sources.with_patched_trees([apex], None, reader, told.append)
    assert made.patched_tree is None
    assert told == ["the patched tree of apex is not pinned: patch x found 0 places"]
