"""The playbook that people write by hand for a training environment, for `benchmarks.fleet`."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import yaml

TOP = "/opt/by-hand"


def write_playbook(folder: Path, requirements: Path, address: str, trusted: str) -> Path:
    """Folders, files, a clone, a virtual environment, pip, a test, a link: 20 tasks; returns the file.

    `address` is the index and the git server near the nodes, `trusted` its host.
    """
    _repository(folder)
    options = f"--no-deps --require-hashes --index-url {address}/simple/ --trusted-host {trusted}"
    tasks = [*_files(requirements), *_work(f"{address}/training.git", options)]
    assert len(tasks) == 20, len(tasks)
    named = [{"name": f"Task {number}", **task} for number, task in enumerate(tasks, 1)]
    path = folder / "site.yml"
    path.write_text(yaml.safe_dump([{"hosts": "gpu", "tasks": named}], sort_keys=False))
    return path


def _repository(folder: Path) -> None:
    """A bare repository `training.git` that any web server can serve."""
    work, bare = folder / "training", folder / "training.git"
    subprocess.run(["git", "init", "-q", "-b", "main", str(work)], check=True)
    (work / "train.py").write_text("import numpy\nprint(numpy.arange(4).sum())\n")
    who = ["-c", "user.name=benchmark", "-c", "user.email=benchmark@localhost"]
    subprocess.run(["git", "-C", str(work), "add", "."], check=True)
    subprocess.run(["git", "-C", str(work), *who, "commit", "-q", "-m", "first"], check=True)
    subprocess.run(["git", "clone", "-q", "--bare", str(work), str(bare)], check=True)
    subprocess.run(["git", "-C", str(bare), "update-server-info"], check=True)


def _files(requirements: Path) -> list[dict[str, Any]]:
    folders = [
        {"ansible.builtin.file": {"path": f"{TOP}/{name}", "state": "directory", "mode": "0755"}}
        for name in ("", "logs", "config", "bin")
    ]
    contents = {
        "config/env": "NCCL_DEBUG=WARN\n",
        "bin/run": '#!/bin/sh\nexec python "$@"\n',
        "config/model.json": "{}\n",
    }
    copies = [
        {"ansible.builtin.copy": {"content": text, "dest": f"{TOP}/{name}", "mode": "0755"}}
        for name, text in contents.items()
    ]
    wanted = {"ansible.builtin.copy": {"src": str(requirements), "dest": f"{TOP}/requirements.txt", "mode": "0644"}}
    return [*folders, *copies, wanted]


def _work(repository: str, options: str) -> list[dict[str, Any]]:
    def command(*words: str, **more: Any) -> dict[str, Any]:
        return {"ansible.builtin.command": {"argv": list(words), **more}, "changed_when": not more}

    python = f"{TOP}/venv/bin/python"
    # Not the module for pip: it wants `packaging` on the node.
    install = (python, "-m", "pip", "install", "-r", f"{TOP}/requirements.txt", *options.split())
    path = {"path": "/root/.bashrc", "line": f"export PATH={TOP}/bin:$PATH", "create": True, "mode": "0644"}
    return [
        command("python3", "--version"),
        {"ansible.builtin.stat": {"path": "/usr/bin/git"}},
        {"ansible.builtin.git": {"repo": repository, "dest": f"{TOP}/training", "version": "main"}},
        command("python3", "-m", "venv", f"{TOP}/venv", creates=python),
        command(*install, creates=f"{TOP}/logs/done"),
        command(python, "-m", "pip", "check"),
        {"ansible.builtin.lineinfile": path},
        {"ansible.builtin.file": {"src": f"{TOP}/venv", "dest": f"{TOP}/current", "state": "link"}},
        command(python, "-c", "import numpy, yaml"),
        command(python, f"{TOP}/training/train.py"),
        {"ansible.builtin.shell": {"cmd": f"{python} -m pip freeze > {TOP}/logs/freeze.txt"}},
        {"ansible.builtin.file": {"path": f"{TOP}/logs/done", "state": "touch", "mode": "0644"}},
    ]
