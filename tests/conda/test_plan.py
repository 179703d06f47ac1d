"""A plan from a stack with a conda section and recorded facts, as a user asks for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envbuild.cli.entry import main
from envbuild.errors import ExitCode
from tests.conda.channel import channel, record


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A locked stack with one variant for new nodes and one for old ones."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RATTLER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    forge = channel(
        tmp_path / "forge",
        record("python", "3.11.9"),
        record("lib", "1.0", "0", "__glibc >=2.17"),
        record("lib", "2.0", "0", "__glibc >=2.28"),
    )
    path = tmp_path / "my.yaml"
    path.write_text(
        "name: mine\nsummary: s\nprofiles:\n  exact:\n    python: ['3.11']\n    smoke: []\n    conda:\n"
        "      virtual: [{__glibc: '2.28'}, {__glibc: '2.17'}]\n      packages: [lib]\n"
        f"      channels: [{{name: forge, url: '{forge.urls[0]}'}}]\n"
    )
    assert main(["lock", "create", str(path), "--quiet"]) == ExitCode.OK
    return path


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = main(["plan", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def install(data: dict[str, Any]) -> dict[str, Any]:
    steps = data["plan"]["nodes"][0]["steps"]
    return dict(next(step for step in steps if step["kind"] == "install"))


def test_the_install_request_says_what_conda_installs_and_from_where(
    stack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, data = planned(capsys, "--stack", str(stack), "--engine", "conda", "--facts", "polaris")
    assert code == ExitCode.OK
    step = install(data)
    args = step["request"]["args"]
    assert args["variant"]["engine"] == "conda"
    assert [each["file"] for each in args["variant"]["conda"]["packages"]] == [
        "python-3.11.9-0.conda",
        "lib-2.0-0.conda",
    ]
    assert args["interpreter"] is None
    assert set(args["tools"]) == {"uv", "uv_sha256", "rattler", "rattler_python"}
    assert args["artifacts"]["conda"] == {"channels": {"forge": [(tmp_path / "forge").as_uri()]}}
    assert "2 conda packages from forge" in step["what"]
    assert not [text for text in data["plan"]["warnings"] if "not-yet-supported" in text]


def test_another_node_gets_the_solution_for_its_glibc(stack: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = []
    for facts in ("polaris", "aws-p3-16xlarge"):
        _, data = planned(capsys, "--stack", str(stack), "--engine", "conda", "--facts", facts)
        variant = install(data)["request"]["args"]["variant"]
        chosen.append((variant["id"], variant["conda"]["packages"][-1]["file"]))
    assert chosen == [
        ("cp311-linux_x86_64-conda", "lib-2.0-0.conda"),
        ("cp311-linux_x86_64-conda-2", "lib-1.0-0.conda"),
    ]


def test_what_is_delivered_is_taken_from_its_folder(
    stack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "target.yaml"
    target.write_text("name: t\nengine: conda\nprefix: /data/envbuild\ndelivery: controller\n")
    _, data = planned(capsys, "--stack", str(stack), "--target", str(target), "--facts", "polaris")
    artifacts = install(data)["request"]["args"]["artifacts"]
    assert artifacts["bundle"]["file"].startswith("/data/envbuild/")
    assert "conda" not in artifacts and "indexes" not in artifacts


def test_without_the_option_the_environment_is_uv_s(stack: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, data = planned(capsys, "--stack", str(stack), "--facts", "polaris", "--python", "3.11")
    nodes = data["plan"]["nodes"]
    assert all(
        "conda" not in step["request"]["args"].get("tools", {})
        for n in nodes
        for step in n["steps"]
        if step.get("request")
    )
    assert all(node["resolution"]["variant_id"] == "cp311-linux_x86_64" for node in nodes)


def test_a_lock_without_recorded_packages_is_refused_with_the_command_that_records_them(
    stack: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lock", "create", str(stack), "--conda-unrecorded", "--quiet"]) == ExitCode.OK
    code, data = planned(capsys, "--stack", str(stack), "--engine", "conda", "--facts", "polaris")
    assert code == ExitCode.REFUSED
    assert "conda-unrecorded" in json.dumps(data)
    assert "envbuild lock create mine --profile exact" in json.dumps(data)
    main(["explain", str(stack), "--engine", "conda", "--facts", "polaris", "--json"])
    decisions = json.loads(capsys.readouterr().out)["decisions"]
    assert ("conda-unrecorded", "refuse") in {(row["rule"], row["verdict"]) for row in decisions}
