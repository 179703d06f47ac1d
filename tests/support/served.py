"""Servers on this machine that say nothing of what they are asked."""

from __future__ import annotations

import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from tests.support.patience import PATIENCE, answers, until


class Silent(BaseHTTPRequestHandler):
    """A handler without a log."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        """Send a whole answer; `_` in the name of a header stands for `-`."""
        self.send_response(status)
        for key, value in {"Content_Length": str(len(body)), **headers}.items():
            self.send_header(key.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)


class Folder(Silent, SimpleHTTPRequestHandler):
    """Files of a folder; nothing is kept, as a page may have changed since."""

    def end_headers(self) -> None:
        """With a header that says so."""
        self.send_header("Cache-Control", "no-cache")
        super().end_headers()


@contextmanager
def serving(handler: Callable[..., BaseHTTPRequestHandler], host: str = "127.0.0.1", cert: str = "") -> Iterator[str]:
    """The address of a server; `cert`: a PEM file of its own certificate and key."""
    with ThreadingHTTPServer((host, 0), handler) as server:
        if cert:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(cert)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http{'s' * bool(cert)}://{host}:{server.server_port}"
        server.shutdown()


def served(folder: Path, **options: str) -> AbstractContextManager[str]:
    """The address of a folder."""
    return serving(partial(Folder, directory=str(folder)), **options)


def answering(status: int, body: bytes = b"", **headers: str) -> type[Silent]:
    """A handler that gives one answer to everything."""

    class Handler(Silent):
        def do_GET(self) -> None:
            self.answer(status, body, **headers)

    return Handler


def free_port(host: str = "127.0.0.1") -> int:
    """A port on which nothing listens."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


@contextmanager
def listening(argv: Sequence[str | Path], host: str, port: int) -> Iterator[None]:
    """A program that serves there; it is over with the block."""
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: answers(host, port))
        yield
    finally:
        process.terminate()
        process.wait(PATIENCE)
