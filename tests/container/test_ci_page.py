"""The workflows of docs/tutorials/images-in-ci.md are valid and call what is there; JUnit of an image."""

from __future__ import annotations

import re
import shlex
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from click.testing import CliRunner

from envbuild.cli.verbs import cli
from envbuild.container.verify_image import as_junit
from tests.support.programs import completed
from tests.test_docs import walked

PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "images-in-ci.md"
WORKFLOWS = dict(zip(("github", "gitlab"), re.findall(r"(?ms)^```yaml\n(.*?)^```$", PAGE.read_text()), strict=True))


@pytest.mark.parametrize("system", WORKFLOWS)
def test_it_is_valid_and_calls_verbs_with_options_that_exist(system: str, tmp_path: Path) -> None:
    # In this process, which imports JSON Schema once; see tests/support/schemas.py.
    from check_jsonschema import main as check_jsonschema

    path = tmp_path / "workflow.yml"
    path.write_text(WORKFLOWS[system])
    if system == "github":
        linted = completed([str(Path(sys.executable).parent / "actionlint"), path])
        assert (linted.returncode, linted.stdout + linted.stderr) == (0, "")
    else:
        words = [str(path), "--builtin-schema", "vendor.gitlab-ci", "--data-transform=gitlab-ci"]
        done = CliRunner().invoke(check_jsonschema, words)
        assert done.exit_code == 0, done.output
    calls = re.findall(r"envbuild ((?:lock|image) [^;>\n]*)", WORKFLOWS[system].replace('"$IMAGE"', "IMAGE"))
    words = [shlex.split(call) for call in calls]
    assert [each[:2] for each in words] == [["lock", "check"], ["image", "dockerfile"], ["image", "verify"]]
    for call in words:
        command, rest = walked(call)
        # Raises where an option is unknown or its value is none that it takes.
        command.make_context(call[1], rest)


def test_junit_has_a_case_for_each_check_with_what_it_says() -> None:
    checks = [
        {"name": "stamp", "status": "passed", "says": "it is there"},
        {"name": "files", "status": "failed", "says": "<& a\x00b \x1b[31m", "details": {"output": "c\x08\ufffe"}},
    ]
    smoke = {"checks": [{"name": "smoke/machine/gemm", "status": "skipped", "says": "no GPU"}]}
    suite = ET.fromstring(as_junit("team/image:1", {"stack": "s\x01", "checks": checks, "smoke": smoke}))
    assert [suite.get(key) for key in ("name", "tests", "failures", "skipped")] == ["team/image:1", "3", "1", "1"]
    told = [(case.get("name"), [(each.tag, each.get("message"), each.text) for each in case]) for case in suite]
    assert told == [
        ("stamp", []),
        ("files", [("failure", "<& a\\x00b \\x1b[31m", "c\\x08\\ufffe")]),
        ("smoke/machine/gemm", [("skipped", "no GPU", None)]),
    ]


def test_junit_that_cannot_be_written_is_said_and_no_mistake_of_envbuild(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envbuild.cli.image_cmd.find_builder", lambda _: None)
    found = {"ok": True, "stack": "s", "image": "i", "checks": [], "drift": []}
    monkeypatch.setattr("envbuild.container.verify_image.inspect_image", lambda *_: None)
    monkeypatch.setattr("envbuild.container.verify_image.verify_image", lambda *_, **__: found)
    asked = ["image", "verify", "i", "--junit", str(tmp_path / "none" / "junit.xml")]
    done = CliRunner().invoke(cli, asked, standalone_mode=False)
    assert getattr(done.exception, "code", done.exception) == "output-unwritable"
