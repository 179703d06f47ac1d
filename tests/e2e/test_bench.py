"""`bench` through the real command: a stack in the shape of Alpa's, whose launcher and script are stand-ins."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from envbuild.transport.processes import _marked
from tests.e2e.world import Done, World
from tests.support.patience import PATIENCE, with_deadline
from tests.transport.sshd import Server, make_key, require_sshd, user

LAUNCHER = b"""
import os, runpy, socket, sys
if "--master_port" in sys.argv and os.environ["NODE_RANK"] == "0":
    listening = socket.create_server(("", int(sys.argv[sys.argv.index("--master_port") + 1])))
script = next(word for word in sys.argv if word.endswith(".py") and word != sys.argv[0])
sys.argv = sys.argv[sys.argv.index(script):]
runpy.run_path(script, run_name="__main__")
"""
CASE = """
import os, sys, time
what = os.environ.get("CASE", "")
rank, folder = os.environ.get("NODE_RANK"), os.path.dirname(sys.argv[-1])
told, checkpoint = os.path.join(os.path.dirname(folder), "case"), os.path.join(folder, "checkpoint")
if rank in (None, "0"):
    # As trainings do: a run goes on from the checkpoint of another one in its folder, and has nothing left to do.
    if os.path.exists(checkpoint):
        print("trained to the end already", flush=True)
        sys.exit(0)
    open(checkpoint, "w").close()
if rank and os.path.exists(told):
    # Of nodes over SSH, one does what a file above the output folder says.
    one, _, does = open(told).read().partition(" ")
    print("node", rank, "speaks", flush=True)
    what = does if one == rank else "wait"
if what == "wait":
    time.sleep(600)
print("building GPT model ... token", os.environ.get("PLANTED_TOKEN"), flush=True)
if what == "hang":
    print("waiting for rank 3", flush=True)
    time.sleep(600)
if what != "silent":
    print("Values: {'tflops': np.float64(%s), 'parameter_count': 0.3}" % os.environ.get("TFLOPS", "48.0"), flush=True)
sys.exit(3 if what == "crash" else 0)
"""
REFERENCE = {
    "models": [{"name": "350M", "layers": 24, "hidden": 1024, "heads": 16, "sequence": 1024, "vocabulary": 51200}],
    "cases": [
        {"gpus": 1, "model": "350M", "global_batch": 128, "dp": 1, "tmp": 1, "pp": 1, "microbatches": 8,
         "tflops": 47.53, "best": True, "gpu": "V100-SXM2-16GB", "source": "the test"},
        {"gpus": 2, "model": "350M", "global_batch": 128, "dp": 2, "tmp": 1, "pp": 1, "microbatches": 8,
         "tflops": 45.1, "best": True, "gpu": "V100-SXM2-16GB", "source": "the test"},
    ],
    "bench": {"log": "alpa", "metric": "tflops", "unit": "TFLOP/s per GPU"},
    "launch": {
        "recipe": "alpa", "source": "alpa", "folder": "bench",
        "arguments": ["-m", "{module}", "--nproc_per_node", "{gpus_per_node}",
                      {"when": "several", "words": ["--master_port", "{port}"]}, "case.py", "{case}", "{results}"],
    },
}  # fmt: skip


def timed(top: Path, torch: bytes, case: str, reference: dict[str, Any]) -> World:
    """A world with the stack `timed` in use: a torch that has only its launcher, and a case to run."""
    world = World(top)
    files = {"torch/__init__.py": torch, "torch/distributed/__init__.py": b"", "torch/distributed/launch.py": LAUNCHER}
    world.wheel("launcher", files=files)
    alpa = {**world.repository("alpa", {"bench/case.py": case}), "ref": "main", "install": "path"}
    world.lock(world.stack("timed", ["launcher==1.0"], sources=[alpa], reference=reference))
    world.built(stack="./timed.yaml")
    return world


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> World:
    return timed(tmp_path_factory.mktemp("bench"), b"", CASE, REFERENCE)


ARGS = ("./timed.yaml", "--target", "local", "--gpus-per-node", "1")


def test_the_figure_of_the_run_is_beside_the_claim_in_evidence_and_report(built: World) -> None:
    done = built.run("bench", *ARGS, "--trials", "2", "--json", rc=0)
    check = done.node["checks"][-1]
    assert (check["name"], check["status"]) == ("bench", "passed")
    (measured,) = check["metrics"]
    assert (measured["n"], measured["median"], measured["unit"]) == (2, 48.0, "TFLOP/s per GPU")
    told = check["comparison"]
    assert (told["claim"], told["claim_gpu"], told["verdict"]) == (47.53, "V100-SXM2-16GB", "not-comparable")
    assert done.node["root"] and done.node["packages"] == {"launcher": "1.0"}
    run = built.runs / done.json["run"]
    assert "np.float64(48.0)" in (run / "logs/bench-2.log").read_text()
    for page in ("report.html", "report.md"):
        assert "47.53" in (run / page).read_text(), page
    text = " ".join(built.good("bench", *ARGS).out.split())
    assert "timed (exact) ran on 1 node: 48 TFLOP/s per GPU, not comparable: no GPU here (claimed for" in text


def wrote(done: Done) -> str:
    """The folder that the last trial wrote into, by the words of its command."""
    (command,) = done.node["checks"][-1]["details"]["launch"]["commands"]
    return os.path.dirname(command["argv"][-1])


def test_every_trial_of_every_bench_is_a_whole_run_in_a_folder_of_its_own(built: World) -> None:
    output, folders = built.top / "out", set[str]()
    for trials, case in ((2, ""), (2, "crash"), (2, "")):
        done = built.run("bench", *ARGS, "--trials", str(trials), "--output", str(output), "--json", env={"CASE": case})
        check = done.node["checks"][-1]
        ran = 1 if case else trials
        assert (done.rc, len(check["details"]["values"])) == (int(bool(case)), ran), check["says"]
        folders |= {str(output / f"timed-{done.json['run']}-{number}") for number in range(1, ran + 1)}
        assert wrote(done) == str(output / f"timed-{done.json['run']}-{ran}"), "what is told is what was run"
    assert {str(path.parent) for path in output.rglob("checkpoint")} == folders == set(map(str, output.iterdir()))


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("crash", "it ended with exit code 3"),
        ("silent", "its log has 0 of at least 1 lines with `tflops`"),
        ("hang", "timed out after {deadline} s"),
    ],
)
def test_a_run_that_crashes_hangs_or_tells_no_figure_is_a_failure(built: World, case: str, says: str) -> None:
    last = {"crash": "np.float64", "silent": "building GPT model", "hang": "waiting for rank 3"}[case]

    def run(deadline: float) -> Done:
        args = ("--trials", "2", "--run-timeout", f"{deadline}s", "--json")
        return built.run("bench", *ARGS, *args, env={"CASE": case})

    deadline, done = with_deadline(
        run, 2 if case == "hang" else PATIENCE, lambda done: last in done.node["checks"][-1]["details"]["output"]
    )
    assert done.rc == 1, done.out[-2000:]
    check = done.node["checks"][-1]
    told = says.format(deadline=deadline)
    assert (check["status"], told in check["says"]) == ("failed", True), check["says"]
    assert last in check["details"]["output"]
    logs = built.runs / done.json["run"] / "logs"
    assert [path.name for path in logs.glob("bench-*.log")] == ["bench-1.log"], "no other run is started"
    hint = done.error["hint"]
    assert hint.startswith("read logs/bench-1.log in the folder of the run; again: envbuild bench")


def test_a_log_from_elsewhere_is_read_without_a_run(built: World, tmp_path: Path) -> None:
    log = tmp_path / "job.out"
    log.write_text("0: Values: {'tflops': 50.5, 'parameter_count': 0.3}\n")
    done = built.run("bench", *ARGS, "--log", str(log), "--json")
    check = done.node["checks"][-1]
    assert (done.rc, check["metrics"][0]["median"]) == (0, 50.5), done.err
    assert (check["status"], check["level"], check.get("seconds")) == ("skipped", "not-checked", None)
    assert check["says"].startswith("nothing ran here, a log was read; not comparable: the GPU that it ran on is not")
    text = " ".join(built.good("bench", *ARGS, "--log", str(log)).out.split())
    assert "timed (exact) did not run here; its log says 50.5 TFLOP/s per GPU, not comparable" in text
    log.write_text("building GPT model\n")
    failed = built.run("bench", *ARGS, "--log", str(log), "--json")
    assert (failed.rc, failed.node["checks"][-1]["level"]) == (1, "not-checked")


@pytest.fixture(scope="module")
def ssh(built: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """`work/ssh.yaml`: two SSH hosts that share the prefix."""
    require_sshd()
    top = tmp_path_factory.mktemp("ssh")
    key = make_key(top / "id")
    servers = [Server(top / f"node{number}", f"127.0.0.{20 + number}", key).start() for number in range(2)]
    (top / "known").write_text("".join(server.known for server in servers))
    hosts = {server.address: {"port": server.port} for server in servers}
    connection = {"user": user(), "identity": str(key), "known_hosts": str(top / "known"), "hosts": hosts}
    target = {
        "name": "nodes", "extends": "ssh", "hosts": list(hosts), "connection": connection, "stack": "./timed.yaml",
        "prefix": str(built.prefix),
    }  # fmt: skip
    (built.work / "ssh.yaml").write_text(yaml.safe_dump(target))
    yield built
    for server in servers:
        server.stop()


def over_ssh(world: World, *more: str) -> Done:
    given = ("--target", "./ssh.yaml", "--gpus-per-node", "1", "--json", *more)
    return world.run("bench", "./timed.yaml", *given, timeout=240)


@pytest.mark.slow
def test_a_run_over_ssh_is_measured_in_the_environment_of_its_node(ssh: World) -> None:
    done = over_ssh(ssh, "--trials", "2")
    assert done.rc == 0, (done.out[-2000:], done.err)
    check = done.node["checks"][-1]
    assert (check["metrics"][0]["median"], check["comparison"]["percent"]) == (48.0, 101.0)
    assert "no GPU here (claimed for V100-SXM2-16GB)" in check["says"]
    (command,) = check["details"]["launch"]["commands"]
    assert command["argv"][0].startswith(done.node["environment"])
    assert "np.float64(48.0)" in (ssh.runs / done.json["run"] / "logs/bench-1.log").read_text()
    assert check["metrics"][0]["n"] == 2
    folders = [str(ssh.prefix / "launches" / f"timed-{done.json['run']}-{number}") for number in (1, 2)]
    assert sorted(map(str, (ssh.prefix / "launches").iterdir())) == folders, "below the prefix of the node"
    assert wrote(done) == folders[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "says"), [("1 hang", "timed out after {deadline:g} s"), ("1 crash", "it ended with exit code 3")]
)
def test_of_nodes_over_ssh_the_last_line_of_each_is_told_and_nothing_stays_behind(
    ssh: World, tmp_path: Path, case: str, says: str
) -> None:
    (tmp_path / "case").write_text(case)
    last = "1: waiting for rank 3" if "hang" in case else "1: Values: "

    def run(deadline: float) -> Done:
        where = ("--nodes", "2", "--port", "29417", "--output", str(tmp_path))
        return over_ssh(ssh, *where, "--run-timeout", f"{deadline}s")

    def told(done: Done) -> bool:
        output = done.json["nodes"][0]["checks"][-1]["details"]["output"].splitlines()
        return "0: node 0 speaks" in output and any(line.startswith(last) for line in output)

    deadline, done = with_deadline(run, 4 if "hang" in case else PATIENCE, told)
    assert done.rc == 1, (done.out[-2000:], done.err)
    check = done.json["nodes"][0]["checks"][-1]
    assert (check["status"], says.format(deadline=deadline) in check["says"]) == ("failed", True), check["says"]
    assert told(done), check["details"]["output"]
    # The value begins with the process of the command; a bench of another test that runs beside this one is alive.
    owners = {pid: int(value.partition(".")[0]) for pid, value in _marked("ENVBUILD_BENCH_RUN").items()}
    assert [pid for pid, owner in owners.items() if not Path(f"/proc/{owner}").exists()] == [], "nothing stays behind"


def test_a_secret_that_a_run_prints_is_in_no_file(built: World) -> None:
    canary = "canary-0a52c6f17b"
    done = built.run("bench", *ARGS, "--json", env={"PLANTED_TOKEN": canary}, fresh=True)
    run = built.runs / done.json["run"]
    held = [path for path in run.rglob("*") if path.is_file() and canary.encode() in path.read_bytes()]
    assert (held, canary in done.out + done.err) == ([], False)


def test_what_cannot_be_measured_or_is_not_built_is_refused(built: World, world: World) -> None:
    empty = ("--profile", "exact", "--prefix", str(built.top / "empty"))
    done = built.refused(1, "environment-unknown", "bench", *ARGS, *empty)
    assert "envbuild provision ./timed.yaml" in " ".join(done.err.split())
    world.tiny()
    assert world.run("bench", "./tiny.yaml", *ARGS[1:]).code == "no-recipe"
    assert built.run("bench", *ARGS, "--set", "dp=x").code == "launch-parameter"
    built.refused(7, "launch-does-not-fit", "bench", *ARGS, "--nodes", "2")
    far = built.work / "far.yaml"
    far.write_text("name: far\nextends: ssh\nhosts: [gpu1]\nprefix: /opt/envbuild\n")
    asked = ("./timed.yaml", "--target", "./far.yaml", "--gpus-per-node", "1", "--nodes", "2")
    built.refused(7, "launch-does-not-fit", "bench", *asked)
    bare = {key: value for key, value in REFERENCE.items() if key != "bench"}
    stack = yaml.safe_load((built.work / "timed.yaml").read_text())
    (built.work / "bare.yaml").write_text(yaml.safe_dump(stack | {"reference": bare}))
    shutil.copy(built.work / "timed.lock.toml", built.work / "bare.lock.toml")
    assert built.run("bench", "./bare.yaml", *ARGS[1:]).code == "no-recipe"


OWN = {
    "figures": [{"name": "speed", "value": 1000, "unit": "tokens/s", "where": "README", "source": "own", "gpus": 1,
                 "gpu": "H100-SXM5-80GB"}],
    "launch": {"source": "nanoGPT", "arguments": ["python3", "train.py", "--steps={steps}"],
               "defaults": {"steps": "3"}},
    "bench": {"log": "step {step} ... loss {loss}, {speed} tokens/s", "metric": "speed", "unit": "tokens/s",
              "warmup": 1, "figure": "speed"},
}  # fmt: skip
TRAIN = """
import sys
for step in range(int(sys.argv[1].partition("=")[2])):
    print(f"step {step} of many: loss {4 - step}.5, {1000 + step:,} tokens/s", flush=True)
"""


@pytest.mark.slow
def test_d99_any_stack_file_has_launch_bench_and_a_claim_in_its_kit(world: World) -> None:
    (world.work / "mine").mkdir()
    (world.work / "mine/train.py").write_text(TRAIN)
    path = world.stack("mine", [], sources=[{"name": "nanoGPT", "path": "./mine"}], reference=OWN)
    world.lock(path)
    world.built(stack="./mine.yaml")
    here = ("./mine.yaml", "--target", "local", "--gpus-per-node", "1")
    assert "--steps=5" in world.good("launch", *here, "--set", "steps=5").out
    done = world.run("bench", *here, "--set", "steps=5", "--json", rc=0)
    check = done.node["checks"][-1]
    assert check["details"]["values"] == [1001, 1002, 1003, 1004]
    assert check["details"]["losses"] == [4.5, 3.5, 2.5, 1.5, 0.5]
    assert check["comparison"]["claim"] == 1000
    then = path.read_text()
    path.write_text(then.replace("summary:", "summary: New,"))
    world.good("report", "kit", done.json["run"], "--output", "kit")
    assert (world.work / "kit/mine.yaml").read_text() == then, "the kit of a run has the stack of its day"
    rows = (world.work / "kit/README.md").read_text()
    assert "envbuild bench ./mine.yaml --profile exact --nodes 1 --gpus-per-node 1` | 1,000 tokens/s" in rows
    assert "here no GPU; claimed on 1 × H100-SXM5-80GB | none |" in rows
    assert f"report of run {min(path.name for path in world.runs.iterdir())}, with the same files" in rows
    assert "- smoke: no smoke test ran in this run" in rows and "files: the reason is not published" in rows
    world.good("report", "verify", "kit")
