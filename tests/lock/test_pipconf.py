from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.lock.pipconf import find_links, local_folder, usable


def environ(tmp_path: Path, **values: str) -> dict[str, str]:
    return {"HOME": str(tmp_path), "XDG_CONFIG_DIRS": str(tmp_path / "none")} | values


def conf(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_the_environment_variable_wins_over_files(tmp_path: Path) -> None:
    conf(tmp_path / ".config/pip/pip.conf", "[global]\nfind-links = /user\n")
    assert find_links(environ(tmp_path)) == ("/user",)
    assert find_links(environ(tmp_path, PIP_FIND_LINKS="/a https://example.org/b")) == ("/a", "https://example.org/b")


def test_the_named_file_wins_over_the_user_s_and_several_lines_are_read(tmp_path: Path) -> None:
    conf(tmp_path / ".config/pip/pip.conf", "[global]\nfind-links = /user\n")
    named = conf(
        tmp_path / "named.conf", "[global]\nfind-links =\n    /one\n    /two\n[install]\nfind-links = /three\n"
    )
    assert find_links(environ(tmp_path, PIP_CONFIG_FILE=str(named))) == ("/three",)
    conf(named, "[global]\nfind-links =\n    /one\n    /two\n")
    assert find_links(environ(tmp_path, PIP_CONFIG_FILE=str(named))) == ("/one", "/two")


def test_the_null_device_means_no_configuration(tmp_path: Path) -> None:
    conf(tmp_path / ".config/pip/pip.conf", "[global]\nfind-links = /user\n")
    assert find_links(environ(tmp_path, PIP_CONFIG_FILE="/dev/null")) == ()


@pytest.mark.parametrize("text", ["no section\n", "[global\n", "[global]\nfind-links\n"])
def test_a_broken_file_is_passed_over(tmp_path: Path, text: str) -> None:
    broken = conf(tmp_path / "broken.conf", text)
    conf(tmp_path / ".config/pip/pip.conf", "[global]\nfind-links = /user\n")
    assert find_links(environ(tmp_path, PIP_CONFIG_FILE=str(broken))) == ("/user",)


@given(st.text(max_size=100))
def test_only_folders_that_are_there_are_local(link: str) -> None:
    folder = local_folder(link)
    assert folder is None or folder.is_dir()


def test_paths_and_file_urls_are_folders_and_web_pages_are_not(tmp_path: Path) -> None:
    place = tmp_path / "a b"
    place.mkdir()
    assert local_folder(str(place)) == place
    assert local_folder(place.as_uri()) == place
    assert local_folder("https://example.org/whl") is None
    assert local_folder(str(tmp_path / "none")) is None
    assert usable(str(tmp_path / "none")) is None
    assert usable(place.as_uri()) == str(place)
    assert usable("https://example.org/whl") == "https://example.org/whl"
