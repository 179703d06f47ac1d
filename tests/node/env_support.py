"""Wheels, git repositories and requests that the tests of environments are made from; everything is real."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from envbuild.node import activate, install, verify

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
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    contents = dict(files or {f"{name}/__init__.py": f"VERSION = {version!r}\n\ndef main():\n    print(1)\n".encode()})
    contents[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\n".encode()
    contents[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    if scripts:
        lines = "".join(f"{key} = {value}\n" for key, value in scripts.items())
        contents[f"{info}/entry_points.txt"] = f"[console_scripts]\n{lines}".encode()
    rows = []
    for path, data in contents.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.append(f"{path},sha256={digest},{len(data)}\n")
    contents[f"{info}/RECORD"] = ("".join(rows) + f"{info}/RECORD,,\n").encode()
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in contents.items():
            entry = zipfile.ZipInfo(path, date)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data)
    return locked(wheel, name, version)


def locked(wheel: Path, name: str, version: str) -> dict[str, Any]:
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    file = {"file": wheel.name, "sha256": digest, "size": wheel.stat().st_size}
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


def site(environment: Path) -> Path:
    return environment / "lib" / f"python{MINOR}" / "site-packages"


def git(folder: Path, *args: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    identity = ["-c", "user.name=T", "-c", "user.email=t@example.org", "-c", "protocol.file.allow=always"]
    done = subprocess.run(["git", *identity, "-C", str(folder), *args], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def make_repository(folder: Path, files: dict[str, str]) -> tuple[str, str]:
    """Create or extend a repository by one commit; returns (commit, tree)."""
    if not (folder / ".git").exists():
        git(folder, "init", "-q", "-b", "main")
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "x")
    return git(folder, "rev-parse", "HEAD"), git(folder, "rev-parse", "HEAD^{tree}")


def redirect_git(monkeypatch: pytest.MonkeyPatch, top: Path) -> None:
    """https://git.example.org/ is the folder `top`, through git's own insteadOf."""
    config = top / "gitconfig"
    top.mkdir(parents=True, exist_ok=True)
    config.write_text(f'[url "file://{top}/"]\n\tinsteadOf = https://git.example.org/\n')
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """A node whose HOME and pip configuration are the test's own."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    old = os.umask(0o022)
    os.umask(old)
    request_umask = old
    try:
        yield Node(tmp_path)  # type: ignore[misc]
    finally:
        os.umask(request_umask)
