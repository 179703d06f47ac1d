"""A user's world for tests of the real command: an own HOME, prefix, runs, wheels, repositories, stacks and locks."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from envbuild.lock.files import read_lock
from envbuild.lock.record import write_lock
from envbuild.model.lock import Variant
from envbuild.provision.contact.payload import uv_tool
from tests.node.env_support import MINOR, PYTHON, make_repository, make_wheel, site
from tests.support import forked, known_pythons
from tests.support.programs import completed

__all__ = [
    "MINOR", "PYTHON", "Done", "World", "drift", "edit_lock", "ended", "forget_sizes", "lines_until", "site",
    "snapshot",
]  # fmt: skip

# What a user's shell may carry and a test must not see; the rest (PATH, certificates, proxies) stays.
_FOREIGN = ("PIP_", "UV_", "GIT_", "XDG_", "ENVBUILD_", "ANSIBLE_", "PYENV", "PYTHON", "VIRTUAL_ENV")
DEADLINE = 240
_COMMAND = [sys.executable, "-m", "envbuild"]
# What an interpreter reads when it starts.
_AT_START = ("LANG", "LC_ALL", "LC_CTYPE", "PYTHONUTF8", "TZ")


@dataclass(frozen=True)
class Done:
    """How one command ended."""

    rc: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one JSON document of stdout; anything else there is a failure of the test."""
        data = json.loads(self.out)
        assert isinstance(data, dict)
        return data

    @property
    def node(self) -> dict[str, Any]:
        """The evidence of the only node."""
        (node,) = self.json["nodes"]
        assert isinstance(node, dict)
        return node

    @property
    def nodes(self) -> dict[str, dict[str, Any]]:
        """Evidence by node; a run that ended strangely shows what it said."""
        assert self.out.startswith("{"), f"exit {self.rc}\n{self.out[-2000:]}\n{self.err[-4000:]}"
        return {node["node"]: node for node in self.json["nodes"]}

    @property
    def statuses(self) -> dict[str, str]:
        """Status by node."""
        return {name: node["status"] for name, node in self.nodes.items()}

    @property
    def error(self) -> dict[str, Any]:
        """The error of the JSON document, of the run or of its only node."""
        error = self.json.get("error") or self.node.get("error")
        assert isinstance(error, dict), f"exit {self.rc}, no error\n{self.out[-2000:]}\n{self.err[-4000:]}"
        return error

    @property
    def code(self) -> str:
        """The code of the error that stderr tells, empty when there is none."""
        found = [line for line in self.err.splitlines() if line.lstrip().startswith("error[")]
        return found[0].lstrip()[len("error[") :].partition("]")[0] if found else ""


def _take_interrupts() -> None:
    """A background job of a shell without job control ignores SIGINT, one of `nohup` SIGHUP; so would its children."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


class World:
    """Everything lies under `top`; `command` (envbuild of this interpreter) runs in `top/work`."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.command = _COMMAND
        self.before: Sequence[object] = ()
        self.home = top / "home"
        self.work = top / "work"
        self.wheels = top / "wheels"
        self.hub = top / "hub"
        self.prefix = top / "prefix"
        self.runs = top / "runs"
        for folder in (self.home / ".config" / "uv", self.work, self.wheels, self.hub):
            folder.mkdir(parents=True, exist_ok=True)
        known_pythons.tell(self.home / ".cache" / "uv")
        (self.home / ".config" / "uv" / "uv.toml").write_text("no-index = true\n")
        (self.home / ".gitconfig").write_text(
            f'[url "file://{self.hub}/"]\n\tinsteadOf = https://git.example.org/\n[protocol "file"]\n\tallow = always\n'
        )
        self.env = {key: value for key, value in os.environ.items() if not key.startswith(_FOREIGN)}
        self.env |= {
            "HOME": str(self.home),
            "XDG_CONFIG_HOME": str(self.home / ".config"),
            "XDG_CACHE_HOME": str(self.home / ".cache"),
            "XDG_DATA_HOME": str(self.home / ".local/share"),
            "XDG_STATE_HOME": str(self.home / ".local/state"),
            "ENVBUILD_SYSTEM_CONFIG": str(top / "no-system-config.toml"),
            "ENVBUILD_PREFIX": str(self.prefix),
            "ENVBUILD_RUNS": str(self.runs),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_FIND_LINKS": str(self.wheels),
            "GIT_CONFIG_NOSYSTEM": "1",
        }

    def run(
        self,
        *args: str,
        env: Mapping[str, str] | None = None,
        timeout: float = DEADLINE,
        code: Sequence[str] = (),
        fresh: bool = False,
        before: Sequence[object] = (),
        rc: int | None = None,
    ) -> Done:
        """`envbuild ARGS`; `code` are arguments of this interpreter instead of envbuild's command.

        `fresh`: an interpreter of its own, whose `/proc/<pid>/environ` has its variables. `before`: see `forked.run`.
        `rc`: the exit code that it has to end with.
        """
        before = before or self.before
        given: dict[str, Any] = {"env": {**self.env, **(env or {})}, "cwd": self.work, "timeout": timeout}
        fresh = fresh or any(given["env"].get(key) != os.environ.get(key) for key in _AT_START)
        if not before and (code or fresh or self.command != _COMMAND):
            argv = [*([sys.executable, *code] if code else self.command), *args]
            done = completed(argv, **given, stdin=subprocess.DEVNULL)
        else:
            done = forked.run(args, before=before, **given)
        result = Done(done.returncode, done.stdout, done.stderr)
        text = f"{result.out[-3000:]}\n{result.err[-3000:]}"
        assert rc in (None, result.rc), f"envbuild {' '.join(args)}: exit {result.rc}\n{text}"
        return result

    def good(self, *args: str, **more: Any) -> Done:
        """The same, and it has to end well."""
        return self.run(*args, rc=0, **more)

    def refused(self, rc: int, code: str, *args: str, **more: Any) -> Done:
        """The same, and it has to end with that exit code and, as stderr tells it first, that error."""
        done = self.run(*args, **more)
        assert (done.rc, done.code) == (rc, code), f"{done.out[-3000:]}\n{done.err[-3000:]}"
        return done

    def start(
        self, *args: str, env: Mapping[str, str] | None = None, code: Sequence[str] = ()
    ) -> subprocess.Popen[str]:
        """The same in the background, leader of an own session."""
        return subprocess.Popen(
            [*([sys.executable, *code] if code else self.command), *args],
            env={**self.env, **(env or {})}, cwd=self.work, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_take_interrupts,
        )  # fmt: skip

    def wheel(self, name: str = "alpha", version: str = "1.0", **more: Any) -> Path:
        """A wheel in the configured find-links folder."""
        made = make_wheel(self.wheels, name, version, **more)
        return self.wheels / str(made["files"][0]["file"])

    def repository(self, name: str, files: dict[str, str]) -> dict[str, str]:
        """One more commit of a repository, and its pin."""
        commit, tree = make_repository(self.hub / name, files)
        return {"name": name, "git": f"https://git.example.org/{name}", "commit": commit, "tree": tree}

    def stack(
        self, name: str = "tiny", packages: Sequence[str] = ("alpha==1.0",), reference: Any = None, **profile: Any
    ) -> Path:
        """A stack file `work/<name>.yaml`."""
        exact = {"python": [MINOR], "packages": list(packages), **profile}
        stack = {"name": name, "summary": "a test", "profiles": {"exact": exact}}
        path = self.work / f"{name}.yaml"
        path.write_text(yaml.safe_dump(stack | ({"reference": reference} if reference else {})))
        return path

    def lock(self, stack: Path) -> Path:
        """`lock create` for a stack file; the lock's path."""
        self.good("lock", "create", f"./{stack.name}")
        return stack.with_name(f"{stack.stem}.lock.toml")

    def tiny(self, **profile: Any) -> Path:
        """A locked stack with the wheel `alpha` 1.0."""
        if not list(self.wheels.glob("alpha-*")):
            self.wheel()
        stack = self.stack(**profile)
        self.lock(stack)
        return stack

    def provision(self, *args: str, stack: str = "./tiny.yaml", **more: Any) -> Done:
        """`provision --target local --stack STACK --json ARGS`."""
        return self.run("provision", "--target", "local", "--stack", stack, "--json", *args, **more)

    def built(self, *args: str, **more: Any) -> dict[str, Any]:
        """The same, and it has to end well; the evidence of the node. uv is there, as it is after a first build."""
        self.place_uv()
        return self.provision(*args, rc=0, **more).node

    def fails(self, rc: int, code: str, *args: str, **more: Any) -> Done:
        """The same, and it has to end with that exit code and that error of the run or of its only node."""
        done = self.provision(*args, **more)
        assert (done.rc, done.error["code"], done.error["exit"]) == (rc, code, rc), done.err[-3000:]
        return done

    def place_uv(self) -> None:
        """Put uv where a build brings it: a sixth of each build, which the tests that call `provision` do not save."""
        tool = uv_tool()
        place = Path(tool.path(str(self.prefix)))
        if place.parent.exists():
            return
        kept = self.top.parent / tool.folder
        if not kept.exists():
            shutil.copy2(tool.source, kept)
        before = os.umask(0o022)  # as the build makes them, whatever the test's is
        place.parent.mkdir(parents=True)
        os.umask(before)
        os.link(kept, place)

    @property
    def current(self) -> Path:
        """The environment in use for `tiny`."""
        return (self.prefix / "current" / "tiny").resolve()

    def events(self, run: str = "last") -> list[dict[str, Any]]:
        """The journal of a run."""
        events = self.good("run", "show", run, "--json").json["events"]
        assert isinstance(events, list)
        return events

    @property
    def last_run(self) -> Path:
        """The folder of the newest run."""
        return max(path for path in self.runs.iterdir() if path.is_dir())

    def journal(self, kind: str) -> list[dict[str, Any]]:
        """The events of a kind in the newest run; none where there is no run."""
        path = max(self.runs.glob("*/"), default=self.runs) / "journal.jsonl"
        events = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [event for event in events if event["kind"] == kind]

    @property
    def steps(self) -> dict[str, list[str]]:
        """The steps that each node began in the newest run, in order."""
        begun: dict[str, list[str]] = {}
        for event in self.journal("step-started"):
            begun.setdefault(event["node"], []).append(event["data"]["step"])
        return begun

    @property
    def waves(self) -> list[list[str]]:
        """The nodes of each wave of the newest run."""
        return [event["data"]["nodes"] for event in self.journal("wave-started")]

    def jobs(self) -> list[dict[str, Any]]:
        """The jobs that the newest run has submitted."""
        return [event["data"] for event in self.journal("job-submitted")]

    def submitted(self) -> list[str]:
        """Their names."""
        return [job["name"] for job in self.jobs()]

    def python(self, code: str, environment: Path | None = None) -> str:
        """What a program says in the environment in use."""
        argv = [str((environment or self.current) / "bin" / "python"), "-I", "-c", code]
        done = completed(argv, timeout=DEADLINE, cwd=self.top)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


def ended(process: subprocess.Popen[str], timeout: float = DEADLINE) -> Done:
    """How a command that was started ended."""
    out, err = process.communicate(timeout=timeout)
    return Done(process.returncode, out, err)


def interrupted(process: subprocess.Popen[str]) -> Done:
    """How a command that waits ends at Ctrl-C."""
    time.sleep(0.5)
    os.kill(process.pid, signal.SIGINT)
    done = ended(process)
    assert done.rc == 130, done.err
    return done


def lines_until(process: subprocess.Popen[str], true: Callable[[str], bool]) -> list[str]:
    """What comes on stderr, up to the first line that is `true`."""
    assert process.stderr is not None
    deadline, found = threading.Timer(DEADLINE, process.kill), list[str]()
    deadline.start()
    for line in process.stderr:
        found.append(line)
        if true(line):
            break
    else:
        raise AssertionError("".join(found))
    deadline.cancel()
    return found


def snapshot(folder: Path) -> dict[str, str]:
    """Every path under a folder with what it is: a link's target, a file's sha256; empty when there is no folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"-> {os.readlink(path)}"
        elif path.is_file():
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            found[name] = "folder"
    return found


def drift(world: World, *more: str) -> tuple[int, dict[str, str]]:
    """Exit code of `verify` and what drifted."""
    done = world.run("verify", "--stack", "./tiny.yaml", "--json", *more)
    return done.rc, {item["path"]: item["kind"] for item in done.node["drift"]}


def forget_sizes(path: Path) -> None:
    """Make a lock one whose files nobody has measured: a plan doubts too little room where it would refuse it."""
    lock = read_lock(path)
    write_lock(path, lock.model_copy(update={"variants": tuple(each.without_sizes() for each in lock.variants)}))


def edit_lock(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the only variant of a lock file so that its digest holds again: an attacker's or a mistaken lock."""
    lock = read_lock(path)
    plain = lock.variants[0].to_json_dict()
    change(plain)
    made = Variant.from_plain(plain)
    made = made.model_copy(update={"digest": made.compute_digest(lock.stack, lock.profile)})
    write_lock(path, lock.model_copy(update={"variants": (made,)}))
