"""The verb `fetch`: a file without a recorded hash comes from where the lock says, whole and as its RECORD says."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from envbuild.node import lease
from envbuild.node.packages import fetch_unpinned, index_client
from envbuild.node.protocol import NodeError
from tests.node.env_support import Node, make_wheel, node

__all__ = ["node"]
Pages = dict[str, tuple[int, dict[str, str], bytes]]


def tampered(wheel: Path, member: str = "__init__.py", new: bytes = b"import os\n") -> None:
    """Change a member of a wheel, a module say, and leave its RECORD as it was."""
    with zipfile.ZipFile(wheel) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, new if name.endswith(member) else data)


@pytest.fixture
def serve() -> Iterator[Callable[[Pages], tuple[str, list[dict[str, str]]]]]:
    """`serve(pages)`: an HTTP server with those paths; its address, and the headers (and path) of every request."""
    servers = []

    def start(pages: Pages) -> tuple[str, list[dict[str, str]]]:
        asked: list[dict[str, str]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append({**dict(self.headers), "path": self.path})
                status, headers, body = pages.get(self.path, (404, {}, b""))
                self.send_response(status)
                for key, value in {"Content-Length": str(len(body)), **headers}.items():
                    if key != "Content-Length" or "Transfer-Encoding" not in headers:
                        self.send_header(key, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return f"http://127.0.0.1:{server.server_address[1]}", asked

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def html(*links: str) -> tuple[int, dict[str, str], bytes]:
    body = "<!DOCTYPE html><html><body>" + "".join(f'<a href="{link}">x</a>' for link in links) + "</body></html>"
    return 200, {"Content-Type": "text/html"}, body.encode()


def whole(path: Path) -> tuple[int, dict[str, str], bytes]:
    return 200, {"Content-Type": "application/octet-stream"}, path.read_bytes()


def wheel(node: Node, **more: Any) -> Path:
    """A wheel outside every find-links folder."""
    folder = node.top / "far"
    return folder / str(make_wheel(folder, **more)["files"][0]["file"])


def fetched(
    node: Node, file: str, index: str = "there", artifacts: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    """Fetch one file of `alpha` 1.0; its row, without what it was told."""
    wanted = {"package": "alpha", "version": "1.0", "index": index, "file": file, **more}
    changed, result = fetch_unpinned.run(node.request("fetch", files=[wanted], artifacts=artifacts or {}, wait=0))
    assert changed
    (row,) = result["files"]
    assert isinstance(row, dict)
    return row


def fails(code: str, number: int, *args: Any, **more: Any) -> NodeError:
    with pytest.raises(NodeError) as caught:
        fetched(*args, **more)
    assert (caught.value.code, caught.value.exit_code) == (code, number), caught.value.as_dict()
    return caught.value


def index(url: str, kind: str = "index") -> dict[str, Any]:
    return {"indexes": {"there": {"url": url, "kind": kind}}}


def left(node: Node) -> list[Path]:
    return list((node.prefix / "store" / "first-use").rglob("*"))


def test_a_file_of_a_find_links_folder_is_copied_under_its_hash(node: Node) -> None:
    path = node.wheels / str(make_wheel(node.wheels)["files"][0]["file"])
    row = fetched(node, path.name, artifacts={"find_links": [str(node.wheels)]})
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert (row["sha256"], row["size"], row["found"]) == (digest, path.stat().st_size, "a find-links folder")
    assert row["record_checked"] == 3
    kept = Path(row["path"])
    assert (kept.parent.name, kept.name, kept.read_bytes()) == (digest, path.name, path.read_bytes())
    assert lease.read(str(node.prefix)) is None


@pytest.mark.parametrize("form", ["html", "json", "find-links"])
def test_a_file_comes_from_the_named_index_under_exactly_its_name(node: Node, serve: Any, form: str) -> None:
    path = wheel(node)
    near = "/files/other-1.0-py3-none-any.whl", "/files/alpha-1.0-py3-none-any.whl.metadata"
    if form == "json":
        files = [{"filename": path.name, "url": "../../files/" + path.name, "hashes": {}}]
        page = (200, {"Content-Type": "application/vnd.pypi.simple.v1+json"}, json.dumps({"files": files}).encode())
    else:
        page = html(*near, f"/files/{path.name}#sha256=")
    at = "/links.html" if form == "find-links" else "/simple/alpha/"
    url, asked = serve({at: page, f"/files/{path.name}": whole(path)})
    artifacts = index(url + "/links.html", "find-links") if form == "find-links" else index(url + "/simple")
    row = fetched(node, path.name, artifacts=artifacts)
    assert (row["found"], row["index"]) == ("the index there, unencrypted", "there")
    assert url not in json.dumps({key: row[key] for key in row if key != "path"})
    assert [one["path"] for one in asked] == [at, f"/files/{path.name}"], "fetched once"


def test_no_other_index_is_asked_for_a_file_without_a_hash(node: Node, serve: Any, monkeypatch: Any) -> None:
    path = wheel(node)
    pages = {"/simple/alpha/": html(f"/f/{path.name}"), f"/f/{path.name}": whole(path)}
    url, asked = serve(pages)
    empty, _ = serve({"/simple/alpha/": html()})
    monkeypatch.setenv("UV_DEFAULT_INDEX", url + "/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", url + "/simple")
    fails("package-not-found", 4, node, path.name, artifacts=index(empty + "/simple"))
    fails("index-unknown", 4, node, path.name)
    assert asked == [] and left(node) == []
    normal = fetched(node, path.name, index="pypi")["found"]
    assert normal.startswith("the index pypi"), "the normal index is the configured one"


def test_credentials_go_to_the_index_and_nowhere_else(node: Node, serve: Any) -> None:
    path = wheel(node)
    files, seen = serve({f"/f/{path.name}": whole(path)})
    url, asked = serve(
        {"/alpha/": html(f"/f/{path.name}"), f"/f/{path.name}": (302, {"Location": f"{files}/f/{path.name}"}, b"")}
    )
    (Path.home() / ".netrc").write_text("machine 127.0.0.1 login ada password secret\n")
    row = fetched(node, path.name, artifacts=index(url.replace("//", "//bob:hush@")))
    bob = "Basic " + base64.b64encode(b"bob:hush").decode()
    assert [one["Authorization"] for one in asked] == [bob, bob], "its page and its file"
    assert "Authorization" not in seen[0], "a redirect takes no credentials along"
    assert "hush" not in json.dumps(row) and "secret" not in json.dumps(row)


def test_a_file_that_differs_from_what_its_index_states_is_refused(node: Node, serve: Any) -> None:
    path = wheel(node)
    url, _ = serve({"/alpha/": html(f"/{path.name}#sha256={'a' * 64}"), f"/{path.name}": whole(path)})
    error = fails("hash-mismatch", 5, node, path.name, artifacts=index(url))
    assert "a" * 64 in error.why and hashlib.sha256(path.read_bytes()).hexdigest() in error.why
    assert left(node) == []


def test_a_download_that_ends_early_is_not_taken(node: Node, serve: Any) -> None:
    path = wheel(node)
    cut = (200, {"Content-Length": str(path.stat().st_size)}, path.read_bytes()[:100])
    url, _ = serve({"/alpha/": html(f"/{path.name}"), f"/{path.name}": cut})
    fails("network-unreachable", 75, node, path.name, artifacts=index(url))
    assert left(node) == []


@pytest.mark.parametrize("broken", [{"Content-Length": "1000"}, {"Transfer-Encoding": "chunked"}])
def test_a_page_that_ends_early_is_not_read(node: Node, serve: Any, broken: dict[str, str]) -> None:
    path = wheel(node)
    page = html(f"/{path.name}")[2]
    body = b"%x\r\n" % (len(page) + 1) + page if "Transfer-Encoding" in broken else page
    url, _ = serve({"/alpha/": (200, {"Content-Type": "text/html", **broken}, body), f"/{path.name}": whole(path)})
    fails("network-unreachable", 75, node, path.name, artifacts=index(url))
    assert left(node) == []


@pytest.mark.parametrize(("status", "code", "number"), [(403, "index-refused", 4), (500, "network-unreachable", 75)])
def test_an_index_that_does_not_answer_is_told(node: Node, serve: Any, status: int, code: str, number: int) -> None:
    url, _ = serve({"/alpha/": (status, {}, b"")})
    fails(code, number, node, "alpha-1.0-py3-none-any.whl", artifacts=index(url))


def test_https_is_never_left_by_a_redirect() -> None:
    class Request:
        full_url = "https://there.example.org/x"

    with pytest.raises(NodeError) as caught:
        index_client._NoDowngrade().redirect_request(Request(), None, 302, "", {}, "http://there.example.org/x")
    assert caught.value.code == "index-refused"


def test_a_wheel_is_what_its_record_says(node: Node) -> None:
    path = node.wheels / str(make_wheel(node.wheels)["files"][0]["file"])
    links = {"find_links": [str(node.wheels)]}
    tampered(path)
    assert "alpha/__init__.py" in fails("record-mismatch", 5, node, path.name, artifacts=links).what
    assert left(node) == []


def test_d02_a_record_that_is_wrong_about_the_wheels_own_metadata_is_noted(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    path = node.wheels / str(make_wheel(node.wheels)["files"][0]["file"])
    tampered(path, "METADATA", b"Metadata-Version: 2.1\nName: alpha\nVersion: 1.0\nSummary: renamed\n")
    told = fetched(node, path.name, artifacts={"find_links": [str(node.wheels)]})
    assert told["record_checked"] >= 2
    assert f"{path.name}: its own RECORD is wrong about alpha-1.0.dist-info/METADATA" in capsys.readouterr().err


def test_a_wheel_is_the_package_it_is_named_after(node: Node) -> None:
    other = node.wheels / str(make_wheel(node.wheels, "gamma", "2.0")["files"][0]["file"])
    named = other.rename(node.wheels / "alpha-1.0-py3-none-any.whl")
    assert (
        "gamma 2.0" in fails("record-mismatch", 5, node, named.name, artifacts={"find_links": [str(node.wheels)]}).what
    )


@pytest.mark.parametrize("data", [b"", b"no zip", b"PK\x03\x04 half a header"])
def test_something_that_is_no_wheel_is_refused(node: Node, data: bytes) -> None:
    (node.wheels / "alpha-1.0-py3-none-any.whl").write_bytes(data)
    fails("artifact-damaged", 5, node, "alpha-1.0-py3-none-any.whl", artifacts={"find_links": [str(node.wheels)]})
    assert left(node) == []


@pytest.mark.parametrize("file", ["../alpha.whl", "/etc/passwd", ".hidden", "a/b.whl"])
def test_a_name_that_leaves_the_folder_is_no_request(node: Node, file: str) -> None:
    fails("request-invalid", 2, node, file)


def test_what_a_killed_run_left_is_removed_and_a_busy_prefix_is_left_alone(node: Node) -> None:
    path = node.wheels / str(make_wheel(node.wheels)["files"][0]["file"])
    folder = node.prefix / "store" / "first-use"
    folder.mkdir(parents=True)
    (folder / ".part-old").write_bytes(b"half")
    links = {"find_links": [str(node.wheels)]}
    held = lease.acquire(str(node.prefix), "another-run", None, 0)
    fails("prefix-busy", 75, node, path.name, artifacts=links)
    assert (folder / ".part-old").exists()
    held.release()
    fetched(node, path.name, artifacts=links)
    assert not (folder / ".part-old").exists()
