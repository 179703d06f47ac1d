"""Repositories of a test world behind a web server of this machine."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.e2e.world import World


@contextmanager
def mirror(world: World, *names: str) -> Iterator[Path]:
    """The named repositories behind a server; a git configuration that leads there."""
    for name in names:
        to = world.top / "www" / name
        subprocess.run(
            ["git", "clone", "-q", "--bare", str(world.hub / name), str(to)], check=True, capture_output=True
        )
        subprocess.run(["git", "-C", str(to), "update-server-info"], check=True)
    handler = partial(SimpleHTTPRequestHandler, directory=str(world.top / "www"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        config = world.top / "mirror.gitconfig"
        address = f"http://127.0.0.1:{server.server_port}/"
        config.write_text(f'[url "{address}"]\n\tinsteadOf = https://git.example.org/\n[http]\n\tproxy =\n')
        yield config
        server.shutdown()
