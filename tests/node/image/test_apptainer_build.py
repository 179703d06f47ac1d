"""Building an image on a node: what is unpacked, the words that Apptainer gets, and what is left when it fails.

A program of that name says its words and makes the file; tests/slurm/test_image_build_job.py builds for real.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from envbuild.node.image import container
from envbuild.node.protocol import NodeError
from tests.support.files import write_tar
from tests.support.programs import executable

_FAKE = """#!/bin/sh
printf '%s|' "$PWD" "$APPTAINER_TMPDIR" "$SINGULARITY_CACHEDIR" "$*" >> {log}
cat apptainer.def wheelhouse/alpha.whl
for word; do case "$word" in *.half) file=$word ;; esac; done
echo sif > "$file"
{more}
"""


def _archive(path: Path, *more: tarfile.TarInfo) -> dict[str, str]:
    write_tar(path, {"./apptainer.def": "the definition\n", "./wheelhouse/alpha.whl": "a wheel\n"}, more=more)
    return {"archive": str(path), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


class Site:
    """A prefix with a context that was carried there."""

    def __init__(self, top: Path) -> None:
        self.prefix, self.log, self.tmp = top / "prefix", top / "log", top / "scratch"
        self.program = top / "apptainer"
        self.works()
        self.args: dict[str, Any] = _archive(self.prefix / "images" / "context.tar")

    def works(self, more: str = "") -> None:
        executable(self.program, _FAKE.format(log=self.log, more=more))

    def build(self, **more: Any) -> dict[str, Any]:
        args = {
            "action": "build", "stack": "tiny", "key": "k" * 64, "program": str(self.program), "tmp": str(self.tmp),
            "wait": 0, "force": False, **self.args, **more,
        }  # fmt: skip
        changed, result = container.run({"prefix": str(self.prefix), "run": "r", "args": args})
        assert changed
        return dict(result["file"])

    def fails(self, **more: Any) -> NodeError:
        with pytest.raises(NodeError) as caught:
            self.build(**more)
        assert list(self.tmp.iterdir()) == [], "what was unpacked is gone"
        assert list((self.prefix / "images").glob("*.sif*")) == []
        return caught.value


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_the_file_is_made_in_the_context_and_only_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    stale = site.tmp / "image-build-of-a-killed-job"
    stale.mkdir(parents=True)
    (site.prefix / "images" / "tiny-kkkkkkkkkkkk.sif.half").write_text("half")
    file = site.build()
    path = site.prefix / "images" / "tiny-kkkkkkkkkkkk.sif"
    assert file == {"path": str(path), "bytes": 4, "sha256": hashlib.sha256(b"sif\n").hexdigest()}
    folder, tmp, cache, words, _ = site.log.read_text().split("|")
    fakeroot = "" if os.geteuid() == 0 else "--fakeroot "
    assert words == f"build --force {fakeroot}{path}.half apptainer.def"
    assert {os.path.dirname(os.path.dirname(each)) for each in (folder, tmp, cache)} == {str(site.tmp)}
    assert list(site.tmp.iterdir()) == []
    site.program.unlink()
    assert site.build() == file, "an earlier run has made it"
    site.works("exit 1")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NodeError, match="could not be built"):
        site.build(force=True)
    assert f"build --force --fakeroot {path}.half" in site.log.read_text()
    assert path.read_text() == "sif\n", "a build that fails leaves what is there"


def test_a_build_that_fails_is_told_with_its_last_lines(site: Site) -> None:
    site.works("echo FATAL: last words >&2; exit 255")
    error = site.fails()
    assert (error.code, int(error.exit_code)) == ("image-build-failed", 4)
    assert error.why.endswith("FATAL: last words") and "a wheel" in error.why
    site.works("echo write /x: no space left on device >&2; exit 255")
    error = site.fails()
    assert int(error.exit_code) == 75 and error.code == "disk-full"


def _member(name: str, kind: bytes = tarfile.REGTYPE, to: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, to
    return member


@pytest.mark.parametrize(
    "member",
    [
        _member("../outside"),
        _member("/outside"),
        _member("wheelhouse/../../outside"),
        _member("link", tarfile.SYMTYPE, "/etc"),
        _member("hard", tarfile.LNKTYPE, "apptainer.def"),
        _member("device", tarfile.CHRTYPE),
    ],
    ids=lambda member: str(member.name),
)
def test_a_context_with_more_than_files_below_it_is_refused(member: tarfile.TarInfo, site: Site) -> None:
    site.args = _archive(site.prefix / "images" / "context.tar", member)
    error = site.fails()
    assert (error.code, int(error.exit_code)) == ("image-damaged", 5)
    assert member.name in error.why and not site.log.exists()


def test_a_context_that_is_not_the_one_that_was_sent_is_not_unpacked(site: Site) -> None:
    error = site.fails(sha256="0" * 64)
    assert (error.code, int(error.exit_code)) == ("image-damaged", 5)
    error = site.fails(archive=str(site.prefix / "gone"))
    assert error.code == "image-damaged" and "none" in error.why
