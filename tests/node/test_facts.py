"""The probe on real interpreters, with recordings behind `nvidia-smi` and `nvcc`.

On those of other versions through the real zipapp, which has no byte code: half of the time of a probe.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envbuild.model.facts import DriverFacts, GpuFacts, NodeFacts
from envbuild.node import facts as probe
from envbuild.node.probe import gpus, prefix
from envbuild.node.probe.programs import python_facts
from envbuild.node.probe.system import debian_packages, scheduler_facts
from envbuild.node_program import call_here, node_pyz
from tests.node.env_support import MINOR, PYTHON
from tests.node.pythons import require_python
from tests.support.fails import fails
from tests.support.files import write_file
from tests.support.patience import PATIENCE
from tests.support.programs import executable
from tests.support.repositories import make_repository

DATA = Path(__file__).parent / "data"


def program(path: Path, text: str) -> None:
    executable(path, "#!/bin/sh\n" + text)


def fake_smi(folder: Path, recording: str, rc: int = 0) -> None:
    """An `nvidia-smi` that prints the recording of what it is asked."""
    where = DATA / recording
    plain = where / "plain.txt"
    query = where / "query.txt" if (where / "query.txt").exists() else plain
    program(
        folder / "nvidia-smi",
        'case "$1" in\n'
        f"  -L) cat {where}/list.txt ;;\n"
        f"  --query-gpu=*compute_cap*) cat {query}; grep -q 'not a valid field' {query} && exit 2 ;;\n"
        "  --query-gpu=*mig.mode.current*) echo 'Field \"mig.mode.current\" is not a valid field'; exit 2 ;;\n"
        f"  --query-gpu=*) cat {where}/query_old.txt ;;\n"
        f"  *) cat {plain} ;;\n"
        f"esac\nexit {rc}\n",
    )


class Node:
    """A machine to probe: its own HOME, PATH and prefix."""

    def __init__(self, root: Path) -> None:
        self.home = root / "home"
        self.bin = root / "bin"
        self.prefix = root / "prefix"
        self.pyz = root / "node.pyz"
        self.home.mkdir()
        self.bin.mkdir()
        self.pyz.write_bytes(node_pyz())
        self.env = {"HOME": str(self.home), "PATH": f"{self.bin}:/usr/bin:/bin"}

    def probe(self, python: str = "", **args: Any) -> NodeFacts:
        request = {"protocol": 1, "verb": "probe", "run": "r", "prefix": str(self.prefix), "args": args}
        argv = [python, "-I", str(self.pyz), "probe"] if python else call_here(sys.executable, "probe")
        done = subprocess.run(argv, input=json.dumps(request).encode(), env=self.env, capture_output=True, timeout=100)
        response = json.loads(done.stdout)
        assert response["ok"], response
        assert done.stderr == b""
        assert response["changed"] is False
        return NodeFacts.model_validate_json(json.dumps(response["result"]))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.mark.parametrize("minor", ["3.6", "3.8", "3.13"])
def test_probe_runs_on(minor: str, node: Node) -> None:
    python = require_python(minor)
    fake_smi(node.bin, "a100")
    program(node.bin / "nvcc", f"cat {DATA}/nvcc/11.4.txt\n")
    node.env["CUDA_VISIBLE_DEVICES"] = "0,1"
    facts = node.probe(python, node="n1", base_packages=True, tmp="/tmp")
    assert facts.node == "n1"
    assert facts.os.arch == os.uname().machine
    assert facts.libc.kind in ("glibc", "musl")
    assert 1 <= (facts.cpus or 0) <= len(os.sched_getaffinity(0))
    assert (facts.memory_bytes or 0) > 1 << 28
    assert facts.cpu.vendor and len(facts.cpu.features.split()) > 3
    assert facts.driver.version == "470.57.02"
    assert facts.driver.cuda_ceiling == "11.4"
    assert facts.driver.problem is None
    assert len(facts.gpus) == 8
    assert (facts.visible_devices, facts.gpus_physical) == ("0,1", 8)
    assert {"memlock", "shm"} <= facts.limits.keys()
    assert (str((node.bin / "nvcc").resolve()), "11.4.48") in [(each.path, each.version) for each in facts.nvcc]
    assert facts.prefix.writable
    assert (facts.prefix.free_bytes or 0) > 0
    assert facts.tmp is not None
    assert facts.warnings == ()
    assert not node.prefix.exists()


def asked_smi(folder: Path, **more: Any) -> tuple[DriverFacts, list[GpuFacts]]:
    """What the `nvidia-smi` of a folder gives, as the model has it, on a machine without other witnesses."""
    facts = gpus.gpu_facts([str(folder)], root=str(folder), **more)
    found = [GpuFacts.model_validate_json(json.dumps(gpu)) for gpu in facts["gpus"]]
    return DriverFacts.model_validate_json(json.dumps(facts["driver"])), found


@pytest.mark.parametrize(
    ("recording", "rc", "version", "count", "says"),
    [
        ("v100", 0, "440.33.01", 4, None),
        ("h200", 0, "580.159.04", 2, None),
        ("na", 0, "525.60.13", 2, "GPU 00000000:02:00.0: Unknown Error"),
        ("no_driver", 9, None, 0, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver"),
        ("mismatch", 18, None, 0, "Driver/library version mismatch; NVML library version: 535.183"),
        ("no_devices", 6, None, 0, "No devices were found"),
        ("unknown_error", 255, None, 0, "Failed to initialize NVML: Unknown Error"),
    ],
)
def test_driver_state(
    tmp_path: Path, recording: str, rc: int, version: str | None, count: int, says: str | None
) -> None:
    fake_smi(tmp_path, recording, rc)
    driver, found = asked_smi(tmp_path)
    assert (driver.version, len(found)) == (version, count)
    assert recording != "v100" or found[0].compute_capability is found[0].mig_enabled is None
    assert driver.problem is None if says is None else says in (driver.problem or "")


def test_mig_instances_are_listed(tmp_path: Path) -> None:
    fake_smi(tmp_path, "mig")
    driver, (first, second) = asked_smi(tmp_path)
    assert (driver.version, driver.problem) == ("535.161.08", None)
    assert [entry.split()[0] for entry in first.mig] == ["3g.20gb", "2g.10gb", "1g.5gb+me"]
    assert first.mig[0].endswith("MIG-00000030-1111-5222-8333-000000000001")
    assert (first.mig_enabled, second.mig_enabled, second.mig) == (True, False, ())


SCRIPT_A = """case "$*" in
"") echo '| NVIDIA-SMI 580.126.09  Driver Version: 580.126.09  CUDA Version: 13.0 |';;
--query-gpu=*) echo '0, NVIDIA A100-SXM4-40GB, GPU-0, 40960, 00000000:3B:00.0, 580.126.09, 8.0, Disabled, 0';;
-L) exit 0;;
esac
"""


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (SCRIPT_A + "kill -SEGV $$\n", "nvidia-smi ended with -11: no output"),
        (SCRIPT_A + "echo 'WARNING: infoROM is corrupted'; exit 14\n",
         "nvidia-smi ended with 14: WARNING: infoROM is corrupted"),
        (SCRIPT_A + "echo 'Persistence mode is off' >&2\n", None),
        (SCRIPT_A.replace("NVIDIA A100-SXM4-40GB", "[Unknown Error]") + "exit 15\n",
         "GPU 00000000:3B:00.0: Unknown Error"),
    ],
    ids=["crash", "warning and another exit", "a word on stderr", "a GPU that does not answer"],
)  # fmt: skip
def test_d56_rows_that_were_printed_count_and_none_is_the_reason(tmp_path: Path, script: str, says: str | None) -> None:
    program(tmp_path / "nvidia-smi", script)
    driver, (gpu,) = asked_smi(tmp_path)
    assert (gpu.pci_bus_id, driver.version, driver.problem) == ("00000000:3B:00.0", "580.126.09", says)


def test_d56_a_compiler_that_warns_and_fails_has_its_version(node: Node) -> None:
    program(node.bin / "nvcc", "echo 'Cuda compilation tools, release 12.4, V12.4.131'; exit 1\n")
    program(node.bin / "gcc", "echo 'gcc (GCC) 11.4.0'; echo 'ccache: read-only' >&2; exit 2\n")
    facts = node.probe()
    assert "12.4.131" in [tool.version for tool in facts.nvcc]
    assert "11.4.0" in [tool.version for tool in facts.compilers]


def test_d56_what_a_gpu_says_of_its_health_is_read_without_what_its_driver_does_not_know(tmp_path: Path) -> None:
    program(
        tmp_path / "nvidia-smi",
        'case "$1" in\n'
        "  --query-gpu=*fabric.state*) echo 'Field \"fabric.state\" is not a valid field to query.'; exit 2 ;;\n"
        "  --query-gpu=pci*) echo '00000000:3B:00.0, Default, [N/A], Enabled, 400.00, 1410, 8, 16, No, Not Active,"
        " 0, 1' ;;\nesac\n" + SCRIPT_A,
    )
    assert asked_smi(tmp_path)[1][0].health == {
        "compute_mode": "Default", "ecc.mode.current": "Enabled", "power.limit": "400.00", "clocks.max.sm": "1410",
        "pcie.link.width.current": "8", "pcie.link.width.max": "16", "retired_pages.pending": "No",
        "clocks_throttle_reasons.hw_slowdown": "Not Active", "remapped_rows.pending": "0", "remapped_rows.failure": "1",
    }  # fmt: skip


def test_d60_repairs_and_links_are_read(tmp_path: Path) -> None:
    links = "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-0)\n\t Link 0: 25 GB/s\n\t Link 1: <inactive>\n"
    program(
        tmp_path / "nvidia-smi",
        'case "$*" in\n  "nvlink -s") printf %b ' + repr(links) + " ;;\n"
        "  --query-gpu=pci*) echo '00000000:3B:00.0, Enabled, Disabled, Enabled, Reset, 92.00, 4, Active' ;;\nesac\n"
        + SCRIPT_A,
    )
    assert asked_smi(tmp_path)[1][0].health == {
        "nvlinks": "2", "nvlinks.active": "1", "ecc.mode.pending": "Enabled", "mig.mode.current": "Disabled",
        "mig.mode.pending": "Enabled", "gpu_recovery_action": "Reset", "vbios_version": "92.00",
        "pcie.link.gen.max": "4", "clocks_throttle_reasons.sw_thermal_slowdown": "Active",
    }  # fmt: skip
    assert gpus.parse_nvlinks("NVML: Not Supported\n\t Link 0: 25 GB/s\nGPU 0: x (UUID: y)\n") == {}


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("head -c 100000000 /dev/zero\n", "printed more than 1 MiB"),
        ("printf '0, \\377\\376GPU'\n", "bytes that are no text"),
        ("echo hello\n", "named no GPU in its answer: 'hello'"),
        ("echo Segmentation fault >&2; exit 139\n", "ended with 139: Segmentation fault"),
        ("exec sleep 600\n", "did not answer within 0.5 s"),
    ],
)
def test_d29_an_nvidia_smi_that_makes_no_sense_is_a_problem_of_the_driver(
    script: str, says: str, tmp_path: Path
) -> None:
    program(tmp_path / "nvidia-smi", script)
    begun = time.monotonic()
    driver, found = asked_smi(tmp_path, deadline=0.5 if "sleep" in script else gpus.SMI_DEADLINE)
    assert found == []
    assert says in (driver.problem or "")
    assert time.monotonic() - begun < PATIENCE


def test_witnesses_besides_nvidia_smi(tmp_path: Path) -> None:
    for index in range(4):
        (tmp_path / "proc/driver/nvidia/gpus" / f"0000:0{index}:00.0").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text((DATA / "proc_version.txt").read_text())
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / "dev" / name).touch()
    facts = gpus.gpu_facts([], root=str(tmp_path))
    assert facts["gpus_physical"] == 4
    assert facts["driver"]["version"] == "470.57.02"
    assert "nvidia-smi is not there" in facts["driver"]["problem"]


def test_gpu_on_the_bus_without_a_driver_is_seen(tmp_path: Path) -> None:
    for name, vendor, kind in (("a", "0x10de", "0x030200"), ("b", "0x10de", "0x040300"), ("c", "0x8086", "0x030000")):
        folder = tmp_path / "sys/bus/pci/devices" / name
        write_file(folder / "vendor", vendor + "\n")
        (folder / "class").write_text(kind + "\n")
    facts = gpus.gpu_facts([], root=str(tmp_path))
    assert facts["gpus_physical"] == 1
    assert facts["driver"]["version"] is None
    assert facts["driver"]["problem"]


def test_shim_is_no_interpreter_but_what_it_stands_for_is(node: Node) -> None:
    real = require_python("3.8")
    root = node.home / ".pyenv"
    program(root / "shims/python3", "echo 'pyenv: python3: command not found' >&2; exit 127\n")
    program(root / "shims/python3.8", f'exec {real} "$@"\n')
    (root / "versions/3.8.18/bin").mkdir(parents=True)
    (root / "versions/3.8.18/bin/python3.8").symlink_to(real)
    node.env["PATH"] = f"{root}/shims:{node.env['PATH']}"
    facts = node.probe()
    paths = [each.path for each in facts.pythons]
    assert str(Path(real).resolve()) in paths
    assert not [path for path in paths if "shims" in path]
    assert len(paths) == len(set(paths))


def test_liar_hanger_and_wrapper_do_not_count_as_interpreters(node: Node) -> None:
    program(node.bin / "python3.9", "echo Python 3.9.1\n")
    program(node.bin / "python3.10", 'echo \'{"implementation": "cpython", "version": 3}\'\n')
    program(node.bin / "python3.11", f'exec {sys.executable} "$@"\n')
    paths = [each.path for each in node.probe().pythons]
    assert not [path for path in paths if path.startswith(str(node.bin))]


def test_virtual_environment_is_its_own_entry_with_its_packages(node: Node, tmp_path: Path) -> None:
    python = require_python("3.8")
    venv = tmp_path / "venv"
    subprocess.run([python, "-m", "venv", "--without-pip", str(venv)], check=True)
    site = next(venv.glob("lib/python3.*/site-packages"))
    (site / "Some_Thing-1.2.dist-info").mkdir()
    (site / "Some_Thing-1.2.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: Some_Thing\nVersion: 1.2\n\nx\n"
    )
    node.env["PATH"] = f"{venv}/bin:{node.env['PATH']}"
    facts = node.probe(base_packages=True)
    mine = [each for each in facts.pythons if each.path.startswith(str(venv))]
    assert len(mine) == 1
    assert mine[0].virtual
    assert (mine[0].packages or {})["some-thing"] == "1.2"


def test_interpreter_of_the_toolchain_is_found(node: Node) -> None:
    python = require_python("3.13")
    folder = node.prefix / "tools/python-3.13.0-abc/bin"
    folder.mkdir(parents=True)
    (folder / "python3.13").symlink_to(python)
    facts = node.probe()
    assert str(Path(python).resolve()) in [each.path for each in facts.pythons]
    assert facts.toolchain == ("python-3.13.0-abc",)


def test_missing_tools_are_facts(node: Node) -> None:
    program(node.bin / "zstd", "exit 1\n")
    facts = node.probe()
    assert facts.tools["zstd"] == "unknown"
    assert set(facts.tools) >= {"git", "tar", "gzip", "xz", "uv", "curl", "module"}
    assert all(value is None or value for value in facts.tools.values())


def test_environments_links_and_lease_under_the_prefix(node: Node) -> None:
    stamp = {"stack": "s", "profile": "exact", "variant_digest": "d" * 64, "root": "r" * 64, "packages": {"a": "1"}}
    stamp.update(version=1, sources=[])
    whole, half, broken = (node.prefix / "envs" / name for name in ("s-exact-" + each * 12 for each in "123"))
    # What is no environment by its name is none by its stamp.
    others = [node.prefix / "envs" / f"{whole.name}.{each}" for each in ("trash-123", "old-20260101T000000Z-a", "0")]
    for folder in (whole, half, broken, *others):
        (folder / ".envbuild").mkdir(parents=True)
    for folder in (whole, *others):
        (folder / ".envbuild/stamp.json").write_text(json.dumps(stamp))
    (broken / ".envbuild/stamp.json").write_text('{"stack": ')
    (node.prefix / "current").mkdir()
    (node.prefix / "current/s").symlink_to(f"../envs/{whole.name}")
    (node.prefix / "lease.json").write_text('{"run": "r9", "token": "t"}')
    facts = node.probe()
    assert [(each.stack, each.current, each.stamp is None) for each in facts.environments] == [
        ("s", True, False),
        (None, False, True),
        (None, False, True),
    ]
    assert facts.environments[0].variant_digest == "d" * 64
    assert facts.busy == {"run": "r9", "token": "t"}
    assert facts.warnings == ("2 environment(s) without a stamp under the prefix",)


def test_packages_of_debian_are_looked_up_where_dpkg_is(tmp_path: Path) -> None:
    wanted = ["libaio-dev", "cmake", "libgeos-dev"]
    assert debian_packages(wanted, str(tmp_path)) == {}
    for name in ("libaio-dev:amd64.list", "cmake.list", "cmake.md5sums", "libgeos-dev.md5sums"):
        write_file(tmp_path / "var/lib/dpkg/info" / name, "")
    assert debian_packages(wanted, str(tmp_path)) == {"libaio-dev": True, "cmake": True, "libgeos-dev": False}


def test_wanted_files_are_found_in_pips_find_links(node: Node, tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_file(tmp_path / name / f"{name}.whl")
    write_file(node.home / ".config/pip/pip.conf", f"[global]\nfind-links = {tmp_path}/two https://u:p@h/x\n")
    wanted = ["one.whl", "two.whl", "missing.whl", "../two/two.whl"]
    assert node.probe(files=wanted).files_found == {"two.whl": f"{tmp_path}/two/two.whl"}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The port of something that takes connections; no proxy is configured."""
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def test_reachable_by_tcp_or_through_the_proxy(server: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reach = {
        "up": f"http://127.0.0.1:{server}/simple",
        "down": "http://127.0.0.1:1/simple",
        "folder": f"file://{tmp_path}",
        "nonsense": "http://[",
    }
    assert prefix.reachable(reach) == {"up": True, "down": False, "folder": True, "nonsense": False}
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{server}")
    proxied = {"far": "https://unknown.invalid/simple"}
    assert prefix.reachable(proxied) == {"far": True}
    monkeypatch.setenv("no_proxy", "unknown.invalid")
    assert prefix.reachable(proxied) == {"far": False}


def test_d06_a_repository_is_looked_for_where_git_would_look(node: Node, server: int, tmp_path: Path) -> None:
    (tmp_path / "mirror" / "one").mkdir(parents=True)
    make_repository(tmp_path / "mirror" / "three.git", {"a": "1"})
    config = write_file(
        tmp_path / "gitconfig",
        f'[url "file://{tmp_path}/mirror/"]\n\tinsteadOf = https://git.example.org/\n'
        f'[url "http://127.0.0.1:{server}/"]\n\tinsteadOf = https://up.invalid/\n'
        f'[url "git@127.0.0.1:"]\n\tinsteadOf = https://scp.invalid/\n'
        f'[url "{tmp_path}/mirror/"]\n\tinsteadOf = https://plain.invalid/\n',
    )
    node.env.update(GIT_CONFIG_GLOBAL=str(config), GIT_CONFIG_NOSYSTEM="1", no_proxy="*")
    wanted = {
        "https://git.example.org/one": True,
        "https://git.example.org/two": False,
        "https://git.example.org/three": True,
        "https://up.invalid/x": True,
        "https://down.invalid/x": False,
        "https://plain.invalid/one": True,
        f"ssh://git@127.0.0.1:{server}/x": True,
        "ssh://git@127.0.0.1:1/x": False,
    }
    assert node.probe(repositories=list(wanted), reach={"up": f"http://127.0.0.1:{server}/"}).reachable == {
        **wanted, "up": True
    }  # fmt: skip


@pytest.mark.parametrize(
    ("said", "where"),
    [
        ({}, "https://default.example/simple"),
        ({"UV_DEFAULT_INDEX": "http://uv.example"}, "http://uv.example"),
        ({"PIP_INDEX_URL": "http://pip.example"}, "http://pip.example"),
        ({"toml": "no-index = true\n"}, ""),
        ({"toml": 'offline = false\nindex-url = "http://toml.example"\n'}, "http://toml.example"),
        ({"toml": '[[index]]\nname = "x"\nurl = "http://table.example"\n'}, "http://table.example"),
    ],
)
def test_d12_the_default_index_is_the_configured_one(
    said: dict[str, str], where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("UV_CONFIG_FILE", str(tmp_path / "uv.toml"))
    (tmp_path / "uv.toml").write_text(said.pop("toml", ""))
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    assert prefix.configured_index("https://default.example/simple") == where


def test_the_scheduler_and_the_job_are_known_and_a_foreign_qstat_is_no_pbs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SLURM_JOB_ID", "PBS_JOBID"):
        monkeypatch.delenv(name, raising=False)
    folders = [str(tmp_path)]  # the machine of the tests may have Slurm
    program(tmp_path / "qstat", "echo SGE 8.1.9\n")
    assert scheduler_facts(folders)["kind"] == "none"
    program(tmp_path / "qstat", "echo pbs_version = 2022.1.1\n")
    assert scheduler_facts(folders)["kind"] == "pbs"
    program(tmp_path / "sinfo", "echo slurm-wlm 22.05.8\n")
    assert scheduler_facts(folders) == {"kind": "slurm", "version": "22.05.8", "job": None}
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    assert scheduler_facts(folders)["job"] == "77"


@pytest.mark.parametrize("args", [{"files": "x"}, {"reach": []}, {"interpreters": [3.11]}, {"reach": {"a": 1}}])
def test_bad_args_are_a_coded_error(node: Node, args: dict[str, Any]) -> None:
    with fails("request-invalid"):
        probe.run({"prefix": str(node.prefix), "args": args})


def asked_for(folders: list[str], prefix: str, *, asked: list[str]) -> dict[str, Any]:
    """The facts of the one interpreter that was asked for; the machine may have others."""
    (fact,) = (each for each in python_facts(folders, prefix, asked=asked) if each.get("also"))
    return fact


def test_d07_a_named_interpreter_keeps_the_name_it_was_asked_by_and_is_told_with_its_version(tmp_path: Path) -> None:
    link = tmp_path / "mine"
    link.symlink_to(PYTHON)
    fact = asked_for([], str(tmp_path), asked=[str(link), str(tmp_path / "not-there")])
    assert (fact["path"], fact["also"], fact["version"].startswith(f"{MINOR}.")) == (PYTHON, [str(link)], True)


def test_a_name_is_the_first_of_path_and_never_a_shim(tmp_path: Path) -> None:
    places = [tmp_path / "shims", tmp_path / "soft" / "bin"]
    for place in places:
        place.mkdir(parents=True)
        (place / "python3").symlink_to(PYTHON)
    fact = asked_for([str(place) for place in places], str(tmp_path), asked=["python3", "python9"])
    assert (fact["path"], fact["also"]) == (PYTHON, ["python3"])


def test_whether_an_interpreter_finds_the_cxx_library_is_asked_of_its_loader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fact = asked_for([], str(tmp_path), asked=[PYTHON])
    assert fact["libstdcxx"] is True
    # The loader takes the first of that name, and this one is empty.
    (tmp_path / "libstdc++.so.6").touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    fact = asked_for([], str(tmp_path), asked=[PYTHON])
    assert fact["libstdcxx"] is False
