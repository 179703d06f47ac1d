"""Every command of a block of README and docs runs as it is written.

They run one after the other, for one user who has what the pages speak of; words in capitals are filled in. A comment
`# exit N` says with which code a command ends. What needs more than that user has runs in a test of its own (`ROOMS`):
with torch, through Slurm, on nodes, or with what stands in for GPUs, other hosts and the contents of shipped stacks.
Commands of other programs: `test_snippets_others.py`. Tutorials have their own test, and what it leaves is here; what
is generated has no blocks.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from envbuild.catalog.loader import load_stack, load_target
from envbuild.node.wheels.store import default_path
from tests.cli.test_env_shell import KERNEL
from tests.e2e.world import DEADLINE, MINOR, Done, World
from tests.node.pythons import find_python
from tests.node.wheel_support import filled
from tests.report.sealed import Sealed
from tests.support.conda import Channel, fill
from tests.support.files import write_file
from tests.support.programs import completed, executable
from tests.trace import support as trace
from tests.transport.sshd import Server, make_key
from tests.transport.sshd import user as user_name

TOP = Path(__file__).parents[1]
PAGES = [
    TOP / "README.md",
    *sorted(page for folder in (".", "dev") for page in (TOP / "docs" / folder).glob("*.md")),
]
LINE = re.compile(r'^(?:\$ | {4,})((?:eval "\$\(|timeout \w+ )?(?:envbuild|fab) .*)$', re.MULTILINE)
# What the test of the tutorials leaves.
LEFT = re.compile(r"<!-- not run: [^>]*-->\n+```console\n(.*?)^```", re.MULTILINE | re.DOTALL)

# What a command has that needs more than the user below, and the test that runs it.
ROOMS = {
    "torch": (
        r"^envbuild provision --target local$|^timeout 30m |torch-smoke (--target|-- )",
        "e2e/test_torch_smoke.py",
    ),
    "conda": (r"environment\.yml|--engine conda", "test_snippets.py"),
    "hosts": (r"^fab .*gpu0", "test_snippets.py"),
    "cluster": (r"(?<!init )\bcluster\.yaml|my-cluster\.yaml", "slurm/test_snippets.py"),
    "images": (r"(image (build|verify)|bundle create) .*torch-smoke", "test_snippets_shipped.py"),
    "nodes": (r"--target T$", "fleet/test_containers.py"),
    "document": (r"--output opt\.html", "test_snippets_shipped.py"),
    "opt": (r"(?<!init )my-slurm\.yaml", "slurm/test_snippets.py"),
    "gpus": (
        r"h200|nanogpt|megatronapp --gpus-per-node 4 --run|bench opt-175b --gpus-per-node 8$|"
        r"data megatron-deepspeed-slurm",
        "test_snippets_shipped.py",
    ),
}
FILLED = {
    "RUN": "last",
    "REPORT": "report.html",
    "FOLDER": "published",
    "KEY": "key",
    "TARGET": "lab.yaml",
    "STACK": "./my.yaml",
    "init my-slurm.yaml --extends": "init new.yaml --facts azure-nd96 --extends",  # asks nothing
}


def commands(text: str) -> list[tuple[str, int]]:
    """The commands of a page and their exit codes; continued lines are joined, comments left out."""
    found = LINE.findall(text.replace("\\\n", " "))
    ends = [re.search(r"# exit (\d+)", line) for line in found]
    return [(re.sub(r"\s+# .*", "", line), int(end[1]) if end else 0) for line, end in zip(found, ends, strict=True)]


def texts() -> list[tuple[str, str]]:
    """The pages, of tutorials what their own test leaves."""
    tutorials = sorted((TOP / "docs" / "tutorials").glob("*.md"))
    left = [(page.name, f"```console\n{text}```\n") for page in tutorials for text in LEFT.findall(page.read_text())]
    return [*((page.name, page.read_text(encoding="utf-8")) for page in PAGES), *left]


ALL = [(page, command, code) for page, text in texts() for command, code in commands(text)]

BLOCKS = [
    (page.name, text)
    for page in PAGES
    for text in re.findall(r"^```yaml[^\n]*\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
]


# A configuration of ssh is that of the account, not of HOME: this stands before ssh and knows the hosts' addresses.
SSH = """#!/bin/sh
for word; do
    case $word in gpu[0-9]*) exec {ssh} $(cat {top}/$word.options) "$@" ;; esac
done
exec {ssh} "$@"
"""


def of(room: str) -> list[tuple[str, str, int]]:
    """What runs in one of `ROOMS`; `""`: in none of them."""
    needs = [
        (next((name for name, (words, _) in ROOMS.items() if re.search(words, each[1])), ""), each) for each in ALL
    ]
    return [each for name, each in needs if name == room]


def test_every_command_has_a_room_and_every_room_a_test() -> None:
    assert len(of("")) >= 60 and all(of(room) for room in ROOMS)
    assert sum(len(of(room)) for room in ("", *ROOMS)) == len(ALL)
    for room, (_, test) in ROOMS.items():
        assert re.search(rf'(of|run_all)\((\n?\s*\w+,\s*)?"{room}"', (TOP / "tests" / test).read_text()), room


@pytest.mark.parametrize(("page", "text"), BLOCKS, ids=[page for page, _ in BLOCKS])
def test_a_block_of_yaml_is_accepted_where_it_is_to_stand(page: str, text: str, tmp_path: Path) -> None:
    told = yaml.safe_load(text)
    if isinstance(told, list):
        trainers = [{"name": each["step"]["source"], "install": "path"} for each in told]
        told = {"smoke": told, "sources": trainers, "torch": {"version": "2.1.0", "flavours": ["cpu"]}}
    elif set(told) == {"build"}:
        told = {"sources": [{"name": "own", **told}]}
    if "sources" in told:
        pin = {"git": "https://git.example.org/own", "commit": "c" * 40, "tree": "d" * 40}
        sources = [{**pin, **each, "commit": pin["commit"]} for each in told["sources"]]
        told = {"profiles": {"exact": {"python": ["3.11"], **told, "sources": sources}}}
    if set(told) & {"profiles", "conda", "reference"}:
        exact = {"python": ["3.11"]} | {key: told.pop(key) for key in ("conda",) if key in told}
        whole = {"name": "mine", "summary": "a test", "profiles": {"exact": exact}, **told}
        (tmp_path / "mine.yaml").write_text(yaml.safe_dump(whole))
        assert load_stack(str(tmp_path / "mine.yaml")).stack.profiles
    else:
        of_pbs = {"queue", "queues", "resources", "filesystems"} & set(told.get("scheduler", ()))
        base = "ssh" if "command" in told.get("hosts", ()) else "pbs" if of_pbs else "slurm"
        (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"name": "mine", "extends": base, **told}))
        assert load_target(str(tmp_path / "mine.yaml"), template=True).target.name == told.get("name", "mine")


@pytest.fixture
def user(world: World) -> World:
    """A stack of one wheel, locked and built here, as the only one of three targets; a run, a key, traces, a source."""
    world.wheel()
    world.wheel("ipykernel", "7.0", files={"ipykernel/__init__.py": "", "ipykernel/__main__.py": KERNEL})
    world.lock(world.stack("my", packages=("alpha==1.0", "ipykernel==7.0")))
    for name in ("lab", "my-target", "a100", "h100"):
        (world.work / f"{name}.yaml").write_text(f"name: {name}\nextends: local\nstack: {world.work}/my.yaml\n")
    config = world.home / ".config" / "envbuild" / "config.toml"
    write_file(config, f'target = "{world.work}/lab.yaml"\n')
    run = world.good("provision", "--json").json["run"]
    shutil.copy(world.runs / run / "report.html", world.work)
    shutil.copy(world.runs / run / "evidence.json", world.work)
    for name in ("trace_pipeline_4_model_chunks_4.txt", "node0.log", "node1.log"):
        trace.write(world.work / name, trace.iteration(8, 4, 8) if "4" in name else trace.iteration(8, 8, 8))
    rows = ({"num_updates": str(number), "loss": "7.5", "wps": "200000"} for number in range(30))
    lines = [f"2026-11-22 17:00:00 | INFO | train_inner | {json.dumps(row)}" for row in rows]
    (world.work / "opt.log").write_text("\n".join(lines))
    shutil.copy(TOP / "envbuild" / "catalog" / "facts" / "azure-nd96.json", world.work / "my-nodes.json")
    (world.work / "path" / "to" / "apex").mkdir(parents=True)
    edits = json.loads((TOP / "tests" / "node" / "data" / "edits" / "apex-cuda-check.json").read_text())
    (world.work / "path" / "to" / "apex" / "setup.py").write_text(edits[0]["before"])
    (world.work / "train.py").write_text("import alpha\n")
    (world.work / "README.md").write_text("# Their code\n\n```sh\npip install alpha==1.0\n```\n")
    write_file(world.work / "their-code" / "requirements.txt", "alpha==1.0\n")
    if usual := find_python("3.12"):  # what a draft takes where no file names a Python; else it is downloaded
        world.env["PATH"] += f":{Path(usual).parent}"
    for name in ("lab/code", "lab/model"):
        world.repository(name, {"requirements.txt": "alpha==1.0\n"})
        subprocess.run(["git", "-C", str(world.hub / name), "tag", "v1.2"], check=True)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(world.work / "key")], check=True)
    Sealed(world.top / "sealed").folder.rename(world.work / "A")
    Sealed(world.top / "sealed", 1, first=3, run="20260302T100000Z-5e5e").folder.rename(world.work / "B")
    return world


def run(world: World, command: str, *, before: Sequence[object] = (), **filled: str) -> Done:
    """A command of the pages, with the words in capitals filled in, and those that `filled` names."""
    command = command.replace("$PWD", str(world.work))
    for word, other in {**FILLED, **filled}.items():
        command = re.sub(rf"(?<![\w/]){re.escape(word)}(?!\w)", other, command)
    if command.startswith("envbuild") and not set("|&;$>") & set(command):
        return world.run(*shlex.split(command)[1:], **({"before": before} if before else {}))
    path = f"{Path(sys.executable).parent}:{world.env['PATH']}"
    done = completed(["bash", "-ec", command], cwd=world.work, env={**world.env, "PATH": path}, timeout=DEADLINE)
    return Done(done.returncode, done.stdout, done.stderr)


def run_all(world: World, room: str, *, before: Sequence[object] = (), **filled: str) -> None:
    """Every command of a room; all that end otherwise than their page says fail together."""
    failed, last = [], ""
    for page, command, code in of(room):
        if page != last:  # each page has a reader of its own
            shutil.rmtree(world.work / "kit", ignore_errors=True)
            last = page
        try:
            done = run(world, command, before=before, **filled)
        except subprocess.TimeoutExpired as late:
            done = Done(-1, repr(late.stdout), repr(late.stderr))
        if done.rc != code:
            failed.append(f"{page}: {command}: exit {done.rc}\n{done.out[-600:]}{done.err[-600:]}")
    assert not failed, "\n\n".join(failed)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_command_of_the_pages_runs_as_it_is_written(user: World) -> None:
    filled(Path(default_path(str(user.prefix))), user.top)
    run_all(user, "")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_environment_yml_as_the_pages_have_it(user: World, conda_python: Path) -> None:
    channel = fill(Channel(user.top / "forge", "forge"), conda_python)
    text = f"name: tiny\nchannels: ['{channel.url}']\ndependencies: [python={MINOR}, pure, {{pip: [alpha==1.0]}}]\n"
    (user.work / "environment.yml").write_text(text)
    run_all(user, "conda")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_hosts_by_the_names_of_the_pages(world: World) -> None:
    servers = {name: _server(world, number, name) for number, name in enumerate(("gpu01", "gpu02", "gpu07"), start=2)}
    try:
        ssh = executable(world.top / "bin" / "ssh", SSH.format(top=world.top, ssh=shutil.which("ssh")))
        world.env["PATH"] = f"{ssh.parent}:{world.env['PATH']}"
        del world.env["ENVBUILD_PREFIX"]
        world.wheel()
        world.lock(world.stack("my"))
        lab = {"name": "lab", "extends": "ssh", "hosts": ["gpu01", "gpu07"], "stack": f"{world.work}/my.yaml"}
        (world.work / "lab.yaml").write_text(yaml.safe_dump(lab))
        assert "preparing tools for 2 nodes\n" in world.good("provision", "--target", "./lab.yaml").err
        other = f"{user_name()}@gpu02:{servers['gpu02'].port}"
        run_all(world, "hosts", **{"me@gpu02:2222": other, "torch-smoke": "./my.yaml"})
    finally:
        for server in servers.values():
            server.stop()


def _server(world: World, number: int, name: str) -> Server:
    """An ssh server, and beside it the options with which a client reaches it."""
    key = world.top / "id"
    if not key.exists():
        make_key(key)
    server = Server(world.top / name, f"127.0.0.{number}", key).start()
    write_file(server.home / ".pip" / "pip.conf", f"[global]\nno-index = true\nfind-links = {world.wheels}\n")
    (world.top / f"{name}.known").write_text(server.known)
    told = {"HostName": server.address, "Port": server.port, "IdentityFile": key,
            "UserKnownHostsFile": world.top / f"{name}.known"}  # fmt: skip
    (world.top / f"{name}.options").write_text(" ".join(f"-o {option}={value}" for option, value in told.items()))
    return server
