"""The verb `pack`: one file with everything that another node needs to have the same environment at the same path.

The file is a tar archive (packed with gzip or zstd), or a squashfs made of one. Its first member, `pack.json`, says
what it is and for which places; then come `envs/<environment>` and, where the environment stands on an interpreter
below the prefix, `tools/<that one>`. What a stamp says of one node alone stays behind, and so does `__pycache__`.
"""

import hashlib
import io
import json
import os
import stat
import tarfile
import tempfile
from collections.abc import Iterator

from envbuild.node import hashing, paths, proc
from envbuild.node.env import activation_files, stamp
from envbuild.node.packs import pack_format, published
from envbuild.node.probe import system
from envbuild.node.protocol import Json, NodeError, argument, log, plural

# What `activate` writes anew, and what belongs to a build that is not finished.
_OF_ONE_NODE = (
    stamp.STAMP, stamp.FILES, stamp.MADE, stamp.INSTALLED, stamp.SCAN, stamp.READ, "variables.json",
    *activation_files.FILES,
)  # fmt: skip


def run(request: Json) -> "tuple[bool, Json]":
    """Pack `args.environment` into the folder `args.folder`; returns (changed, result of the contract).

    With `args.ensure` later jobs get it from there (`publish`). A pack of the same environment and root that is
    there and whole is taken again. With `args.durable` false the pack is not synced to the disk: it is read once and
    removed. With `args.interpreter` false the interpreter stays out of it: all that take the environment over have it.
    Raises NodeError `environment-not-stamped`, `pack-leads-out`, `pack-format-unknown`,
    `pack-not-writable` (exit 7), `disk-full` or `inodes-full` (75).
    """
    args, prefix = request["args"], request["prefix"]
    environment = paths.checked_environment(prefix, args.get("environment"))
    folder = argument(args, "folder", "an absolute path")
    found = stamp.read(environment)
    if found is None:
        raise NodeError("environment-not-stamped", "%s is not finished" % environment)
    alone = args.get("interpreter") is False
    name = pack_name(environment, found) + ("-alone" if alone else "")
    there = pack_format.known(folder, name)
    try:
        if there is not None and hashing.digest_of(there["file"]) == there["sha256"]:
            log("%s is there and whole" % there["file"])
            published.publish(request, there)
            return False, there
        manifest, members = describe(prefix, environment, found, alone)
        os.makedirs(folder, exist_ok=True)
        made = _write(folder, name, usable(args.get("formats")), manifest, members, args.get("durable", True))
        record = dict(manifest, **made)
        paths.write_json(os.path.join(folder, name + ".json"), record)
        published.publish(request, record)
    except OSError as error:
        raise paths.os_error(error, folder) or NodeError(
            "pack-not-writable", "cannot write a pack into %s" % folder, why=str(error)
        ) from error
    log("packed %s: %s, %d MB" % (environment, plural(len(members), "path"), made["bytes"] // 10**6))
    return True, record


def pack_name(environment: str, found: Json) -> str:
    """The name of a pack without its ending: environment (with the variant's digest), root, and place.

    Files of an environment name its path and its interpreter, so a pack for another prefix is another pack.
    """
    place = hashlib.sha256(os.fsencode("%s\0%s" % (os.path.realpath(environment), found.get("interpreter"))))
    return "%s-%.12s-%.8s" % (os.path.basename(environment), found["root"], place.hexdigest())


def usable(wanted: "list[str] | None") -> str:
    """The first of `wanted` (None: all) that this node can write. Raises NodeError `pack-format-unknown` (exit 7)."""
    listed = list(pack_format.ENDINGS) if wanted is None else wanted
    for name in listed:
        if name in ("tar.gz", "tar") or (name == "tar.zst" and proc.run(["zstd", "--version"]).ok):
            return str(name)
        if name == "squashfs" and _squashfs_version() >= (4, 5):
            return str(name)
    raise NodeError(
        "pack-format-unknown",
        "this node can write none of %s" % ", ".join(map(str, listed)),
        why="squashfs needs mksquashfs 4.5 or newer, tar.zst needs zstd; tar.gz needs nothing",
    )


def _squashfs_version() -> "tuple[int, ...]":
    """Version of mksquashfs; before 4.5 it cannot read a tar archive."""
    words = proc.run(["mksquashfs", "-version"]).out.split()
    numbers = words[2].split(".")[:2] if words[:2] == ["mksquashfs", "version"] and len(words) > 2 else []
    return tuple(int(each) if each.isdigit() else 0 for each in numbers)


def describe(
    prefix: str, environment: str, found: Json, alone: bool = False
) -> "tuple[Json, list[tuple[str, os.stat_result]]]":
    """The manifest of a pack, and its members: path relative to the prefix and what `lstat` says, folders first.

    `alone`: without the interpreter.
    """
    top = os.path.realpath(prefix)
    folders = [os.path.relpath(os.path.realpath(environment), top)]
    interpreter = str(found.get("interpreter") or "")
    parts = os.path.relpath(os.path.realpath(interpreter), top).split(os.sep) if interpreter else [""]
    if parts[0] == "tools" and len(parts) > 2 and not alone:
        folders.append(os.path.join(*parts[:2]))
    members = [each for folder in folders for each in _walk(top, folder)]
    for name, facts in members:
        if stat.S_ISLNK(facts.st_mode):
            pack_format.check_link(name, os.readlink(os.path.join(top, name)), top, folders, interpreter)
        elif not (stat.S_ISREG(facts.st_mode) or stat.S_ISDIR(facts.st_mode)):
            raise pack_format.leads_out(name, "it is no file, folder or link")
    installed = {key: found.get(key) for key in ("packages", "base_packages", "conda", "files", "bytes", "sources")}
    manifest = {
        "version": pack_format.VERSION, "prefix": top, "environment": environment, "stack": found["stack"],
        "profile": found.get("profile"), "variant_digest": found["variant_digest"], "root": found["root"],
        "interpreter": interpreter, "python": stamp.python_version(environment), "machine": os.uname().machine,
        "libc": system.glibc(), "folders": folders, "inodes": len(members), "installed": installed,
        "unpacked": sum(facts.st_size for _, facts in members if stat.S_ISREG(facts.st_mode)),
    }  # fmt: skip
    return manifest, members


def _walk(top: str, folder: str) -> "Iterator[tuple[str, os.stat_result]]":
    """A folder and everything below it that is packed, sorted, each folder before what it holds."""
    yield folder, os.lstat(os.path.join(top, folder))
    with os.scandir(os.path.join(top, folder)) as listing:
        found = sorted(listing, key=lambda item: item.name)
    for item in found:
        name = folder + "/" + item.name
        if os.path.basename(folder) == paths.META and item.name in _OF_ONE_NODE:
            continue
        if not item.is_dir(follow_symlinks=False):
            yield name, item.stat(follow_symlinks=False)
        elif item.name != "__pycache__":
            yield from _walk(top, name)


def _write(
    folder: str, name: str, kind: str, manifest: Json, members: "list[tuple[str, os.stat_result]]", durable: bool = True
) -> Json:
    """Write the pack beside its place, sync, rename; result: `file`, `format`, `sha256`, `bytes`.

    `durable` False: not synced, because it is read once and removed.
    """
    final = os.path.join(folder, "%s.%s" % (name, pack_format.ENDINGS[kind]))
    with tempfile.TemporaryDirectory(prefix=".pack-", dir=folder) as work:
        half = os.path.join(work, "pack")
        top = manifest["prefix"]
        if kind in ("tar.gz", "tar"):
            form = dict(_FORM, mode="w:gz", compresslevel=1) if kind == "tar.gz" else dict(_FORM, mode="w")
            with open(half, "xb") as out, tarfile.open(fileobj=out, **form) as archive:
                _add_all(archive, top, manifest, members)
        else:
            argv = ["zstd", "-q", "-3", "-T0", "-o", half]
            if kind == "squashfs":
                argv = ["mksquashfs", "-", half] + "-tar -all-root -noappend -no-xattrs -no-progress -quiet".split()
                argv += ["-comp", "zstd"] if "zstd" in proc.run(["mksquashfs", "-help"]).out else []
            _through(argv, half, manifest, members)
        with open(half, "rb+") as done:
            os.fchmod(done.fileno(), 0o644)
            if durable:
                os.fsync(done.fileno())
        made = {"file": final, "format": kind, "sha256": hashing.digest_of(half), "bytes": os.path.getsize(half)}
        os.rename(half, final)
    paths.sync_dir(folder)
    return made


# GNU tar's form: any name, any size, no extended headers that hold times in fractions.
_FORM: Json = {"format": tarfile.GNU_FORMAT, "encoding": "utf-8", "errors": "surrogateescape"}


def _through(argv: "list[str]", half: str, manifest: Json, members: "list[tuple[str, os.stat_result]]") -> None:
    """The archive through a program that reads it from its stdin. Raises NodeError `pack-not-writable` (exit 7)."""
    with proc.piped(argv) as program:
        try:
            with tarfile.open(fileobj=program.stream, mode="w|", **_FORM) as archive:
                _add_all(archive, manifest["prefix"], manifest, members)
        except BrokenPipeError:
            pass  # it says why itself
    if program.rc != 0:
        paths.refuse_full(program.err, half, program.err[-300:])
        raise NodeError("pack-not-writable", "%s failed" % argv[0], why=program.err.strip()[-500:])


def _add_all(archive: "tarfile.TarFile", top: str, manifest: Json, members: "list[tuple[str, os.stat_result]]") -> None:
    data = json.dumps(manifest, sort_keys=True, ensure_ascii=True).encode("ascii")
    first = tarfile.TarInfo(pack_format.MANIFEST)
    first.size, first.mode = len(data), 0o644
    archive.addfile(first, io.BytesIO(data))
    for name, facts in members:
        member = tarfile.TarInfo(name)
        member.mode, member.mtime = stat.S_IMODE(facts.st_mode) & 0o755 | 0o600, int(facts.st_mtime)
        if stat.S_ISDIR(facts.st_mode):
            member.type, member.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(member)
        elif stat.S_ISLNK(facts.st_mode):
            member.type, member.linkname = tarfile.SYMTYPE, os.readlink(os.path.join(top, name))
            archive.addfile(member)
        else:
            with open(os.path.join(top, name), "rb") as content:
                member.size = facts.st_size
                archive.addfile(member, content)
