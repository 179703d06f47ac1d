"""The part of an image build that has a network: every locked file and every pinned commit, checked, into one folder.

    <out>/wheels/<file>             packages
    <out>/conda/<channel>/<subdir>/<file>
    <out>/sources/<name>.git        a bare repository with exactly the pinned commit; `<name>.<path>.git` for submodules
    <prefix>/tools/                 uv from its wheel, a standalone Python where the environment gets one

Hashes decide, so any place is as good as another: a folder of the user's (`find_links`) comes first, then the address
or index that the lock names, then the configured ones, then pip's own default.
"""

import os
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Iterator

from envbuild.node import git_source, paths, pip_config, proc
from envbuild.node.packages import fetch_locked, installed
from envbuild.node.protocol import Json, NodeError, log, plural

_WORKERS = 8
# pip knows the address of its default index; nothing here does.
_DEFAULT = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"


def run(args: Json) -> Json:
    """Fetch `files` ([{file, sha256, size, package, index} or {..., url}]), `sources` (pins) and `tools`.

    A file of conda has `channel` and `subdir` instead of `index`. `indexes` is {name: {url, kind}}, for a channel
    {`conda:NAME`: {urls}}; `addresses` is a file with more of them, which is not committed with the request.
    Returns `files` and `bytes`. Raises NodeError: `request-invalid` (exit 2), `hash-mismatch`, `tree-mismatch`,
    `commit-missing` (5), `package-not-found`, `index-refused`, `source-unreachable` (4),
    `network-unreachable`, `disk-full` (75).
    """
    out = args["out"]
    wheels = os.path.join(out, "wheels")
    os.makedirs(wheels, exist_ok=True)
    git_source.check_pins(args.get("sources") or [])
    with paths.coded_errors(out):
        place = _Places(args)
        sizes = proc.each(lambda each: place.bring(each, _folder_of(each, out)), args.get("files") or [], _WORKERS)
        for source in args.get("sources") or []:
            bring_source(source, os.path.join(out, "sources"), place.links, args.get("cache"))
        for tool in args.get("tools") or []:
            _tool(tool, wheels)
    log("fetched %s, %d bytes" % (plural(len(sizes), "file"), sum(sizes)))
    return {"files": len(sizes), "bytes": sum(sizes)}


def _folder_of(wanted: Json, out: str) -> str:
    """Where a fetched file goes."""
    if not wanted.get("channel"):
        return os.path.join(out, "wheels")
    names = [paths.checked_name(wanted[key], key) for key in ("channel", "subdir")]
    folder = os.path.join(out, "conda", *names)
    os.makedirs(folder, exist_ok=True)
    return folder


def repository(folder: str, name: str) -> str:
    """Where the repository of a source (`name`) or submodule (`name/path`) lies in the folder of sources."""
    return os.path.join(folder, name.replace("/", ".") + ".git")


class _Places(fetch_locked.Places):
    """Where files come from, read once."""

    def __init__(self, args: Json) -> None:
        """`args` as in `run`."""
        self._config = pip_config.read(os.environ)
        links = pip_config.folders(pip_config.alive(list(args.get("find_links") or []) + self._config.find_links))
        self._indexes = _indexes(args)
        self._default: str | None = None
        fetch_locked.Places.__init__(self, links, self._known, self._config.cert, args.get("cache"))

    def _known(self, wanted: Json) -> "Iterator[str]":
        """Addresses of the file, the most fitting first; raises NodeError where a page cannot be read."""
        if wanted.get("url"):
            yield wanted["url"]
        elif wanted.get("channel"):
            for base in (self._indexes.get("conda:" + wanted["channel"]) or {}).get("urls") or []:
                yield "%s/%s/%s" % (base.rstrip("/"), wanted["subdir"], wanted["file"])
        else:
            yield from fetch_locked.on_pages(self._pages(wanted), wanted["file"], self._config.cert)

    def _pages(self, wanted: Json) -> "Iterator[str]":
        below = "/%s/" % installed.normal_name(wanted["package"])
        index = self._indexes.get(wanted.get("index") or "")
        if index is not None and index.get("url"):
            yield index["url"] if index.get("kind") == "find-links" else index["url"].rstrip("/") + below
        normal = os.environ.get("UV_DEFAULT_INDEX") or self._config.index_url or self._pip_default()
        for url in [normal] + self._config.extra_index_urls:
            if url and pip_config.local_path(url) is None:
                yield url.rstrip("/") + below

    def _pip_default(self) -> str:
        if self._default is None:
            done = proc.run([sys.executable, "-I", "-c", _DEFAULT], timeout=60.0, env=proc.clean_env())
            self._default = done.out.strip() if done.ok else ""
        return self._default


def _indexes(args: Json) -> Json:
    """Index name -> {url, kind}: those of the file `addresses`, then those of the request itself."""
    found: Json = {}
    path = args.get("addresses")
    if path:
        told = paths.read_json(path)
        if told is None or not all(isinstance(each, dict) for each in told.values()):
            raise NodeError(
                "request-invalid",
                "%s has no addresses of indexes" % path,
                hint="`envbuild image dockerfile STACK -o DIR` writes the whole context",
            )
        found.update(told)
    found.update(args.get("indexes") or {})
    return found


def bring_source(source: Json, folder: str, links: "list[str]", cache: "str | None") -> None:
    """The repositories of a source and of its submodules in `folder`, each with the pinned commit and nothing else.

    `links` are folders with bundles (`<name>-<commit>-<12 hex of the tree>.bundle`) and `sources/<name>.git`. One that
    an earlier build fetched is taken from `cache`; its tree is compared as any other's. Raises as `git_source.mirror`.
    """
    os.makedirs(folder, exist_ok=True)
    parts = [(source["name"], source)]
    parts += [("%s/%s" % (source["name"], each["path"]), each) for each in source.get("submodules") or []]
    for name, pin in parts:
        log("fetching source %s at %.12s" % (name, pin["commit"]))
        given = [repository(os.path.join(each, "sources"), name) for each in links]
        bundle = "%s-%s-%.12s.bundle" % (name.replace("/", "-"), pin["commit"], pin["tree"])
        given += [os.path.join(each, bundle) for each in links]
        kept = os.path.join(cache, bundle[: -len(".bundle")] + ".git") if cache else None
        given += [kept] if kept else []
        to = repository(folder, name)
        git_source.mirror(pin, to, name, next((each for each in given if os.path.exists(each)), None))
        if kept and not os.path.exists(kept):
            fetch_locked.keep(to, kept)


def _tool(tool: Json, wheels: str) -> None:
    """`{file, member, path}`: one program out of a wheel; `{file, folder}`: a tar archive or wheel, unpacked there."""
    archive = os.path.join(wheels, tool["file"])
    if tool.get("member"):
        os.makedirs(os.path.dirname(tool["path"]), exist_ok=True)
        with zipfile.ZipFile(archive) as opened, opened.open(tool["member"]) as member:
            with open(tool["path"], "wb") as stream:
                shutil.copyfileobj(member, stream, 1 << 20)
        os.chmod(tool["path"], 0o755)  # noqa: S103
    elif tool["file"].endswith(".whl"):
        with zipfile.ZipFile(archive) as opened:
            opened.extractall(tool["folder"])  # noqa: S202 - it was looked through when it was brought
    else:
        _unpack(archive, tool["folder"])
    os.unlink(archive)


def _unpack(path: str, folder: str) -> None:
    """Unpack a tar archive into `folder`: files, folders and links that stay inside, written by their owner alone.

    Nothing is written through a link, on any Python. Raises NodeError `archive-leads-out` (exit 5), and removes all.
    """
    top = os.path.realpath(folder)
    os.makedirs(top, exist_ok=True)
    try:
        with tarfile.open(path) as opened:
            _unpack_members(opened, top)
        for above, folders, names in os.walk(top):
            for each in (os.path.join(above, name) for name in folders + names):
                # Where a link leads is known once all of them are there.
                if os.path.islink(each) and not (os.path.realpath(each) + os.sep).startswith(top + os.sep):
                    raise _leads_out(os.path.relpath(each, top), "it points at %s" % os.readlink(each)[:200])
    except (NotADirectoryError, FileExistsError) as error:
        shutil.rmtree(top, ignore_errors=True)
        raise _leads_out(os.path.relpath(error.filename, top), "it lies behind a file") from None
    except NodeError:
        shutil.rmtree(top, ignore_errors=True)
        raise


def _unpack_members(opened: "tarfile.TarFile", top: str) -> None:
    for member in opened:
        place = os.path.normpath(os.path.join(top, member.name))
        parent = os.path.dirname(place)
        if place != top and not place.startswith(top + os.sep):
            raise _leads_out(member.name, "its name leads out of the folder")
        if place != top and os.path.realpath(parent) != parent:
            raise _leads_out(member.name, "it lies behind a link")
        if os.path.lexists(place) and (os.path.islink(place) or not (member.isdir() and os.path.isdir(place))):
            raise _leads_out(member.name, "something of that name came before it")
        os.makedirs(place if member.isdir() else parent, 0o755, exist_ok=True)
        earlier = os.path.normpath(os.path.join(top, member.linkname))
        if member.isreg():
            content = opened.extractfile(member)
            with open(place, "xb") as stream:
                shutil.copyfileobj(content, stream, 1 << 20) if content else None
            os.chmod(place, member.mode & 0o755)
            os.utime(place, (member.mtime, member.mtime))
        elif member.issym():
            os.symlink(member.linkname, place)
        elif member.islnk() and earlier.startswith(top + os.sep) and _is_plain(earlier):
            os.link(earlier, place)
        elif not member.isdir():
            raise _leads_out(member.name, "it is no file, folder, or link to what lies in the folder")


def _is_plain(path: str) -> bool:
    return os.path.isfile(path) and os.path.realpath(path) == path


def _leads_out(name: str, why: str) -> "NodeError":
    return NodeError(
        "archive-leads-out",
        "%s cannot be in an archive that is unpacked" % name[:200],
        why=why,
        hint="its hash is the locked one, so the lock names an archive that is not to be trusted",
    )
