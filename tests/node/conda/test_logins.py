"""Credentials of channels as conda's and rattler's files have them: who gets which, and who none."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envbuild.bundle.collect import Collector
from envbuild.errors import EnvbuildError
from envbuild.model.stack import CondaPackage
from envbuild.node.conda import prefix
from envbuild.node.conda.logins import login
from envbuild.node.protocol import NodeError
from envbuild.node.redact import redact_text
from tests.support.conda import Channel, Package
from tests.support.fails import fails
from tests.support.private_channel import BASIC, guarded

TOKEN = "canary-0123456789"
BEARER = {"BearerToken": TOKEN}
URL = "https://b.a.example.org/forge/noarch/x.conda"
Fetch = Callable[[dict[str, Any], str, Path], object]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("RATTLER_AUTH_FILE", "NETRC", "CONDARC", "MAMBARC", "XDG_CONFIG_HOME", "CONDA_CHANNEL_ALIAS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("no_proxy", "127.0.0.1,127.0.0.2")
    (tmp_path / "home" / ".rattler").mkdir(parents=True)
    return tmp_path / "home"


def said(home: Path, own: Mapping[str, Any], named: Mapping[str, Any] = {}, url: str = URL) -> tuple[str, str]:
    """The login of an address where rattler's own file and the one of RATTLER_AUTH_FILE say this."""
    (home / ".rattler" / "credentials.json").write_text(json.dumps(own))
    (home / "named.json").write_text(json.dumps(named))
    return login(url, {"HOME": str(home), "RATTLER_AUTH_FILE": str(home / "named.json")})


@pytest.mark.parametrize(
    ("own", "named", "word"),
    [
        ({"b.a.example.org": BEARER}, {}, f"Bearer {TOKEN}"),
        ({"b.a.example.org": {"BasicHTTP": {"username": "me", "password": "hunter2hunter2"}}}, {}, BASIC),
        ({"b.a.example.org": {"BearerToken": "own"}}, {"b.a.example.org": BEARER}, f"Bearer {TOKEN}"),
        ({"b.a.example.org": BEARER}, {"*.a.example.org": {"BearerToken": "wide"}}, f"Bearer {TOKEN}"),
        ({"*.org": {"BearerToken": "wide"}, "*.example.org": BEARER}, {}, f"Bearer {TOKEN}"),
        ({"*.b.a.example.org": BEARER}, {}, f"Bearer {TOKEN}"),
        ({"example.org": BEARER, "*": BEARER, "b.a.example.org:443": BEARER, "*a.example.org": BEARER}, {}, ""),
        ({"b.a.example.org": {"S3Credentials": {"access_key_id": "a"}}}, {}, ""),
    ],
)
def test_an_entry_is_of_its_host_and_the_nearest_is_taken_as_rattler_does(
    home: Path, own: dict[str, Any], named: dict[str, Any], word: str
) -> None:
    assert said(home, own, named) == (URL, word)


def test_a_token_of_conda_comes_into_the_path_and_netrc_before_a_wildcard(home: Path) -> None:
    token = {"CondaToken": TOKEN}
    assert said(home, {"*.example.org": token}) == (URL.replace("/forge", f"/t/{TOKEN}/forge"), "")
    (home / ".netrc").touch(0o600)
    (home / ".netrc").write_text("machine b.a.example.org login me password hunter2hunter2\n")
    assert said(home, {"*.example.org": token}) == (URL, BASIC)
    assert said(home, {"b.a.example.org": BEARER}) == (URL, f"Bearer {TOKEN}")


def test_a_condarc_gives_its_token_and_password_to_what_lies_below_its_address(home: Path) -> None:
    text = f"""\
channel_alias: "https://b.a.example.org/t/{TOKEN}"  # not https://me:commented@b.a.example.org/forge
custom_channels: {{lab: https://me:hunter2hunter2@b.a.example.org/own}}
"""
    (home / ".condarc").write_text(text)
    assert said(home, {}) == (URL.replace("/forge", f"/t/{TOKEN}/forge"), "")
    below = "https://b.a.example.org/own/lab/noarch/x.conda"
    assert said(home, {"b.a.example.org": BEARER}, url=below) == (below, BASIC)
    for other in ("http://b.a.example.org/forge/x", "https://b.a.example.org.evil.org/x", "https://c.example.org/x"):
        assert said(home, {}, url=other) == (other, "")
    assert redact_text(f"https://b.a.example.org/t/{TOKEN}/forge").endswith("/t/***/forge")


@pytest.mark.parametrize(
    "text", ["{", '["h"]', '{"h": 1}', '{"h": "BasicHTTP"}', '{"h": {"BasicHTTP": {"username": "me"}}}', "\xff"]
)
def test_a_file_that_rattler_could_not_read_is_named_without_its_contents(home: Path, text: str) -> None:
    (home / ".rattler" / "credentials.json").write_text(text, encoding="latin-1")
    with fails("conda-config-invalid", 2) as found:
        login(URL, {"HOME": str(home)})
    assert "credentials.json" in found.value.what


def on_node(package: dict[str, Any], url: str, folder: Path) -> object:
    folder.mkdir(exist_ok=True)
    return prefix.bring([package], {"channels": {"lab": [url]}}, str(folder))


def on_controller(package: dict[str, Any], url: str, folder: Path) -> object:
    packages = (CondaPackage.from_plain(package),)
    variant: Any = SimpleNamespace(conda=SimpleNamespace(packages=packages), archives=packages)
    return {each.path: each.source for each in Collector("", folder, {"lab": [url]}).archives(variant)}


@pytest.fixture
def lab(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """The folder of a channel, and its package."""
    channel = Channel(tmp_path / "lab", "lab")
    return channel.folder, channel.add(Package("tool", subdir="noarch"))


@pytest.mark.parametrize("fetch", [on_node, on_controller])
@pytest.mark.parametrize("word", [f"Bearer {TOKEN}", BASIC, f"/t/{TOKEN}"])
def test_an_archive_of_a_private_channel_is_fetched_and_who_it_is_moved_to_gets_no_login(
    home: Path, lab: tuple[Path, dict[str, Any]], fetch: Fetch, word: str
) -> None:
    folder, package = lab
    with guarded(folder, "", "127.0.0.2") as (other, told), guarded(folder, word, moved=other) as (url, asked):
        if word.startswith("/"):
            (home / ".condarc").write_text(f"custom_channels:\n  lab: {url}{word}\n")
        else:
            basic = {"BasicHTTP": {"username": "me", "password": "hunter2hunter2"}}
            entry = basic if word == BASIC else BEARER
            (home / ".rattler" / "credentials.json").write_text(json.dumps({"127.0.0.1": entry}))
        fetch(package, url, home / "cache")
        assert [path.name for path in (home / "cache").rglob("*.conda")]
        assert len(asked) == 1 and told == [("/noarch/tool-1.0-0.conda", None)]


@pytest.mark.parametrize("fetch", [on_node, on_controller])
def test_a_channel_that_does_not_let_in_is_told_without_the_token(
    home: Path, lab: tuple[Path, dict[str, Any]], fetch: Fetch
) -> None:
    folder, package = lab
    with guarded(folder, "Bearer another") as (url, _):
        (home / ".condarc").write_text(f"channel_alias: {url}/t/{TOKEN}\n")
        with pytest.raises((NodeError, EnvbuildError)) as found:
            fetch(package, url, home / "cache")
    error: Any = found.value
    assert error.code == ("channel-refused" if fetch is on_node else "download-refused")
    assert "401" in error.why and TOKEN not in f"{error.what}{error.why}{error.hint}"
    assert fetch is on_controller or "`delivery: controller`" in error.hint
