"""No file that a person or a node writes ends in `internal`: endless numbers, deep nesting, NUL, half characters."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envbuild import resources
from envbuild.catalog.loader import load_stack, load_target
from envbuild.catalog.node_facts import load_facts
from envbuild.cli.run import run
from envbuild.config import load_config
from envbuild.errors import EnvbuildError, ExitCode
from envbuild.lock.files import parse_lock
from envbuild.provision.run.run_dir import RunDir
from tests.support.fails import fails
from tests.support.plain import changed, places

HOSTILE = st.one_of(
    st.sampled_from(
        ["(" * 2000, "9" * 5000, 10**4000, -(10**30), 1e308, float("inf"), float("nan"), "\0", "\ud800", "a" * 100_000,
         "a==" + "9" * 5000, "a; python_version" + "(" * 1500, "a[" + "b," * 5000 + "b]", "n[1-" + "9" * 30 + "]",
         "https://[::1", "ssh://[", "https://a:99999999/x", "https://\u2100/x", "{user}" * 1000, "::" * 1000, "é\u202e"]
    ),
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.just([]), st.just({}),
    st.just([[[[]]]]), st.just({"a": {"b": {}}}),
)  # fmt: skip
STACK = {
    "name": "my", "summary": "s",
    "profiles": {"exact": {
        "python": ["3.11"], "torch": {"version": "2.1.0", "flavours": ["cpu"]}, "packages": ["numpy==1.0"],
        "constraints": ["a<1"], "bases": [{"kind": "system", "provides": ["torch>=1"]}], "imports": ["a"],
        "sources": [{"name": "x", "git": "https://h.example/x", "commit": "0" * 40, "path": "p",
                     "build": {"flags": ["a"], "extensions": ["m"], "memory_per_job": 1.0}}],
        "environment": {"SITE_A": "b", "SITE_P": {"path": "/x", "if": "exists"}},
    }},
}  # fmt: skip
TARGET = {
    "name": "t", "extends": "ssh", "hosts": ["a", "b[1-3]"], "prefix": "/x", "environment": {"SITE_A": "b"},
    "connection": {"kind": "ssh", "user": "u", "port": 22}, "expects": {"gpu": "A", "driver": ">=1"},
    "floors": {"a": 1.0}, "smoke_nodes": 2,
}  # fmt: skip
FACTS = json.loads((resources.catalog() / "facts" / "azure-nd96.json").read_text())
LOCK = (resources.lockfiles() / "torch-smoke.exact.lock.toml").read_text()
LONG = "9" * 5000
# C0 and C1 controls, those at which `splitlines` breaks lines, BiDi, zero width, a tag, half a surrogate pair.
UNSAFE = (
    "\x00\x07\x0b\x0c\r\x1b\x1c\x1d\x1e\x7f\x85\x9b\x9d\u061c\u200b\u200e\u2028\u2029\u202e\u2066\ufeff\U000e0041\ud800"
)
DEEP = "[" * 20_000


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
@pytest.mark.parametrize("kind", ["stack", "target", "facts"])
def test_d26_hostile_values_are_coded_errors(kind: str, data: st.DataObject, tmp_path: Path) -> None:
    document = {"stack": STACK, "target": TARGET, "facts": FACTS}[kind]
    place = data.draw(st.sampled_from(sorted(places(document), key=str)))
    made = changed(document, place, data.draw(HOSTILE))
    path = tmp_path / ("my.json" if kind == "facts" else "my.yaml")
    try:
        text = json.dumps(made) if kind == "facts" else yaml.safe_dump(made)
        path.write_text(text)
    except (ValueError, UnicodeEncodeError):
        return
    try:
        {"stack": load_stack, "target": load_target, "facts": load_facts}[kind](str(path))
    except EnvbuildError as error:
        assert error.exit_code == ExitCode.USAGE


@pytest.mark.parametrize("value", [LONG, DEEP, "1e99999", "2026-13-45"], ids=lambda v: v[:6])
def test_d26_a_lock_with_a_hostile_value_is_exit_2(value: str) -> None:
    for place in ('"3.11"', '"cpu"'):
        with fails("lock-invalid", 2):
            parse_lock(LOCK.replace(place, value), "my.lock.toml")


@pytest.mark.parametrize("value", [LONG, DEEP, "NaN", "1" * 400 + ".5", '"\\ud800"'], ids=lambda v: v[:6])
def test_d26_facts_with_a_hostile_value_are_exit_2(value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = json.dumps(changed(FACTS, ("cpus",), "@@")).replace('"@@"', value)
    (tmp_path / "f.json").write_text(text)
    with fails("file-unreadable", 2):
        load_facts(str(tmp_path / "f.json"))
    (tmp_path / "envbuild.toml").write_text(f"wait = {LONG}\n")
    monkeypatch.chdir(tmp_path)
    with fails("config-invalid", 2):
        load_config()


def test_d26_a_requirement_of_brackets_is_exit_2_with_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my.yaml").write_text(yaml.safe_dump(changed(STACK, ("profiles", "exact", "packages", 0), "(" * 2000)))
    assert run(["stack", "check", str(tmp_path / "my.yaml")]) == ExitCode.USAGE
    err = capsys.readouterr().err
    assert "profiles.exact.packages" in err
    assert "at most 500 characters" in err


def test_d26_an_interpreter_of_a_version_that_is_none_is_not_used(capsys: pytest.CaptureFixture[str]) -> None:
    from envbuild.provision.contact.toolchain import newest_python

    facts = load_facts("azure-nd96")
    (node,) = list(facts.values())[:1]
    python = node.pythons[0].model_copy(update={"version": "\0"})
    assert newest_python(node.model_copy(update={"pythons": (python,)}), (3, 8)) is None
    newer = python.model_copy(update={"version": "3.12.1+"})
    assert newest_python(node.model_copy(update={"pythons": (python, newer)}), (3, 8)) == newer.path


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_d26_a_full_disk_is_try_again_wherever_it_comes_up(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise OSError(number, "No space left on device")

    monkeypatch.setattr("envbuild.cli.output.load_config", full)
    assert run(["config", "show"]) == ExitCode.TRY_AGAIN
    assert "error[disk-full]" in capsys.readouterr().err
    made = RunDir.create(tmp_path / "runs")
    monkeypatch.setattr("os.fsync", full)
    with fails("run-directory-unwritable", 75):
        made.write_json(made.plan, {})
    assert [path.name for path in made.path.iterdir() if path.is_file()] == []


@pytest.mark.parametrize("char", UNSAFE)
def test_d64_d71_no_text_of_a_stack_a_target_a_lock_facts_or_a_setting_has_hidden_characters(
    tmp_path: Path, char: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    escape = f"\\U{ord(char):08x}"  # of TOML
    stack = json.dumps(changed(STACK, ("summary",), f"a{char}b"))
    marker = f"six>=1; platform_version != '{char}evilpkg @ file:///x.whl{char}#'"
    provides = json.dumps(changed(STACK, ("profiles", "exact", "bases", 0, "provides", 0), marker))
    git = json.dumps(changed(STACK, ("profiles", "exact", "sources", 0, "git"), f"https://h.example/x{char}--index=y"))
    target = json.dumps(changed(TARGET, ("environment", "SITE_A"), f"a{char}b"))
    facts = json.dumps(changed(FACTS, ("gpus", 0, "name"), f"NVIDIA{char}A100"))
    listed = json.dumps(changed(FACTS, ("warnings",), [f"a{char}b"]))
    given = ((stack, load_stack), (provides, load_stack), (git, load_stack), (target, load_target))
    for text, load in (*given, (facts, load_facts), (listed, load_facts)):
        path = tmp_path / "given.yaml"
        path.write_text(text)
        with pytest.raises(EnvbuildError) as caught:
            load(str(path))
        assert caught.value.exit_code == 2
        assert not set(UNSAFE) & set(str(caught.value) + caught.value.why)
    if char != "\ud800":  # TOML has no half characters
        with fails("lock-invalid", 2) as caught:
            parse_lock(LOCK.replace('stack = "', f'"a{escape}b" = "x"\nstack = "', 1), "lock")
        (tmp_path / "envbuild.toml").write_text(f'profile = "a{escape}b"')
        monkeypatch.chdir(tmp_path)
        with fails("config-invalid", 2) as caught:
            load_config()


def test_d64_joiners_are_for_prose_alone(tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    path.write_text(
        json.dumps(changed(STACK, ("summary",), "co\u00adoperate \U0001f469\u200d\U0001f4bb"), ensure_ascii=False)
    )
    assert load_stack(str(path)).stack.summary.startswith("co\u00adoperate")
    for place in (("packages", 0), ("constraints", 0), ("bases", 0, "provides", 0)):
        text = "six>=1; platform_version != 'a\u200db'"
        path.write_text(json.dumps(changed(STACK, ("profiles", "exact", *place), text)))
        with fails("manifest-invalid", 2):
            load_stack(str(path))
