"""Wheels, git repositories and requests that the tests of environments are made from; everything is real."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envbuild.node import lease
from envbuild.node.env import activate, install, verify
from envbuild.node.protocol import NodeError
from tests.support import known_pythons
from tests.support.fails import fails
from tests.support.programs import completed
from tests.support.repositories import git, make_repository
from tests.support.wheels import sha256, write_wheel

__all__ = [
    "MINOR",
    "PYTHON",
    "Node",
    "git",
    "locked",
    "make_repository",
    "make_variant",
    "make_wheel",
    "node",
    "pin",
    "redirect_git",
    "run_python",
    "site",
    "uv_path",
]
PYTHON = os.path.realpath(sys.executable)
MINOR = f"{sys.version_info[0]}.{sys.version_info[1]}"


def uv_path() -> str:
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.exists() else shutil.which("uv")
    if not found:
        pytest.skip("uv is not there: `pip install uv` puts it beside the interpreter")
    return found


def make_wheel(
    folder: Path,
    name: str = "alpha",
    version: str = "1.0",
    files: dict[str, bytes] | None = None,
    scripts: dict[str, str] | None = None,
    date: tuple[int, int, int, int, int, int] = (2020, 1, 1, 0, 0, 0),
) -> dict[str, Any]:
    """Write a wheel into `folder`; returns it as a locked package. `scripts`: console script -> `module:function`."""
    files = files or {f"{name}/__init__.py": f"VERSION = {version!r}\n\ndef main():\n    print(1)\n".encode()}
    return locked(write_wheel(folder, name, version, files, scripts=scripts, date=date), name, version)


def locked(wheel: Path, name: str, version: str) -> dict[str, Any]:
    file = {"file": wheel.name, "sha256": sha256(wheel), "size": wheel.stat().st_size}
    return {"name": name, "version": version, "index": "pypi", "files": [file]}


def make_variant(packages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {"id": "v", "engine": "venv", "python": MINOR, "base": {"kind": "none"}, "provided": {}}
    plain.update({"packages": packages, "sources": [], "environment": {}, "smoke": []}, **more)
    plain["digest"] = hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
    return plain


class Node:
    """A prefix with its wheels; `install`, `activate` and `verify` call the verbs in this process."""

    def __init__(self, top: Path, stack: str = "demo") -> None:
        self.top = top
        self.prefix = top / "prefix"
        self.wheels = top / "wheels"
        self.wheels.mkdir(parents=True, exist_ok=True)
        self.cache = top / "cache"
        known_pythons.tell(self.cache)
        self.stack = stack
        self.python = PYTHON
        self.run = "run-1"
        self.offline = True

    def environment(self, variant: dict[str, Any]) -> Path:
        return self.prefix / "envs" / f"{self.stack}-exact-{variant['digest'][:12]}"

    def request(self, verb: str, **args: Any) -> dict[str, Any]:
        return {"protocol": 1, "verb": verb, "run": self.run, "prefix": str(self.prefix), "args": args}

    def install_request(self, variant: dict[str, Any], **more: Any) -> dict[str, Any]:
        args: dict[str, Any] = {
            "environment": str(self.environment(variant)),
            "stack": self.stack,
            "profile": "exact",
            "variant": variant,
            "interpreter": self.python,
            "tools": {"uv": uv_path()},
            "artifacts": {"find_links": [str(self.wheels)], "offline": self.offline},
            "cache": str(self.cache),
            "tmp": str(self.top / "tmp"),
            "wait": 0,
        }
        args.update(more)
        return self.request("install", **args)

    def install(self, variant: dict[str, Any], **more: Any) -> tuple[bool, dict[str, Any]]:
        return install.run(self.install_request(variant, **more))

    def fails(self, variant: dict[str, Any], code: str, exit_code: int, **more: Any) -> NodeError:
        """How `install` refuses this; the lease is given back, and nothing of a new environment stays."""
        before = self.environments()
        with fails(code, exit_code) as caught:
            self.install(variant, **more)
        assert lease.read(str(self.prefix)) is None
        assert self.environments() <= before
        return caught.value

    def environments(self) -> set[str]:
        """The folders under `envs`, whole or half."""
        return {path.name for path in (self.prefix / "envs").glob("*")}

    def activate(self, variant: dict[str, Any], **more: Any) -> tuple[bool, dict[str, Any]]:
        environment = str(self.environment(variant))
        args = {"environment": environment, "stack": self.stack, "profile": "exact", "variant": variant, **more}
        return activate.run(self.request("activate", **args))

    def build(self, variant: dict[str, Any], **more: Any) -> Path:
        self.install(variant)
        self.activate(variant, **more)
        return self.environment(variant)

    def verify(self, **args: Any) -> dict[str, Any]:
        changed, result = verify.run(self.request("verify", stack=self.stack, **args))
        assert not changed
        return result


def run_python(environment: Path, code: str) -> str:
    argv = [str(environment / "bin" / "python"), "-I", "-B", "-c", code]
    return completed(argv, check=True).stdout.strip()


def site(environment: Path) -> Path:
    return environment / "lib" / f"python{MINOR}" / "site-packages"


def redirect_git(monkeypatch: pytest.MonkeyPatch, top: Path) -> None:
    """https://git.example.org/ is the folder `top`, through git's own insteadOf."""
    config = top / "gitconfig"
    top.mkdir(parents=True, exist_ok=True)
    config.write_text(f'[url "file://{top}/"]\n\tinsteadOf = https://git.example.org/\n')
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))


def pin(hub: Path, name: str, files: dict[str, str], **more: Any) -> dict[str, Any]:
    """A source as a lock has it, of a new commit of these files in the repository `name` of the hub."""
    commit, tree = make_repository(hub / name, files)
    return {"name": name, "git": f"https://git.example.org/{name}", "commit": commit, "tree": tree, **more}


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """A node whose HOME and pip configuration are the test's own."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    old = os.umask(0o022)
    os.umask(old)
    try:
        yield Node(tmp_path)
    finally:
        os.umask(old)
