"""The sbatch file for images: what it says, and what bash makes of it.

Neither pyxis, enroot nor Apptainer can be had here; srun and they are small programs that record what they are given.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from envbuild.errors import EnvbuildError
from envbuild.provision.container_script import image_body
from envbuild.provision.prepare import Choice, Prepared, prepare

ENTRY = "/opt/envbuild/image/entrypoint.sh"


def _prepared(top: Path, **container: Any) -> Prepared:
    path = top / "pyxis.yaml"
    more = {"name": "mine", "extends": "slurm-pyxis", "hosts": {"slurm": "gpu"}, "prefix": "/shared/it's/envbuild"}
    path.write_text(yaml.safe_dump({**more, "stack": "torch-smoke", "container": container}))
    return prepare(Choice(target=str(path)), recorded=True)


def _words(top: Path, text: str) -> list[list[str]]:
    """Run the body with programs that record their arguments and standard input, one JSON line a call."""
    folder = top / "bin"
    folder.mkdir()
    record = 'import json, sys; print(json.dumps([sys.argv[1:], "" if sys.stdin.isatty() else sys.stdin.read()]))'
    for name in ("srun", "enroot", "apptainer"):
        program = folder / name
        made = '[ "$1" != import ] && [ "$1" != build ] || { : > "${@: -2:1}"; }\n' if name != "srun" else ""
        program.write_text(f"#!/bin/bash\n{made}exec python3 -c '{record}' {name} \"$@\" >> {top}/calls\n")
        program.chmod(0o755)
    env = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    env |= {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2"}
    done = subprocess.run(["bash", "-s"], input=text, capture_output=True, text=True, env=env, check=False)
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
        same = ["--no-container-mount-home", "--no-container-entrypoint", "--no-container-remap-root"]
        assert words[at + 1 : at + 6] == [*same, "--container-mounts=/data:/d:ro", "/bin/sh"]
        assert words[at + 6] == ENTRY and words[-1] == verb
        request = json.loads(stdin)
        assert (request["verb"], request["prefix"]) == (verb, "/opt/envbuild")


@pytest.mark.parametrize(
    ("runtime", "wanted"),
    [
        ("enroot", ["enroot", "start", "FILE", "/opt/envbuild"]),
        ("apptainer", ["apptainer", "exec", "--cleanenv", "--no-home", "--nv", "FILE", "/bin/sh", ENTRY]),
    ],
)
def test_other_runtimes_are_started_by_srun(runtime: str, wanted: list[str], tmp_path: Path) -> None:
    prepared = _prepared(tmp_path, runtime=runtime, registry="registry.example.org/team/smoke")
    text = image_body(prepared).replace("/shared/it'\"'\"'s/envbuild", f"{tmp_path}/shared")
    calls = _words(tmp_path, text)
    assert [call[0][0] for call in calls] == [runtime, "srun", "srun"]
    words = calls[1][0]
    begun = words[words.index(runtime) :]
    file = next(word for word in begun if word.startswith(str(tmp_path)))
    expected = [file if word == "FILE" else word for word in wanted]
    assert all(one == two or one.startswith(two + "/") for one, two in zip(begun, expected, strict=False))


@pytest.mark.parametrize(
    ("container", "code"),
    [
        ({"runtime": "podman", "registry": "registry.example.org/x"}, "script-of-image"),
        ({"runtime": "auto", "registry": "registry.example.org/x"}, "script-of-image"),
        ({"runtime": "pyxis"}, "container-needs-registry"),
        ({"runtime": "apptainer", "registry": "registry.example.org/x", "shm_size": "16g"}, "container-option"),
    ],
)
def test_what_no_script_can_do_is_refused(container: dict[str, Any], code: str, tmp_path: Path) -> None:
    with pytest.raises(EnvbuildError) as caught:
        image_body(_prepared(tmp_path, **container))
    assert (caught.value.code, caught.value.exit_code) == (code, 7)
