"""The verb `unpack`: an environment out of a pack of another node, in place of `install`, up to but without its stamp.

The pack is compared with its hash before anything of it is read. It is unpacked into a folder of its own, where nothing
but the packed folders may lie and no link leads out; only then does it get its place. `activate` hashes every file.
"""

import json
import os
import re
import shutil
import stat
import tarfile
import time
from functools import partial

from envbuild.node import hashing, lease, paths, proc
from envbuild.node.env import interpreter as base
from envbuild.node.env import stamp, user_files
from envbuild.node.packs import pack_format
from envbuild.node.probe import inventory, system
from envbuild.node.protocol import Json, NodeError, argument, has_fields, log, plural

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_BLOCK = 1024 * 1024


def run(request: Json) -> "tuple[bool, Json]":
    """Unpack `args.file` (`args.sha256`) as `args.environment`; returns (changed, the result of an install).

    The lease is kept for the run's next steps when it succeeds and given back when it fails. A stamped environment is
    left alone unless `args.anew`: then the pack takes its place, and files of users are moved aside (`notes`). With
    `args.remove` the pack goes once it is unpacked. Raises NodeError:
    `pack-damaged` (exit 5), `pack-missing` (2), `pack-does-not-fit`, `pack-leads-out`, `pack-format-unknown`,
    `interpreter-missing`, `interpreter-mismatch`, `base-changed` (7), `disk-full`, `inodes-full`, `prefix-busy` (75).
    """
    args, prefix = request["args"], request["prefix"]
    for key, kind in (("variant", "an object"), ("file", "a text"), ("sha256", "a text")):
        argument(args, key, kind)
    environment = paths.checked_environment(prefix, args.get("environment"))
    paths.make_dirs(prefix, "envs", "tools")
    held = lease.of_request(request)
    try:
        with held:
            found = stamp.read(environment)
            if found is not None and not args.get("anew"):
                return False, stamp.unchanged(environment, args["variant"], found)
            result = _unpack(request, environment, held)
            if args.get("remove"):
                os.unlink(args["file"])
            return True, result
    except BaseException as error:
        held.release()
        raise (paths.os_error(error, environment) if isinstance(error, OSError) else None) or error from error


def _unpack(request: Json, environment: str, held: "lease.Lease") -> Json:
    args, prefix = request["args"], request["prefix"]
    begun = time.monotonic()
    kind = args.get("format") or _format_of(args["file"])
    for each in os.listdir(paths.envs_dir(prefix)):
        if each.startswith(inventory.STAGING):  # of runs that were killed: under the lease nobody else unpacks here
            paths.remove_tree(os.path.join(paths.envs_dir(prefix), each))
    staging = os.path.join(paths.envs_dir(prefix), inventory.STAGING + paths.checked_name(request["run"], "run"))
    with pack_format.open_pack(args["file"]) as pack:
        found = hashing.digest_of_stream(pack)
        if found != args["sha256"].lower():
            raise _damaged(args["file"], "its sha256 is %.12s, expected %.12s" % (found, args["sha256"]))
        pack.seek(0)
        os.mkdir(staging, 0o755)
        try:
            # What fits is decided by the manifest, which comes first, before room is taken.
            manifest = _READERS[kind](args["file"], pack, staging, lambda told: _check_fits(request, environment, told))
            held.check()
            # The packed interpreter; one that is there has the same digest in its name and stays.
            for name in manifest["folders"][1:]:
                if not os.path.isdir(os.path.join(prefix, name)):
                    os.rename(os.path.join(staging, name), os.path.join(prefix, name))
            interpreter = _interpreter(manifest, args["variant"])
            moved = user_files.discard(prefix, environment, os.path.join(staging, manifest["folders"][0]))
            paths.sync_dir(paths.envs_dir(request["prefix"]))
        finally:
            paths.remove_tree(staging)
    notes = dict(manifest["installed"], environment=environment, record_checked=0)
    notes["seconds"] = {"unpack": round(time.monotonic() - begun, 3)}
    told = dict(notes, run=request["run"], interpreter=interpreter, variant_digest=manifest["variant_digest"])
    paths.write_json(paths.meta(environment, stamp.INSTALLED), told)
    log("unpacked %s: %s" % (environment, plural(manifest["inodes"], "path")))
    notes["notes"] = [moved] if moved else []
    return dict(notes, pack={"file": args["file"], "sha256": args["sha256"], "format": kind, "root": manifest["root"]})


def _format_of(path: str) -> str:
    for kind, ending in pack_format.ENDINGS.items():
        if path.endswith("." + ending):
            return kind
    raise NodeError("request-invalid", "`format` is missing, and %s does not say it" % path)


def _damaged(path: str, why: str) -> "NodeError":
    return NodeError(
        "pack-damaged",
        "%s is not the pack that was made" % path,
        why=why,
        hint="bring the file again, or pack the environment again",
    )


def _check_fits(request: Json, environment: str, manifest: "Any") -> None:
    """Raise NodeError `pack-does-not-fit` (exit 7), `disk-full` or `inodes-full` (75)."""
    args, prefix = request["args"], request["prefix"]
    machine, libc = os.uname().machine, system.glibc()
    wanted = [
        ("environment", manifest["environment"], environment),
        ("prefix", manifest["prefix"], os.path.realpath(prefix)),
        ("variant", manifest["variant_digest"], args["variant"].get("digest")),
        ("machine", manifest["machine"], machine),
        ("root", manifest["root"], args.get("root") or manifest["root"]),
        ("folder", manifest["folders"][0], os.path.join("envs", os.path.basename(environment))),
    ]
    wrong = ["%s: %s, here %s" % each for each in wanted if each[1] != each[2]]
    if _numbers(libc) < _numbers(manifest["libc"]) or libc.split()[:1] != manifest["libc"].split()[:1]:
        wrong.append("C library: %s, here %s" % (manifest["libc"] or "unknown", libc or "unknown"))
    if wrong:
        raise NodeError(
            "pack-does-not-fit",
            "the pack is not for this node and this environment",
            why="; ".join(wrong),
            hint="nodes that share a pack have one prefix, one machine type, and no older glibc than the packing node",
        )
    paths.check_room(paths.envs_dir(prefix), prefix, manifest["unpacked"], manifest["inodes"])


def _numbers(text: str) -> "list[int]":
    return [int(each) for each in re.findall(r"\d+", text)]


class _Members:
    """What a pack may hold, member by member: names below its folders, each under a folder that came before it."""

    def __init__(self, path: str, manifest: Json) -> None:
        self.path = path
        self.manifest = manifest
        self.folders = {"", "envs", "tools"}
        self.left = manifest["unpacked"]
        self.count = 0
        self.umask = paths.umask()

    def check(self, name: str, kind: str, size: int, target: str = "") -> None:
        """One member: a folder, file or link. Raises NodeError `pack-damaged` (exit 5), `pack-leads-out` (7)."""
        parts = name.split("/")
        inside = any((name + "/").startswith(each + "/") for each in self.manifest["folders"])
        if not inside or "" in parts or "." in parts or ".." in parts or os.path.dirname(name) not in self.folders:
            raise pack_format.leads_out(name, "it is not in one of the folders of this pack")
        if kind == "link":
            told = self.manifest
            pack_format.check_link(name, target, told["prefix"], told["folders"], told["interpreter"])
        elif kind == "folder":
            self.folders.add(name)
        elif kind != "file":
            raise pack_format.leads_out(name, "it is no file, folder or link")
        self.left -= size
        self.count += 1
        if self.left < 0 or self.count > self.manifest["inodes"]:
            raise _damaged(self.path, "it holds more than it says")

    def end(self) -> None:
        """Raise NodeError `pack-damaged` (exit 5) when something is missing."""
        if self.left or self.count != self.manifest["inodes"]:
            raise _damaged(self.path, "it holds less than it says")


def _manifest(path: str, data: bytes) -> Json:
    """The manifest of a pack, its shape checked."""
    try:
        found = json.loads(data.decode("ascii"))
    except (ValueError, RecursionError):
        found = None
    texts = ("prefix", "environment", "variant_digest", "root", "interpreter", "python", "machine", "libc")
    others: dict[str, type] = {"folders": list, "inodes": int, "unpacked": int, "installed": dict}
    good = isinstance(found, dict) and found.get("version") == pack_format.VERSION
    if not good or not has_fields(found, **dict.fromkeys(texts, str), **others):
        raise _damaged(path, "its %s is not one that this envbuild reads" % pack_format.MANIFEST)
    folders = found["folders"]
    # `envs/NAME`, and `tools/NAME` where there are two; a name is never `..`.
    if not re.match(r"\Aenvs/[A-Za-z0-9][^/\n]*(\ntools/[A-Za-z0-9][^/\n]*)?\Z", "\n".join(map(str, folders))):
        raise _damaged(path, "it names the folders %r" % (folders,))
    return dict(found)


def _read_tar(path: str, stream: "Any", staging: str, fits: "Any", mode: "Any" = "r|gz") -> Json:
    """Unpack a tar stream member by member; `fits(manifest)` is asked before the second one."""
    members = None
    try:
        with tarfile.open(fileobj=stream, mode=mode, encoding="utf-8", errors="surrogateescape") as archive:
            for member in archive:
                if members is None:
                    small = member.isreg() and member.size <= pack_format.MANIFEST_LIMIT
                    content = archive.extractfile(member) if small else None
                    if content is None or member.name != pack_format.MANIFEST:
                        raise _damaged(path, "it does not begin with %s" % pack_format.MANIFEST)
                    members = _Members(path, _manifest(path, content.read()))
                    fits(members.manifest)
                    for each in ("envs", "tools"):
                        os.mkdir(os.path.join(staging, each))
                    continue
                _extract(archive, member, staging, members)
    except FileExistsError as error:
        raise _damaged(path, "it holds %s twice" % error.filename) from None
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise _damaged(path, str(error)[:300]) from None
    if members is None:
        raise _damaged(path, "it is empty")
    members.end()
    return members.manifest


def _extract(archive: "tarfile.TarFile", member: "tarfile.TarInfo", staging: str, members: "_Members") -> None:
    kind = "file" if member.isreg() else "link" if member.issym() else "folder" if member.isdir() else "other"
    members.check(member.name, kind, member.size if kind == "file" else 0, member.linkname)
    place = os.path.join(staging, member.name)
    if kind == "folder":
        os.mkdir(place)
    elif kind == "link":
        os.symlink(member.linkname, place)
    else:
        content = archive.extractfile(member)
        with open(place, "xb") as out:
            shutil.copyfileobj(content, out, _BLOCK) if content else None
        _settle(place, member.mode, member.mtime, members.umask)


def _settle(place: str, mode: int, mtime: float, umask: int) -> None:
    """Executable as packed, writable by the umask of this run; by its time Python knows whether byte code is new."""
    os.chmod(place, (0o777 if mode & stat.S_IXUSR else 0o666) & ~umask)
    os.utime(place, (mtime, mtime))


def _read_zst(path: str, pack: "Any", staging: str, fits: "Any") -> Json:
    """Through the program `zstd`. Raises NodeError `pack-format-unknown` (exit 7) without it."""
    if not proc.run(["zstd", "--version"]).ok:
        raise _unreadable("tar.zst", "there is no program zstd")
    with proc.piped(["zstd", "-dcq"], pack) as program:
        manifest = _read_tar(path, program.stream, staging, fits, "r|")
        if len(program.stream.read(_BLOCK)) == _BLOCK:
            raise _damaged(path, "trailing data after its end")
    if program.rc != 0:
        raise _damaged(path, program.err.strip()[-300:])
    return manifest


def _read_squashfs(path: str, pack: "Any", staging: str, fits: "Any") -> Json:
    """Through the program `unsquashfs`, into the private folder; then everything in it is looked at.

    `pack` is what was hashed, and the program reads that very file.
    """
    if "unsquashfs" not in proc.run(["unsquashfs", "-version"]).out:
        raise _unreadable("squashfs", "there is no program unsquashfs")
    source = "/proc/self/fd/0"
    first = os.path.join(staging, "first")
    for place, only in ((first, [pack_format.MANIFEST]), (os.path.join(staging, "all"), [])):
        argv = ["unsquashfs", "-no-progress", "-quiet", "-no-xattrs", "-dest", place, source] + only
        with proc.piped(argv, pack) as program:
            said = program.stream.read()
        if program.rc != 0:
            why = (program.err or said.decode("utf-8", "replace")).strip()[-300:]
            paths.refuse_full(why, staging, why)
            raise _damaged(path, why)
        if only:
            try:
                with open(os.path.join(first, pack_format.MANIFEST), "rb") as stream:
                    manifest = _manifest(path, stream.read(pack_format.MANIFEST_LIMIT))
            except OSError:
                raise _damaged(path, "it has no %s" % pack_format.MANIFEST) from None
            fits(manifest)
    everything = os.path.join(staging, "all")
    os.unlink(os.path.join(everything, pack_format.MANIFEST))
    _look_at(path, everything, manifest)
    for each in sorted(os.listdir(everything)):
        os.rename(os.path.join(everything, each), os.path.join(staging, each))
    return manifest


def _look_at(path: str, top: str, manifest: Json) -> None:
    """Check every path below `top` as members of an archive are checked, and give files their modes."""
    members = _Members(path, manifest)
    for folder, folders, names in os.walk(top):
        for each in folders + names:
            full = os.path.join(folder, each)
            name = os.path.relpath(full, top)
            if name in ("envs", "tools"):
                continue
            facts = os.lstat(full)
            mode = facts.st_mode
            kind = "file" if stat.S_ISREG(mode) else "link" if stat.S_ISLNK(mode) else ""
            kind = kind or ("folder" if stat.S_ISDIR(mode) else "other")
            target = os.readlink(full) if kind == "link" else ""
            members.check(name, kind, facts.st_size if kind == "file" else 0, target)
            if kind == "file":
                _settle(full, mode, facts.st_mtime, members.umask)
            elif kind == "folder":
                os.chmod(full, 0o755)  # noqa: S103
    members.end()


def _unreadable(kind: str, why: str) -> "NodeError":
    return NodeError(
        "pack-format-unknown",
        "this node cannot read a pack in the format %s" % kind,
        why=why,
        hint="install it, or have the pack made as tar.gz, which needs nothing",
    )


_READERS: Json = {
    "tar.gz": _read_tar,
    "tar": partial(_read_tar, mode="r|"),
    "tar.zst": _read_zst,
    "squashfs": _read_squashfs,
}


def _interpreter(manifest: Json, variant: Json) -> str:
    """The packed environment's interpreter as it is here.

    Raises NodeError `interpreter-missing`, `interpreter-mismatch` or `base-changed` (exit 7).
    """
    if not manifest["interpreter"]:
        return ""  # it is in the environment
    found = base.examine(manifest["interpreter"], variant)
    version = ".".join(map(str, found.version))
    if manifest["python"] and version != manifest["python"]:
        raise NodeError(
            "interpreter-mismatch",
            "%s is Python %s, the packed environment stands on %s" % (found.path, version, manifest["python"]),
            hint="give all nodes the same interpreter, for example the standalone one of the lock",
        )
    base.check(variant, found.packages)
    return found.path
