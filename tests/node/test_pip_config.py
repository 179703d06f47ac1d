"""The one reader of pip's configuration; its precedence is compared with pip's own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.node import pip_config
from tests.support.files import write_file
from tests.support.programs import completed


def environ(tmp_path: Path, **values: str) -> dict[str, str]:
    return {"HOME": str(tmp_path), "XDG_CONFIG_DIRS": str(tmp_path / "none")} | values


def find_links(env: dict[str, str]) -> list[str]:
    return pip_config.read(env).find_links


def test_no_part_of_a_password_with_an_at_sign_is_left() -> None:
    told = pip_config.without_credentials("http://u:p@ss@h/x http://a@x/,http://b:c@y/ http://h/p@q")
    assert told == "http://h/x http://x/,http://y/ http://h/p@q"


def test_variables_win_over_files_and_the_section_of_the_command_over_the_global_one_of_a_stronger_file(
    tmp_path: Path,
) -> None:
    own = write_file(
        tmp_path / ".config/pip/pip.conf", "[install]\nfind_links = /user\nindex-url = https://example.org/user\n"
    )
    assert find_links(environ(tmp_path)) == ["/user"]
    assert find_links(environ(tmp_path, PIP_CONFIG_FILE="/dev/null")) == []
    assert find_links(environ(tmp_path, PIP_FIND_LINKS="/a https://example.org/b")) == ["/a", "https://example.org/b"]
    of_both = environ(tmp_path, PIP_FIND_LINKS="/a", UV_FIND_LINKS="/b,/a,https://example.org/c")
    assert find_links(of_both) == ["/a", "/b", "https://example.org/c"]
    text = "[global]\nfind-links =\n    /one\n    /two\nindex-url = https://example.org/named\n"
    env = environ(tmp_path, PIP_CONFIG_FILE=str(write_file(tmp_path / "named.conf", text)))
    assert find_links(env) == ["/user"]
    assert pip_config.read(env).index_url == "https://example.org/user"
    own.unlink()
    assert find_links(env) == ["/one", "/two"]
    assert pip_config.read(env).index_url == "https://example.org/named"


def test_the_order_of_the_files_is_the_one_that_pip_states(tmp_path: Path) -> None:
    env = environ(tmp_path, XDG_CONFIG_DIRS=f"{tmp_path}/x1:{tmp_path}/x2", PIP_CONFIG_FILE=str(tmp_path / "named"))
    shown = completed(
        [sys.executable, "-m", "pip", "config", "debug"],
        env=env | {"PATH": os.environ["PATH"], "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        check=True,
    ).stdout
    listed = [line.strip().split(", exists")[0] for line in shown.splitlines() if ", exists" in line]
    own = os.path.join(sys.prefix, "pip.conf")
    named = str(tmp_path / "named")
    assert named in listed
    # pip lists the weakest first; PIP_CONFIG_FILE is the strongest wherever pip happens to list it.
    expected = [path for path in reversed(listed) if path not in (own, named)]
    assert pip_config.config_files(env) == [named, *expected]


@pytest.mark.parametrize("text", ["no section\n", "[global\n", "[global]\nfind-links\n"])
def test_a_broken_file_is_passed_over(tmp_path: Path, text: str) -> None:
    broken = write_file(tmp_path / "broken.conf", text)
    write_file(tmp_path / ".config/pip/pip.conf", "[global]\nfind-links = /user\n")
    assert find_links(environ(tmp_path, PIP_CONFIG_FILE=str(broken))) == ["/user"]


@given(
    st.text(max_size=300) | st.lists(st.sampled_from(["[global]", "find-links", "=", ":", "\n", " /a"])).map("".join)
)
def test_no_text_crashes_the_parser(text: str) -> None:
    assert all(isinstance(value, str) for options in pip_config.parse(text).values() for value in options.values())


@given(st.text(max_size=100) | st.text(max_size=100).map("file:".__add__))
def test_only_folders_that_are_there_are_folders(link: str) -> None:
    assert all(os.path.isabs(folder) and os.path.isdir(folder) for folder in pip_config.folders([link]))
    assert pip_config.alive([link]) in ([], [link])


def test_paths_and_file_urls_are_local_and_everything_else_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "a b"
    place.mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    here = f"file://localhost{tmp_path}/a%20b"
    assert pip_config.folders([str(place), place.as_uri(), here, "~/a b", "a b"]) == [str(place)]
    links = ["https://user:secret@example.org/whl", "file://user:secret@host/x", "file:e", str(tmp_path / "none"), ""]
    assert pip_config.folders(links) == []
    assert pip_config.alive([*links, here]) == ["https://user:secret@example.org/whl", here]
