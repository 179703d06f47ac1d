"""The download function against a real local server that misbehaves in every way."""

from __future__ import annotations

import errno
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from envbuild.errors import EnvbuildError, ExitCode
from envbuild.transport.download import Downloaded, download
from tests.support.fails import fails
from tests.support.patience import PATIENCE, with_deadline
from tests.support.served import Silent, free_port, serving

BODY = b"wheel bytes " * 20_000
DIGEST = hashlib.sha256(BODY).hexdigest()
Answer = Callable[[Silent, int], None]


class Server:
    """Answers path `/name` with the function registered under that name; counts the requests."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.asked: list[str] = []
        self.address = ""

    def answer(self, handler: Silent) -> None:
        self.asked.append(handler.path)
        with suppress(BrokenPipeError, ConnectionResetError):
            self.answers[handler.path](handler, self.asked.count(handler.path))

    def on(self, path: str, answer: Answer) -> str:
        self.answers[path] = answer
        return self.address + path


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    server = Server()
    with serving(type("Handler", (Silent,), {"do_GET": lambda handler: server.answer(handler)})) as server.address:
        yield server


def good(handler: Silent, _: int = 0) -> None:
    handler.answer(200, BODY, Content_Type="application/zip")


def truncated(handler: Silent, _: int = 0) -> None:
    handler.answer(200, BODY[:1000], Content_Length=str(len(BODY)))


def fetch(url: str, folder: Path, sha256: str | None = DIGEST, **limits: Any) -> Downloaded:
    return download(url, folder / "file.whl", sha256, **{"size_cap": 10_000_000, "deadline": PATIENCE, **limits})


def refused(url: str, folder: Path, sha256: str | None = DIGEST, **limits: Any) -> EnvbuildError:
    with pytest.raises(EnvbuildError) as caught:
        fetch(url, folder, sha256, **limits)
    assert list(folder.iterdir()) == [], "a failed download leaves nothing behind"
    return caught.value


def unavailable(handler: Silent, status: int, after: str | None = None) -> None:
    handler.answer(status, b"", **({"Retry_After": after} if after else {}))


def redirect(handler: Silent, to: str) -> None:
    handler.answer(302, b"", Location=to)


def date(seconds: float) -> str:
    return format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)


FIRST: dict[str, Answer] = {
    "at once": good,
    "compressed, and hashed as it came": lambda h, _: h.answer(200, BODY, Content_Encoding="gzip"),
    "truncated": truncated,
    "busy for a second": lambda h, _: unavailable(h, 429, "1"),
    "busy until a date": lambda h, _: unavailable(h, 503, date(1)),
    "at another address": lambda h, _: redirect(h, "/f"),
}


@pytest.mark.parametrize("first", FIRST.values(), ids=FIRST)
def test_a_good_file_arrives_whole_at_once_or_when_the_server_can(
    server: Server, tmp_path: Path, first: Answer
) -> None:
    started = time.monotonic()
    got = fetch(server.on("/f", lambda h, count: good(h) if count > 1 else first(h, count)), tmp_path)
    assert (got.sha256, got.size) == (DIGEST, len(BODY))
    assert got.path.read_bytes() == BODY
    assert [path.name for path in tmp_path.iterdir()] == ["file.whl"]
    assert first is not FIRST["busy for a second"] or time.monotonic() - started >= 0.9


NEVER: dict[str, tuple[Answer, str, ExitCode, str]] = {
    "missing": (lambda h, _: unavailable(h, 404), "download-refused", ExitCode.BUILD_FAILED, "404"),
    "away for an hour": (lambda h, _: unavailable(h, 503, "3600"), "download-failed", ExitCode.TRY_AGAIN, "503"),
    "sent to a file": (lambda h, _: redirect(h, "file:///etc/passwd"), "download-refused", ExitCode.BUILD_FAILED, ""),
}


@pytest.mark.parametrize(("answer", "code", "exit_code", "why"), NEVER.values(), ids=NEVER)
def test_what_will_not_come_is_asked_for_once_and_no_password_is_told(
    server: Server, tmp_path: Path, answer: Answer, code: str, exit_code: ExitCode, why: str
) -> None:
    error = refused(server.on("/f", answer).replace("http://", "http://bob:hunter22@"), tmp_path)
    assert (error.code, error.exit_code, len(server.asked)) == (code, exit_code, 1)
    assert why in error.why and "hunter22" not in f"{error.what} {error.why} {error.hint}"


def test_a_server_that_never_ends_well_or_is_not_there_is_a_failure_to_try_again(
    server: Server, tmp_path: Path
) -> None:
    away = f"http://127.0.0.1:{free_port()}/f"
    for url, why in ((server.on("/f", truncated), "1000"), (away, "refused")):
        _, error = with_deadline(
            lambda deadline, url=url: refused(url, tmp_path, deadline=deadline),
            1.5,
            lambda error, why=why: why in error.why,
        )
        assert (error.code, error.exit_code) == ("download-failed", ExitCode.TRY_AGAIN)
        assert url in error.what and why in error.why and "/f" not in error.why


def test_a_wrong_hash_shows_both_and_leaves_the_file_that_was_there(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.whl").write_bytes(b"before")
    with fails("hash-mismatch", ExitCode.INTEGRITY) as caught:
        fetch(server.on("/f", good), tmp_path, "0" * 64)
    assert "0" * 64 in caught.value.why and DIGEST in caught.value.why
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file.whl", b"before")]


@pytest.mark.parametrize("kind", ["text/html; charset=utf-8", "application/octet-stream"])
def test_an_html_login_page_is_named_as_such(server: Server, tmp_path: Path, kind: str) -> None:
    page = b"\n<!DOCTYPE html><html><body>Log in</body></html>"
    error = refused(server.on("/f", lambda h, _: h.answer(200, page, Content_Type=kind)), tmp_path)
    assert (error.code, error.exit_code) == ("html-instead-of-file", ExitCode.INTEGRITY)
    assert "the index answered an HTML page" in error.what


def drip_body(handler: Silent, _: int) -> None:
    handler.answer(200, b"", Content_Length=str(len(BODY)))
    for _ in range(2000):
        handler.wfile.write(b"x")
        handler.wfile.flush()
        time.sleep(0.05)


def drip_headers(handler: Silent, _: int) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
    for i in range(90):
        handler.wfile.write(f"X-{i}: y\r\n".encode())
        handler.wfile.flush()
        time.sleep(0.2)


@pytest.mark.parametrize("answer", [drip_body, drip_headers])
def test_a_server_that_drips_is_left_at_the_deadline(server: Server, tmp_path: Path, answer: Answer) -> None:
    started = time.monotonic()
    error = refused(server.on("/f", answer), tmp_path, deadline=1.0)
    assert (error.code, error.exit_code) == ("download-timeout", ExitCode.TRY_AGAIN)
    assert time.monotonic() - started < 15


@pytest.mark.parametrize("after", [f"Wed, 21 Oct {'9' * 25} 07:28:00 GMT", "9" * 4400, "soon", "\u00b2"])
def test_d75_a_number_of_a_header_without_end_is_no_fault_of_ours(server: Server, tmp_path: Path, after: str) -> None:
    error = refused(server.on("/f", lambda h, _: unavailable(h, 503, after)), tmp_path, deadline=0.5)
    assert error.exit_code == ExitCode.TRY_AGAIN
    url = server.on("/g", lambda h, _: h.answer(200, b"", Content_Length="9" * 4400))
    assert refused(url, tmp_path).code == "download-too-large"


def test_a_redirect_without_an_end_is_not_followed(server: Server, tmp_path: Path) -> None:
    assert refused(server.on("/loop", lambda h, _: redirect(h, "/loop")), tmp_path).code == "download-refused"


def test_an_announced_or_a_real_size_over_the_cap_is_refused(server: Server, tmp_path: Path) -> None:
    error = refused(server.on("/f", good), tmp_path, size_cap=1000)
    assert (error.code, error.exit_code) == ("download-too-large", ExitCode.INTEGRITY)

    def unannounced(handler: Silent, _: int) -> None:
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(BODY)

    assert refused(server.on("/g", unannounced), tmp_path, size_cap=1000).code == "download-too-large"


def test_file_urls_are_copied_and_checked(tmp_path: Path) -> None:
    source = tmp_path / "a file+1.whl"
    source.write_bytes(BODY)
    out = tmp_path / "out"
    out.mkdir()
    assert fetch(source.as_uri(), out).sha256 == DIGEST
    (out / "file.whl").unlink()
    assert refused(source.as_uri(), out, "1" * 64).code == "hash-mismatch"
    assert refused(source.as_uri(), out, size_cap=10).code == "download-too-large"


def test_file_urls_of_fifos_folders_and_nothing_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    os.mkfifo(tmp_path / "fifo")
    for url in ((tmp_path / "fifo").as_uri(), tmp_path.as_uri(), (tmp_path / "none").as_uri()):
        assert refused(url, out).code == "download-refused"
    assert refused("file://elsewhere/x", out).code == "url-unsupported"
    assert refused("ftp://host/x", out).code == "url-unsupported"
    assert refused("-x", out).code == "url-unsupported"


def test_a_full_disk_is_a_failure_to_try_again(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A real full disk needs root for a mount; only the kernel's answer is replaced, at the last step of writing.
    def no_space(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    error = refused(server.on("/f", good), tmp_path)
    assert (error.code, error.exit_code) == ("disk-full", ExitCode.TRY_AGAIN)
    with fails("not-writable"):
        fetch(server.on("/f", good), tmp_path / "none")


def in_parts(etag: Callable[[int], str], most: int) -> Answer:
    """Sends at most so many bytes of what is asked for, and then breaks the connection."""

    def answer(handler: Silent, count: int) -> None:
        begin = int((handler.headers.get("Range") or "bytes=0-")[6:-1])
        headers = {"Content_Length": str(len(BODY) - begin), "ETag": etag(count)}
        headers |= {"Content_Range": f"bytes {begin}-{len(BODY) - 1}/{len(BODY)}"} if begin else {}
        handler.answer(206 if begin else 200, BODY[begin : begin + most], **headers)
        handler.close_connection = True

    return answer


def test_d82_a_broken_download_goes_on_where_it_stopped(server: Server, tmp_path: Path) -> None:
    url = server.on("/x", in_parts(lambda _: '"one"', len(BODY) // 3 + 1))
    found = download(url, tmp_path / "x", None, size_cap=1 << 20, deadline=60, resume=True)
    assert (found.sha256, found.size, len(server.asked)) == (DIGEST, len(BODY), 3)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_d82_another_call_goes_on_too_and_a_changed_file_begins_again(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envbuild.transport.download.ATTEMPTS", 2)
    url = server.on("/x", in_parts(lambda _: '"one"', 1000))
    with pytest.raises(EnvbuildError) as caught:
        download(url, tmp_path / "x", DIGEST, size_cap=1 << 20, deadline=60, resume=True)
    assert caught.value.code == "download-failed"
    [part] = tmp_path.iterdir()
    assert part.read_bytes() == BODY[:2000]
    server.on("/x", in_parts(lambda _: '"two"', len(BODY)))
    assert download(url, tmp_path / "x", DIGEST, size_cap=1 << 20, deadline=60, resume=True).size == len(BODY)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
