"""`lock record`: a file without a hash comes from where the lock says, whole and as its RECORD says, and is hashed."""

from __future__ import annotations

import base64
import hashlib
import json
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from envbuild.lock.record import Origin, fetch, filled, recorded, unrecorded
from envbuild.model.lock import ArtifactFile, Lock, LockedPackage
from envbuild.node.packages import index_client
from envbuild.transport import download
from tests.lock.build import lock, variant
from tests.support.fails import Error, fails
from tests.support.served import Silent, serving
from tests.support.wheels import sha256, tampered, write_wheel

Pages = dict[str, tuple[int, dict[str, str], bytes]]
Serve = Callable[[Pages], tuple[str, list[dict[str, str]]]]
FILE = "alpha-1.0-py3-none-any.whl"


@pytest.fixture
def serve() -> Iterator[Serve]:
    """`serve(pages)`: an HTTP server with those paths; its address, and the headers (and path) of every request."""
    servers = ExitStack()

    def start(pages: Pages) -> tuple[str, list[dict[str, str]]]:
        asked: list[dict[str, str]] = []

        class Handler(Silent):
            def do_GET(self) -> None:
                asked.append({**dict(self.headers), "path": self.path})
                status, headers, body = pages.get(self.path, (404, {}, b""))
                self.send_response(status)
                for key, value in {"Content-Length": str(len(body)), **headers}.items():
                    if key != "Content-Length" or "Transfer-Encoding" not in headers:
                        self.send_header(key, value)
                self.end_headers()
                self.wfile.write(body)

        return servers.enter_context(serving(Handler)), asked

    with servers:
        yield start


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No index of this machine, and one attempt a download."""
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(download, "ATTEMPTS", 1)


def html(*links: str) -> tuple[int, dict[str, str], bytes]:
    body = "<!DOCTYPE html><html><body>" + "".join(f'<a href="{link}">x</a>' for link in links) + "</body></html>"
    return 200, {"Content-Type": "text/html"}, body.encode()


def whole(path: Path) -> tuple[int, dict[str, str], bytes]:
    return 200, {"Content-Type": "application/octet-stream"}, path.read_bytes()


def wheel(folder: Path, name: str = "alpha", version: str = "1.0") -> Path:
    return write_wheel(folder, name, version, {f"{name}/__init__.py": "VERSION = '1.0'\n"})


def locked(index: str = "house") -> tuple[LockedPackage, ArtifactFile]:
    file = ArtifactFile(file=FILE, sha256="unrecorded", reason="its index was out of reach")
    return LockedPackage(name="alpha", version="1.0", index=index, files=(file,)), file


def got(
    tmp_path: Path, url: str = "", folders: tuple[str, ...] = (), index: str = "house", **more: Any
) -> ArtifactFile:
    """The file of `alpha` 1.0 as it was recorded."""
    package, file = locked(index)
    notes: list[str] = more.pop("notes", [])
    origin = Origin(folders, tmp_path / "cache", {index: url} if url else {}, **more)
    return fetch(package, file, origin, notes.append)


def failed(code: str, number: int, *args: Any, **more: Any) -> Error:
    with fails(code, number) as caught:
        got(*args, **more)
    return caught.value


def left(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "cache").rglob("*"))


def test_a_file_of_a_folder_is_recorded_with_its_size_and_what_it_takes(tmp_path: Path) -> None:
    path = wheel(tmp_path / "far")
    notes: list[str] = []
    file = got(tmp_path, folders=(str(path.parent),), only_folders=True, notes=notes)
    assert (file.file, file.sha256, file.size) == (FILE, sha256(path), path.stat().st_size)
    assert file.unpacked is not None and file.reason is None and file.witness is None
    assert notes == [f"fetching {FILE} from the folder {path.parent}"]
    assert (tmp_path / "cache" / file.sha256 / FILE).read_bytes() == path.read_bytes(), "a delivery takes it from there"


@pytest.mark.parametrize("form", ["html", "json", "links"])
def test_a_file_comes_from_the_named_index_under_exactly_its_name(tmp_path: Path, serve: Serve, form: str) -> None:
    path = wheel(tmp_path / "far")
    near = "/files/other-1.0-py3-none-any.whl", f"/files/{FILE}.metadata"
    if form == "json":
        files = [{"filename": FILE, "url": "../../files/" + FILE, "hashes": {}}]
        page = (200, {"Content-Type": "application/vnd.pypi.simple.v1+json"}, json.dumps({"files": files}).encode())
    else:
        page = html(*near, f"/files/{FILE}#sha256={sha256(path)}")
    # Some indexes are one page of links.
    index, place, at = ("pytorch-stable-cu102", "/links.html", "/links.html") if form == "links" else (
        "house", "/simple", "/simple/alpha/"
    )  # fmt: skip
    url, asked = serve({at: page, f"/files/{FILE}": whole(path)})
    notes: list[str] = []
    file = got(tmp_path, url + place, index=index, notes=notes)
    assert (file.sha256, notes) == (sha256(path), [f"fetching {FILE} from the index {index}, unencrypted"])
    assert [one["path"] for one in asked] == [at, f"/files/{FILE}"], "fetched once"


def test_no_other_index_is_asked_for_a_file_without_a_hash(
    tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = wheel(tmp_path / "far")
    url, asked = serve({"/simple/alpha/": html(f"/f/{FILE}"), f"/f/{FILE}": whole(path)})
    empty, _ = serve({"/simple/alpha/": html()})
    monkeypatch.setenv("UV_DEFAULT_INDEX", url + "/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", url + "/simple")
    assert "--from DIR" in failed("package-not-found", 4, tmp_path, empty + "/simple").hint
    failed("package-not-found", 4, tmp_path, url + "/nowhere")
    failed("index-unknown", 4, tmp_path)
    failed("package-not-found", 4, tmp_path, url + "/simple", folders=(str(tmp_path),), only_folders=True)
    assert [one["path"] for one in asked] == ["/nowhere/alpha/"]
    assert left(tmp_path) == []
    assert got(tmp_path, index="pypi").sha256 == sha256(path), "the normal index is the configured one"


def test_credentials_go_to_the_index_and_nowhere_else(tmp_path: Path, serve: Serve) -> None:
    path = wheel(tmp_path / "far")
    files, seen = serve({f"/f/{FILE}": whole(path)})
    url, asked = serve({"/alpha/": html(f"/f/{FILE}"), f"/f/{FILE}": (302, {"Location": f"{files}/f/{FILE}"}, b"")})
    notes: list[str] = []
    got(tmp_path, url.replace("//", "//bob:hush@"), notes=notes)
    bob = "Basic " + base64.b64encode(b"bob:hush").decode()
    assert [one["Authorization"] for one in asked] == [bob, bob], "its page and its file"
    assert "Authorization" not in seen[0], "a redirect takes no credentials along"
    assert "hush" not in str(notes)


def test_a_file_that_differs_from_what_its_index_states_or_ends_early_is_refused(tmp_path: Path, serve: Serve) -> None:
    path = wheel(tmp_path / "far")
    url, _ = serve({"/alpha/": html(f"/{FILE}#sha256={'a' * 64}"), f"/{FILE}": whole(path)})
    error = failed("hash-mismatch", 5, tmp_path, url)
    assert "a" * 64 in error.why and hashlib.sha256(path.read_bytes()).hexdigest() in error.why
    cut = (200, {"Content-Length": str(path.stat().st_size)}, path.read_bytes()[:100])
    url, _ = serve({"/alpha/": html(f"/{FILE}"), f"/{FILE}": cut})
    assert "after 100 bytes" in failed("download-failed", 75, tmp_path, url).why
    assert left(tmp_path) == []


Answer = tuple[int, dict[str, str], bytes]
PAGE = html(f"/{FILE}")[2]


@pytest.mark.parametrize(
    ("page", "code", "number"),
    [
        ((200, {"Content-Type": "text/html", "Content-Length": "1000"}, PAGE), "network-unreachable", 75),
        ((200, {"Content-Type": "text/html", "Transfer-Encoding": "chunked"}, b"%x\r\n" % (len(PAGE) + 1) + PAGE),
         "network-unreachable", 75),
        ((403, {}, b""), "index-refused", 4),
        ((500, {}, b""), "network-unreachable", 75),
    ],
    ids=["shorter than its length", "without its last chunk", "refused", "broken"],
)  # fmt: skip
def test_a_page_that_ends_early_or_an_index_that_does_not_answer_gives_nothing(
    tmp_path: Path, serve: Serve, page: Answer, code: str, number: int
) -> None:
    url, _ = serve({"/alpha/": page, f"/{FILE}": whole(wheel(tmp_path / "far"))})
    assert ("--from DIR" in failed(code, number, tmp_path, url).hint) == (number == 75)
    assert left(tmp_path) == []


def test_https_is_never_left_by_a_redirect() -> None:
    class Request:
        full_url = "https://there.example.org/x"

    with fails("index-refused"):
        index_client._NoDowngrade().redirect_request(Request(), None, 302, "", {}, "http://there.example.org/x")


def _another_package(path: Path) -> None:
    wheel(path.parent, "gamma", "2.0").replace(path)


def _member_elsewhere(path: Path) -> None:
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("../evil.py", "x")


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        (tampered, "record-mismatch", "alpha/__init__.py"),
        (_another_package, "record-mismatch", "gamma 2.0"),
        (_member_elsewhere, "wheel-unsafe", ""),
        (lambda path: path.write_bytes(b""), "artifact-damaged", ""),
        (lambda path: path.write_bytes(b"PK\x03\x04 half a header"), "artifact-damaged", ""),
    ],
    ids=["a file that its RECORD contradicts", "another package", "a member elsewhere (D28)", "empty", "no zip"],
)
def test_a_wheel_that_is_not_what_it_says_is_refused(
    tmp_path: Path, change: Callable[[Path], object], code: str, says: str
) -> None:
    path = wheel(tmp_path / "far")
    change(path)
    assert says in failed(code, 5, tmp_path, folders=(str(path.parent),)).what
    assert left(tmp_path) == []


def test_d02_a_record_that_is_wrong_about_the_wheels_own_metadata_is_noted(tmp_path: Path) -> None:
    path = wheel(tmp_path / "far")
    tampered(path, "METADATA", b"Metadata-Version: 2.1\nName: alpha\nVersion: 1.0\nSummary: renamed\n")
    notes: list[str] = []
    got(tmp_path, folders=(str(path.parent),), notes=notes)
    assert notes[1:] == [f"{FILE}: its own RECORD is wrong about alpha-1.0.dist-info/METADATA"]


def test_a_lock_takes_the_hashes_that_it_lacks_and_no_other() -> None:
    package, file = locked()
    made = lock(variant(packages=(package,)))
    assert unrecorded(made) == [(package, file)] and recorded(made) == {}
    known = ArtifactFile(file=FILE, sha256="b" * 64, size=7)
    assert filled(made, {("elsewhere", FILE): known}) == made, (
        "a file of the same name of another index is another file"
    )
    whole = filled(made, {("house", FILE): known})
    assert whole.variants[0].packages[0].files == (known,)
    assert whole.variants[0].digest != made.variants[0].digest
    assert Lock.from_plain(whole.to_json_dict()) == whole, "its digests hold"
    other = ArtifactFile(file=FILE, sha256="c" * 64)
    assert filled(whole, {("house", FILE): other}) == whole
