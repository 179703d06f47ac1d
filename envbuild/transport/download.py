"""The one download function: streamed, hashed, bounded in size and time, atomic."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import hashlib
import os
import re
import secrets
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from envbuild.errors import EnvbuildError
from envbuild.node import pip_config
from envbuild.node.paths import sync_folder
from envbuild.node.read_text import integer
from envbuild.node.redact import redact_text
from envbuild.regular_file import opened

if TYPE_CHECKING:
    import requests

CHUNK = 1 << 16
ATTEMPTS = 5
# One silent read or connect; the deadline bounds them all together.
QUIET_SECONDS = 30.0
LONGEST_WAIT = 60.0
# The reason inside a text of requests, whose beginning has the address again.
_CAUSE = re.compile(r"Caused by \w+\([\"'](?:\w+\([^)]*\): )?(.+?)[\"']\)+$")
_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
Chunks = Generator[bytes, None, None]


@dataclass(frozen=True)
class Downloaded:
    """What arrived: the final path, its sha256 (hex) and its size in bytes."""

    path: Path
    sha256: str
    size: int


def download(
    url: str,
    dest: Path,
    sha256: str | None,
    *,
    size_cap: int,
    deadline: float,
    authorization: str = "",
    resume: bool = False,
) -> Downloaded:
    """Fetch an http(s) or file URL to `dest`, at most `size_cap` bytes in at most `deadline` seconds, retries included.

    `dest` appears complete or not at all; its folder must exist. `resume`: what came of a file before the connection or
    this program ended stays beside it, and is gone on with where the server still has that file. Proxies and netrc
    follow the rules of requests, certificates those of pip as well, and `authorization` (that header's value, in place
    of netrc) those of its redirects: no other host gets it.
    Raises EnvbuildError: `hash-mismatch`, `html-instead-of-file`, `download-too-large` (exit 5), `download-refused`,
    `tls-failed` (exit 4), `download-failed`, `download-timeout`, `disk-full` (exit 75), `url-unsupported` (exit 2).
    """
    job = _Job(url, dest, sha256, size_cap, time.monotonic() + deadline, deadline, authorization, resume)
    scheme = urlsplit(url).scheme.lower()
    if scheme == "file":
        return job.store(job.file_chunks())
    if scheme not in ("http", "https"):
        raise EnvbuildError("url-unsupported", f"cannot download {job.shown}", why="not an http, https or file URL")
    return _with_retries(job)


def _with_retries(job: _Job) -> Downloaded:
    from tenacity import RetryCallState, Retrying, retry_if_exception
    from tenacity.wait import wait_random_exponential

    backoff = wait_random_exponential(multiplier=0.5, max=8)
    failures: list[EnvbuildError] = []

    def passes(error: BaseException) -> bool:
        if isinstance(error, EnvbuildError) and error.code == "download-failed":
            failures.append(error)
            return True
        return False

    def too_late(state: RetryCallState) -> bool:
        return state.attempt_number >= ATTEMPTS or state.upcoming_sleep >= min(job.remaining(), LONGEST_WAIT)

    def pause(state: RetryCallState) -> float:
        asked: float | None = failures[-1].details.get("retry_after")
        return backoff(state) if asked is None else asked

    try:
        return Retrying(stop=too_late, wait=pause, retry=retry_if_exception(passes), reraise=True)(job.fetch)
    except EnvbuildError as error:
        # When the time runs out between attempts, what went wrong before says more than "too slow".
        if error.code == "download-timeout" and failures:
            raise failures[-1] from None
        raise


@dataclass(frozen=True)
class _Job:
    """One download and its limits; `ends` is a monotonic time."""

    url: str
    dest: Path
    sha256: str | None
    size_cap: int
    ends: float
    deadline: float
    authorization: str = field(repr=False)
    resume: bool = False

    @property
    def shown(self) -> str:
        return redact_text(self.url)

    def remaining(self) -> float:
        return self.ends - time.monotonic()

    def check_time(self) -> None:
        if self.remaining() <= 0:
            raise EnvbuildError(
                "download-timeout",
                f"{self.shown} did not arrive within {self.deadline:g} s",
                why="the server is too slow or sends nothing",
                hint="try again, or use a nearer mirror",
            )

    def store(self, chunks: Chunks, part: Path | None = None) -> Downloaded:
        """Write the chunks to a temporary neighbour of `dest`, check them, and rename.

        A `part` is added to, and stays where the rest may come later.
        """
        temporary = part or self.dest.with_name(f".{self.dest.name[:80]}.{secrets.token_hex(6)}.part")
        stays = part is not None
        try:
            with contextlib.closing(chunks), temporary.open("a+b" if part else "xb") as stream:
                if part:
                    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                digest, size = self._copy(chunks, stream)
                stream.flush()
                os.fsync(stream.fileno())
            stays = False
            self.check_hash(digest)
            temporary.replace(self.dest)
            sync_folder(str(self.dest.parent))
        except EnvbuildError as error:
            stays = stays and error.code in ("download-timeout", "download-failed")
            raise
        except OSError as error:
            raise _disk_error(error, self.dest) from error
        finally:
            if not stays:
                temporary.unlink(missing_ok=True)
        return Downloaded(self.dest, digest, size)

    def _copy(self, chunks: Chunks, stream: IO[bytes]) -> tuple[str, int]:
        digest, size = hashlib.sha256(), stream.tell()
        if size:
            stream.seek(0)
            for chunk in iter(partial(stream.read, CHUNK), b""):
                digest.update(chunk)
        for chunk in chunks:
            begins = chunk[:200].lstrip().lower()
            if size == 0 and self.sha256 is not None and begins.startswith((b"<!doctype html", b"<html")):
                raise self.html("it begins like one")
            size += len(chunk)
            self.check_size(size)
            self.check_time()
            digest.update(chunk)
            stream.write(chunk)
        return digest.hexdigest(), size

    def check_hash(self, digest: str) -> None:
        if self.sha256 is not None and digest != self.sha256:
            raise EnvbuildError(
                "hash-mismatch",
                f"{self.shown} is not the file that was recorded",
                why=f"expected sha256 {self.sha256}\n     received sha256 {digest}",
                hint="use another mirror: a mirror or proxy changed the file, or the record is wrong",
                details={"expected": self.sha256, "received": digest},
            )

    def check_size(self, size: int) -> None:
        if size > self.size_cap:
            raise EnvbuildError(
                "download-too-large",
                f"{self.shown} is larger than {self.size_cap} bytes",
                why=f"at least {size} bytes were offered",
                hint="use another mirror: the server has a different file",
            )

    def html(self, why: str) -> EnvbuildError:
        return EnvbuildError(
            "html-instead-of-file",
            f"the index answered an HTML page for {self.shown}",
            why=f"a file was expected and a web page came: {why}",
            hint="open the URL in a browser: it may be a login page; or set the proxy",
        )

    def file_chunks(self) -> Chunks:
        parts = urlsplit(self.url)
        path = Path(url2pathname(parts.path))
        if parts.netloc not in ("", "localhost"):
            raise EnvbuildError("url-unsupported", f"cannot download {self.shown}", why="a file URL names another host")
        try:
            with opened(path) as stream:
                self.check_size(os.fstat(stream.fileno()).st_size)
                while chunk := stream.read(CHUNK):
                    yield chunk
        except OSError as error:
            raise self._refused(f"{path}: {error.strerror or error}") from None

    def fetch(self) -> Downloaded:
        """One attempt over HTTP."""
        self.check_time()
        stem = f".{self.dest.name[:80]}."
        parts = self.dest.parent.glob(f"{glob.escape(stem)}{'[0-9a-f]' * 16}.part") if self.resume else ()
        left = max(parts, key=lambda path: path.stat().st_size, default=None)
        begin = left.stat().st_size if left else 0
        response = self._answer(begin)
        with contextlib.closing(response):
            version = response.headers.get("ETag") or response.headers.get("Last-Modified")
            named = f"{stem}{hashlib.sha256(version.encode()).hexdigest()[:16]}.part" if version else ""
            part = self.dest.with_name(named) if self.resume and version else None
            goes_on = response.headers.get("Content-Range", "").startswith(f"bytes {begin}-")
            if left and not (response.status_code == 206 and part == left and goes_on):
                if response.status_code in (200, 206, 416):
                    left.unlink(missing_ok=True)
                if response.status_code in (206, 416):
                    raise self._passing("the file is not the one that came in part")
                begin = 0
            total = self._accepted(response, begin)
            return self.store(self._body(response, begin, total), part)

    def _body(self, response: requests.Response, received: int, total: int | None) -> Chunks:
        import requests
        from urllib3.exceptions import HTTPError

        try:
            # `read1` returns what is there; `read` would wait for a full chunk however slowly it drips in.
            while chunk := response.raw.read1(CHUNK, decode_content=False):
                received += len(chunk)
                yield chunk
        except (HTTPError, requests.RequestException, OSError) as error:
            self.check_time()
            raise self._passing(f"the connection broke after {received} bytes: {error}") from None
        if total is not None and received != total:
            raise self._passing(f"{received} of {total} bytes came")

    def _answer(self, begin: int = 0) -> requests.Response:
        """Ask for the bytes from `begin` on.

        In a thread that is left behind when the headers themselves drip in past the deadline.
        """
        outcome: list[requests.Response | Exception] = []
        given_up = threading.Event()
        thread = threading.Thread(target=_ask, args=(self, begin, outcome, given_up), daemon=True)
        thread.start()
        thread.join(max(self.remaining(), 0.0))
        if not outcome:
            given_up.set()
            self.check_time()
            raise self._passing("no answer")
        if isinstance(outcome[0], Exception):
            raise self._asking_failed(outcome[0])
        return outcome[0]

    def _asking_failed(self, error: Exception) -> EnvbuildError:
        import requests

        if isinstance(error, requests.exceptions.SSLError):
            return EnvbuildError(
                "tls-failed",
                f"no trusted connection for {self.shown}",
                why=redact_text(str(error)),
                hint="where a proxy replaces certificates, set SSL_CERT_FILE, REQUESTS_CA_BUNDLE or pip's `cert`",
            )
        if isinstance(error, requests.ConnectionError | requests.Timeout):
            reason = _CAUSE.search(str(error))
            return self._passing(reason[1] if reason else str(error))
        return self._refused(str(error))

    def _accepted(self, response: requests.Response, begin: int) -> int | None:
        """The announced size of an answer that can be the file, or its rest from `begin` on."""
        if response.status_code in _AGAIN:
            raise self._passing(f"the server answered {response.status_code}", _retry_after(response))
        if response.status_code != (206 if begin else 200):
            raise self._refused(f"the server answered {response.status_code} {response.reason}")
        kind = response.headers.get("Content-Type", "").split(";")[0].strip().lower()
        if self.sha256 is not None and kind in ("text/html", "application/xhtml+xml"):
            raise self.html(f"Content-Type is {kind}")
        length = response.headers.get("Content-Length", "")
        announced = integer(length[:15])  # one with more digits is over every cap as well
        total = None if announced is None else begin + announced
        self.check_size(total or 0)
        return total

    def _passing(self, why: str, after: float | None = None) -> EnvbuildError:
        """A failure that may pass; `after`: when the server wants to be asked again, in seconds."""
        return EnvbuildError(
            "download-failed",
            f"cannot download {self.shown}",
            why=redact_text(why),
            hint="check the network and the proxy settings, then try again",
            details={} if after is None else {"retry_after": after},
        )

    def _refused(self, why: str) -> EnvbuildError:
        return EnvbuildError(
            "download-refused",
            f"cannot download {self.shown}",
            why=redact_text(why),
            hint="check the address and your credentials: the file was removed, or you may not read it",
        )


def _ask(job: _Job, begin: int, outcome: list[requests.Response | Exception], given_up: threading.Event) -> None:

    def logged_in(request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = job.authorization
        return request

    quiet = max(0.1, min(job.remaining(), QUIET_SECONDS))
    plain = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={begin}-"} if begin else {})
    auth = logged_in if job.authorization else None
    try:
        session = _session()
        response = session.get(job.url, stream=True, timeout=(quiet, quiet), headers=plain, auth=auth)
    except Exception as error:  # noqa: BLE001 - handed to the thread that waits, which sorts it
        outcome.append(error)
        return
    if given_up.is_set():
        response.close()
    outcome.append(response)


def _session() -> requests.Session:
    """One that trusts what Python and pip's configuration do, beside what requests does."""
    from requests import Session
    from requests.adapters import HTTPAdapter

    context = pip_config.trusting(pip_config.read(os.environ).cert)

    class Trusting(HTTPAdapter):
        def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
            super().init_poolmanager(*arguments, **options, ssl_context=context)

        def proxy_manager_for(self, *arguments: Any, **options: Any) -> Any:
            return super().proxy_manager_for(*arguments, **options, ssl_context=context)

    session = Session()
    session.mount("https://", Trusting())
    return session


def _retry_after(response: requests.Response) -> float | None:
    """Seconds that the server asks to wait: a number, or a date."""
    header = response.headers.get("Retry-After", "").strip()
    if header.isascii() and header.isdigit():
        return float(header[:9])
    try:
        when = parsedate_to_datetime(header)
    except (TypeError, ValueError, OverflowError):
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return max(0.0, (when - datetime.now(UTC)).total_seconds())


def _disk_error(error: OSError, dest: Path) -> EnvbuildError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return EnvbuildError(
            "disk-full",
            f"no space left for {dest}",
            why=str(error),
            hint="free space or inodes there, or choose another prefix or cache",
        )
    return EnvbuildError(
        "not-writable", f"cannot write {dest}", why=str(error), hint="choose a folder that you can write"
    )
