"""How a node runs an image: the argument list of each runtime, what is chosen where, and what is refused with why."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from envbuild.container.run_options import CALLER, NODE, ContainerFacts, choose, launcher, runs_in_jobs_alone
from envbuild.model.target import ContainerSettings
from tests.support.fails import fails
from tests.support.programs import completed, executable

WORKS = {"works": True, "version": "4.3.1"}
DIGEST = "@sha256:" + "0" * 64


def _facts(*names: str, **more: Any) -> ContainerFacts:
    return ContainerFacts({name: {**WORKS, "path": f"/usr/bin/{name}"} for name in names}, **more)


def _command(runtime: str, facts: ContainerFacts | None = None, image: str = "0123abcd", **settings: Any) -> str:
    given = ContainerSettings.from_plain({"runtime": runtime, **settings})
    return " ".join(choose("gpu01", given, facts or _facts(runtime)).command(image))


_DOCKER = "run --rm --interactive --pull=never --network=host"
# Runtime, what the node has, what the target says, and the whole command of an image.
COMMANDS: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "podman shares network and memory and never pulls by itself": (
        "podman", {}, {}, f"{_DOCKER} --ipc=host --ulimit=memlock=-1:-1 IMAGE",
    ),
    "gpus, infiniband, devices, mounts and options of podman": (
        "podman", {"gpus": 8, "cdi": True, "infiniband": True},
        {"shm_size": "16g", "devices": ["/dev/gdrdrv"], "mounts": ["/data", "/eagle:/mnt:ro"],
         "options": ["--pids-limit=-1"]},
        f"{_DOCKER} --shm-size=16g --ulimit=memlock=-1:-1 --device=nvidia.com/gpu=all --device=/dev/infiniband "
        "--device=/dev/gdrdrv --userns=keep-id --user={caller} --volume=/data:/data --volume=/eagle:/mnt:ro "
        "--pids-limit=-1 IMAGE",
    ),
    "docker gives gpus by its own option": (
        "docker", {"gpus": 4, "infiniband": True, "memlock": 65536}, {},
        f"{_DOCKER} --ipc=host --ulimit=memlock=-1:-1 --gpus=all --device=/dev/infiniband IMAGE",
    ),
    "apptainer takes nothing of the home folder": (
        "apptainer", {"gpus": 4}, {"mounts": ["/eagle:/mnt:ro"]},
        "exec --cleanenv --no-home --nv --writable-tmpfs --bind /eagle:/mnt:ro IMAGE",
    ),
    "enroot mounts in the words of fstab": (
        "enroot", {"gpus": 4}, {"mounts": ["/eagle:/mnt:ro", "/data"]},
        "start --rw --mount /eagle:/mnt:none:x-create=auto,bind,ro --mount /data:/data:none:x-create=auto,bind,rw "
        "IMAGE",
    ),
    "enroot without gpus": ("enroot", {}, {}, "start --rw --env NVIDIA_VISIBLE_DEVICES=void IMAGE"),
}  # fmt: skip


@pytest.mark.parametrize(("runtime", "node", "settings", "command"), COMMANDS.values(), ids=COMMANDS)
def test_the_command_of_each_runtime(
    runtime: str, node: dict[str, Any], settings: dict[str, Any], command: str
) -> None:
    assert _command(runtime, _facts(runtime, **node), "IMAGE", **settings) == f"/usr/bin/{runtime} {command}"


@pytest.mark.parametrize(
    ("runtime", "root", "options"),
    [
        ("docker", False, "--user={caller} "),
        ("podman", True, "--user={caller} "),
        ("podman", False, "--userns=keep-id --user={caller} "),
    ],
)
def test_who_mounts_folders_is_the_user_inside_who_may_write_them(runtime: str, root: bool, options: str) -> None:
    facts = _facts(runtime, root=root)
    assert f"memlock=-1:-1 {options}--volume=/out:/out" in _command(runtime, facts, mounts=["/out"])
    assert CALLER not in _command(runtime, facts), "without any the image's own user has all that it needs"


def test_apptainer_writes_where_the_target_says_and_what_it_cannot_do_is_refused_and_not_left_out() -> None:
    """It refuses to have two places to write to."""
    assert "--writable-tmpfs" not in _command("apptainer", options=["--overlay=/scratch/upper"])
    assert "--writable-tmpfs" in _command("apptainer", options=["--fakeroot"])
    for setting in ({"shm_size": "16g"}, {"ipc": "private"}, {"devices": ["/dev/gdrdrv"]}):
        with fails("container-option", 7):
            _command("apptainer", **setting)


def test_pyxis_is_one_process_of_a_step_on_this_node_with_nothing_of_the_home_folder() -> None:
    facts = ContainerFacts({"pyxis": {**WORKS, "path": "/usr/bin/srun"}, "enroot": WORKS}, gpus=4)
    more = {"mounts": ["/eagle:/mnt:ro", "/data"], "options": ["--mem=0"]}
    same = (
        "/usr/bin/srun --overlap --nodes=1 --ntasks=1 --ntasks-per-node=1 --cpu-bind=none --nodelist {node} %s"
        "--no-container-mount-home --no-container-entrypoint --no-container-remap-root --container-writable %s"
        "--container-image /shared/x.sqsh"
    )
    mounted = "--container-mounts=/eagle:/mnt:ro,/data:/data --mem=0 "
    assert _command("pyxis", facts, "/shared/x.sqsh", **more) == same % ("", mounted)
    none = "--export=ALL,NVIDIA_VISIBLE_DEVICES=void --container-env=NVIDIA_VISIBLE_DEVICES "
    assert _command("pyxis", facts, "/shared/x.sqsh", gpus="none") == same % (none, "")


def test_pyxis_needs_enroot_and_a_slurm_that_knows_it() -> None:
    def why(**runtimes: Any) -> str:
        with fails("container-no-runtime", 7) as caught:
            choose("gpu01", ContainerSettings(runtime="pyxis"), ContainerFacts(runtimes))
        assert "plugstack.conf" in caught.value.hint
        return caught.value.why

    broken = {"works": False, "why": "srun does not know --container-image"}
    assert why(enroot=WORKS, pyxis=broken) == "pyxis does not work: srun does not know --container-image"
    assert why(pyxis=WORKS) == "pyxis runs enroot, which is not there or does not work"
    assert why(enroot=WORKS) == "pyxis is not there: it is a part of srun"
    assert runs_in_jobs_alone(ContainerSettings(runtime="pyxis"))
    assert not any(map(runs_in_jobs_alone, (None, ContainerSettings(), ContainerSettings(runtime="apptainer"))))


def test_the_first_runtime_that_works_is_taken_and_none_says_what_is_wrong_with_each_and_what_each_needs() -> None:
    broken = {"works": False, "why": "permission denied"}
    facts = ContainerFacts({"podman": broken, "docker": broken, "enroot": WORKS, "apptainer": WORKS})
    assert choose("gpu01", ContainerSettings(), facts).runtime == "apptainer"
    with fails("container-no-runtime", 7) as caught:
        choose("gpu01", ContainerSettings(), ContainerFacts({"docker": broken}))
    assert "engine container: no" in caught.value.what
    assert "podman is not there; docker does not work: permission denied" in caught.value.why
    assert "subordinate ids" in caught.value.hint
    facts = _facts("podman", gpus=1)
    with fails("container-no-gpu-access") as caught:
        choose("gpu01", ContainerSettings(runtime="podman"), facts)
    assert "nvidia-ctk cdi generate" in caught.value.hint
    assert "--device" not in _command("podman", facts, gpus="none")


def test_a_user_who_may_not_raise_limits_is_told() -> None:
    chosen = choose("gpu01", ContainerSettings(), _facts("podman", memlock=8 << 20, infiniband=True))
    assert not any("memlock" in option for option in chosen.options)
    assert "limited to 8192 KiB" in chosen.warnings[0] and "InfiniBand needs more" in chosen.warnings[0]
    assert choose("gpu01", ContainerSettings(), _facts("podman", memlock=1, raises_limits=True)).warnings == ()


@pytest.mark.parametrize(
    "wrong",
    [
        {"image": "nvcr.io/nvidia/pytorch:23.04-py3"},
        {"image": "x@sha256:" + "0" * 63},
        {"image": f"x{DIGEST}{DIGEST}"},
        {"image": f"x{DIGEST}:1"},
        {"image": f"x{DIGEST.upper()}"},
        {"registry": "-oProxyCommand=x"},
        {"registry": "a b"},
        {"mounts": ["relative:/x"]},
        {"mounts": ["/a:/b:/c"]},
        {"mounts": ["/a,/b"]},
        {"mounts": ["/../etc"]},
        {"devices": ["/etc/passwd"]},
        {"shm_size": "16 GB"},
        {"shm_size": "16g", "ipc": "host"},
        {"options": ["a\nb"]},
        {"wheelhouse": ["wheels"]},
        {"runtime": "lxc"},
    ],
)
def test_settings_that_mean_nothing_or_something_else_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ContainerSettings.from_plain(wrong)


def test_a_tag_beside_a_digest_says_nothing_and_is_left_out() -> None:
    name = "registry.example.org:5000/team/x"
    for image in (f"{name}:1.0{DIGEST}", name + DIGEST):
        assert ContainerSettings(image=image).image == name + DIGEST


@pytest.fixture
def launched(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Calls the launcher of a runtime, which is a program that prints its arguments, with words and variables."""
    program = executable(
        tmp_path / "it's", '#!/bin/sh\nfor each; do printf "[%s]" "$each"; done; printf "%s" "${SLURM_LABELIO-}"\n'
    )
    path = tmp_path / "tiny"

    def call(options: Sequence[str], *argv: str, **env: str) -> subprocess.CompletedProcess[str]:
        path.write_text(launcher("tiny", [str(program), *options]))
        for shell in filter(shutil.which, ("dash",)):
            subprocess.run([shell, "-n", str(path)], check=True)
        return completed(["sh", str(path), *argv], env={"PATH": os.environ["PATH"], **env})

    return call


def test_the_launcher_is_of_who_calls_it_and_hands_arguments_and_the_gpus_given_to_them_on(
    launched: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    options = ("run", "--interactive", f"--user={CALLER}", "id")
    me = f"[run][--interactive][--user={os.getuid()}:{os.getgid()}][id]"
    assert launched(options, "a b", "$(id)", "*").stdout == f"{me}[a b][$(id)][*]"
    assert launched(options).stdout == f"{me}[python]"
    done = launched(options, "a b", CUDA_VISIBLE_DEVICES="3,5", CUDA_DEVICE_ORDER="PCI_BUS_ID")
    assert done.stdout == f"{me}[env][CUDA_DEVICE_ORDER=PCI_BUS_ID][env][CUDA_VISIBLE_DEVICES=3,5][a b]"
    none = launched(options, CUDA_VISIBLE_DEVICES="").stdout
    assert none == f"{me}[env][CUDA_VISIBLE_DEVICES=][python]", "no GPU is not all of them"
    assert "--tty" in launcher("tiny", ["/usr/bin/podman", *options])
    assert "--tty" not in launcher("tiny", ["/usr/bin/apptainer", "exec", "/p/x.sif"])


def test_the_launcher_of_pyxis_is_a_step_on_the_node_that_calls_it_and_needs_a_job(
    launched: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    options = ("--overlap", "--nodelist", NODE, "--container-image", "/p/x y.sqsh")
    done = launched(options, "a b", "$(id)", SLURM_JOB_ID="7", SLURMD_NODENAME="gpu3", SLURM_LABELIO="1")
    assert done.stdout == "[--overlap][--nodelist=gpu3][--container-image][/p/x y.sqsh][a b][$(id)]", done.stderr
    done = launched(options, SLURM_JOB_ID="7")
    assert done.stdout == "[--overlap][--container-image][/p/x y.sqsh][python]"
    alone = launched(options, "python")
    assert (alone.returncode, alone.stdout) == (7, "")
    assert "pyxis runs in jobs of Slurm alone" in alone.stderr
