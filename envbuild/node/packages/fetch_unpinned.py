"""The verb `fetch`: files whose hash nobody has recorded are fetched once, hashed and checked; nothing of them is run.

A file comes from a find-links folder that has it under exactly its locked name, else from the index that the lock
names and from no other: without a hash, another place is not as good. It is kept under `<prefix>/store/first-use/
<sha256>/`, and is installed from there, by that hash.
"""

import hashlib
import os
import tempfile
import time

from envbuild.node import lease, paths, pip_config
from envbuild.node.packages import index_client, installed, wheel_file
from envbuild.node.protocol import Exit, Json, NodeError, log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_PART = ".part-"


def run(request: Json) -> "tuple[bool, Json]":
    """Fetch `args.files` ({"package", "version", "index", "file"}); returns (changed, result).

    Raises NodeError: `hash-mismatch`, `record-mismatch`, `artifact-damaged` (exit 5), `index-refused`,
    `package-not-found`, `index-unknown` (4), `network-unreachable`, `disk-full`, `prefix-busy` (75).
    """
    args = request["args"]
    prefix = request["prefix"]
    paths.set_umask(prefix)
    paths.make_dirs(prefix, paths.FIRST_USE)
    folder = os.path.join(prefix, paths.FIRST_USE)
    held = lease.acquire(prefix, request["run"], args.get("controller"), float(args.get("wait") or 0))
    begun = time.monotonic()
    try:
        with held:
            # Under the lease nobody else fetches here: what is there in part is left of runs that were killed.
            for name in sorted(os.listdir(folder)):
                if name.startswith(_PART):
                    os.unlink(os.path.join(folder, name))
            config = pip_config.read(os.environ)
            files = [fetch_file(each, args.get("artifacts") or {}, config, folder) for each in args["files"]]
    except OSError as error:
        raise paths.os_error(error, folder) or error from error
    finally:
        held.release()
    return True, {"files": files, "seconds": round(time.monotonic() - begun, 3)}


def fetch_file(wanted: Json, artifacts: Json, config: "pip_config.PipConfig", folder: str) -> Json:
    """One file into `<folder>/<sha256>/<file>`; returns `file`, `sha256`, `size` (bytes), `index` (its name), `found`
    (in words), `path` and `record_checked` (members that agree with RECORD; 0 for a source archive).

    Raises NodeError as `run` does.
    """
    name = wanted["file"]
    if os.path.basename(name) != name or name.startswith("."):
        raise NodeError("request-invalid", "%r is not a plain file name" % str(name)[:100])
    log("fetching %s, whose hash nobody has recorded" % name)
    handle, part = tempfile.mkstemp(prefix=_PART, dir=folder)
    try:
        total, size = hashlib.sha256(), 0
        source = _Source(wanted, artifacts, config)
        with os.fdopen(handle, "wb") as stream:
            for block in source.blocks():
                total.update(block)
                size += len(block)
                stream.write(block)
            stream.flush()
            os.fsync(stream.fileno())
        digest = total.hexdigest()
        if source.stated and source.stated != digest:
            raise NodeError(
                "hash-mismatch",
                "%s is not the file that its index names" % name,
                why="the index states sha256 %s, the file has %s" % (source.stated, digest),
                hint="do not use this index or mirror",
                exit_code=Exit.INTEGRITY,
            )
        checked = wheel_file.check(part, wanted) if name.endswith(".whl") else 0
        path = os.path.join(folder, digest, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        mask = os.umask(0o022)
        os.umask(mask)
        os.chmod(part, 0o666 & ~mask)
        os.rename(part, path)
        paths.sync_dir(os.path.dirname(path))
    finally:
        if os.path.lexists(part):
            os.unlink(part)
    log("%s: sha256 %s, %d bytes, from %s" % (name, digest, size, source.found))
    keys = {"file": name, "sha256": digest, "size": size, "index": wanted["index"]}
    return dict(keys, found=source.found, path=path, record_checked=checked)


class _Source:
    """Where one file comes from. `found` says it in words, without an address; `stated` is the index's own sha256."""

    def __init__(self, wanted: Json, artifacts: Json, config: "pip_config.PipConfig") -> None:
        """Look into the folders, else ask the index. Raises NodeError."""
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
            exit_code=Exit.BUILD_FAILED,
        )

    def blocks(self) -> "Iterator[bytes]":
        """The bytes of the file."""
        if self._url:
            for block in index_client.blocks(self._url, self._cert):
                yield block
            return
        with open(self._path, "rb") as stream:
            for block in iter(lambda: stream.read(1 << 20), b""):
                yield block


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
            why="%s has no recorded hash, so it is taken from the index that the lock names and from no other"
            % wanted["file"],
            hint="name the index in pip's configuration (`index-url`), or put the file into a find-links folder",
            exit_code=Exit.BUILD_FAILED,
        )
    return pages
