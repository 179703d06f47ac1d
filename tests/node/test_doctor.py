"""The node verb `doctor`: what programs say is passed on, nobody's password is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envbuild.node import doctor
from tests.support.fails import fails
from tests.support.programs import executable


def ask(prefix: Path, **args: Any) -> dict[str, Any]:
    changed, result = doctor.run({"prefix": str(prefix), "args": {"node": "n", **args}})
    assert not changed
    json.dumps(result, allow_nan=False)
    return result


def test_a_schedulers_programs_are_asked_and_a_job_is_only_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("sinfo", "scontrol", "sbatch"):
        executable(tmp_path / name, f'#!/bin/sh\necho {name} "$@"\n')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("https_proxy", "http://me:secret@proxy.site:3128")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    result = ask(tmp_path / "prefix", submit=["--nodes=1; touch owned"])
    site = result["site"]
    assert site["programs"]["try"]["out"] == "sbatch --test-only --nodes=1; touch owned\n"
    assert site["programs"]["nodes"]["out"] == "sinfo -h -o %R|%D|%T|%G\n"
    assert site["proxies"]["https"] == "proxy.site:3128"
    assert "secret" not in json.dumps(site)
    assert site["temporary"][0]["path"] == str(tmp_path)
    assert result["facts"]["node"] == "n"
    assert "try" not in ask(tmp_path / "prefix")["site"]["programs"]
    assert not (tmp_path / "prefix").exists()
    with fails("request-invalid"):
        ask(tmp_path, submit="--nodes=1")


@pytest.mark.parametrize(("configured", "asked"), [(None, "{index}"), ("{mirror}", "{mirror}"), ("none", None)])
def test_d109_the_default_index_is_asked_where_this_host_has_it(
    configured: str | None, asked: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from socket import create_server

    monkeypatch.setenv("UV_CONFIG_FILE", str(tmp_path / "uv.toml"))
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    with create_server(("127.0.0.1", 0)) as server:
        index, mirror = f"http://127.0.0.1:{server.getsockname()[1]}/simple", "http://127.0.0.1:1/simple"
        if configured == "none":
            (tmp_path / "uv.toml").write_text("no-index = true\n")
        elif configured:
            monkeypatch.setenv("UV_DEFAULT_INDEX", mirror)
        reached = ask(tmp_path, reach={"pypi": index})["facts"]["reachable"]
    assert reached == ({} if asked is None else {"pypi": asked == "{index}"})


def test_conda_and_its_kin_are_found_with_their_owners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("bin/micromamba", "home/miniforge3/bin/conda"):
        executable(tmp_path / place, "#!/bin/sh\n")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setattr(doctor, "CONDA_HOMES", ("miniforge3",))
    found = ask(tmp_path / "prefix")["site"]["conda"]
    me = (tmp_path / "bin").owner()
    assert [row for row in found if row["path"].startswith(str(tmp_path))] == [
        {"program": "conda", "path": f"{tmp_path}/home/miniforge3/bin/conda", "owner": me},
        {"program": "micromamba", "path": f"{tmp_path}/bin/micromamba", "owner": me},
    ]


@pytest.mark.parametrize("old", [False, True])
def test_modules_are_asked_for_in_order_in_a_login_shell(
    old: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`old`: without `is-avail`, and with a list on stderr."""
    answers = "return 1" if old else 'case "$2" in gcc | cuda/11.6) return 0 ;; esac; return 1'
    profile = f"""
module() {{
    case "$*" in
    is-avail*) {answers} ;;
    "-t avail gcc") echo "gcc/9(default)" >&2 ;;
    "-t avail cuda/11.6") [ ! -e {tmp_path}/gcc ] || echo cuda/11.6 >&2 ;;
    "-t avail cuda"*) echo cuda/11.66 >&2 ;;
    "load gcc") touch {tmp_path}/gcc ;;
    "use /m") echo used ;;
    esac
}}
"""
    (tmp_path / ".bash_profile").write_text(profile)
    monkeypatch.setenv("HOME", str(tmp_path))
    names = ["gcc", "cuda/11.6", "cuda/11.6; echo", "cuda/11.7"]
    found = ask(tmp_path / "prefix", modules=names, modules_in=["/m"])["site"]["modules_absent"]
    assert found == ["cuda/11.6; echo", "cuda/11.7"]
    (tmp_path / ".bash_profile").write_text("unset -f module\n")
    assert ask(tmp_path / "prefix", modules=names)["site"]["modules_absent"] == []
