"""What goes into a bundle, with real pip and git; packages are small wheels, found by pip's own configuration."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from envbuild.bundle.collect import Collector, Piece, wanted
from envbuild.errors import ExitCode
from envbuild.model.lock import ArtifactFile, LockedPackage, LockedSource, LockedSubmodule, Variant
from envbuild.node import git_source
from envbuild.plan.source_builds import delivered
from tests.node.env_support import redirect_git
from tests.support.certificates import certificate
from tests.support.fails import fails
from tests.support.files import write_file
from tests.support.repositories import git, make_repository
from tests.support.served import served
from tests.support.wheels import sha256, write_wheel


def _wheel(folder: Path, name: str, tag: str = "py3-none-any", text: str = "x = 1\n") -> ArtifactFile:
    path = write_wheel(folder, name, "1.0", {f"{name}.py": text}, tag=tag)
    return ArtifactFile(file=path.name, sha256=sha256(path))


def _variant(packages: tuple[LockedPackage, ...] = (), sources: tuple[LockedSource, ...] = ()) -> Variant:
    return Variant(id="test", digest="0" * 64, python="3.11", packages=packages, sources=sources)


RECORD = "envbuild lock record demo"


def _collect(variant: Variant, cache: Path, said: list[str] | None = None) -> tuple[Piece, ...]:
    on_fetch = said.append if said is not None else None
    return Collector(RECORD, cache, on_fetch=on_fetch).collect(variant, (2, 36))


def names(pieces: tuple[Piece, ...]) -> list[str]:
    return [each.source.name for each in pieces]


def _package(name: str, *files: ArtifactFile) -> LockedPackage:
    return LockedPackage(name=name, version="1.0", files=files)


@pytest.fixture
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the project `alpha` in an index of this machine, whose pages state no hashes; others lie beside."""
    for key in [key for key in os.environ if key.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(key)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for name in ("alpha", "beta", "delta"):
        (tmp_path / "simple" / name).mkdir(parents=True)
    with served(tmp_path) as address:
        conf = tmp_path / "pip.conf"
        conf.write_text(f"[global]\nindex-url = {address}/simple\n")
        monkeypatch.setenv("PIP_CONFIG_FILE", str(conf))
        yield tmp_path / "simple" / "alpha"


def test_halves_that_a_killed_controller_left_are_swept_after_a_day(tmp_path: Path) -> None:
    kept = tmp_path / "packages" / ("a" * 64) / "alpha-1.0-py3-none-any.whl"
    halves = ["packages/.x1.part", f"packages/{'a' * 64}/.alpha.whl.17.tmp", "sources/.lib.bundle.17.tmp"]
    old = [tmp_path / name for name in halves]
    young = [path.with_name(path.name.replace("1", "2")) for path in old]
    for path in (kept, *old, *young):
        write_file(path, b"half")
    for path in (kept, *old):
        os.utime(path, (time.time() - 90000,) * 2)
    assert _collect(_variant(), tmp_path) == ()
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == {kept, *young}


def test_of_each_package_the_file_that_fits_is_fetched_once_and_checked_again(tmp_path: Path, links: Path) -> None:
    pure = _wheel(links, "alpha")
    fits = _wheel(links.parent / "beta", "beta", "cp311-cp311-manylinux_2_17_x86_64")
    newer = _wheel(links.parent / "beta", "beta", "cp311-cp311-manylinux_2_39_x86_64")
    other = _wheel(links.parent / "beta", "beta", "cp312-cp312-manylinux_2_17_x86_64")
    # Not the build with a local version that lies beside the plain one; and an archive is not built.
    write_wheel(links, "alpha", "1.0+cpu", {"alpha.py": "x = 2\n"})
    archive = write_file(links.parent / "delta" / "delta-1.0.tar.gz", "nobody looks into it")
    delta = ArtifactFile(file=archive.name, sha256=sha256(archive))
    variant = _variant((_package("alpha", pure), _package("beta", other, newer, fits), _package("delta", delta)))
    cache = tmp_path / "cache"
    said: list[str] = []
    delivery = _collect(variant, cache, said)
    assert names(delivery) == [pure.file, fits.file, archive.name]
    assert said == ["alpha 1.0", "beta 1.0", "delta 1.0"]
    # A damaged cache is noticed and fetched anew; an intact one is used as it is.
    delivery[0].source.write_bytes(b"damaged")
    said.clear()
    assert _collect(variant, cache, said) == delivery
    assert said == ["alpha 1.0"]
    assert hashlib.sha256(delivery[0].source.read_bytes()).hexdigest() == pure.sha256


@pytest.mark.parametrize("where", ["find-links", "index-url", "extra-index-url", "a page"])
def test_what_pips_configuration_names_beside_indexes_is_used(
    tmp_path: Path, links: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    file = _wheel(links, "alpha")
    address = (tmp_path / "pip.conf").read_text().split()[-1]
    value = {"find-links": links, "a page": f"{address}/alpha/"}.get(where, links.parent.as_uri())
    option = "find-links" if where == "a page" else where
    (tmp_path / "pip.conf").write_text(f"[global]\n{option} = {value}\n" + "no-index = 1\n" * (option == "find-links"))
    said: list[str] = []
    delivery = _collect(_variant((_package("alpha", file),)), tmp_path / "cache", said)
    assert names(delivery) == [file.file]
    assert bool(said) == (where == "a page"), "what lies here is not fetched"


def test_what_is_another_file_nowhere_unfit_or_without_a_hash_is_refused(tmp_path: Path, links: Path) -> None:
    other = _wheel(links, "alpha")
    _wheel(links, "alpha", text="x = 2\n")
    for file, code, exit_code in (
        (ArtifactFile(file="a-1.0-py3-none-any.whl", sha256="unrecorded", reason="the index gave none"),
         "hash-unrecorded", None),
        (ArtifactFile(file="a-1.0-cp39-cp39-win_amd64.whl", sha256="1" * 64), "delivery-unfit", None),
        (ArtifactFile(file="gamma-1.0-py3-none-any.whl", sha256="1" * 64), "package-not-found", ExitCode.BUILD_FAILED),
        (other, "hash-mismatch", ExitCode.INTEGRITY),
    ):  # fmt: skip
        name = file.file.partition("-")[0]
        with fails(code, exit_code) as caught:
            _collect(_variant((_package(name, file),)), tmp_path / "cache")
        assert name in str(caught.value.what)
        assert not list((tmp_path / "cache").rglob("*.whl"))


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LockedSource:
    """A repository with two commits, reached through git's `insteadOf`; the first commit is the pinned one."""
    redirect_git(monkeypatch, tmp_path)
    _, (commit, tree), _ = (make_repository(tmp_path / "upstream", {"file": text}) for text in ("zero", "one", "two"))
    return LockedSource(name="s", git="https://git.example.org/upstream", commit=commit, tree=tree)


def test_a_source_becomes_a_bundle_of_its_commit_alone(tmp_path: Path, source: LockedSource) -> None:
    delivery = _collect(_variant(sources=(source,)), tmp_path / "cache")
    git_source.fetch(source.to_json_dict(), str(tmp_path / "tree"), str(delivery[0].source))
    assert (tmp_path / "tree" / "file").read_text() == "one"
    place = tmp_path / "fresh"
    place.mkdir()
    git(place, "init", "-q")
    git(place, "bundle", "unbundle", str(delivery[0].source))
    kinds = git(place, "cat-file", "--batch-all-objects", "--batch-check=%(objecttype)").split()
    assert kinds.count("commit") == kinds.count("tree") == kinds.count("blob") == 1, "no history"
    assert delivered("/p", _variant(sources=(source,)))["sources"] == {"s": delivery[0].path}
    assert wanted(_variant(sources=(source,)), (), RECORD) == {delivery[0].path: None}
    wrong = source.model_copy(update={"tree": "3" * 40})
    with fails("tree-mismatch", ExitCode.INTEGRITY):
        _collect(_variant(sources=(wrong,)), tmp_path / "other")
    assert not list((tmp_path / "other").rglob("*.bundle"))


@pytest.mark.parametrize("mirror", ["whole", "shallow", "lost history", "by name alone"])
def test_whatever_a_mirror_has_beside_the_commit_the_bundle_has_equal_bytes(
    tmp_path: Path, source: LockedSource, mirror: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream = tmp_path / "upstream"
    (whole,) = _collect(_variant(sources=(source,)), tmp_path / "cache")
    if mirror == "shallow":
        upstream.rename(tmp_path / "origin")
        git(tmp_path, "init", "-q", "-b", "other", str(upstream))
        git(upstream, "fetch", "-q", "--depth=1", (tmp_path / "origin").as_uri(), f"{source.commit}:refs/heads/main")
    elif mirror == "lost history":
        lost = git(upstream, "rev-parse", "HEAD~2")
        (upstream / ".git" / "objects" / lost[:2] / lost[2:]).unlink()
    elif mirror == "by name alone":
        # The first protocol, whose servers give nothing that no branch or tag names.
        git(upstream, "gc", "-q")
        for number, word in enumerate(("GIT_CONFIG_COUNT", "GIT_CONFIG_KEY_0", "GIT_CONFIG_VALUE_0")):
            monkeypatch.setenv(word, ("1", "protocol.version", "0")[number])
    (again,) = _collect(_variant(sources=(source,)), tmp_path / "other")
    assert again.source.read_bytes() == whole.source.read_bytes()


def test_submodules_are_delivered_as_bundles_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = tmp_path / "hub"
    redirect_git(monkeypatch, hub)
    commit, tree = make_repository(hub / "inner", {"inner.py": "Y = 7\n"})
    make_repository(hub / "outer", {"outer.py": ""})
    git(hub / "outer", "submodule", "-q", "add", f"file://{hub}/inner", "third/inner")
    top, top_tree = make_repository(hub / "outer", {"more.py": ""})
    part = LockedSubmodule(path="third/inner", git="https://git.example.org/inner", commit=commit, tree=tree)
    source = LockedSource(
        name="outer", git="https://git.example.org/outer", commit=top, tree=top_tree, submodules=(part,)
    )
    delivery = _collect(_variant(sources=(source,)), tmp_path / "cache")
    outer, inner = (each.source for each in delivery)
    told = delivered("/p", _variant(sources=(source,)))["sources"]
    assert told == {"outer": delivery[0].path, "outer/third/inner": delivery[1].path}, "a plan says where they lie"
    shutil.rmtree(hub / "inner")
    shutil.rmtree(hub / "outer")
    parts = {"third/inner": str(inner)}
    git_source.fetch(source.to_json_dict(), str(tmp_path / "tree"), str(outer), parts)
    assert (tmp_path / "tree" / "third" / "inner" / "inner.py").read_text() == "Y = 7\n"


def test_a_mirror_with_a_certificate_that_pips_configuration_names_is_trusted(
    tmp_path: Path, links: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    public, private = certificate("127.0.0.1")
    (tmp_path / "server.pem").write_text(public + private)
    (tmp_path / "ca.pem").write_text(public)
    variant = _variant((_package("alpha", _wheel(links, "alpha")),))
    with served(tmp_path, cert=str(tmp_path / "server.pem")) as address:
        monkeypatch.setenv("PIP_INDEX_URL", f"{address}/simple")
        with fails("tls-failed", 4):
            _collect(variant, tmp_path / "cache")
        monkeypatch.setenv("PIP_CERT", str(tmp_path / "ca.pem"))
        assert len(_collect(variant, tmp_path / "cache")) == 1
