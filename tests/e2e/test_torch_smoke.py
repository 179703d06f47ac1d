"""The default stack for real: hundreds of megabytes, so only among the slow tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from envbuild.provision.run.run_dir import RunDir
from tests.e2e.world import World
from tests.node.torch_env import find_links
from tests.support import checkout
from tests.test_snippets import run_all


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(1200)
def test_torch_smoke_is_built_tested_and_verified(tmp_path: Path) -> None:
    world = World(tmp_path)
    # Wheels come from where they come from on this machine.
    (world.home / ".config" / "uv" / "uv.toml").unlink()
    world.env |= {"PIP_FIND_LINKS": " ".join(find_links())}
    world.env |= {key: value for key, value in os.environ.items() if key.startswith("UV_") or key == "PIP_CERT"}
    first = world.run("provision", "--target", "local", "--json", timeout=900)
    if first.rc and first.json.get("nodes", [{}])[0].get("error", {}).get("code") in (
        "network-unreachable", "unreachable-index",
    ):  # fmt: skip
        pytest.skip(f"torch is not available here: {first.err[-400:]}")
    assert first.rc == 0, first.err
    checks = {check["name"]: check["status"] for check in first.node["checks"]}
    assert set(checks.values()) <= {"passed", "skipped"}, checks
    assert any("gemm" in name or "machine" in name for name in checks), checks
    assert any("training" in name for name in checks), checks
    run = world.runs / first.json["run"]
    page = (run / "report.html").read_text()
    assert "torch-smoke" in page
    assert "http://" not in page.replace("http://www.w3.org", ""), "self-contained"
    told = (run / "journal.jsonl").stat().st_size  # a line a second
    assert RunDir(run).size - told <= 997_000
    second = world.good("provision", "--target", "local", "--json")
    assert (second.json["steps_run"], second.node["root"]) == (0, first.node["root"])
    assert "nothing to do" in second.err
    run_all(world, "torch")
    # README's first command, which finds all of it there.
    assert "nothing to do" in checkout.run(checkout.small(tmp_path / "copy"), "make provision", world.env)
    deep = world.good("verify", "--json", timeout=600)
    assert deep.node["drift"] == []
    said = world.python("import torch; print(torch.__version__)", world.prefix / "current" / "torch-smoke")
    assert said.startswith("2.13.0")
