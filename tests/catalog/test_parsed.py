"""The shipped YAML files and locks are parsed already, and nothing is taken for the data of a file that has changed."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from envbuild import resources
from envbuild.catalog.yaml_load import parse_yaml, parsed_file, read_yaml
from envbuild.errors import EnvbuildError
from envbuild.lock.files import parse_lock, read_lock

SHIPPED = sorted(resources.catalog().rglob("*.yaml"))
LOCKS = sorted(resources.lockfiles().glob("*.lock.toml"))
MAKER = Path(__file__).parents[2] / "docs" / "make_parsed.py"


def test_every_shipped_file_is_parsed_and_nothing_else_is_there() -> None:
    there = {path: path.read_text(encoding="utf-8") for path in (resources.catalog() / "parsed").iterdir()}
    assert there == runpy.run_path(str(MAKER))["parsed"](), "docs/make_parsed.py writes them"
    assert len(there) == len(SHIPPED) + len(LOCKS) > 70


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_what_is_read_is_what_parsing_gives_with_the_same_places(path: Path) -> None:
    read, made = read_yaml(path), parse_yaml(path.read_bytes(), str(path))
    assert read == made
    last = list(read.data)[-1]
    assert read.holds((last,))
    assert read.locate((last,)) > (1, 0)
    assert not read.holds((last, "no such key"))


@pytest.mark.parametrize("part", [0, 100])
def test_of_what_is_only_half_written_the_file_itself_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    # `make generated`, or git, in a checkout in which a command runs.
    torn, lock = tmp_path / "torn.json", read_lock(LOCKS[0])
    torn.write_bytes(parsed_file(SHIPPED[0].read_bytes()).read_bytes()[:part])
    monkeypatch.setattr("envbuild.catalog.yaml_load.parsed_file", lambda content: torn)
    assert read_yaml(SHIPPED[0]).data == parse_yaml(SHIPPED[0].read_bytes(), "").data
    assert parse_lock.__wrapped__(LOCKS[0].read_text("utf-8"), "lock") == lock


def test_what_is_parsed_already_is_not_written_again() -> None:
    folder = resources.catalog() / "parsed"
    before = {path: path.stat().st_ino for path in folder.iterdir()}
    subprocess.run([sys.executable, str(MAKER)], check=True)
    assert {path: path.stat().st_ino for path in folder.iterdir()} == before


def test_a_changed_copy_of_a_shipped_file_is_parsed_anew(tmp_path: Path) -> None:
    content = (resources.catalog() / "stacks" / "torch-smoke.yaml").read_bytes()
    copy, changed = tmp_path / "copy.yaml", tmp_path / "changed.yaml"
    copy.write_bytes(content)
    changed.write_bytes(content.replace(b"name: torch-smoke", b"name: mine"))
    assert parsed_file(content).is_file()
    assert not parsed_file(changed.read_bytes()).exists()
    assert read_yaml(copy).data["name"] == "torch-smoke"
    assert read_yaml(changed).data["name"] == "mine"


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name.removesuffix(".lock.toml"))
def test_a_shipped_lock_is_read_as_its_toml_gives_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = read_lock(path)
    with monkeypatch.context() as patch:
        patch.setattr("envbuild.lock.files.parsed_data", lambda content: None)
        parsed = parse_lock.__wrapped__(path.read_text("utf-8"), str(path))
    assert read == parsed
    assert read.to_json_dict() == parsed.to_json_dict()


def test_a_shipped_lock_that_somebody_changed_is_not_taken_for_the_shipped_one(tmp_path: Path) -> None:
    text = LOCKS[0].read_text("utf-8")
    changed = tmp_path / LOCKS[0].name
    changed.write_text(text.replace('python = "3', 'python = "3.4', 1))
    with pytest.raises(EnvbuildError) as failure:
        read_lock(changed)
    assert failure.value.code in ("lock-digest-mismatch", "lock-invalid")


def test_a_plan_of_what_ships_parses_neither_yaml_nor_toml() -> None:
    command = "import sys; from envbuild.cli.entry import main; code = main(sys.argv[1:]); "
    command += "print(code, sorted({'yaml', 'tomli', 'tomllib'} & sys.modules.keys()))"
    arguments = ["plan", "--target", "azure-nd96", "--facts", "azure-nd96"]
    done = subprocess.run([sys.executable, "-c", command, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 []"
