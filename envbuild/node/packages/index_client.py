"""Reads pages of package indexes and files over HTTP, with the proxy, certificates and credentials of this machine.

For the few files that uv cannot fetch without installing or building them. Everything else is uv's work.
"""

from __future__ import annotations

import base64
import http.client
import json
import netrc
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any, NamedTuple
from urllib.parse import unquote, urldefrag, urljoin, urlsplit, urlunsplit

from envbuild.node import hashing, pip_config
from envbuild.node.protocol import NodeError
from envbuild.node.read_text import integer
from envbuild.node.redact import redact_text

TIMEOUT = 60.0  # without a byte, in seconds
_PAGE_LIMIT = 64 << 20
_ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.5, */*;q=0.1"


class Found(NamedTuple):
    """A file that an index names: its address, and the sha256 (hex) that the index states, else an empty text."""

    url: str
    sha256: str


class _Links(HTMLParser):
    """The targets of the links of a page, and its base."""

    def __init__(self) -> None:
        HTMLParser.__init__(self)
        self.base = ""
        self.found: list[str] = []

    def error(self, message: str) -> None:
        """Raise ValueError: Python before 3.10 asks for this one."""
        raise ValueError(message)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep `href` of `a` and `base`."""
        target = dict(attrs).get("href")
        if target and tag == "a":
            self.found.append(target)
        elif target and tag == "base" and not self.base:
            self.base = target


class _NoDowngrade(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but never from https to anything else."""

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        """Raises NodeError `index-refused`."""
        if req.full_url.startswith("https:") and not newurl.startswith("https:"):
            raise _refused("it sends an https request on to another scheme")
        return urllib.request.HTTPRedirectHandler.redirect_request(self, req, fp, code, msg, headers, newurl)


def find(page: str, file: str, cert: str = "") -> Found | None:
    """The file of exactly that name on a page of links (HTML, or JSON as PEP 691 has it), None when it is not there.

    Its address has the login of the page's where it is on the same server.
    Raises NodeError `network-unreachable` (exit 75), `index-refused` (4).
    """
    with _open(page, cert) as stream:
        kind, where = stream.headers.get("Content-Type", ""), stream.geturl()
        data = _most(stream, page, _PAGE_LIMIT)
    if data is None:
        raise _refused(f"its page is larger than {_PAGE_LIMIT >> 20} MiB")
    try:
        match = _in_json(data, where, file) if "json" in kind else _in_html(data, where, file)
        return match and match._replace(url=_with_login(match.url, page))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _refused(f"its page cannot be read: {type(error).__name__}") from error


def _with_login(url: str, page: str) -> str:
    login, _, server = urlsplit(page).netloc.rpartition("@")
    parts = urlsplit(url)
    if not login or (parts.scheme, parts.netloc) != (urlsplit(page).scheme, server):
        return url
    return urlunsplit(parts._replace(netloc=f"{login}@{server}"))


def _in_json(data: bytes, where: str, file: str) -> Found | None:
    for row in json.loads(data.decode("utf-8"))["files"]:
        if row["filename"] == file:
            return Found(urljoin(where, row["url"]), str((row.get("hashes") or {}).get("sha256") or ""))
    return None


def _in_html(data: bytes, where: str, file: str) -> Found | None:
    links = _Links()
    links.feed(data.decode("utf-8", "replace"))
    base = urljoin(where, links.base) if links.base else where
    for link in links.found:
        url, fragment = urldefrag(urljoin(base, link))
        if unquote(urlsplit(url).path).rpartition("/")[2] == file:
            return Found(url, fragment[len("sha256=") :] if fragment.startswith("sha256=") else "")
    return None


def blocks(url: str, cert: str = "", authorization: str = "") -> Iterator[bytes]:
    """The bytes behind an address, all that were announced. Raises NodeError as `find` does.

    `authorization`: the value of that header, where it is not `login`'s to say; no other host gets it.
    """
    with _open(url, cert, authorization=authorization) as stream:
        yield from _received(stream, url)


def _received(stream: Any, url: str) -> Iterator[bytes]:
    left = integer(stream.headers.get("Content-Length"))
    try:
        for block in hashing.blocks(stream):
            left = None if left is None else left - len(block)
            yield block
    except (OSError, http.client.HTTPException) as error:
        raise _unreachable(url, error) from error
    if left:
        raise _unreachable(url, f"{left} bytes are missing at the end")


def _most(stream: Any, url: str, limit: int) -> bytes | None:
    """All that comes; None where that is more than `limit` bytes."""
    data = bytearray()
    for block in _received(stream, url):
        data += block
        if len(data) > limit:
            return None
    return bytes(data)


def tail(url: str, length: int, cert: str = "", timeout: float = TIMEOUT) -> bytes | None:
    """The last `length` bytes behind an address; None where its server gives no parts. Raises NodeError as `find` does.

    `timeout`: seconds without a byte.
    """
    with _open(url, cert, {"Range": f"bytes=-{length}"}, timeout) as stream:
        return _most(stream, url, length)


def _open(
    url: str, cert: str, more: dict[str, str] | None = None, timeout: float = TIMEOUT, authorization: str = ""
) -> Any:
    plain = pip_config.without_credentials(url)
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https"):
        raise _refused("its address is not one of http or https")
    headers = dict({"User-Agent": "envbuild", "Accept": _ACCEPT}, **(more or {}))
    request = urllib.request.Request(plain, headers=headers)  # noqa: S310 - the scheme was checked
    authorization = authorization or login(url)
    if authorization:
        # Not sent on when the answer is a redirect to another host.
        request.add_unredirected_header("Authorization", authorization)
    try:
        https = urllib.request.HTTPSHandler(context=pip_config.trusting(cert))
        return urllib.request.build_opener(_NoDowngrade(), https).open(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        if error.code in (401, 403, 407):
            raise _refused(f"it answers {error.code} to {plain}", {"status": error.code}) from error
        raise _unreachable(url, f"HTTP {error.code}") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise _unreachable(url, error) from error


def login(url: str) -> str:
    """The value of `Authorization` for an address: what it carries itself, else what ~/.netrc says of its host."""
    parts = urlsplit(url)
    if parts.username is not None:
        return basic(unquote(parts.username), unquote(parts.password or ""))
    try:
        known = netrc.netrc(os.environ.get("NETRC") or None).authenticators(parts.hostname or "")
    except (OSError, netrc.NetrcParseError):
        known = None
    return basic(known[0], known[2] or "") if known else ""


def basic(user: str, password: str) -> str:
    """The value of `Authorization` for a user and a password."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode("ascii")


def _refused(why: str, details: dict[str, Any] | None = None) -> NodeError:
    return NodeError(
        "index-refused",
        "the package index cannot be used",
        why=redact_text(why),
        hint="check the credentials in ~/.netrc, or pip's and uv's configuration",
        details=details,
    )


def _unreachable(url: str, error: object) -> NodeError:
    reason = getattr(error, "reason", error)
    if isinstance(reason, ssl.SSLCertVerificationError):
        return NodeError(
            "tls-failed",
            f"no trusted connection to {urlsplit(url).hostname or 'the index'}",
            why=redact_text(str(error))[:300],
            hint="install CA certificates there (package ca-certificates); where a proxy replaces certificates, name a "
            "file of them with SSL_CERT_FILE or pip's `cert`",
        )
    return NodeError(
        "network-unreachable",
        f"cannot reach {urlsplit(url).hostname or 'the index'}",
        why=redact_text(str(error))[:300],
        hint="check the network and the proxy, put the file into a find-links folder, or use `delivery: controller`",
    )
