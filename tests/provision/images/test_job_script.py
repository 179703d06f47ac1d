"""The sbatch and qsub files for images: what they say, and what bash makes of them.

The runtimes, srun and mpiexec are small programs that record what they are given.
`ENVBUILD_WRITE_GOLDEN=1` writes the golden files anew.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from envbuild.node_program import node_pyz
from envbuild.provision.images.job_script import image_body
from envbuild.provision.run.context import Choice, Prepared
from envbuild.provision.survey.prepare import prepare
from tests.support.fails import fails
from tests.support.programs import completed, executable

# What a program on standard input is followed by.
_REQUEST = 'sys.stdin.buffer.read().rpartition(b"{\\"args\\"")'


def _prepared(top: Path, **container: Any) -> Prepared:
    path = top / "pyxis.yaml"
    more = {"name": "mine", "extends": "slurm-pyxis", "hosts": {"slurm": "gpu"}, "prefix": "/shared/it's/envbuild"}
    path.write_text(yaml.safe_dump({**more, "stack": "torch-smoke", "container": container}))
    return prepare(Choice(target=str(path)), recorded=True)


def _words(top: Path, text: str) -> list[list[str]]:
    """Run the body with programs that record their arguments and standard input, one JSON line a call."""
    folder = top / "bin"
    folder.mkdir()
    record = (
        'import json, sys; found = sys.stdin.buffer.read().rpartition(b"{\\"args\\""); '
        'print(json.dumps([sys.argv[1:], b"".join(found[1:]).decode() if found[1] else ""]))'
    )
    for name in ("srun", "enroot", "apptainer"):
        program = folder / name
        made = '[ "$1" != import ] && [ "$1" != build ] || { : > "${@: -2:1}"; }\n' if name != "srun" else ""
        # Of a runtime that is no option of srun, what srun starts.
        runs = 'while [[ "$1" == -* ]]; do shift; done; [ "$1" != sh ] || "$@"\n' if name == "srun" else ""
        told = f"python3 -c '{record}' {name} \"$@\" >> {top}/calls"
        executable(program, f"#!/bin/bash\n{made}{told}\n{runs}")
    env = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    env |= {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "CUDA_VISIBLE_DEVICES": "2,GPU-1f"}
    done = completed(["bash", "-s"], input=text, env=env)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in (top / "calls").read_text().splitlines()]


def test_pyxis_imports_once_and_tests_on_every_node(tmp_path: Path) -> None:
    prepared = _prepared(tmp_path, runtime="pyxis", registry="registry.example.org/team/smoke", mounts=["/data:/d:ro"])
    text = image_body(prepared).replace("/shared/it'\"'\"'s/envbuild", f"{tmp_path}/it'\"'\"'s")
    assert "--push registry.example.org/team/smoke:exact-" in text
    first, *tests = _words(tmp_path, text)
    folder = f"{tmp_path}/it's/images"
    (words, _) = first
    assert words[:2] == ["enroot", "import"]
    assert words[3].startswith(f"{folder}/torch-smoke-") and words[3].endswith(".sqsh.7")
    assert words[4].startswith("docker://registry.example.org#team/smoke:exact-")
    file = words[3].removesuffix(".7")
    assert os.listdir(folder) == [os.path.basename(file)]
    for (words, stdin), verb in zip(tests, ("verify", "smoke"), strict=True):
        assert words[:4] == ["srun", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1"]
        at = words.index(f"--container-image={file}")
        same = [
            "--no-container-mount-home",
            "--no-container-entrypoint",
            "--no-container-remap-root",
            "--container-writable",
        ]
        assert words[at + 1 : at + 6] == [*same, "--container-mounts=/data:/d:ro"]
        assert words[at + 6].endswith("/bin/python") and words[-1] == verb
        request = json.loads(stdin)
        assert (request["verb"], request["prefix"]) == (verb, "/opt/envbuild")


@pytest.mark.parametrize(
    ("runtime", "wanted"),
    [
        ("enroot", ["enroot", "start", "--rw", "FILE"]),
        (
            "apptainer",
            ["apptainer", "exec", "--cleanenv", "--no-home", "--nv", "--writable-tmpfs", "FILE"],
        ),
    ],
)
def test_other_runtimes_are_started_by_srun(runtime: str, wanted: list[str], tmp_path: Path) -> None:
    prepared = _prepared(tmp_path, runtime=runtime, registry="registry.example.org/team/smoke")
    text = image_body(prepared).replace("/shared/it'\"'\"'s/envbuild", f"{tmp_path}/shared")
    calls = _words(tmp_path, text)
    assert [call[0][0] for call in calls] == [runtime, "srun", runtime, "srun", runtime]
    assert "--cpu-bind=none" in calls[1][0], "a site may bind a task to one processor, and its ranks are in that"
    room = f"'{tmp_path}/shared/tmp'"
    assert f"{runtime.upper()}_CACHE{'_PATH' if runtime == 'enroot' else 'DIR'}={room} " in text, "and not at home"
    assert (f"APPTAINER_TMPDIR={room} " in text, "ENROOT_TEMP_PATH" in text) == (runtime == "apptainer", False)
    begun = calls[2][0]
    file = next(word for word in begun if word.startswith(str(tmp_path)))
    expected = [file if word == "FILE" else word for word in wanted]
    assert begun[: len(expected)] == expected
    # The runtime takes no variable with it; the GPUs are those that the scheduler has given on that node.
    assert begun[len(expected) :][:2] == ["env", "CUDA_VISIBLE_DEVICES=2,GPU-1f"]
    assert (begun[-7].endswith("/bin/python"), begun[-1]) == (True, "verify")


def _polaris(top: Path, **container: Any) -> Prepared:
    path = top / "mine.yaml"
    more = {"name": "mine", "extends": "polaris", "scheduler": {"account": "proj-1", "queue": "debug"}}
    given = {**more, "stack": "torch-smoke", "engine": "container", "placement": "image", "container": container}
    path.write_text(yaml.safe_dump(given))
    return prepare(Choice(target=str(path)), recorded=True)


@pytest.mark.parametrize(
    ("name", "container"),
    [
        ("pbs_image_registry", {"registry": "registry.example.org/team/smoke", "mounts": ["/eagle:/eagle"]}),
        ("pbs_image_definition", {"mounts": ["/eagle:/eagle"]}),
    ],
)
def test_the_qsub_file_is_the_recorded_one(name: str, container: dict[str, Any], tmp_path: Path) -> None:
    text = image_body(_polaris(tmp_path, **container))
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
    requests = [json.loads(each) for each in re.findall(r"^printf %s '(.*)' >>", text, re.MULTILINE)]
    assert [each["verb"] for each in requests] == ["verify", "smoke"]
    text = re.sub(r"(?m)^printf %s '.*' >>", "printf %s 'REQUEST' >>", text)
    text = re.sub(r"(?ms)^(base64 .*?\n).*?^EOF$", r"\1PROGRAM\nEOF", text).replace(str(len(node_pyz())), "SIZE")
    text = re.sub(r"[0-9a-f]{12}", "0" * 12, text)
    golden = Path(__file__).parents[2] / "schedule" / "golden" / f"{name}.sh"
    if os.environ.get("ENVBUILD_WRITE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


def test_on_pbs_every_node_gets_the_request_and_says_who_it_is(tmp_path: Path) -> None:
    text = image_body(_polaris(tmp_path, registry="registry.example.org/team/smoke"))
    folder = tmp_path / "bin"
    folder.mkdir()
    programs = {
        "mpiexec": 'while [ "$1" != bash ]; do printf "%s\\n" "$1" >> "$CALLS"; shift; done; "$@" && "$@"',
        "apptainer": 'echo "$@" >> "$CALLS"\n[ "$1" = exec ] || { : > "$2"; exit; }\n'
        f"python3 -c 'import sys; print(b\"\".join({_REQUEST}[1:]).decode())'\n"
        '[ "${@: -1}" != "$FAIL" ]',
    }
    for program, code in programs.items():
        executable(folder / program, f"#!/bin/bash\n{code}\n")
    nodes = tmp_path / "nodes"
    nodes.write_text("x1\nx2\n")
    env = {
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "HOME": f"{tmp_path}/it's", "USER": "me",
        "PBS_JOBID": "12.server-01", "PBS_NODEFILE": str(nodes), "CALLS": str(tmp_path / "calls"), "FAIL": "none",
    }  # fmt: skip
    text = text.replace("/local/scratch/", f"{tmp_path}/")

    def submit(**more: str) -> subprocess.CompletedProcess[str]:
        return completed(["bash", "-s"], input=text, env={**env, **more})

    done = submit()
    assert done.returncode == 0, done.stderr
    node = os.uname().nodename.partition(".")[0]
    answers = [line.partition(": ") for line in done.stdout.splitlines()]
    assert [(who, json.loads(asked)["verb"]) for who, _, asked in answers] == [
        (node, "verify"), (node, "verify"), (node, "smoke"), (node, "smoke"),
    ]  # fmt: skip
    (file,) = (tmp_path / "it's" / "envbuild" / "images").iterdir()
    calls = (tmp_path / "calls").read_text()
    assert f"build {file}.12 docker://registry.example.org/team/smoke:exact-" in calls
    assert calls.split("build ")[1].split("\n")[1:5] == ["--envall", "-n", "2", "--ppn"]
    assert f"exec --cleanenv --no-home --nv --writable-tmpfs {file} " in calls
    # A check that fails is the exit code, after the others; the file is there and is not made again.
    failed = submit(FAIL="verify")
    assert (failed.returncode, len(failed.stdout.splitlines())) == (1, 3)
    assert (tmp_path / "calls").read_text().count("build ") == 1


@pytest.mark.parametrize(
    ("container", "code"),
    [
        ({"runtime": "podman", "registry": "registry.example.org/x"}, "script-impossible"),
        ({"runtime": "auto", "registry": "registry.example.org/x"}, "script-impossible"),
        ({"runtime": "pyxis"}, "container-needs-registry"),
        ({"runtime": "apptainer", "registry": "registry.example.org/x", "shm_size": "16g"}, "container-option"),
    ],
)
def test_what_no_script_can_do_is_refused(container: dict[str, Any], code: str, tmp_path: Path) -> None:
    with fails(code, 7):
        image_body(_prepared(tmp_path, **container))
