"""What a run keeps for the next ones: whole, for a week, and never an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuild.provision.run.run_dir import MAX_AGE, keep, read_recent


def test_what_is_kept_comes_back_for_a_week(tmp_path: Path) -> None:
    path = tmp_path / "nodes" / "x.json"
    keep(path, {"a": [1]})
    written = path.stat().st_mtime
    assert read_recent(path) == read_recent(path, now=written + MAX_AGE - 1) == {"a": [1]}
    assert read_recent(path, now=written + MAX_AGE + 1) is None
    # A clock that was set back says nothing about age.
    assert read_recent(path, now=written - 3600) is None
    assert path.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("error", [OSError(13, "Permission denied"), OSError(28, "No space left on device")])
def test_what_cannot_be_kept_is_no_error_and_leaves_what_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    path = tmp_path / "x.json"
    keep(path, "before")

    def broken(*_: str) -> None:
        raise error

    monkeypatch.setattr("os.rename", broken)
    keep(path, "after")
    assert read_recent(path) == "before" and list(tmp_path.iterdir()) == [path]
    keep(path / "below a file" / "y.json", {})
