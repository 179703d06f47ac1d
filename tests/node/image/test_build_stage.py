"""The verb `image`: fetching by hash into one folder, and what is taken out of a built environment."""

from __future__ import annotations

import hashlib
import io
import json
import os
import ssl
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from envbuild import resources
from envbuild.node import git_source
from envbuild.node.image import build_stage, fetch_stage
from envbuild.node.protocol import NodeError
from envbuild.provision.fleet.pack_routes import _certificate
from tests.node.env_support import make_repository, redirect_git
from tests.node.pythons import require_python


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No index of this user's; a home of its own."""
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(fetch_stage, "_DEFAULT", "print()")


def row(name: str, data: bytes, **more: str) -> dict[str, str]:
    return {"package": "alpha", "index": "pypi", "file": name, "sha256": hashlib.sha256(data).hexdigest(), **more}


def fetched(tmp_path: Path, files: list[dict[str, str]], **more: Any) -> dict[str, Any]:
    return fetch_stage.run({"out": str(tmp_path / "out"), "files": files, **more})


def refused(tmp_path: Path, files: list[dict[str, str]], **more: Any) -> NodeError:
    with pytest.raises(NodeError) as caught:
        fetched(tmp_path, files, **more)
    return caught.value


@pytest.fixture
def web(tmp_path: Path) -> Any:
    """A server of the folder `www`; its address."""
    (tmp_path / "www").mkdir()
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "www"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_folder_comes_first_and_only_by_hash(tmp_path: Path, web: str) -> None:
    house = tmp_path / "house"
    house.mkdir()
    (house / "alpha-1.whl").write_bytes(b"good")
    assert fetched(tmp_path, [row("alpha-1.whl", b"good")], find_links=[str(house)]) == {"files": 1, "bytes": 4}
    (house / "alpha-1.whl").write_bytes(b"bad!")
    error = refused(tmp_path, [row("alpha-1.whl", b"good")], find_links=[str(house)])
    assert (error.code, error.exit_code) == ("package-not-found", 4)
    (tmp_path / "www" / "alpha-1.whl").write_bytes(b"good")
    fetched(tmp_path, [row("alpha-1.whl", b"good", url=f"{web}/alpha-1.whl")], find_links=[str(house)])
    assert (tmp_path / "out" / "wheels" / "alpha-1.whl").read_bytes() == b"good"


def test_the_named_index_then_the_configured_one(tmp_path: Path, web: str, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "www" / "simple" / "alpha"
    page.mkdir(parents=True)
    (page / "index.html").write_text('<a href="../../alpha-1.whl">alpha-1.whl</a>')
    (tmp_path / "www" / "alpha-1.whl").write_bytes(b"good")
    cache = str(tmp_path / "cache")
    named = {"torch-index": {"url": f"{web}/simple", "kind": "simple"}}
    wanted = row("alpha-1.whl", b"good", index="torch-index")
    assert fetched(tmp_path, [wanted], indexes=named, cache=cache)["bytes"] == 4
    # Kept by hash, so that the next build asks nobody.
    (tmp_path / "www" / "alpha-1.whl").unlink()
    fetched(tmp_path, [wanted], indexes=named, cache=cache)
    (tmp_path / "www" / "alpha-1.whl").write_bytes(b"another")
    error = refused(tmp_path, [wanted], indexes=named)
    assert (error.code, error.exit_code) == ("hash-mismatch", 5)
    assert not (tmp_path / "out" / "wheels" / "alpha-1.whl").exists() or error
    monkeypatch.setenv("PIP_INDEX_URL", f"{web}/simple")
    (tmp_path / "www" / "alpha-1.whl").write_bytes(b"good")
    assert fetched(tmp_path, [row("alpha-1.whl", b"good")])["files"] == 1


def test_addresses_of_indexes_come_from_a_file_of_their_own(tmp_path: Path, web: str) -> None:
    page = tmp_path / "www" / "simple" / "alpha"
    page.mkdir(parents=True)
    (page / "index.html").write_text('<a href="../../alpha-1.whl">alpha-1.whl</a>')
    (tmp_path / "www" / "alpha-1.whl").write_bytes(b"good")
    wanted = row("alpha-1.whl", b"good", index="torch-index")
    right = {"torch-index": {"url": f"{web}/simple", "kind": "simple"}}
    file = tmp_path / "indexes.json"
    file.write_text(json.dumps(right))
    assert fetched(tmp_path, [wanted], addresses=str(file))["files"] == 1
    # What the request itself says of an index counts.
    file.write_text(json.dumps({"torch-index": {"url": f"{web}/nothing", "kind": "simple"}}))
    assert refused(tmp_path, [wanted], addresses=str(file)).code == "package-not-found"
    assert fetched(tmp_path, [wanted], addresses=str(file), indexes=right)["files"] == 1


@pytest.mark.parametrize("text", [None, "", "[]", '{"torch-index": "x"}'])
def test_a_file_without_addresses_is_refused(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "indexes.json"
    if text is not None:
        file.write_text(text)
    error = refused(tmp_path, [], addresses=str(file))
    assert (error.code, str(file) in error.what) == ("request-invalid", True)


@pytest.fixture
def untrusted(tmp_path: Path) -> Iterator[str]:
    """The address of a wheel behind a certificate that nobody has signed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    (tmp_path / "both.pem").write_text("".join(_certificate()))
    context.load_cert_chain(tmp_path / "both.pem")
    server = ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"https://127.0.0.1:{server.server_port}/alpha-1.whl"
    server.shutdown()
    server.server_close()


def test_an_image_without_ca_certificates_is_told_how_it_gets_some(untrusted: str, tmp_path: Path) -> None:
    error = refused(tmp_path, [row("alpha-1.whl", b"good", url=untrusted)])
    assert (error.code, error.exit_code) == ("tls-failed", 4)
    assert "CERTIFICATE_VERIFY_FAILED" in error.why and "ca-certificates" in error.hint


@pytest.mark.parametrize("minor", ["3.6", "3.8"])
def test_an_older_python_tells_an_untrusted_certificate_and_a_closed_port(untrusted: str, minor: str) -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from envbuild.node.packages import index_client\n"
        "for url in sys.argv[2:]:\n"
        "    try: list(index_client.blocks(url))\n"
        "    except index_client.NodeError as error: print(error.code)"
    )
    root = str(resources.node_package().parent.parent)
    argv = [require_python(minor), "-I", "-c", program, root, untrusted, "http://127.0.0.1:1/x"]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.stdout == "tls-failed\nnetwork-unreachable\n", done.stderr


@pytest.mark.parametrize("name", ["../x.whl", "/x.whl", ".x", "a/b.whl"])
def test_a_file_name_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    assert refused(tmp_path, [row(name, b"")]).code == "request-invalid"


def test_tools_are_taken_out_of_their_archives(tmp_path: Path) -> None:
    house = tmp_path / "house"
    house.mkdir()
    with zipfile.ZipFile(house / "uv-1.whl", "w") as archive:
        archive.writestr("uv-1.data/scripts/uv", "program")
    with tarfile.open(house / "python.tar.gz", "w:gz") as packed:
        member = tarfile.TarInfo("python/bin/python3")
        member.size, member.mode = 2, 0o777
        packed.addfile(member, io.BytesIO(b"py"))
    files = [row(name, (house / name).read_bytes()) for name in ("uv-1.whl", "python.tar.gz")]
    uv, folder = tmp_path / "tools" / "uv" / "uv", tmp_path / "tools" / "python"
    tools = [
        {"file": "uv-1.whl", "member": "uv-1.data/scripts/uv", "path": str(uv)},
        {"file": "python.tar.gz", "folder": str(folder)},
    ]
    fetched(tmp_path, files, find_links=[str(house)], tools=tools)
    assert uv.read_text() == "program" and os.access(uv, os.X_OK)
    assert (folder / "python/bin/python3").stat().st_mode & 0o777 == 0o755
    assert not list((tmp_path / "out" / "wheels").iterdir())


def _archive(path: Path, *members: tuple[str, bytes, str]) -> None:
    """A tar.gz of (name, type, where it points); files hold two bytes."""
    with tarfile.open(path, "w:gz") as packed:
        for name, kind, target in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.mode = kind, target, 0o6777
            member.size = 2 if kind == tarfile.REGTYPE else 0
            packed.addfile(member, io.BytesIO(b"py"))


FILE, FOLDER, LINK, HARD = tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE


def test_links_that_stay_inside_are_unpacked_and_modes_are_plain(tmp_path: Path) -> None:
    _archive(
        tmp_path / "a.tar.gz", ("./", FOLDER, ""), ("p/lib/x.so.1", FILE, ""), ("p/lib/x.so", LINK, "x.so.1"),
        ("p/bin/x", LINK, "../lib/x.so"), ("p/share/y", HARD, "p/lib/x.so.1"), ("p/lib", FOLDER, ""),
    )  # fmt: skip
    folder = tmp_path / "tools"
    fetch_stage._unpack(str(tmp_path / "a.tar.gz"), str(folder))
    assert (folder / "p/bin/x").read_text() == (folder / "p/share/y").read_text() == "py"
    assert {path.stat().st_mode & 0o7777 for path in folder.rglob("*")} == {0o755}


@pytest.mark.parametrize(
    "members",
    [
        [("../evil", FILE, "")],
        [("/evil", FILE, "")],
        [("p/../../evil", FILE, "")],
        [("p", LINK, "/"), ("q", FILE, "")],
        [("p", LINK, "..")],
        [("p", LINK, ".."), ("p/evil", FILE, "")],
        [("p", LINK, "../evil"), ("p", FILE, "")],
        [("p/q/up", LINK, "../.."), ("out", LINK, "p/q/up/../evil")],
        [("p", HARD, "../kept")],
        [("up", LINK, "../kept"), ("p", HARD, "up")],
        [("p", HARD, "not-there")],
        [("p", tarfile.CHRTYPE, "")],
        [("p", tarfile.FIFOTYPE, "")],
        [("p", FILE, ""), ("p", FILE, "")],
        [("p", FILE, ""), ("p/q/r", FILE, "")],
    ],
)
def test_an_archive_that_leads_out_is_refused_and_nothing_of_it_stays(
    tmp_path: Path, members: list[tuple[str, bytes, str]]
) -> None:
    (tmp_path / "kept").write_text("kept")
    _archive(tmp_path / "a.tar.gz", *members)
    with pytest.raises(NodeError) as error:
        fetch_stage._unpack(str(tmp_path / "a.tar.gz"), str(tmp_path / "tools"))
    assert (error.value.code, error.value.exit_code) == ("archive-leads-out", 5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar.gz", "kept"]
    assert ((tmp_path / "kept").read_text(), (tmp_path / "kept").stat().st_nlink) == ("kept", 1)
    assert not Path("/evil").exists()


def test_a_source_is_kept_as_one_commit_and_installed_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = tmp_path / "hub"
    redirect_git(monkeypatch, hub)
    make_repository(hub / "quick", {"a": "1"})
    commit, tree = make_repository(hub / "quick", {"a": "2"})
    pin = {"name": "quick", "git": "https://git.example.org/quick", "commit": commit, "tree": tree}
    fetched(tmp_path, [], sources=[pin])
    folder = fetch_stage.repository(str(tmp_path / "out" / "sources"), "quick")
    log = subprocess.run(["git", "-C", folder, "log", "--format=%H", "envbuild"], capture_output=True, text=True)
    assert log.stdout.split() == [commit]
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    git_source.fetch(pin, str(tmp_path / "there"), folder)
    assert (tmp_path / "there" / "a").read_text() == "2"
    wrong = {**pin, "tree": "0" * 40, "name": "other"}
    error = refused(tmp_path, [], sources=[wrong], find_links=[])
    assert error.code in ("tree-mismatch", "source-unreachable", "network-unreachable")


def test_what_differs_from_build_to_build_is_taken_out(tmp_path: Path) -> None:
    info = tmp_path / "lib" / "python3.11" / "site-packages" / "quick-1.0.dist-info"
    editable = info.with_name("tree-1.0.dist-info")
    for folder, origin in ((info, {"archive_info": {}}), (editable, {"dir_info": {"editable": True}})):
        folder.mkdir(parents=True)
        (folder / "uv_cache.json").write_text("{}")
        (folder / "direct_url.json").write_text(json.dumps({"url": "file:///tmp/x", **origin}))
        names = ("METADATA", "direct_url.json", "uv_cache.json", "RECORD")
        (folder / "RECORD").write_text("".join(f"{folder.name}/{name},sha256=x,1\n" for name in names))
    (tmp_path / ".envbuild").mkdir()
    built = {"key": "k", "seconds": 3.2, "jobs": 2, "from": "built", "store": {"path": "/s"}}
    told = [{"name": "q", "build": dict(built)}]
    for name, data in (("installed.json", {"sources": told}), ("sources.json", told)):
        (tmp_path / ".envbuild" / name).write_text(json.dumps(data))
    build_stage.settle(str(tmp_path))
    assert (
        info / "RECORD"
    ).read_text() == "quick-1.0.dist-info/METADATA,sha256=x,1\nquick-1.0.dist-info/RECORD,sha256=x,1\n"
    assert not (info / "direct_url.json").exists() and (editable / "direct_url.json").exists()
    assert "direct_url" in (editable / "RECORD").read_text() and "uv_cache" not in (editable / "RECORD").read_text()
    kept = [{"name": "q", "build": {"key": "k"}}]
    assert json.loads((tmp_path / ".envbuild" / "sources.json").read_text()) == kept
    assert json.loads((tmp_path / ".envbuild" / "installed.json").read_text())["sources"] == kept


def test_a_network_that_must_not_be_there_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code = "from envbuild.node.image.build_stage import network_state; print(network_state())"
    done = subprocess.run(["unshare", "-rn", sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        assert done.stdout == "off\n"
    monkeypatch.setenv("ENVBUILD_NETWORK", "off")
    monkeypatch.setattr(build_stage, "network_state", lambda: "on: routes through eth0")
    request = {"args": {"stage": "build"}, "prefix": str(tmp_path)}
    with pytest.raises(NodeError) as caught:
        build_stage.run(request)
    assert (caught.value.code, caught.value.exit_code) == ("network-there", 7)
    with pytest.raises(NodeError) as caught:
        build_stage.run({"args": {"stage": "other"}, "prefix": str(tmp_path)})
    assert caught.value.code == "request-invalid"


def test_what_is_stamped_of_the_network_does_not_name_the_interfaces_of_the_machine_that_builds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("ENVBUILD_NETWORK", raising=False)
    monkeypatch.setattr(build_stage, "network_state", lambda: "on: routes through eth0, veth7")
    monkeypatch.setattr(build_stage, "_packages", lambda _args, _prefix, network: {"network": network})
    request = {"args": {"stage": "packages"}, "prefix": str(tmp_path)}
    assert build_stage.run(request) == (True, {"network": "on"})


def test_another_c_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "confstr", lambda _name: "")
    with pytest.raises(NodeError) as caught:
        build_stage._check_libc()
    assert caught.value.code == "image-without-glibc"


def test_what_the_base_brings_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interpreter:
        packages = {"tqdm": "4.1", "torch": "1.11.0a0"}

    monkeypatch.setattr("envbuild.node.env.interpreter.examine", lambda _path, _variant: Interpreter)
    packages: list[dict[str, str]] = [{"name": "tqdm", "version": "4.66"}, {"name": "deepspeed", "version": "0.6.3"}]
    variant: dict[str, Any] = {"base": {"kind": "image", "image": "x"}, "packages": packages}
    assert build_stage._keep_base(variant, "/usr/bin/python3") == {"tqdm": ["4.66", "4.1"]}
    assert [each["name"] for each in variant["packages"]] == ["deepspeed"]
    assert build_stage._keep_base({"base": {"kind": "none"}, "packages": packages}, "x") == {}
