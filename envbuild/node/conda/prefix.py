"""Makes a prefix out of conda archives with rattler: looked into first, then installed as copies, then made equal."""

from __future__ import annotations

import json
import os
import tempfile
from typing import Any

from envbuild.node import paths, proc, program_files, redact
from envbuild.node.conda import activation, archives, layout, meta
from envbuild.node.protocol import NodeError, log, plural

_DEADLINE = 3600.0
_SCRIPT_DEADLINE = 600.0
_SYSTEM_PATH = "/usr/bin:/bin"
# Nothing of the user: no configuration and no credentials have a part in this.
_ENVIRON = {"PATH": _SYSTEM_PATH, "LC_ALL": "C.UTF-8"}


class Rattler:
    """The tool: the folder that holds `rattler`, a Python that can load it, and folders for what it writes.

    What it unpacks lies in a folder of its own in `cache`, on the disk of the environment: its files are linked there,
    and have one name once that folder is gone.
    """

    def __init__(self, tools: dict[str, str], tmp: str, cache: str) -> None:
        """`tools` of the request. Raises NodeError `request-invalid`."""
        if not tools.get("rattler") or not tools.get("rattler_python"):
            raise NodeError("request-invalid", "`tools.rattler` and `tools.rattler_python` are missing")
        self.folder, self.python = tools["rattler"], tools["rattler_python"]
        self.tmp, self.cache = tmp, cache
        self._program = program_files.text("envbuild.node.conda.programs", "rattle")

    def read(self, files: list[str]) -> dict[str, Any]:
        """What the archives say of themselves, by path. Raises NodeError."""
        out = os.path.join(self.tmp, "archives.json")
        self._run({"action": "read", "archives": files, "out": out})
        with open(out, encoding="utf-8") as stream:
            return dict(json.load(stream))

    def install(self, records: list[dict[str, Any]], environment: str) -> None:
        """Put archives into `environment`; `records`: `archive`, `index`, `sha256` and `size` of each.

        Raises NodeError `conda-install-failed` (exit 4), `disk-full` (75).
        """
        with tempfile.TemporaryDirectory(prefix="install-rattler-", dir=self.cache) as cache:
            self._run({"action": "install", "records": records, "prefix": environment, "cache": cache})

    def _run(self, asked: dict[str, Any]) -> None:
        env = dict(_ENVIRON, HOME=self.tmp, TMPDIR=self.tmp)
        data = json.dumps(dict(asked, rattler=self.folder)).encode("utf-8")
        argv = [self.python, "-I", "-B", "-c", self._program]
        done = proc.run(argv, timeout=_DEADLINE, env=env, cwd=self.tmp, stdin=data)
        if done.ok:
            return
        why = redact.redact_text(done.err or done.out).strip()[-1500:]
        paths.refuse_full(why, str(asked.get("prefix") or self.tmp), why)
        raise NodeError(
            "conda-install-failed",
            f"py-rattler could not {asked['action']} the conda packages",
            why=why or "it ended without output",
            hint="see the node's log",
            changed=True,
        )


def make(
    rattler: Rattler, variant: dict[str, Any], where: dict[str, Any], folder: str, environment: str
) -> dict[str, Any]:
    """Install the conda packages of `variant` into `environment`; returns what the result says of them.

    `where` and `folder`: see `archives.bring`. Raises NodeError as `archives.bring`, `layout.plan` and
    `Rattler.install` do, and `conda-script-failed` (exit 4).
    """
    locked = variant["conda"]["packages"]
    paths = archives.bring(locked, where, folder)
    read = rattler.read([paths[package["name"]] for package in locked])
    contents = {package["name"]: read[paths[package["name"]]] for package in locked}
    plan = layout.plan(locked, contents, variant["python"], environment)
    if _folds_case(rattler.tmp):
        plan.check_case()
    log(f"installing {plural(len(locked), 'conda package')}")
    rattler.install(
        [_record(package, paths[package["name"]], contents[package["name"]]) for package in locked], environment
    )
    meta.tidy(environment, {package["name"]: package["channel"] for package in locked})
    allowed = set(variant["conda"].get("link_scripts") or ())
    for package in locked:
        if package["name"] in plan.scripts and package["name"] in allowed:
            _run_script(package, plan.scripts[package["name"]], environment)
    return {
        "packages": {package["name"]: f"{package['version']} {package['build']}" for package in locked},
        "link_scripts_skipped": sorted(set(plan.scripts) - allowed),
        "clobbered": sorted(plan.shared),
    }


def _record(package: dict[str, Any], archive: str, content: dict[str, Any]) -> dict[str, Any]:
    named = {"archive": archive, "file": package["file"], "index": content["index"]}
    return dict(named, sha256=package["sha256"], size=os.path.getsize(archive))


def _folds_case(folder: str) -> bool:
    """Whether the file system of `folder` takes two names for one that differ in case alone."""
    handle, path = tempfile.mkstemp(prefix="case-", dir=folder)
    os.close(handle)
    try:
        return os.path.exists(os.path.join(folder, os.path.basename(path).upper()))
    finally:
        os.unlink(path)


def _run_script(package: dict[str, Any], script: str, environment: str) -> None:
    """Run a post-link script that the stack lists, with what conda promises it and nothing of the user's."""
    env = {"PREFIX": environment, "PKG_NAME": package["name"], "PKG_VERSION": package["version"]}
    env.update(PKG_BUILDNUM=package["build"].rpartition("_")[2], CONDA_PREFIX=environment, LC_ALL="C.UTF-8")
    env.update(PATH=f"{environment}/bin:{_SYSTEM_PATH}", HOME=environment)
    log(f"running {script} of {meta.label(package)}")
    argv = [activation.shell(), os.path.join(environment, script)]
    done = proc.run(argv, timeout=_SCRIPT_DEADLINE, env=env, cwd=environment)
    paths.remove_tree(os.path.join(environment, ".messages.txt"))
    if not done.ok:
        raise NodeError(
            "conda-script-failed",
            f"{script} of {meta.label(package)} failed",
            why=redact.redact_text(done.err or done.out).strip()[-1500:],
            hint="remove the package from `link_scripts` if it works without its script",
            changed=True,
        )
