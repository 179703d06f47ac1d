from __future__ import annotations

from pathlib import Path

import pytest

from envbuild.cli.run import run


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for name in ("HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cluster.yaml").write_text(
        "name: cluster\nextends: slurm\nstack: torch-smoke\nhosts: {slurm: gpu}\n"
        "connection: {kind: job, login: {host: login1.invalid}}\nscheduler: {nodes: 4}\nprefix: /shared/envbuild\n"
    )
    return "./cluster.yaml"


@pytest.mark.parametrize("words", [["--batch", "25%"], ["--max-fail", "1"], ["--batch", "1", "--max-fail", "0"]])
def test_the_nodes_of_a_job_are_changed_at_once(
    words: list[str], cluster: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["provision", "--target", cluster, *words]) == 2
    err = capsys.readouterr().err
    assert "error[option-does-not-fit]" in err
    assert words[0] in err


@pytest.mark.parametrize("words", [["--batch", "0"], ["--max-fail", "half"]])
def test_an_invalid_number_of_nodes_is_refused_before_a_node_is_asked(
    words: list[str], cluster: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["provision", "--target", "local", *words]) == 2
    assert f"error[share-invalid]: invalid value for {words[0]}: {words[1]}\n" in capsys.readouterr().err
