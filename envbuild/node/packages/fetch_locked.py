"""Files whose sha256 the lock names, each from the first place that has it: hashes decide, so any is as good."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator

from envbuild.node import hashing, paths
from envbuild.node.packages import wheel_file
from envbuild.node.protocol import Exit, Json, NodeError, log


class Places:
    """Where files come from: the folder `cache` (by hash), the folders `links`, then `addresses` of a wanted file."""

    def __init__(
        self,
        links: "list[str]",
        addresses: "Callable[[Json], Iterable[str]]",
        cert: str = "",
        cache: "str | None" = None,
    ) -> None:
        """`addresses` may raise NodeError where it cannot tell; `cert`: pip's certificates."""
        self.links = links
        self._addresses = addresses
        self._cert = cert
        self._cache = cache

    def bring(self, wanted: Json, folder: str) -> int:
        """One file ({file, sha256}, and what `addresses` reads) into `folder`, its size in bytes.

        Raises NodeError: `hash-mismatch`, `wheel-unsafe` (exit 5), `package-not-found`, `index-refused` (4),
        `network-unreachable` (75).
        """
        name, digest = paths.checked_file(wanted["file"]), wanted["sha256"]
        target = os.path.join(folder, name)
        kept = os.path.join(self._cache, digest) if self._cache else None
        # A folder may be a channel too, with subfolders.
        below = [name] + (["%s/%s" % (wanted["subdir"], name)] if wanted.get("subdir") else [])
        for known in [kept] + [os.path.join(each, path) for each in self.links for path in below]:
            if known and os.path.isfile(known) and hashing.digest_of(known) == digest:
                shutil.copyfile(known, target)
                _refuse_unsafe(target)
                return os.path.getsize(target)
        log("fetching %s" % name)
        try:
            self._fetch(wanted, target)
        except NodeError as error:
            if name not in error.what:
                error.what = "%s: %s" % (name, error.what)
            raise
        _refuse_unsafe(target)
        if kept:
            keep(target, kept)
        return os.path.getsize(target)

    def _fetch(self, wanted: Json, target: str) -> None:
        """Download a file from the first address that has the right one."""
        name = wanted["file"]
        last: NodeError | None = None
        for url in self._addresses(wanted):
            try:
                return self._download(url, name, wanted["sha256"], target)
            except NodeError as error:
                if error.exit_code == Exit.INTEGRITY:
                    raise
                last = error
        raise last or NodeError(
            "package-not-found",
            "%s is not available" % name,
            why="no folder that was given has it, and no index that is known here",
            hint="put it into a folder of pip's find-links; for an image, of `envbuild image build --wheelhouse`",
        )

    def _download(self, url: str, name: str, digest: str, target: str) -> None:
        from envbuild.node.packages import index_client

        with open(target, "wb") as stream:
            found, _ = hashing.write(index_client.blocks(url, self._cert), stream)
        if found != digest:
            os.unlink(target)
            raise NodeError(
                "hash-mismatch",
                "%s is not the file that the lock names" % name,
                why="sha256 is %s, the lock says %s" % (found, digest),
                hint="do not use this index or mirror; if the lock is wrong, create it again",
            )


def on_pages(pages: "Iterable[str]", file: str, cert: str = "") -> "Iterator[str]":
    """Addresses of a file by the pages of indexes; raises NodeError where no page has it and one cannot be read."""
    from envbuild.node.packages import index_client  # with what asks indexes, which most need not

    last: NodeError | None = None
    seen = 0
    for page in pages:
        try:
            found = index_client.find(page, file, cert)
        except NodeError as error:
            if error.why != "HTTP 404":  # such an index has no project of that name
                last = error
            continue
        if found is not None:
            seen += 1
            yield found.url
    if last is not None and not seen:
        raise last


def keep(path: str, kept: str) -> None:
    """Copy a file or folder into the cache, whole or not at all; a cache that cannot be written is no loss."""
    try:
        os.makedirs(os.path.dirname(kept), exist_ok=True)
        with tempfile.TemporaryDirectory(dir=os.path.dirname(kept)) as part:
            made = os.path.join(part, "made")
            if os.path.isdir(path):
                shutil.copytree(path, made, symlinks=True)
            else:
                shutil.copyfile(path, made)
            os.rename(made, kept)
    except OSError as error:
        log("not kept in the cache: %s" % error)


def _refuse_unsafe(path: str) -> None:
    if path.endswith(".whl"):
        wheel_file.refuse_unsafe(path)
