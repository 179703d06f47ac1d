"""Packages without a wheel are built beside the others of the environment, from nothing but them and the archive."""

from __future__ import annotations

import base64
import contextlib
import os
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from envbuild.node.build import environment as build_environment
from tests.node.env_support import Node, locked, make_variant, make_wheel, site
from tests.support.certificates import certificate
from tests.support.files import write_file, write_tar
from tests.support.private_channel import guarded
from tests.support.programs import executable
from tests.support.served import served
from tests.support.wheels import PACK

PYPROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
# `seen()` runs while the wheel is built and gives the text of its module.
BACKEND = (
    PACK
    + """
def build_wheel(folder, config_settings=None, metadata_directory=None):
    return write_wheel(Path(folder), "old", "1.0", {"old.py": "SEEN = %r\\n" % (seen(),)}).name
"""
)


def make_sdist(folder: Path, code: str) -> dict[str, Any]:
    """old-1.0.tar.gz as a locked package; `code` defines `seen()`, whose answer the built module has as SEEN."""
    files = {
        "pyproject.toml": PYPROJECT,
        "backend.py": f"{BACKEND}\n{code}",
        "PKG-INFO": "Metadata-Version: 2.1\nName: old\nVersion: 1.0\n",
    }
    members = {f"old-1.0/{name}": text for name, text in files.items()}
    return locked(write_tar(folder / "old-1.0.tar.gz", members, "w:gz"), "old", "1.0")


def seen(node: Node, variant: dict[str, Any], **more: Any) -> Any:
    """Install `variant`; what the setup code of `old` saw."""
    node.install(variant, **more)
    names: dict[str, Any] = {}
    exec((site(node.environment(variant)) / "old.py").read_text(), names)
    return names["SEEN"]


CONNECT = """
import socket
def seen():
    try:
        socket.create_connection(("127.0.0.1", {port}), 5).close()
    except OSError:
        return "nothing"
    return "a network"
"""


@pytest.fixture
def listening() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


SEES = CONNECT.replace("def seen():", "def connected():") + (
    "def seen():\n    import os, alpha\n    open(os.path.expanduser('~/.bashrc'), 'a').close()\n"
    "    return alpha.VERSION, os.environ['XDG_CACHE_HOME'], connected()\n"
)


def test_a_package_is_built_anew_beside_the_others_with_a_home_of_its_own_and_no_network(
    node: Node, tmp_path: Path, listening: int
) -> None:
    archive = make_sdist(node.wheels, SEES.format(port=listening))
    network = "nothing" if build_environment.no_network()[0] else "a network"
    for version in ("1.0", "2.0"):
        beside = make_wheel(node.wheels, version=version)
        caches = str(tmp_path / "home" / ".cache")
        assert seen(node, make_variant([beside, archive])) == (version, caches, network)
    assert not (tmp_path / "home" / ".bashrc").exists()
    # Links of the user's uv that a build cannot reach do not stop it.
    write_file(tmp_path / "home/.config/uv/uv.toml", 'find-links = ["http://127.0.0.1:9/links.html"]\n')
    artifacts = {"find_links": [str(node.wheels)], "offline": False}
    alone = make_sdist(node.wheels, "def seen():\n    return 1")
    assert seen(node, make_variant([alone]), artifacts=artifacts) == 1
    failing = "def seen():\n    raise SystemExit('dns error: client error (Connect)')"
    node.fails(make_variant([make_sdist(node.wheels, failing)]), "build-failed", 4)


def test_where_the_network_cannot_be_switched_off_a_package_is_built_and_that_is_said(
    node: Node, listening: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    no_way = partial(build_environment.no_network, ways=[["--no-such-option"]])
    monkeypatch.setattr(build_environment, "no_network", no_way)
    variant = make_variant([make_sdist(node.wheels, CONNECT.format(port=listening))])
    assert seen(node, variant) == "a network"
    assert "building old 1.0 (network on: " in capsys.readouterr().err


def put(top: Path, code: str) -> dict[str, Any]:
    """`make_sdist` on the page of an index in `<top>/www`."""
    folder = top / "www" / "simple" / "old"
    archive = make_sdist(folder, code)
    (folder / "index.html").write_text('<a href="old-1.0.tar.gz">old-1.0.tar.gz</a>')
    return archive


VARIABLES = "import os\ndef seen():\n    return sorted(os.environ.items())"


@pytest.mark.parametrize("named", ["configured", "by the lock", "page of links"])
def test_an_archive_of_an_index_is_built_by_code_that_sees_neither_index_nor_proxy(
    node: Node, tmp_path: Path, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = put(tmp_path, f"open({str(tmp_path / 'ran')!r}, 'w')\n{VARIABLES}")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "127.0.0.1")
    monkeypatch.setenv("https_proxy", "http://user:secret@proxy.example.org:1")
    monkeypatch.delenv("UV_DEFAULT_INDEX", raising=False)
    with served(tmp_path / "www") as address:
        url, indexes = f"{address}/simple".replace("://", "://user:secret@"), {}
        if named == "configured":
            monkeypatch.setenv("UV_DEFAULT_INDEX", url)
        else:
            kind = "simple" if named == "by the lock" else "find-links"
            indexes = {"house": {"url": url if kind == "simple" else url + "/old/", "kind": kind}}
            archive["index"] = "house"
        artifacts = {"find_links": [], "offline": False, "indexes": indexes}
        other = {**archive, "files": [{**archive["files"][0], "sha256": "0" * 64}]}
        assert "old==1.0" in node.fails(make_variant([other]), "hash-mismatch", 5, artifacts=artifacts).what
        assert not (tmp_path / "ran").exists(), "an archive with another hash is never run"
        there = dict(seen(node, make_variant([archive]), artifacts=artifacts))
    assert "secret" not in str(there)
    assert not [name for name in there if name.lower().endswith("_proxy") and "no" not in name.lower()]


PRIVATE = "Basic " + base64.b64encode(b"me:s3cret-of-me").decode()


def logins(way: str, url: str, top: Path) -> dict[str, str]:
    """What a user of uv sets for a private index at `url`."""
    if way == "variables":
        return {
            "UV_DEFAULT_INDEX": f"house={url}",
            "UV_INDEX_HOUSE_USERNAME": "me",
            "UV_INDEX_HOUSE_PASSWORD": "s3cret-of-me",
        }
    if way == "netrc":
        (top / "netrc").write_text("machine 127.0.0.1 login me password s3cret-of-me\n")
        (top / "netrc").chmod(0o600)
        return {"UV_DEFAULT_INDEX": url, "NETRC": str(top / "netrc")}
    keyring = executable(top / "bin" / "keyring", "#!/bin/sh\necho s3cret-of-me\n")
    address = url.replace("://", "://me@")
    path = f"{keyring.parent}:{os.environ['PATH']}"
    return {"UV_DEFAULT_INDEX": address, "UV_KEYRING_PROVIDER": "subprocess", "PATH": path}


@pytest.mark.parametrize("way", ["variables", "netrc", "keyring", "a certificate that uv is told not to check"])
def test_an_archive_of_a_private_index_comes_with_what_uv_knows_and_its_code_sees_no_login(
    node: Node, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    archive = put(tmp_path, VARIABLES)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with contextlib.ExitStack() as running:
        if way.startswith("a certificate"):
            (tmp_path / "both.pem").write_text("".join(certificate()))
            url = running.enter_context(served(tmp_path / "www", cert=str(tmp_path / "both.pem")))
            known = {"UV_DEFAULT_INDEX": f"{url}/simple", "UV_INSECURE_HOST": "127.0.0.1"}
        else:
            url, _ = running.enter_context(guarded(tmp_path / "www", PRIVATE))
            known = logins(way, f"{url}/simple", tmp_path)
        for name, value in known.items():
            monkeypatch.setenv(name, value)
        there = seen(node, make_variant([archive]), artifacts={"find_links": [], "offline": False})
    assert "s3cret" not in str(there) + str(capfd.readouterr())
