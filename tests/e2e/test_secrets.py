"""What a target's variables hold reaches the environment and nothing else."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.world import World

CANARY = "canary-4b1d0c9e77f2"


def test_a_secret_variable_of_a_target_is_set_and_stays_out_of_output_and_run_directory(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.tiny()
    (world.work / "mine.yaml").write_text(
        f"name: mine\nextends: local\nenvironment: {{SITE_API_TOKEN: {CANARY}, PLAIN: visible}}\n"
    )
    done = world.good("provision", "--target", "./mine.yaml", "--stack", "./tiny.yaml", "--json", "--debug")
    assert CANARY not in done.out + done.err
    assert CANARY in (world.current / ".envbuild" / "activate.sh").read_text()
    files = [path for path in world.runs.rglob("*") if path.is_file()]
    assert any(path.parent.parent.name == "requests" and b"visible" in path.read_bytes() for path in files)
    assert [str(path) for path in files if CANARY.encode() in path.read_bytes()] == []
