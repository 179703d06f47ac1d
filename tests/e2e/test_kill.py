"""`kill -9` after every kind of journal event, and SIGINT: what was in use stays in use, and a rerun converges."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from envbuild.provision.ansible.steps import MARKER
from envbuild.provision.run.journal import EventKind
from tests.e2e.killing import descendants
from tests.e2e.world import World, lines_until
from tests.support.patience import PATIENCE
from tests.support.programs import completed

pytestmark = pytest.mark.slow
# Not of a run that goes well on this machine alone; tests/slurm and tests/fleet kill runs with jobs and with nodes.
ELSEWHERE = (
    EventKind.INTERRUPTED,
    EventKind.FAILED,
    EventKind.WAVE_STARTED,
    EventKind.NOT_BEGUN,
    EventKind.HANDED_OVER,
    EventKind.JOB_SUBMITTED,
    EventKind.JOB_STATE,
    # Told to whoever watches, between two events that count.
    EventKind.STAGE,
    EventKind.NOW,
)
HERE = [kind for kind in EventKind if kind not in ELSEWHERE]
STARTED, FINISHED = EventKind.STEP_STARTED, EventKind.STEP_FINISHED
BEFORE_WORK, AFTER_WORK = HERE[: HERE.index(STARTED)], HERE[HERE.index(FINISHED) + 1 :]
# Of a step that has begun there are processes that could go on, or be killed, alone.
WHOM = {"first": ("self", "all"), "update": ("self", "all", "others"), "repair": ("self", "all", "others")}
# Nothing is stamped before the environment is activated: until then the next run does all of it again.
CHAINS = [(scenario, whom) for scenario in WHOM for whom in WHOM[scenario]]
# Steps that the next run does not do again, each killed in a prefix of its own. An update and a repair find the
# toolchain of the first build.
ONCE = [("first", "toolchain"), ("first", "activate"), ("update", "activate"), ("repair", "activate")]
ENDS = [
    *((scenario, STARTED, step, whom) for scenario, step in ONCE for whom in WHOM[scenario]),
    *((scenario, FINISHED, step, "self") for scenario, step in ONCE),
    *((scenario, kind, "", "self") for scenario in ("first", "update") for kind in AFTER_WORK),
]
OLD, NEW = "1.0", "2.0"


@dataclass
class Shared:
    """One world with two versions of one stack; `roots` are those of builds that nobody disturbed.

    `built` are prefixes where a version was built and is in use.
    """

    world: World
    roots: dict[str, str]
    built: dict[str, Path]

    def choose(self, version: str) -> None:
        """Make the stack file and its lock those of a version."""
        for suffix in ("yaml", "lock.toml"):
            shutil.copy(self.world.top / version / f"tiny.{suffix}", self.world.work / f"tiny.{suffix}")

    def kill(self, kind: str, step: str, whom: str, *more: str) -> int:
        """Provision, killed after an event; the process's status."""
        args = ("provision", "--target", "local", "--stack", "./tiny.yaml", *more)
        return self.world.run(*args, before=("tests.e2e.killing:install", kind, step, whom)).rc

    def prepare(self, scenario: str) -> None:
        """An empty prefix; for `update` with the old version built there and in use, for `repair` with the new one."""
        shutil.rmtree(self.world.prefix, ignore_errors=True)
        if scenario in IN_USE:
            shutil.copytree(self.built[IN_USE[scenario]], self.world.prefix, symlinks=True)
        self.choose(NEW)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Shared:
    world = World(tmp_path_factory.mktemp("kill"))
    shared = Shared(world, {}, {version: world.top / f"prefix-{version}" for version in (OLD, NEW)})
    for version in (OLD, NEW):
        world.wheel("alpha", version)
        world.lock(world.stack(packages=[f"alpha=={version}"]))
        (world.top / version).mkdir()
        for suffix in ("yaml", "lock.toml"):
            shutil.copy(world.work / f"tiny.{suffix}", world.top / version / f"tiny.{suffix}")
        shared.roots[version] = world.built()["root"]
        shutil.copytree(world.prefix, shared.built[version], symlinks=True)
        shutil.rmtree(world.prefix)
    return shared


IN_USE = {"update": OLD, "repair": NEW}


@pytest.fixture(params=list(WHOM))
def scenario(request: pytest.FixtureRequest, shared: Shared) -> str:
    """The prefix is as `Shared.prepare` has it."""
    shared.prepare(request.param)
    return str(request.param)


def in_use(shared: Shared) -> str:
    return shared.world.python("import alpha; print(alpha.VERSION)")


def check_convergence(shared: Shared, *, again: bool = False) -> None:
    """A rerun of the plain command ends well with the root of an undisturbed build, and nothing is left over.

    One more run does nothing then, and every file is as it was built.

    `again`: a repair was killed. The plain command finds nothing to do then, and the next repair discards what is left.
    """
    world = shared.world
    evidence = world.built()
    if again:
        assert (evidence["root"], in_use(shared)) == (shared.roots[NEW], NEW)
        evidence = world.built("--repair")
        assert [path.name for path in (world.prefix / "envs").iterdir()] == [world.current.name]
    assert evidence["root"] == shared.roots[NEW]
    assert in_use(shared) == NEW
    again = world.provision()
    assert (again.rc, again.json["steps_run"], again.node["root"]) == (0, 0, shared.roots[NEW])
    deep = world.run("verify", "--stack", "./tiny.yaml", "--json")
    assert (deep.rc, deep.node["drift"]) == (0, []), deep.err
    left = [*world.prefix.glob("lease.json*"), *world.prefix.glob("envs/*.trash-*"), *world.prefix.glob("tmp/*")]
    assert left == []


def check_killed(shared: Shared, scenario: str, kind: str, step: str, whom: str) -> None:
    """A run is killed after an event; what was in use is in use, or what comes after it."""
    status = shared.kill(kind, step, whom, *(["--repair"] if scenario == "repair" else []))
    # A step whose program is killed ends the run; between two steps there is no program.
    assert status in (0, 4) if whom == "others" else status == -signal.SIGKILL, (kind, step, status)
    if scenario in IN_USE:
        # The new one is in use as soon as it has been activated, which an orphan may still do now.
        assert in_use(shared) in (IN_USE[scenario], NEW)
        assert in_use(shared) == IN_USE[scenario] or kind not in BEFORE_WORK


@pytest.mark.parametrize(("scenario", "whom"), CHAINS, indirect=["scenario"])
def test_runs_killed_one_after_the_other_before_they_activate_leave_what_was_in_use_and_a_rerun_converges(
    shared: Shared, scenario: str, whom: str
) -> None:
    assert BEFORE_WORK == ["run-started", "contacted", "resolved", "planned", "playbook-started"]
    points = [(STARTED, "install"), (STARTED, "smoke")]
    if whom == "self":
        points = [(STARTED, "install"), (FINISHED, "install"), (STARTED, "smoke"), (FINISHED, "smoke")]
        points = [(kind, "") for kind in BEFORE_WORK] + points
    for kind, step in points:
        if scenario == "update" and in_use(shared) == NEW:
            # An orphan has activated it: the next run would have no step to be killed in.
            shared.prepare(scenario)
        check_killed(shared, scenario, kind, step, whom)
    runs = shared.world.good("run", "list", "--json").json["runs"]
    assert whom == "others" or runs[0]["status"] == "died"
    check_convergence(shared, again=scenario == "repair")
    assert orphans(shared.world) == []


@pytest.mark.parametrize(("scenario", "kind", "step", "whom"), ENDS, indirect=["scenario"])
def test_a_killed_run_leaves_what_was_in_use_and_a_rerun_converges(
    shared: Shared, scenario: str, kind: str, step: str, whom: str
) -> None:
    check_killed(shared, scenario, kind, step, whom)
    check_convergence(shared, again=scenario == "repair")
    assert orphans(shared.world) == []


DEAD = {
    "boot_id": "0", "controller": {}, "host": "vm", "pid": 99, "pidns": "x", "run": "20261125T100000Z-dead",
    "started": "1", "token": "aa",
}  # fmt: skip


AWAY = [
    ("of a dead run", "old-20261125T100000Z-dead", False), ("of a dead run", "old-x", True), ("none", "old-x", False),
    ("damaged", "old-x", False), ("none", "trash-123", False),
]  # fmt: skip


@pytest.mark.parametrize("scenario", ["repair"], indirect=True)
@pytest.mark.parametrize(("lease", "end", "half"), AWAY)
def test_d100_an_environment_that_was_moved_away_is_built_by_a_plain_run(
    shared: Shared, scenario: str, lease: str, end: str, half: bool
) -> None:
    world = shared.world
    environment = world.current
    moved = environment.rename(environment.with_name(f"{environment.name}.{end}"))
    (moved / "notes.txt").write_text("a user's")
    if half:
        (environment / "bin").mkdir(parents=True)
    if lease != "none":
        (world.prefix / "lease.json").write_text(json.dumps(DEAD) if lease == "of a dead run" else "")
        os.utime(world.prefix / "lease.json", (time.time() - 3600,) * 2)
    assert [item["path"] for item in world.good("status", "--all", "--json").json["environments"]] == (
        [str(environment)] if half else []
    )
    check_convergence(shared)
    assert [path.read_text() for path in world.prefix.rglob("notes.txt")] == ["a user's"]


@pytest.mark.parametrize("scenario", ["repair"], indirect=True)
def test_d101_the_environment_in_use_imports_at_every_moment_of_its_repair(shared: Shared, scenario: str) -> None:
    world = shared.world
    before = world.current
    process = world.start("provision", "--target", "local", "--stack", "./tiny.yaml", "--repair", "--json")
    imported = 0
    while process.poll() is None:
        argv = [str(world.prefix / "current/tiny/bin/python"), "-I", "-c", "import alpha; print(alpha.VERSION)"]
        done = completed(argv)
        assert done.stdout == f"{NEW}\n", done.stderr
        imported += 1
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert imported > 5
    assert json.loads(out)["nodes"][0]["root"] == shared.roots[NEW]
    assert world.current == before.with_name(f"{before.name}.2")
    assert [path.name for path in (world.prefix / "envs").iterdir()] == [world.current.name]
    check_convergence(shared)


@pytest.mark.parametrize("scenario", ["update"], indirect=True)
def test_d100_a_prune_that_is_killed_at_any_moment_leaves_the_environment_in_use_and_a_rerun_converges(
    shared: Shared, scenario: str
) -> None:
    world = shared.world
    world.built()
    (world.prefix / "envs" / next(iter(unused(world))) / "notes.txt").write_text("a user's")
    saved = shutil.copytree(world.prefix, world.top / "before-prune", symlinks=True)
    command = ("store", "clean", "--only", "environments", "--keep", "0s", "--yes")
    started = time.monotonic()
    world.good(*command)
    whole = time.monotonic() - started
    for share in range(1, 11):
        shutil.rmtree(world.prefix)
        shutil.copytree(saved, world.prefix, symlinks=True)
        process = world.start(*command)
        time.sleep(whole * share / 10)
        for number in (*descendants(process.pid), process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        process.communicate(timeout=PATIENCE)
        assert in_use(shared) == NEW
        world.good(*command)
        assert unused(world) == set()
        assert [path.read_text() for path in world.prefix.rglob("notes.txt")] == ["a user's"]
    check_convergence(shared)
    shutil.rmtree(saved)


def unused(world: World) -> set[str]:
    """Names of folders among the environments that are not the one in use."""
    return {path.name for path in (world.prefix / "envs").iterdir()} - {world.current.name}


def own_files(world: World) -> dict[Path, bytes]:
    """What envbuild itself has written below the prefix, the home and the runs for a later run to read."""
    places = [path for top in (world.prefix, world.home, world.runs) for path in top.rglob("*")]
    return {
        path: path.read_bytes()
        for path in places
        if path.suffix in (".json", ".jsonl", ".toml", ".txt", ".yaml") and path.is_file() and not path.is_symlink()
        and not {"site-packages", "uv"} & set(path.parts)
    }  # fmt: skip


TORN = [
    (STARTED, "install", 0.5), (FINISHED, "smoke", 0.0), (FINISHED, "smoke", 0.5),
    (EventKind.EVIDENCE_WRITTEN, "", 0.5),
]  # fmt: skip


@pytest.mark.parametrize("scenario", ["first"], indirect=True)
@pytest.mark.parametrize(("kind", "step", "share"), TORN)
def test_files_of_our_own_that_a_killed_run_left_torn_are_no_mistake_of_envbuild(
    shared: Shared, scenario: str, kind: str, step: str, share: float
) -> None:
    world = shared.world
    assert shared.kill(kind, step, "all") == -signal.SIGKILL
    found = own_files(world)
    for path, content in found.items():
        path.write_bytes(content[: int(len(content) * share)])
    lease = world.prefix / "lease.json"
    assert (lease in found) == (kind == FINISHED)
    for verb in ("run list", "run show", "report show", "status", "status --all", "store list"):
        done = world.run(*verb.split())
        assert done.rc != 70 and done.code != "node-internal", f"{verb}\n{done.err}"
    if lease in found:
        os.utime(lease, (0, 0))  # one that cannot be read counts until its heartbeat is old
    check_convergence(shared)


@pytest.mark.parametrize("scenario", ["first"], indirect=True)
@pytest.mark.parametrize(
    ("number", "at"),
    [
        *((number, at) for number in (signal.SIGINT, signal.SIGTERM) for at in ("contacting", "localhost: toolchain")),
        (signal.SIGHUP, "localhost: toolchain"),
    ],
)
def test_d105_an_interrupted_run_says_so_and_a_rerun_converges(
    shared: Shared, scenario: str, number: signal.Signals, at: str
) -> None:
    world = shared.world
    process = world.start("provision", "--target", "local", "--stack", "./tiny.yaml")
    lines_until(process, lambda line: line.startswith(at))
    os.kill(process.pid, number)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == (130 if number == signal.SIGINT else 143), err
    assert "the same command continues" in err
    assert out == ""
    run = world.good("run", "list", "--json").json["runs"][0]
    assert run["status"] == "interrupted"
    assert world.events()[-1]["kind"] == "interrupted"
    assert orphans(shared.world) == []
    assert not (world.prefix / "current" / "tiny").exists()
    check_convergence(shared)


def orphans(world: World) -> list[str]:
    """Processes of this world's playbook runs that are still there a while after."""
    end = time.monotonic() + PATIENCE
    while True:
        found = [entry.name for entry in Path("/proc").glob("[0-9]*") if _ours(entry, world)]
        if not found or time.monotonic() > end:
            return found
        time.sleep(0.1)


def _ours(entry: Path, world: World) -> bool:
    try:
        environment = (entry / "environ").read_bytes()
    except OSError:
        return False
    return f"{MARKER}=".encode() in environment and f"ENVBUILD_RUNS={world.runs}\0".encode() in environment
