"""The commands of README and docs that name shipped stacks and would need GPUs, a network or a registry of images, as
they are written, with small contents under those names (`support/small_stacks.py`)."""

from __future__ import annotations

import re
import shlex
import shutil
from html import unescape

import pytest
import yaml

from envbuild import resources
from envbuild.catalog.loader import load_stack
from envbuild.lock.files import read_lock
from envbuild.node.smoke import training_data
from tests.container.storage import BASE, Storage
from tests.e2e.world import Done, World
from tests.support.programs import executable
from tests.support.repositories import git
from tests.support.small_stacks import Machine, Shelf
from tests.support.wheels import write_wheel
from tests.test_snippets import TOP, of, run
from tests.test_snippets_others import shown

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
# What a command that did its work prints.
SAYS = {
    r"^envbuild provision .*--check-rebuild": r"built again:\s+equal",
    r"^envbuild provision ": r"is provisioned on (1 node|4 nodes)|nothing to do",
    r"^envbuild bench .* --dry-run": r"measures wps in words/s of the run below",
    r"^envbuild bench megatron-alpa ": r"ran on 1 node: [0-9.]+ TFLOP/s per GPU",
    r"^envbuild bench megatron-deepspeed-slurm ": r"ran on 1 node: 127 ms",
    r"^envbuild bench opt-175b ": r"ran on 1 node: 210,000 words/s",
    r"^envbuild bench ./nanogpt": r"ran on 1 node: 135 ms",
    r"^envbuild data ": r"/data/my-gpt2_text_document\.bin\n",
    r"^envbuild launch megatron-alpa ": r"Values: \{'tflops'",
    r"^envbuild launch ./nanogpt": r"\ntorchrun --nproc-per-node 8 --nnodes 1 ",
    r"^envbuild launch ": r"iteration +20/ +20 \|",
    r"^envbuild image build ": r"localhost/envbuild/torch-smoke:exact-[0-9a-f]{12}\b",
    r"^envbuild image verify .*--smoke": r"smoke/sound",
    r"^envbuild image verify ": r"as locked",
    r"^envbuild plan ": r"plan: opt-175b \(exact\) on my-slurm\b",
    r"^envbuild bundle create ": r"house: torch-smoke",
    r"^envbuild doctor ": r"a login node of slurm",
    r"^envbuild explain ": r"findings: [0-9]+ wrong, .*\nannotated document: opt\.html\n",
    r"^envbuild strategy ": r"\nthe best: envbuild launch megatron-alpa --profile ported --target h200 ",
}
TORCH = "__version__ = '2.1.0+cpu'\n\n\nclass version:\n    cuda = None\n"
# What the pages build before them, in other words.
BEFORE = (
    ("opt-175b", "exact", "local"),
    ("megatronapp", "exact", "local"),
    ("megatron-deepspeed-alcf", "ported-cu130", "h200"),
    ("megatron-deepspeed-slurm", "ported-cu130", "h200"),
)
PORTED = {"megatron-alpa": "ported", "megatron-deepspeed-slurm": "ported-cu130", "opt-175b": "ported-cu130"}


@pytest.fixture
def machine(world: World) -> Machine:
    machine = Machine(world, "h200", compiled="megatron-alpa")
    for name, profile, target in BEFORE:
        machine.small(name, profile)
        world.good("provision", "--stack", name, "--profile", profile, "-t", target, before=machine.before)
    for name, profile in PORTED.items():
        machine.small(name, profile)
    page = (TOP / "docs" / "launch.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```yaml\n(reference:\n.*?)^```", page, re.MULTILINE | re.DOTALL)
    machine.own("nanogpt", yaml.safe_load(block)["reference"])
    (world.work / "data").mkdir()
    training_data.write_gpt2(str(world.work / "data"))
    return machine


def wrong(command: str, code: int, done: Done) -> str:
    """What is wrong with the end of a command; empty when nothing is."""
    says = next(words for pattern, words in SAYS.items() if re.search(pattern, command))
    if done.rc == code and re.search(says, done.out + done.err):
        return ""
    return f"{command}: exit {done.rc}, no {says!r}\n{done.out[-1500:]}{done.err[-1500:]}"


def test_every_command_of_the_pages_about_gpus_runs_as_it_is_written(machine: Machine) -> None:
    # What compares a second build comes first: later nothing is built any more.
    given = sorted(of("gpus"), key=lambda told: "--check-rebuild" not in told[1])
    assert len(given) > 10
    told = [wrong(command, code, run(machine.world, command, before=machine.before)) for _, command, code in given]
    assert not any(told), "\n\n".join(filter(None, told))


def test_the_document_is_annotated_as_it_is_written(world: World) -> None:
    """The document lies on another host and is not ours: here it is the words that the findings are about."""
    shelf = Shelf(world)
    stack = load_stack("opt-175b").stack
    anchors = [anchor for each in stack.findings for anchor in (each.anchor, *each.also) if anchor]
    assert stack.document is not None and stack.document.path is not None and len(anchors) > 10
    pin = world.repository("documents", {stack.document.path: "# A guide\n\n" + "\n\n".join(anchors) + "\n"})
    with (world.home / ".gitconfig").open("a") as config:
        config.write(f'[url "file://{world.hub}/documents"]\n\tinsteadOf = {stack.document.url}\n')
    for name in ("allowFilter", "allowAnySHA1InWant"):
        git(world.hub / "documents", "config", f"uploadpack.{name}", "true")
    document = stack.document.to_json_dict() | {"commit": pin["commit"], "sha256": None}
    shelf.put("opt-175b", document={key: value for key, value in document.items() if value is not None})
    for _, command, code in of("document"):
        assert wrong(command, code, run(world, command, before=shelf.before)) == ""
        page = (world.work / "opt.html").read_text()
        assert all(each.id in page for each in stack.findings) and anchors[0] in unescape(page)
        (world.work / "opt.html").unlink()


def _built_as_with_docker(world: World, shelf: Shelf) -> None:
    """The tutorial's `docker build`, which buildah does here; it has the wheels that the lock names from a folder."""
    world.good("image", "dockerfile", "torch-smoke", "--output", "image", before=shelf.before)
    (world.top / "pip.conf").write_text("[global]\nno-index = true\n")
    (world.top / "uv.toml").write_text("[pip]\nno-index = true\n")
    options = [f"--secret=id={name},src={world.top / name}" for name in ("pip.conf", "uv.toml")]
    options += ["--isolation", "chroot", f"--build-context=wheelhouse={world.top / 'house'}"]
    docker = executable(
        world.top / "docker" / "docker",
        f'#!/bin/sh\n[ "$1" = build ] || exit 2\nshift\nexec buildah bud {shlex.join(options)} "$@"\n',
    )
    (line,) = shown("images-in-ci.md", "docker ")
    done = run(world, f"PATH={docker.parent}:$PATH; {line}")
    assert done.rc == 0, done.err


def test_an_image_is_built_and_verified_as_it_is_written(world: World, storage: Storage) -> None:
    """The bases have the names of the catalog's, and are a Debian made here with its Python at their place."""
    (documented,) = {
        digest for _, command, _ in of("images") for digest in re.findall(r":exact-([0-9a-f]{12})", command)
    }
    lock = read_lock(resources.lockfiles() / "torch-smoke.exact.lock.toml")
    assert [each.id for each in lock.variants if each.digest.startswith(documented)] == ["cp311-linux_x86_64-cpu"]
    world.env |= storage.env
    container = storage.buildah("from", "--pull-never", BASE)
    storage.buildah(
        "run", "--isolation", "chroot", container, "--", "ln", "-s", "/usr/bin/python3.11", "/usr/local/bin/"
    )
    for name in ("3.11-slim-bookworm", "3.12-bookworm"):
        storage.buildah("commit", "-q", container, f"docker.io/library/python:{name}")
    storage.buildah("rm", container)
    house = storage.house(world.top)
    shutil.copy(
        write_wheel(world.wheels, "torch", "2.1.0+cpu", {"torch/__init__.py": TORCH.encode()}), house / "wheels"
    )
    world.env["PIP_FIND_LINKS"] = f"{world.wheels} {house / 'wheels'} {house / 'tools'}"
    shelf = Shelf(world)
    exact = {"python": ["3.11"], "torch": {"version": "2.1.0", "flavours": ["cpu"]}, "smoke": [{"name": "sound"}]}
    shelf.put("torch-smoke", profiles={"exact": exact})
    (variant,) = read_lock(shelf.lock("torch-smoke", "exact")).variants
    _built_as_with_docker(world, shelf)
    told = []
    for _, command, code in of("images"):
        done = run(world, command, before=shelf.before, **{documented: variant.digest[:12]})
        told.append(wrong(command, code, done))
    assert not any(told), "\n\n".join(filter(None, told))


PLANNED = {command for room in ("gpus",) for _, command, _ in of(room) if "provision" in command}


@pytest.mark.parametrize("command", sorted(PLANNED))
def test_the_shipped_lock_itself_fits_the_target_that_a_page_names(world: World, command: str) -> None:
    words = [word for word in shlex.split(command)[2:] if word != "--check-rebuild"]
    done = world.good("plan", *words, "--facts", "h200")
    whose, first = (
        "example facts of h200: its nodes, GPUs, drivers and user `root`, not yours\n",
        r"plan: [a-z0-9-]+ \([a-z0-9-]+\) on h200\n",
    )
    assert re.match(whose + first, done.out) and "    install    build " in done.out
