"""A registry of one image on this node's own address, for enroot: it imports from registries, not from files.

Nothing but the archive is served, to programs of this node and only while one `import` runs. enroot compares every
layer with its digest, and the digest of the configuration is the id of the image.
"""

import contextlib
import http.server
import json
import os
import shutil
import socketserver
import tarfile
import threading
from collections.abc import Iterator

from envbuild.node.protocol import Json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any

NAME = "envbuild/image"
_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
_CONFIG = "application/vnd.docker.container.image.v1+json"
_LAYER = "application/vnd.docker.image.rootfs.diff.tar"


class _Served:
    """`manifest`, and what each blob is called in the archive: (name, bytes) by digest."""

    def __init__(self, path: str) -> None:
        """Raises OSError, tarfile.TarError, KeyError and ValueError for what is no archive of one image."""
        self.path = path
        with tarfile.open(path) as archive:
            (entry,) = json.loads(_text(archive, "manifest.json"))
            layers = json.loads(_text(archive, entry["Config"]))["rootfs"]["diff_ids"]
            if len(layers) != len(entry["Layers"]):
                raise ValueError("%d layers, %d digests" % (len(entry["Layers"]), len(layers)))
            config = "sha256:" + os.path.basename(entry["Config"]).partition(".")[0].replace("sha256:", "")
            names = [entry["Config"]] + entry["Layers"]
            sizes = [_stream(archive, name).seek(0, os.SEEK_END) for name in names]
        self.blobs = dict(zip([config] + layers, zip(names, sizes)))  # noqa: B905 - Python 3.10
        told = {"schemaVersion": 2, "mediaType": _MANIFEST, "config": self._blob(config, _CONFIG)}
        self.manifest = json.dumps(dict(told, layers=[self._blob(each, _LAYER) for each in layers])).encode("ascii")

    def _blob(self, digest: str, kind: str) -> Json:
        return {"mediaType": kind, "digest": digest, "size": self.blobs[digest][1]}


def _stream(archive: "tarfile.TarFile", name: str) -> "IO[bytes]":
    """A member, also one that is a link: docker writes a layer that is there twice as one."""
    stream = archive.extractfile(name)
    if stream is None:
        raise KeyError(name)
    return stream


def _text(archive: "tarfile.TarFile", name: str) -> str:
    return _stream(archive, name).read().decode("utf-8")


class _Handler(http.server.BaseHTTPRequestHandler):
    served: "Any" = None  # a _Served

    def do_GET(self) -> None:  # noqa: N802 - the name is that of http.server
        """A manifest, or a part of the archive."""
        kind, _, name = self.path.rpartition("/")
        if kind.endswith("/manifests"):
            self._head(_MANIFEST, len(self.served.manifest))
            if self.command == "GET":
                self.wfile.write(self.served.manifest)
        elif kind.endswith("/blobs") and name in self.served.blobs:
            member, size = self.served.blobs[name]
            self._head("application/octet-stream", size)
            if self.command == "GET":
                with tarfile.open(self.served.path) as archive:
                    shutil.copyfileobj(_stream(archive, member), self.wfile, 1 << 20)
        else:
            self.send_error(404)

    do_HEAD = do_GET  # noqa: N815 - the name is that of http.server

    def _head(self, kind: str, size: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(size))
        self.end_headers()

    def log_message(self, format: str, *args: "Any") -> None:  # noqa: A002 - the name is that of http.server
        """Standard error belongs to the node program."""


class _Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True


@contextlib.contextmanager
def serving(path: str) -> "Iterator[str]":
    """`127.0.0.1:PORT` of a registry that has the image of the archive `path` under NAME, with any tag.

    Raises OSError, tarfile.TarError, KeyError and ValueError for what is no archive of one image.
    """
    handler = type("_Bound", (_Handler,), {"served": _Served(path)})
    server = _Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield "127.0.0.1:%d" % server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
