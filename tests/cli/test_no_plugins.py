"""No start looks for plugins of pydantic: nothing of theirs is imported or run, unless somebody asks for them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_PLUGIN = """
class _Plugin:
    def new_schema_validator(self, *arguments, **settings):
        print("the plugin was asked")
        return None, None, None

plugin = _Plugin()
"""
_CALL = "import sys; from envbuild.cli.entry import main; main(['stack', 'show', 'torch-smoke']); "


def _prints(code: str, folder: Path, **variables: str) -> str:
    environment = {key: value for key, value in os.environ.items() if key != "PYDANTIC_DISABLE_PLUGINS"}
    environment |= {"PYTHONPATH": str(folder), **variables}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    return done.stdout


@pytest.fixture
def with_plugin(tmp_path: Path) -> Path:
    """A folder for PYTHONPATH with a distribution that calls itself a plugin of pydantic."""
    (tmp_path / "some_plugin.py").write_text(_PLUGIN)
    metadata = tmp_path / "some_plugin-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: some-plugin\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[pydantic]\nsome_plugin = some_plugin:plugin\n")
    return tmp_path


def test_a_start_neither_runs_a_plugin_nor_imports_what_looks_for_one(with_plugin: Path) -> None:
    out = _prints(_CALL + "print('pydantic' in sys.modules, 'importlib.metadata' in sys.modules)", with_plugin)
    assert out.splitlines()[-1] == "True False"
    assert "the plugin was asked" not in out


def test_who_asks_for_plugins_gets_them(with_plugin: Path) -> None:
    assert "the plugin was asked" in _prints(_CALL, with_plugin, PYDANTIC_DISABLE_PLUGINS="others")


def test_what_another_pydantic_may_look_for_is_the_real_thing(tmp_path: Path) -> None:
    code = "from envbuild.cli import no_plugins as n; n.install(); "
    code += "from pydantic.plugin._loader import PYDANTIC_ENTRY_POINT_GROUP as group, get_plugins; print(group)"
    assert _prints(code, tmp_path) == "pydantic\n"
