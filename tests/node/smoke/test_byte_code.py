"""On a node with many processors programs find byte code that was made once, beside the environment and not in it."""

from __future__ import annotations

import os
import venv
from pathlib import Path
from typing import Any

import pytest

from envbuild.node import proc
from envbuild.node.packages import byte_code as shared
from envbuild.node.probe import disks, system
from envbuild.node.smoke import byte_code, multi_node, rendezvous, runner, smoke
from envbuild.node.smoke.check import Spec
from tests.node.smoke.test_faults import BEGIN
from tests.support.patience import PATIENCE

SHOWN = (
    BEGIN
    + """
import importlib, os
found = {}
for name in %r:
    cached = importlib.import_module(name).__cached__
    found[name] = [cached, cached if os.path.exists(cached) else None, sys.modules[name].VALUE]
c.facts({"prefix": sys.pycache_prefix, "found": found, "argparse": importlib.import_module("argparse").__cached__})
c.done()
"""
)
NAMES = ["torch", "torch.testing", "wanted", "own", "tree"]
# Waits without working: sixteen that turn round take the processors from whatever else is tested.
HANGS = "import time\ntime.sleep(600)"


@pytest.fixture
def where(tmp_path: Path) -> Path:
    """An environment with a torch that requires `wanted`, with `own`, and with a source that is on the path."""
    path = tmp_path / "env"
    venv.create(path, with_pip=False, symlinks=True)
    distribution(
        path, "torch", ["torch/__init__", "torch/testing/__init__", "torch/test/no"], "wanted>=1", "odd; extra == 'x'"
    )
    distribution(path, "wanted", ["wanted", "tests/no"])
    distribution(path, "odd", ["odd"])
    distribution(path, "own", ["own"])
    source = path / "src" / "tree" / "tree.py"
    source.parent.mkdir(parents=True)
    source.write_text("VALUE = 1\n")
    (site(path) / "tree.pth").write_text(f"{source.parent}\n")
    return path


def site(environment: Path) -> Path:
    return next(environment.glob("lib/python*/site-packages"))


def distribution(environment: Path, name: str, modules: list[str], *requires: str) -> None:
    told = site(environment) / f"{name}-1.0.dist-info"
    told.mkdir()
    asked = "".join(f"Requires-Dist: {each}\n" for each in requires)
    (told / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{asked}")
    files = [f"{module}.py" for module in modules]
    (told / "RECORD").write_text("".join(f"{file},,\n" for file in [*files, "../../../bin/script.py"]))
    for file in files:
        path = site(environment) / file
        path.parent.mkdir(exist_ok=True)
        path.write_text("VALUE = 1\n")


def processors(monkeypatch: pytest.MonkeyPatch, count: int, filesystem: str = "ext4") -> None:
    disk = {"filesystem": filesystem, "free_bytes": 1 << 40}
    monkeypatch.setattr(system, "cpu_count", lambda: count)
    monkeypatch.setattr(disks, "disk_facts", lambda *_: disk)


def shown(
    where: Path, tmp: Path, more: list[str] | None = None, change: Path | None = None
) -> tuple[dict[str, Any], set[str]]:
    """What a program says of its modules, and the names of what was compiled."""
    with runner.Scratch(str(tmp / "scratch"), {"shown": SHOWN % NAMES}) as scratch:
        scratch.compile(str(where), {}, more)
        if change:
            change.write_text("VALUE = 2\n")
        outcome = runner.run_programs(scratch, str(where), {}, "shown", [{}], PATIENCE, alone=True)[0]
        made = {path.name.partition(".")[0] for path in Path(scratch.path, "byte-code").rglob("*.pyc")}
    assert outcome.returncode == 0, outcome.stderr
    return outcome.facts(), made


def untouched(environment: Path) -> bool:
    return not [*environment.rglob("*.pyc"), *environment.rglob("__pycache__")]


def test_with_many_processors_every_program_finds_what_it_imports_compiled(
    where: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processors(monkeypatch, 16)
    facts, made = shown(where, tmp_path, [])
    assert facts["prefix"].endswith("/byte-code")
    for cached, there, value in facts["found"].values():
        assert cached.startswith(facts["prefix"]) and there == cached and value == 1
    assert "argparse" in made and not {"no", "script"} & made
    assert untouched(where)


def test_of_several_nodes_only_torch_and_what_it_requires_is_compiled(
    where: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processors(monkeypatch, 16)
    facts, made = shown(where, tmp_path)
    assert facts["found"]["wanted"][1] and not facts["found"]["own"][1]
    assert not {"own", "odd", "tree"} & made


def test_with_few_processors_nothing_is_made(where: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processors(monkeypatch, 15)
    facts, made = shown(where, tmp_path, [])
    assert facts["prefix"] is None and not made
    assert untouched(where)


def test_on_a_network_file_system_nothing_is_made(where: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processors(monkeypatch, 16, "nfs4")
    assert shown(where, tmp_path, [])[0]["prefix"] is None


def test_a_source_that_was_changed_since_is_compiled_again(
    where: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processors(monkeypatch, 16)
    facts, _ = shown(where, tmp_path, [], site(where) / "own.py")
    assert [row[2] for row in facts["found"].values()] == [1, 1, 1, 2, 1]


def test_byte_code_beside_a_source_is_used_as_it_is(
    where: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python does not look there any more, and a base may have all of it."""
    processors(monkeypatch, 16)
    told = proc.run([str(where / "bin" / "python"), "-I", "-c", "import own; print(own.__cached__)"])
    assert told.ok
    with runner.Scratch(str(tmp_path / "scratch")) as scratch:
        scratch.compile(str(where), {}, [])
        (linked,) = Path(scratch.path, "byte-code").rglob("own.*.pyc")
        assert os.readlink(linked) == told.out.strip()


def test_what_this_python_cannot_read_is_passed_over(
    where: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processors(monkeypatch, 16)
    distribution(where, "broken", ["template", "bytes", "gone"])
    (site(where) / "template.py").write_text("{{ name }} = not python\n")
    (site(where) / "bytes.py").write_bytes(b"\xff\x00")
    (site(where) / "gone.py").unlink()
    facts, made = shown(where, tmp_path, [])
    assert all(there for _, there, _ in facts["found"].values()) and not {"template", "bytes"} & made


@pytest.mark.parametrize(
    ("what", "text"),
    [("_LISTING", HANGS), ("_LISTING", "sys.exit('broken')"), ("_LISTING", "print('[')"),
     ("_COMPILE", HANGS), ("_COMPILE", "raise OSError('full')")],
)  # fmt: skip
def test_what_goes_wrong_or_takes_too_long_is_told_and_nothing_is_given(
    where: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    what: str,
    text: str,
) -> None:
    processors(monkeypatch, 16)
    monkeypatch.setattr(byte_code if what == "_LISTING" else shared, what, text)
    monkeypatch.setattr(byte_code, "_DEADLINE", 1.0)
    facts, made = shown(where, tmp_path, [])
    assert facts["prefix"] is None and not made
    assert "byte code for the smoke test: none (" in capfd.readouterr().err


def test_without_torch_a_smoke_test_makes_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processors(monkeypatch, 16)
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    with runner.Scratch(str(tmp_path / "scratch")) as scratch:
        scratch.compile(str(tmp_path / "env"), {}, [])
        assert scratch.flags == runner.FLAGS and not os.path.exists(os.path.join(scratch.path, "byte-code"))


def test_the_smoke_test_passes_with_it_and_leaves_nothing(
    where: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processors(monkeypatch, 16)
    before = sorted(where.rglob("*"))
    spec = Spec(str(where), {"imports": ["own"]}, False)
    (check,) = smoke.smoke_items(spec, [{"name": "sound", "deadline": PATIENCE}], str(tmp_path / "scratch"))
    assert check["status"] == "passed", check
    assert check["details"]["modules"][0]["file"] == str(site(where) / "own.py")
    assert sorted(where.rglob("*")) == before and not [*(tmp_path / "scratch").iterdir()]


def test_torchrun_and_its_ranks_are_given_it(where: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processors(monkeypatch, 16)
    meeting = rendezvous.Meeting("127.0.0.1", 1, "127.0.0.1", [], 2)
    with runner.Scratch(str(tmp_path / "scratch")) as scratch:
        scratch.compile(str(where), {})
        words = multi_node.JointTest(Spec(str(where), {}, False), 0, 2, meeting)._command(scratch)
        assert words.count(f"pycache_prefix={scratch.path}/byte-code") == 2


def test_of_a_base_only_what_the_stack_wants_of_it_is_compiled(
    where: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A base may have jax, scipy and 190 more: of them nothing is imported."""
    asked: list[list[str]] = []
    monkeypatch.setattr(runner.Scratch, "compile", lambda _self, _path, _variables, more: asked.append(more))
    base = {"kind": "system", "provides": ["torch>=2.11,<2.12"], "accepts": ["pydantic>=2", "ml_dtypes"]}
    variant = {"imports": ["own.part"], "base": base, "provided": {"torch": "2.11.0", "jax": "0.9", "pydantic": "2.12"}}
    smoke.smoke_items(smoke.Spec(str(where), variant, False), [{"name": "sound"}], str(tmp_path / "scratch"))
    assert asked == [["own", "torch", "pydantic", "ml-dtypes"]]
