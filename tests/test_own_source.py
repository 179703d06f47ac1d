"""Where this envbuild is from: the commit and the address that a kit names."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuild.resources import checkout_source, https_address
from tests.support.repositories import git, make_repository


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("https://github.com/lab/envbuild.git", "https://github.com/lab/envbuild.git"),
        ("https://ada:token@git.example.org:8443/lab/envbuild", "https://git.example.org:8443/lab/envbuild"),
        ("git@github.com:lab/envbuild.git", "https://github.com/lab/envbuild.git"),
        ("ssh://git@git.example.org/lab/envbuild", "https://git.example.org/lab/envbuild"),
        ("ssh://git@git.example.org:2222/lab/envbuild", ""),
        ("file:///home/ada/envbuild", ""),
        ("/home/ada/envbuild", ""),
        ("https://git.example.org/x;rm -r", ""),
    ],
)
def test_an_address_is_one_that_others_can_reach_without_a_secret(url: str, address: str) -> None:
    assert https_address(url) == address


def test_a_checkout_has_a_commit_without_changes_and_an_address_once_it_is_pushed(tmp_path: Path) -> None:
    commit, _ = make_repository(tmp_path / "one", {"a.py": "1\n"})
    git(tmp_path / "one", "remote", "add", "origin", "https://git.example.org/lab/one")
    assert checkout_source(tmp_path / "one") == {"url": "", "vcs_info": {"vcs": "git", "commit_id": commit}}
    git(tmp_path / "one", "update-ref", "refs/remotes/origin/main", commit)
    assert checkout_source(tmp_path / "one")["url"] == "https://git.example.org/lab/one"
    (tmp_path / "one" / "a.py").write_text("2\n")
    assert checkout_source(tmp_path / "one") == {}
    (tmp_path / "one" / "below").mkdir()
    assert checkout_source(tmp_path / "one" / "below") == {}
