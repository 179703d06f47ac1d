"""The verb `fetch`: files without a hash in the lock are fetched once, hashed and checked; nothing of them is run.

A file comes from a find-links folder that has it under exactly its locked name, else from the index that the lock
names and from no other: without a hash, another place is not as good. It is kept under `<prefix>/store/first-use/
<sha256>/`, and is installed from there, by that hash.
"""

import os
import tempfile
import time
from collections.abc import Iterator

from envbuild.node import hashing, lease, paths, pip_config
from envbuild.node.packages import index_client, installed, wheel_file
from envbuild.node.protocol import Exit, Json, NodeError, log

_PART = ".part-"


def run(request: Json) -> "tuple[bool, Json]":
    """Fetch `args.files` ({"package", "version", "index", "file"}); returns (changed, result).

    Raises NodeError: `hash-mismatch`, `record-mismatch`, `artifact-damaged` (exit 5), `index-refused`,
    `package-not-found`, `index-unknown` (4), `network-unreachable`, `disk-full`, `prefix-busy` (75).
    """
    args, prefix = request["args"], request["prefix"]
    paths.make_dirs(prefix, paths.FIRST_USE)
    folder = os.path.join(prefix, paths.FIRST_USE)
    with lease.during(request), paths.coded_errors(folder):
        begun = time.monotonic()
        # Under the lease nobody else fetches here: what is there in part is left of runs that were killed.
        for name in os.listdir(folder):
            if name.startswith(_PART):
                os.unlink(os.path.join(folder, name))
        config = pip_config.read(os.environ)
        files = [fetch_file(each, args.get("artifacts") or {}, config, folder) for each in args["files"]]
    return True, {"files": files, "seconds": round(time.monotonic() - begun, 3)}


def fetch_file(wanted: Json, artifacts: Json, config: "pip_config.PipConfig", folder: str) -> Json:
    """One file into `<folder>/<sha256>/<file>`; returns `file`, `sha256`, `size` (bytes), `index` (its name), `found`
    (in words), `path` and `record_checked` (members that agree with RECORD; 0 for a source archive).

    Raises NodeError as `run` does.
    """
    name = paths.checked_file(wanted["file"])
    log("fetching %s, whose hash is missing from the lock" % name)
    handle, part = tempfile.mkstemp(prefix=_PART, dir=folder)
    try:
        with os.fdopen(handle, "wb") as stream:
            source = _Source(wanted, artifacts, config)
            digest, size = hashing.write(source.blocks(), stream)
            stream.flush()
            os.fsync(stream.fileno())
        if source.stated and source.stated != digest:
            raise NodeError(
                "hash-mismatch",
                "%s is not the file that its index names" % name,
                why="the index states sha256 %s, the file has %s" % (source.stated, digest),
                hint="do not use this index or mirror",
            )
        checked = wheel_file.check(part, wanted) if name.endswith(".whl") else 0
        path = os.path.join(folder, digest, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.chmod(part, 0o666 & ~paths.umask())
        os.rename(part, path)
        paths.sync_dir(os.path.dirname(path))
    finally:
        if os.path.lexists(part):
            os.unlink(part)
    log("%s: sha256 %s, %d bytes, from %s" % (name, digest, size, source.found))
    keys = {"file": name, "sha256": digest, "size": size, "index": wanted["index"]}
    return dict(keys, found=source.found, path=path, record_checked=checked)


class _Source:
    """Where one file comes from: a folder, else the index. `found`: in words; `stated`: the index's own sha256."""

    def __init__(self, wanted: Json, artifacts: Json, config: "pip_config.PipConfig") -> None:
        self.stated = ""
        self._cert = config.cert
        links = pip_config.alive(list(artifacts.get("find_links") or []) + config.find_links)
        local = [os.path.join(each, wanted["file"]) for each in pip_config.folders(links)]
        self._path = next((path for path in local if os.path.isfile(path)), "")
        self._url = ""
        self.found = "a find-links folder"
        if not self._path:
            self.found = "the index %s" % wanted["index"]
            found = self._ask(wanted, (artifacts.get("indexes") or {}).get(wanted["index"]), config)
            self._url, self.stated = found.url, found.sha256
            if found.url.startswith("http:"):
                self.found += ", unencrypted"

    def _ask(
        self, wanted: Json, index: "dict[str, str] | None", config: "pip_config.PipConfig"
    ) -> "index_client.Found":
        for page in _pages(wanted, index, config):
            found = index_client.find(page, wanted["file"], self._cert)
            if found is not None:
                return found
        raise NodeError(
            "package-not-found",
            "%s is not available" % wanted["file"],
            why="the index `%s` has no file of that name, and no find-links folder has it" % wanted["index"],
            hint="put the file into a find-links folder of pip, or create the lock again",
        )

    def blocks(self) -> "Iterator[bytes]":
        if self._url:
            yield from index_client.blocks(self._url, self._cert)
            return
        with open(self._path, "rb") as stream:
            yield from hashing.blocks(stream)


def _pages(wanted: Json, index: "dict[str, str] | None", config: "pip_config.PipConfig") -> "list[str]":
    """The pages that may name the file: of the named index; of the configured ones only for the normal index."""
    below = "/%s/" % installed.normal_name(wanted["package"])
    if index is not None:
        return [index["url"]] if index.get("kind") == "find-links" else [index["url"].rstrip("/") + below]
    asked = [os.environ.get("UV_DEFAULT_INDEX") or os.environ.get("UV_INDEX_URL") or config.index_url]
    asked += config.extra_index_urls
    pages = [url.rstrip("/") + below for url in asked if url and pip_config.local_path(url) is None]
    if wanted["index"] != pip_config.NORMAL_INDEX or not pages:
        raise NodeError(
            "index-unknown",
            "nothing says where the index `%s` is" % wanted["index"],
            why="%s has no recorded hash: it is taken from the index that the lock names, no other" % wanted["file"],
            hint="name the index in pip's configuration (`index-url`), or put the file into a find-links folder",
            exit_code=Exit.BUILD_FAILED,
        )
    return pages
