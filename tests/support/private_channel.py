"""Channels over HTTP that let in who has the word."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.support.served import Folder, serving

BASIC = "Basic " + base64.b64encode(b"me:hunter2hunter2").decode()
Asked = list[tuple[str, str | None]]


@contextlib.contextmanager
def guarded(folder: Path, word: str, host: str = "127.0.0.1", moved: str = "") -> Iterator[tuple[str, Asked]]:
    """The address of a folder's server, and what was asked: path and `Authorization`.

    `word`: a value of that header, or a beginning of the path (`/t/TOKEN`); empty lets everybody in. `moved`: where
    archives are, for those who are let in.
    """
    asked: Asked = []

    class Handler(Folder):
        def do_GET(self) -> None:
            said = self.headers.get("Authorization")
            asked.append((self.path, said))
            if word.startswith("/") and self.path.startswith(word + "/"):
                self.path = self.path[len(word) :]
            elif word not in ("", said):
                self.send_error(401)
                return
            if moved and self.path.endswith(".conda"):
                self.send_response(302)
                self.send_header("Location", moved + self.path)
                self.end_headers()
                return
            with contextlib.suppress(ConnectionError):  # who reads the sizes takes a part alone
                super().do_GET()

    with serving(partial(Handler, directory=str(folder)), host) as address:
        yield address, asked
