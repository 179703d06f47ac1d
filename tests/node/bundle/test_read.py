"""Reading bundles: whole ones in both forms, and what is refused, each attack by its name."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envbuild.node.bundle import archive, plain_tar
from envbuild.node.protocol import NodeError
from tests.support.fails import fails
from tests.support.files import write_file, write_files

ALPHA = "wheels/alpha-1.0-py3-none-any.whl"
KEY = "ab" * 32
LONG = "wheels/" + "a" * 90 + "-1.0-cp310-cp310-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"
FILES = {
    ALPHA: ("wheel", b"alpha" * 1000),
    LONG: ("wheel", b"long"),
    f"built/{KEY}/beta-2.0-py3-none-any.whl": ("built wheel", b"beta"),
    f"built/{KEY}/build.json": ("built wheel", b"{}"),
    "sources/gamma-1234.bundle": ("source", b"git" * 700),
    "conda/main/linux-64/_delta-1.0-0.conda": ("conda package", b"delta"),
    "tools/0123456789ab-cpython.tar.gz": ("interpreter", b""),
}


def rows(files: dict[str, tuple[str, bytes]] = FILES) -> list[dict[str, Any]]:
    """The rows of an index."""
    return [
        {"path": path, "sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data), "what": what}
        for path, (what, data) in files.items()
    ]


def made(files: dict[str, tuple[str, bytes]] = FILES) -> bytes:
    """A good bundle."""
    told = archive.make_index("tiny", "exact", ["x86_64"], ["cpu"], rows(files))
    return packed({archive.NAME: archive.encode_index(told), **{path: files[path][1] for path in sorted(files)}})


def packed(files: dict[str, bytes]) -> bytes:
    """A tar file of these members, whatever they are."""
    out = io.BytesIO()
    for name, data in files.items():
        plain_tar.write(out, name, len(data), [data])
    return out.getvalue() + plain_tar.END


def forged(more: bytes, listed: list[dict[str, Any]] | None = None) -> bytes:
    """A bundle whose index holds together, followed by members that somebody else wrote."""
    told: dict[str, Any] = {"version": 1, "stack": "tiny", "profile": "exact", "machines": ["x86_64"], "variants": []}
    told["files"] = listed or []
    told["digest"] = hashlib.sha256(canonical(told)).hexdigest()
    return packed({archive.NAME: canonical(told) + b"\n"})[: -len(plain_tar.END)] + more + plain_tar.END


def canonical(data: Any) -> bytes:
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def unpacked(folder: Path, files: dict[str, tuple[str, bytes]] = FILES) -> Path:
    """The same as a folder."""
    told = archive.make_index("tiny", "exact", ["x86_64"], ["cpu"], rows(files))
    return write_files(
        folder, {archive.NAME: archive.encode_index(told), **{path: data for path, (_, data) in files.items()}}
    )


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(path: Path) -> NodeError:
    with pytest.raises(NodeError) as caught:
        archive.verify(str(path))
    return caught.value


def unpacks_nothing(bundle: Path, to: Path) -> None:
    with pytest.raises(NodeError):
        archive.unpack(str(bundle), str(to))
    assert list(to.iterdir()) == []


def test_a_bundle_is_verified_and_unpacked_as_file_as_folder_and_as_what_tar_made_of_the_file(tmp_path: Path) -> None:
    file, folder = tmp_path / "b.tar", unpacked(tmp_path / "b")
    file.write_bytes(made())
    by_tar = tmp_path / "by-tar"
    by_tar.mkdir()
    subprocess.run(["tar", "-xf", file, "-C", by_tar], check=True)
    for number, bundle in enumerate((file, folder, by_tar)):
        told = archive.verify(str(bundle))
        assert [row["path"] for row in told["files"]] == sorted(FILES)
        assert told == archive.read_index(str(bundle))
        to = tmp_path / f"to-{number}"
        assert archive.unpack(str(bundle), str(to), told["digest"]) == told
        assert contents(to) == {path: data for path, (_, data) in FILES.items()}


def test_some_files_can_be_taken_out_each_is_checked_and_what_is_in_the_way_stays(tmp_path: Path) -> None:
    (tmp_path / "b.tar").write_bytes(made().replace(b"git" * 700, b"gix" * 700))
    archive.extract(str(tmp_path / "b.tar"), {ALPHA: str(tmp_path / "alpha.whl")})
    assert (tmp_path / "alpha.whl").read_bytes() == FILES[ALPHA][1]
    with pytest.raises(NodeError, match="differs from its index"):
        archive.extract(str(tmp_path / "b.tar"), {"sources/gamma-1234.bundle": str(tmp_path / "gamma")})
    assert sorted(each.name for each in tmp_path.iterdir()) == ["alpha.whl", "b.tar"]
    in_the_way = write_file(tmp_path / "alpha.whl.part" / "own", "mine")
    with pytest.raises(OSError):
        archive.extract(str(tmp_path / "b.tar"), {ALPHA: str(tmp_path / "alpha.whl")})
    assert in_the_way.read_text() == "mine"


def test_a_folder_gives_the_tar_file_of_its_bundle_unless_a_file_changes(tmp_path: Path) -> None:
    folder = unpacked(tmp_path / "b")
    index, places = archive.read_index(folder), {path: folder / path for path in FILES}
    with (tmp_path / "b.tar").open("wb") as out:
        archive.to_tar(out, index, places)
    assert (tmp_path / "b.tar").read_bytes() == made()
    for size in (-1, 1):
        os.truncate(folder / ALPHA, len(FILES[ALPHA][1]) + size)
        with pytest.raises(NodeError, match="hash-mismatch"), (tmp_path / "c.tar").open("wb") as out:
            archive.to_tar(out, index, places)


def test_of_many_flipped_bits_none_is_accepted_and_nothing_is_unpacked(tmp_path: Path) -> None:
    whole, dice = bytearray(made()), random.Random(37)
    path, accepted = tmp_path / "b.tar", []
    for _ in range(1000):
        place, bit = dice.randrange(len(whole)), 1 << dice.randrange(8)
        whole[place] ^= bit
        path.write_bytes(whole)
        try:
            archive.unpack(str(path), str(tmp_path / "to"))
        except NodeError as error:
            assert error.exit_code == 5
        else:
            accepted.append(place)
        whole[place] ^= bit
    assert accepted == []
    assert contents(tmp_path / "to") == {}


def test_a_bundle_that_is_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    whole, path = made(), tmp_path / "b.tar"
    for size in [*range(0, len(whole), 257), len(whole) - 1, len(whole) - 512, len(whole) - 1024]:
        path.write_bytes(whole[:size])
        assert refused(path).code == "bundle-damaged", size
    path.write_bytes(whole + b"\0")
    assert "does not end" in refused(path).why


def test_another_bundle_than_the_one_that_was_meant_and_what_is_no_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "b.tar").write_bytes(made())
    with fails("bundle-damaged", 5) as caught:
        archive.unpack(str(tmp_path / "b.tar"), str(tmp_path / "to"), "0" * 64)
    assert "another bundle" in caught.value.why
    os.mkfifo(tmp_path / "pipe")
    for name in ("none.tar", "pipe"):
        assert refused(tmp_path / name).code == "bundle-missing", "and it is not waited for"


EMPTY = hashlib.sha256(b"").hexdigest()


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0, mode: int = 0o644) -> bytes:
    found = tarfile.TarInfo(name)
    found.type, found.linkname, found.size, found.mode = kind, link, size, mode
    return found.tobuf(tarfile.GNU_FORMAT)


def listing(*files: tuple[str, int]) -> list[dict[str, Any]]:
    return [{"path": path, "sha256": EMPTY, "bytes": size, "what": "wheel"} for path, size in files]


A = "wheels/a.whl"
HOSTILE: dict[str, tuple[bytes, str, str]] = {
    "traversal": (forged(member("wheels/../../evil")), "bundle-unsafe", "leads out"),
    "an absolute path": (forged(member("/etc/cron.d/evil")), "bundle-unsafe", "leads out"),
    "traversal in the index": (forged(b"", listing(("wheels/../../evil", 0))), "bundle-unsafe", "../../evil"),
    "an absolute path in the index": (forged(b"", listing(("/etc/cron.d/evil", 0))), "bundle-unsafe", "/etc/cron.d"),
    "a link that leads out": (forged(member(A, tarfile.SYMTYPE, "/etc/passwd")), "bundle-unsafe", "a link"),
    "a hard link": (forged(member(A, tarfile.LNKTYPE, "/etc/passwd")), "bundle-unsafe", "a link"),
    "a folder that is a link": (forged(member("wheels", tarfile.SYMTYPE, "/tmp")), "bundle-unsafe", "a link"),
    "a device": (forged(member(A, tarfile.CHRTYPE)), "bundle-unsafe", "a device"),
    "a block device": (forged(member(A, tarfile.BLKTYPE)), "bundle-unsafe", "a device"),
    "a pipe": (forged(member(A, tarfile.FIFOTYPE)), "bundle-unsafe", "a pipe"),
    "setuid": (forged(member(A, mode=0o4755), listing((A, 0))), "bundle-unsafe", "4755"),
    "setgid": (forged(member(A, mode=0o2755), listing((A, 0))), "bundle-unsafe", "2755"),
    "an executable file": (forged(member(A, mode=0o755), listing((A, 0))), "bundle-damaged", "header"),
    "a bomb by its size": (forged(member(A, size=1 << 40), listing((A, 0))), "bundle-unsafe", "are the most"),
    "a bomb by its holes": (forged(member(A, tarfile.GNUTYPE_SPARSE)), "bundle-unsafe", "sparse"),
    "a bomb by its index": (forged(b"", listing((A, 1 << 40))), "bundle-unsafe", "are the most"),
    "a compressed bomb": (b"\x1f\x8b\x08" + bytes(600), "bundle-damaged", "no"),
    "a file twice": (forged(member(A) + member(A), listing((A, 0))), "bundle-unsafe", "twice"),
    "a file twice in the index": (forged(b"", listing((A, 0), (A, 0))), "bundle-unsafe", "twice"),
    "a case clash": (forged(b"", listing(("wheels/A.whl", 0), (A, 0))), "bundle-unsafe", "case"),
    "a case clash of folders": (
        forged(b"", [{**row, "what": "conda package"} for row in listing(("conda/A/b/c", 0), ("conda/a/b/d", 0))]),
        "bundle-unsafe", "case",
    ),
    "a file that is a folder": (
        forged(b"", [{**row, "what": "conda package"} for row in listing(("conda/a/b/c", 0), ("conda/a/b/c/d", 0))]),
        "bundle-unsafe", "conda",
    ),
    "a hidden file": (forged(b"", listing(("wheels/.pth", 0))), "bundle-unsafe", ".pth"),
    "a name that acts on terminals": (forged(member("wheels/\x1b[2J")), "bundle-unsafe", "\\x1b[2J"),
    "another index inside": (forged(member(archive.NAME)), "bundle-unsafe", "twice"),
    "headers that speak of headers": (forged(member("a", tarfile.XHDTYPE, size=10)), "bundle-damaged", "headers"),
    "a file that is not listed": (forged(member(A)), "bundle-damaged", "does not list"),
    "a file that is missing": (forged(b"", listing((A, 0))), "bundle-damaged", "not there"),
    "files in another order": (
        forged(b"", listing(("wheels/b.whl", 0), (A, 0))), "bundle-unsafe", "order",
    ),
    "a kind that there is not": (forged(b"", [{**listing((A, 0))[0], "what": "script"}]), "bundle-unsafe", "script"),
    "no index": (packed({A: b""}), "bundle-damaged", "does not begin"),
    "an index of another version": (
        packed({archive.NAME: b'{"version":2}\n'}), "bundle-damaged", "this envbuild reads",
    ),
    "an index that is no JSON": (packed({archive.NAME: b"\xff" * 9}), "bundle-damaged", "this envbuild reads"),
    "an index nested too deeply": (packed({archive.NAME: b"[" * 100_000}), "bundle-damaged", "this envbuild reads"),
    "a larger index than there is": (member(archive.NAME, size=1 << 30), "bundle-unsafe", "are the most"),
}  # fmt: skip


@pytest.mark.parametrize(("data", "code", "why"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_bundle_is_refused_and_writes_nothing(tmp_path: Path, data: bytes, code: str, why: str) -> None:
    path = tmp_path / "in" / "b.tar"
    write_file(path, data)
    error = refused(path)
    assert (error.code, error.exit_code) == (code, 5)
    assert why in f"{error.what} {error.why}"
    unpacks_nothing(path, tmp_path / "to")
    assert {each.name for each in tmp_path.iterdir()} == {"in", "to"}


CHANGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a link": (lambda b: ((b / ALPHA).rename(b.parent / "far"), (b / ALPHA).symlink_to(b.parent / "far")), "a link"),
    "a folder that is a link": (
        lambda b: ((b / "wheels").rename(b.parent / "w"), (b / "wheels").symlink_to(b.parent / "w")), "a link",
    ),
    "a pipe": (lambda b: os.mkfifo(b / "wheels" / "pipe"), "no regular file"),
    "setuid": (lambda b: (b / ALPHA).chmod(0o4755), "mode"),
    "a file more": (lambda b: (b / "wheels" / "zeta.whl").write_bytes(b""), "does not list"),
    "a file less": (lambda b: (b / ALPHA).unlink(), "not there"),
    "another byte": (lambda b: (b / ALPHA).write_bytes(b"alphb" * 1000), "sha256"),
    "a byte more": (lambda b: (b / ALPHA).write_bytes(b"alpha" * 1000 + b"a"), "bytes"),
    "another index": (lambda b: (b / archive.NAME).write_bytes(b"{}"), "reads"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "why"), CHANGES.values(), ids=CHANGES)
def test_a_folder_that_was_changed_is_refused(tmp_path: Path, change: Callable[[Path], Any], why: str) -> None:
    folder = unpacked(tmp_path / "b")
    change(folder)
    error = refused(folder)
    assert error.exit_code == 5
    assert why in error.why
    unpacks_nothing(folder, tmp_path / "to")


def test_a_bundle_is_only_made_of_what_it_may_hold_and_of_what_was_announced(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match="is not a bundle"):
        archive.make_index("tiny", "exact", ["x86_64"], [], [{**rows()[0], "path": f"built/{KEY}/../x"}])
    with (tmp_path / "t").open("wb") as out, pytest.raises(ValueError, match="3 were announced"):
        plain_tar.write(out, "a", 3, [b"ab"])
