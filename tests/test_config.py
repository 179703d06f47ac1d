"""Configuration: which layer wins, where each value came from, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from envbuild.config import Config, find_project_file, load_config
from envbuild.errors import EnvbuildError, ExitCode
from tests.support.files import write_file


class Layers:
    """A fresh user, system and project, each with a file that can be written."""

    def __init__(self, tmp_path: Path) -> None:
        self.user = tmp_path / "home" / ".config" / "envbuild" / "config.toml"
        self.system = tmp_path / "etc" / "config.toml"
        self.checkout = tmp_path / "checkout"
        self.cwd = self.checkout / "deep" / "er"
        self.project = self.checkout / "envbuild.toml"
        self.environ: dict[str, str] = {}
        for folder in (self.user.parent, self.system.parent, self.cwd, self.checkout / ".git"):
            folder.mkdir(parents=True, exist_ok=True)

    def load(self, **flags: Any) -> Config:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.cwd)
            for name in [name for name in os.environ if name.startswith("ENVBUILD_") or name == "NO_COLOR"]:
                patch.delenv(name)
            for name, value in {"ENVBUILD_SYSTEM_CONFIG": str(self.system), **self.environ}.items():
                patch.setenv(name, value)
            return load_config(flags)

    def refused(self, **flags: Any) -> EnvbuildError:
        with pytest.raises(EnvbuildError) as caught:
            self.load(**flags)
        assert caught.value.exit_code == ExitCode.USAGE
        return caught.value


@pytest.fixture
def layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layers:
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    return Layers(tmp_path)


def test_defaults_and_variables(layers: Layers, tmp_path: Path) -> None:
    config = layers.load()
    assert (config.target, config.stack, config.prefix, config.wait) == ("local", None, None, 600.0)
    assert config.runs_root == tmp_path / "home" / ".local" / "state" / "envbuild" / "runs"
    assert {setting.origin for setting in config.settings.values()} == {"default"}
    assert config.files == ()
    for text, value in (("1", True), ("true", True), ("0", False), ("FALSE", False)):
        layers.environ = {"ENVBUILD_QUIET": text}
        assert layers.load().quiet is value
    layers.environ = {"NO_COLOR": "1", "ENVBUILD_PREFX": "/x", "ENVBUILD_TARGET": "", "OTHER": "1"}
    config = layers.load()
    assert (config.color, config.settings["color"].origin) == ("never", "NO_COLOR")
    assert layers.load(color="always").color == "always"
    assert (config.unknown_variables, config.target) == (("ENVBUILD_PREFX",), "local")


def test_the_stack_of_a_folder_is_the_only_one_with_a_lock(layers: Layers) -> None:
    for name in ("mine.yaml", "mine.exact.lock.toml", "other.yaml"):
        (layers.cwd / name).touch()
    setting = layers.load().settings["stack"]
    assert (setting.value, setting.origin) == ("./mine.yaml", "this folder (the only stack with a lock)")
    (layers.cwd / "mine.yaml").chmod(0o666)
    assert layers.load().stack is None, "anybody can change it"
    (layers.cwd / "mine.yaml").chmod(0o644)
    (layers.cwd / "other.lock.toml").touch()
    assert layers.load().stack is None, "which of the two is not known"
    layers.user.write_text("stack = 'torch-smoke'\n")
    assert layers.load().stack == "torch-smoke"


def test_each_layer_wins_over_the_next(layers: Layers) -> None:
    layers.system.write_text("wait = '1s'\nprefix = '/system'\ncache = '/system'\nprofile = 'system'\nquiet = true\n")
    layers.user.write_text("wait = '2s'\nprefix = '/user'\ncache = '/user'\nprofile = 'user'\n")
    layers.project.write_text("wait = '3s'\nprefix = '/project'\ncache = '/project'\n")
    layers.environ = {"ENVBUILD_WAIT": "4s", "ENVBUILD_PREFIX": "/environment"}
    config = layers.load(wait="5s")
    got = {key: config.settings[key] for key in ("wait", "prefix", "cache", "profile", "quiet", "color")}
    assert {key: setting.value for key, setting in got.items()} == {
        "wait": "5s",
        "prefix": "/environment",
        "cache": "/project",
        "profile": "user",
        "quiet": True,
        "color": "auto",
    }
    assert {key: setting.origin for key, setting in got.items()} == {
        "wait": "--wait",
        "prefix": "ENVBUILD_PREFIX",
        "cache": str(layers.project),
        "profile": str(layers.user),
        "quiet": str(layers.system),
        "color": "default",
    }
    assert config.files == (layers.project, layers.user, layers.system)


def test_xdg_and_the_variable_for_the_system_file_are_followed(
    layers: Layers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    write_file(tmp_path / "xdg" / "envbuild" / "config.toml", "wait = '7s'\n")
    (tmp_path / "other.toml").write_text("quiet = true\n")
    layers.environ = {"ENVBUILD_SYSTEM_CONFIG": str(tmp_path / "other.toml")}
    config = layers.load()
    assert (config.wait, config.quiet) == (7.0, True)
    assert config.unknown_variables == ()


def test_relative_paths_are_relative_to_where_they_are_said(layers: Layers) -> None:
    layers.project.write_text("target = './nodes/mine.yaml'\nstack = 'torch-smoke'\ntoolchain = 'tools.yaml'\n")
    layers.environ = {"ENVBUILD_RUNS": "my-runs"}
    config = layers.load()
    assert config.target == str(layers.checkout / "nodes" / "mine.yaml")
    assert config.stack == "torch-smoke"
    assert config.toolchain == layers.checkout / "tools.yaml"
    assert config.runs_root == layers.cwd / "my-runs"
    layers.environ = {}
    layers.user.write_text("runs = '~/runs'\n")
    assert layers.load().runs_root == Path.home() / "runs"


def test_the_project_file_is_sought_up_to_the_root_of_the_checkout(layers: Layers, tmp_path: Path) -> None:
    (tmp_path / "envbuild.toml").write_text("wait = '1s'\n")
    assert find_project_file(layers.cwd) is None
    layers.project.write_text("wait = '2s'\n")
    assert find_project_file(layers.cwd) == layers.project
    if not any(
        (parent / ".git").exists() for parent in tmp_path.parents
    ):  # outside, the working directory alone counts
        (below := tmp_path / "below").mkdir()
        assert (find_project_file(below), find_project_file(tmp_path)) == (None, tmp_path / "envbuild.toml")


@pytest.mark.parametrize(
    ("prefix", "hint"),
    [
        ("~/x", "{home}/x"),
        ("$HOME/x", "{home}/x"),
        ("lab", "CWD/lab"),
        ("~you/x", "CWD/~you/x"),
        ("$USER/x", "CWD/{user}/x"),
    ],
)
def test_a_prefix_of_a_shell_is_written_as_in_a_target(layers: Layers, prefix: str, hint: str) -> None:
    layers.project.write_text(f"prefix = '{prefix}'\n")
    assert layers.refused().hint == f"write {hint.replace('CWD', str(layers.project.parent))}"


@pytest.mark.parametrize(
    "line",
    [
        "wait = 'long'", "wait = true", "wait = nan", "quiet = 'yes'", "color = 'blue'", "prefix = 5", "prefix = ''",
        "prefix = './p'", "cache = 'uv'", 'prefix = "a\\nb"', "runs = '~nobody-of-that-name/x'",
        "prefix = '/x'\nprefix = '/y'", "prefix = ", "[prefix]\nx = 1", "prefx = '/x'",
    ],
)  # fmt: skip
def test_a_bad_value_is_a_coded_error_that_names_the_file(layers: Layers, line: str) -> None:
    layers.project.write_text(line + "\n")
    error = layers.refused()
    assert error.code == "config-invalid"
    assert str(layers.project) in error.why
    assert not line.startswith("prefx") or error.hint == "did you mean `prefix`?"


def test_bytes_that_are_no_text_and_files_too_large_are_coded_errors(layers: Layers) -> None:
    layers.project.write_bytes(b"prefix = '\xff'\n")
    assert layers.refused().code == "config-invalid"
    with layers.project.open("wb") as stream:
        stream.truncate(100_000_000)
    assert layers.refused().code == "manifest-invalid"


def test_a_bad_variable_and_a_bad_flag_are_coded_errors_that_name_them(layers: Layers) -> None:
    for name, text in (("WAIT", "soon"), ("QUIET", "perhaps"), ("COLOR", "blue"), ("PREFIX", "a\nb")):
        layers.environ = {f"ENVBUILD_{name}": text}
        error = layers.refused()
        assert error.code == "config-invalid" and f"ENVBUILD_{name}" in error.why
    layers.environ = {}
    error = layers.refused(color="alway")
    assert "--color" in error.why and error.hint == "did you mean `always`?"
