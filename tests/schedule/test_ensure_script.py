"""What later jobs begin with: exact texts, and the texts run by a real shell."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from envbuild.catalog.node_facts import list_facts, load_facts
from envbuild.model.target import Target
from envbuild.node.env import activation_files
from envbuild.provision.jobs.node_local import is_local, prolog_text, refuse_prolog, refuse_script, require_shared
from envbuild.schedule.script import ensure_script, pbs_preamble, task_prolog
from tests.support.fails import fails
from tests.support.programs import completed, executable

HOSTILE = "/shared/it's $(touch /nonexistent) {{x}}"


def test_the_script_of_a_stack_is_readable() -> None:
    made = ensure_script("/lus/me/eb", "opt-175b", "/usr/bin/python3", "/lus/me/eb/tools/n-1/n.pyz")
    assert made == (
        "#!/bin/sh\n"
        "# Written by envbuild: sees to the environment opt-175b on the disk of this node. Where it is there and in\n"
        "# use, that takes well under a second; else it comes out of its pack. Every job begins with it:\n"
        "#   /bin/sh /lus/me/eb/ensure/opt-175b.sh\n"
        "exec /usr/bin/python3 /lus/me/eb/tools/n-1/n.pyz ensure < /lus/me/eb/ensure/opt-175b.json\n"
    )


def test_the_first_lines_of_a_pbs_job_are_readable() -> None:
    assert pbs_preamble("/lus/me/eb", "/local/scratch/eb", "opt-175b") == (
        "# First lines of a PBS job: the environment opt-175b on the disk of every node, and its variables.\n"
        'nodes=$(sort -u "$PBS_NODEFILE" | wc -l)\n'
        'mpiexec --envall -n "$nodes" --ppn 1 --hostfile "$PBS_NODEFILE" --cpu-bind none \\\n'
        "  /bin/sh /lus/me/eb/ensure/opt-175b.sh > /dev/null || exit 75\n"
        ". /local/scratch/eb/current/opt-175b/.envbuild/activate.sh\n"
    )


@pytest.mark.parametrize("make", [task_prolog, pbs_preamble])
def test_paths_are_quoted_and_the_text_is_posix_sh(make: object, tmp_path: Path) -> None:
    assert callable(make)
    for text in (make(HOSTILE, HOSTILE, "opt"), ensure_script(HOSTILE, "opt", HOSTILE, HOSTILE)):
        for name in filter(shutil.which, ("dash", "bash", "busybox")):
            argv = [name, "sh", "-n"] if name == "busybox" else [name, "-n"]
            assert completed(argv, input=text).returncode == 0, text
        assert text.count("'\"'\"'") >= 2


class Disk:
    """A shared folder and a prefix with names that need quotes; `ensure` is a script that counts and may fail."""

    def __init__(self, top: Path, code: int = 0) -> None:
        self.shared, self.prefix = top / "it's shared", top / "local $(id)"
        (self.shared / "ensure").mkdir(parents=True)
        (self.prefix / "current" / "demo" / ".envbuild").mkdir(parents=True)
        variables = {"A": "it's $(touch x) `id`", "B": {"path": str(top), "if": "exists"}, "EMPTY": "",
                     "C": "export D=1", "GONE": {"path": str(top / "gone"), "if": "exists"}}  # fmt: skip
        text = activation_files.activate_sh(str(self.prefix / "envs" / "x"), "demo", variables)
        (self.prefix / "current" / "demo" / ".envbuild" / "activate.sh").write_text(text)
        (self.shared / "ensure" / "demo.sh").write_text(
            f"echo ran >&2; echo '{{}}'; echo >> '{top}/ran'; exit {code}\n"
        )

    def run(self, text: str, **env: str) -> subprocess.CompletedProcess[str]:
        plain = {"PATH": os.environ["PATH"], **env}
        return completed(["/bin/sh"], input=text, env=plain, cwd=self.shared)


def test_a_task_prolog_tells_slurm_every_variable_literally(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    done = disk.run(task_prolog(str(disk.shared), str(disk.prefix), "demo"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:2] == ["unset PYTHONHOME", "unset PYTHONPATH"]
    told = dict(line.removeprefix("export ").split("=", 1) for line in done.stdout.splitlines()[2:])
    environment = f"{disk.prefix}/envs/x"
    assert told.pop("PATH").startswith(f"{environment}/bin:")
    assert told == {
        "A": "it's $(touch x) `id`", "B": str(tmp_path), "C": "export D=1", "ENVBUILD_ENV": environment,
        "ENVBUILD_STACK": "demo", "PIP_REQUIRE_VIRTUALENV": "1", "PYTHONNOUSERSITE": "1", "VIRTUAL_ENV": environment,
    }  # fmt: skip
    assert not (disk.shared / "x").exists()


def test_a_task_whose_environment_cannot_be_had_ends_with_the_reason(tmp_path: Path) -> None:
    disk = Disk(tmp_path, code=75)
    done = disk.run(task_prolog(str(disk.shared), str(disk.prefix), "demo"))
    assert (done.returncode, done.stdout) == (1, "print ran\n")


def test_the_first_lines_of_a_pbs_job_run_once_on_every_node(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    (tmp_path / "bin").mkdir()
    fake = tmp_path / "bin" / "mpiexec"
    code = "import subprocess, sys\nfor _ in range(int(sys.argv[3])): subprocess.check_call(sys.argv[10:])"
    executable(fake, f"#!{sys.executable}\n{code}\n")
    (tmp_path / "nodes").write_text("n1\nn1\nn2\n")
    text = pbs_preamble(str(disk.shared), str(disk.prefix), "demo") + 'echo "$ENVBUILD_STACK"\n'
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    done = disk.run(text, PATH=path, PBS_NODEFILE=str(tmp_path / "nodes"))
    assert (done.returncode, done.stdout) == (0, "demo\n"), done.stderr
    assert (tmp_path / "ran").read_text() == "\n\n"


def target(**more: object) -> Target:
    plain = {"name": "t", "hosts": {"slurm": "gpu"}, "connection": {"kind": "job"}, "scheduler": {"kind": "slurm"}}
    return Target.from_plain({**plain, "prefix": "/local/eb", "placement": "node-local", **more})


def test_the_prefix_of_a_prolog_is_the_same_path_on_all_nodes() -> None:
    login = next(iter(load_facts(list_facts()[0]).values())).model_copy(update={"user": "me"})
    text = prolog_text(target(prefix="/local/{user}/eb", shared="/lus"), "demo", login)
    assert ". /local/me/eb/current/demo/.envbuild/activate.sh" in text
    assert f"/bin/sh {login.prefix.path}/ensure/demo.sh" in text
    with fails("prefix-of-node-unknown"):
        prolog_text(target(prefix="{data}/eb", shared="/lus"), "demo", login)


def test_what_node_local_jobs_need_is_refused_by_name() -> None:
    assert is_local(target())
    assert not is_local(target(placement="shared"))
    assert require_shared(target(shared="/lus/{user}")) == "/lus/{user}"
    for call, code, exit_code in (
        (lambda: require_shared(target()), "shared-missing", 2),
        (lambda: refuse_prolog(target(placement="shared")), "prolog-not-needed", 2),
        (lambda: refuse_prolog(target()), "shared-missing", 2),
        (lambda: refuse_script(target()), "script-impossible", 7),
        (lambda: refuse_script(target(engine="container", placement="image")), "script-impossible", 7),
    ):
        with fails(code, exit_code):
            call()
