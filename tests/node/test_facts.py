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
from tests.support.files import write_file, write_files
from tests.support.patience import PATIENCE
from tests.support.programs import executable
from tests.support.repositories import make_repository

DATA = Path(__file__).parent / "data"


def program(path: Path, text: str) -> None:
    executable(path, "#!/bin/sh\n" + text)


def recorded(name: str, rc: int = 0) -> str:
    """The script of an `nvidia-smi` that prints the recording of what it is asked."""
    where = DATA / name
    plain = where / "plain.txt"
    query = where / "query.txt" if (where / "query.txt").exists() else plain
    return (
        'case "$1" in\n'
        f"  -L) cat {where}/list.txt ;;\n"
        f"  --query-gpu=*compute_cap*) cat {query}; grep -q 'not a valid field' {query} && exit 2 ;;\n"
        "  --query-gpu=*mig.mode.current*) echo 'Field \"mig.mode.current\" is not a valid field'; exit 2 ;;\n"
        f"  --query-gpu=*) cat {where}/query_old.txt ;;\n"
        f"  *) cat {plain} ;;\n"
        f"esac\nexit {rc}\n"
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
    program(node.bin / "nvidia-smi", recorded("a100"))
    program(node.bin / "nvcc", f"cat {DATA}/nvcc/11.4.txt\n")
    node.env["CUDA_VISIBLE_DEVICES"] = "0,1"
    facts = node.probe(python, node="n1", base_packages=True, tmp="/tmp")
    assert facts.node == "n1"
    assert facts.os.arch == os.uname().machine
    assert facts.libc.kind in ("glibc", "musl")
    assert 1 <= (facts.cpus or 0) <= len(os.sched_getaffinity(0))
    assert (facts.memory_bytes or 0) > 1 << 28
    assert facts.cpu.vendor and len(facts.cpu.features.split()) > 3
    assert (facts.driver.version, facts.driver.cuda_ceiling, facts.driver.problem) == ("470.57.02", "11.4", None)
    assert [gpu.index for gpu in facts.gpus] == list(range(8))
    gpu = facts.gpus[7]
    assert (gpu.name, gpu.uuid) == ("NVIDIA A100-SXM4-80GB", "GPU-00000017-1111-2222-3333-000000000017")
    assert (gpu.memory_mib, gpu.compute_capability, gpu.pci_bus_id) == (81251, "8.0", "00000000:71:00.0")
    assert (gpu.mig_enabled, gpu.ecc_errors) == (False, 0)
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


def test_mig_instances_are_listed(tmp_path: Path) -> None:
    program(tmp_path / "nvidia-smi", recorded("mig"))
    driver, (first, second) = asked_smi(tmp_path)
    assert (driver.version, driver.cuda_ceiling, driver.problem) == ("535.161.08", "12.2", None)
    assert [entry.split()[0] for entry in first.mig] == ["3g.20gb", "2g.10gb", "1g.5gb+me"]
    assert first.mig[0].endswith("MIG-00000030-1111-5222-8333-000000000001")
    assert (first.mig_enabled, second.mig_enabled, second.mig) == (True, False, ())


SCRIPT_A = """case "$*" in
"") echo '| NVIDIA-SMI 580.126.09  Driver Version: 580.126.09  CUDA Version: 13.0 |';;
--query-gpu=*) echo '0, NVIDIA A100-SXM4-40GB, GPU-0, 40960, 00000000:3B:00.0, 580.126.09, 8.0, Disabled, 0';;
-L) exit 0;;
esac
"""
SEEN = ("580.126.09", "13.0")


DRIVERS: dict[str, tuple[str, str | None, str | None, int, str | None]] = {
    "a driver that knows fewer fields": (recorded("v100"), "440.33.01", "10.2", 4, None),
    "a new driver": (recorded("h200"), "580.159.04", "13.0", 2, None),
    "a new driver's own words": (recorded("umd"), "610.43.02", "13.3", 0, "named no GPU in its answer"),
    "values that are not there": (recorded("na"), "525.60.13", None, 2, "GPU 00000000:02:00.0: Unknown Error"),
    "no module": (recorded("no_driver", 9), None, None, 0, "it couldn't communicate with the NVIDIA driver"),
    "another module": (recorded("mismatch", 18), None, None, 0, "mismatch; NVML library version: 535.183"),
    "no devices": (recorded("no_devices", 6), None, None, 0, "No devices were found"),
    "no reason": (recorded("unknown_error", 255), None, None, 0, "Failed to initialize NVML: Unknown Error"),
    # D56: rows that were printed count, and none of them is the reason.
    "crash": (SCRIPT_A + "kill -SEGV $$\n", *SEEN, 1, "nvidia-smi ended with -11: no output"),
    "warning and another exit": (
        SCRIPT_A + "echo 'WARNING: infoROM is corrupted'; exit 14\n",
        *(*SEEN, 1, "nvidia-smi ended with 14: WARNING: infoROM is corrupted"),
    ),
    "a word on stderr": (SCRIPT_A + "echo 'Persistence mode is off' >&2\n", *SEEN, 1, None),
    "a GPU that does not answer": (
        SCRIPT_A.replace("NVIDIA A100-SXM4-40GB", "[Unknown Error]") + "exit 15\n",
        *(*SEEN, 1, "GPU 00000000:3B:00.0: Unknown Error"),
    ),
    # D29: an answer that makes no sense is a problem of the driver.
    "too much": ("head -c 100000000 /dev/zero\n", None, None, 0, "printed more than 1 MiB"),
    "no text": ("printf '0, \\377\\376GPU'\n", None, None, 0, "bytes that are no text"),
    "a failure": ("echo Segmentation fault >&2; exit 139\n", None, None, 0, "ended with 139: Segmentation fault"),
    "a hang": ("exec sleep 600\n", None, None, 0, "did not answer within 0.5 s"),
}


@pytest.mark.parametrize(("script", "version", "ceiling", "count", "says"), DRIVERS.values(), ids=DRIVERS)
def test_what_nvidia_smi_says_is_the_driver_its_gpus_and_its_problem(
    tmp_path: Path, script: str, version: str | None, ceiling: str | None, count: int, says: str | None
) -> None:
    program(tmp_path / "nvidia-smi", script)
    begun = time.monotonic()
    driver, found = asked_smi(tmp_path, deadline=0.5 if "sleep" in script else gpus.SMI_DEADLINE)
    assert time.monotonic() - begun < PATIENCE
    assert (driver.version, driver.cuda_ceiling, len(found)) == (version, ceiling, count)
    assert driver.problem is None if says is None else says in (driver.problem or "")
    if version == "440.33.01":
        assert found[0].compute_capability is found[0].mig_enabled is None
    if version == "525.60.13":
        assert (found[0].mig_enabled, found[0].ecc_errors) == (None, None)
        assert (found[1].memory_mib, found[1].compute_capability, found[1].ecc_errors) == (None, None, None)


def test_d56_d60_health_repairs_and_links_of_a_gpu_are_read_without_what_its_driver_does_not_know(
    tmp_path: Path,
) -> None:
    links = "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-0)\n\t Link 0: 25 GB/s\n\t Link 1: <inactive>\n"
    program(
        tmp_path / "nvidia-smi",
        'case "$*" in\n  "nvlink -s") printf %b ' + repr(links) + " ;;\n"
        "  --query-gpu=*fabric.state*) echo 'Field \"fabric.state\" is not a valid field to query.'; exit 2 ;;\n"
        "  --query-gpu=pci*compute_mode*) echo '00000000:3B:00.0, Default, [N/A], Enabled, 400.00, 1410, 8, 16, No,"
        " Not Active, 0, 1' ;;\n"
        "  --query-gpu=pci*) echo '00000000:3B:00.0, Enabled, Disabled, Enabled, Reset, 92.00, 4, Active' ;;\nesac\n"
        + SCRIPT_A,
    )
    assert asked_smi(tmp_path)[1][0].health == {
        "compute_mode": "Default", "ecc.mode.current": "Enabled", "power.limit": "400.00", "clocks.max.sm": "1410",
        "pcie.link.width.current": "8", "pcie.link.width.max": "16", "retired_pages.pending": "No",
        "clocks_throttle_reasons.hw_slowdown": "Not Active", "remapped_rows.pending": "0", "remapped_rows.failure": "1",
        "nvlinks": "2", "nvlinks.active": "1", "ecc.mode.pending": "Enabled", "mig.mode.current": "Disabled",
        "mig.mode.pending": "Enabled", "gpu_recovery_action": "Reset", "vbios_version": "92.00",
        "pcie.link.gen.max": "4", "clocks_throttle_reasons.sw_thermal_slowdown": "Active",
    }  # fmt: skip
    assert gpus.parse_nvlinks("NVML: Not Supported\n\t Link 0: 25 GB/s\nGPU 0: x (UUID: y)\n") == {}


def test_module_devices_and_bus_are_witnesses_besides_nvidia_smi(tmp_path: Path) -> None:
    files = {f"proc/driver/nvidia/gpus/0000:0{index}:00.0/information": "" for index in range(4)}
    files |= dict.fromkeys(("dev/nvidia0", "dev/nvidia1", "dev/nvidiactl", "dev/nvidia-uvm"), "")
    files["proc/driver/nvidia/version"] = (DATA / "proc_version.txt").read_text()
    facts = gpus.gpu_facts([], root=str(write_files(tmp_path / "driver", files)))
    assert (facts["gpus_physical"], facts["driver"]["version"]) == (4, "470.57.02")
    assert "nvidia-smi is not there" in facts["driver"]["problem"]
    on_bus = {}
    for name, vendor, kind in (("a", "0x10de", "0x030200"), ("b", "0x10de", "0x040300"), ("c", "0x8086", "0x030000")):
        on_bus |= {f"sys/bus/pci/devices/{name}/{key}": text for key, text in (("vendor", vendor), ("class", kind))}
    facts = gpus.gpu_facts([], root=str(write_files(tmp_path / "bus", on_bus)))
    assert (facts["gpus_physical"], facts["driver"]["version"]) == (1, None)
    assert facts["driver"]["problem"]


def test_every_interpreter_is_told_once_and_shims_liars_and_wrappers_are_none(node: Node, tmp_path: Path) -> None:
    real, newer = require_python("3.8"), require_python("3.13")
    root, venv = node.home / ".pyenv", tmp_path / "venv"
    program(root / "shims/python3", "echo 'pyenv: python3: command not found' >&2; exit 127\n")
    program(root / "shims/python3.8", f'exec {real} "$@"\n')
    for link, python in ((root / "versions/3.8.18/bin/python3.8", real),
                         (node.prefix / "tools/python-3.13.0-abc/bin/python3.13", newer)):  # fmt: skip
        link.parent.mkdir(parents=True)
        link.symlink_to(python)
    program(node.bin / "python3.9", "echo Python 3.9.1\n")
    program(node.bin / "python3.10", 'echo \'{"implementation": "cpython", "version": 3}\'\n')
    program(node.bin / "python3.11", f'exec {sys.executable} "$@"\n')
    subprocess.run([real, "-m", "venv", "--without-pip", str(venv)], check=True)
    about = next(venv.glob("lib/python3.*/site-packages")) / "Some_Thing-1.2.dist-info/METADATA"
    write_file(about, "Metadata-Version: 2.1\nName: Some_Thing\nVersion: 1.2\n\nx\n")
    node.env["PATH"] = f"{root}/shims:{venv}/bin:{node.env['PATH']}"
    facts = node.probe(base_packages=True)
    paths = [each.path for each in facts.pythons]
    assert {str(Path(python).resolve()) for python in (real, newer)} <= set(paths)
    assert not [path for path in paths if "shims" in path or path.startswith(str(node.bin))]
    assert len(paths) == len(set(paths))
    (mine,) = (each for each in facts.pythons if each.path.startswith(str(venv)))
    assert mine.virtual and (mine.packages or {})["some-thing"] == "1.2", "a virtual environment is its own entry"
    assert facts.toolchain == ("python-3.13.0-abc",)


def test_tools_environments_links_lease_and_wanted_files_of_a_node_are_facts(node: Node, tmp_path: Path) -> None:
    program(node.bin / "zstd", "exit 1\n")
    # D56: a compiler that warns and fails has its version.
    program(node.bin / "nvcc", "echo 'Cuda compilation tools, release 12.4, V12.4.131'; exit 1\n")
    program(node.bin / "gcc", "echo 'gcc (GCC) 11.4.0'; echo 'ccache: read-only' >&2; exit 2\n")
    stamp = {"stack": "s", "profile": "exact", "variant_digest": "d" * 64, "root": "r" * 64, "packages": {"a": "1"}}
    stamp.update(version=1, sources=[])
    whole, half, broken = (node.prefix / "envs" / name for name in ("s-exact-" + each * 12 for each in "123"))
    # What is no environment by its name is none by its stamp.
    others = [node.prefix / "envs" / f"{whole.name}.{each}" for each in ("trash-123", "old-20260101T000000Z-a", "0")]
    (half / ".envbuild").mkdir(parents=True)
    for folder in (whole, *others):
        write_file(folder / ".envbuild/stamp.json", json.dumps(stamp))
    write_file(broken / ".envbuild/stamp.json", '{"stack": ')
    (node.prefix / "current").mkdir()
    (node.prefix / "current/s").symlink_to(f"../envs/{whole.name}")
    (node.prefix / "lease.json").write_text('{"run": "r9", "token": "t"}')
    for name in ("one", "two"):
        write_file(tmp_path / name / f"{name}.whl")
    write_file(node.home / ".config/pip/pip.conf", f"[global]\nfind-links = {tmp_path}/two https://u:p@h/x\n")
    facts = node.probe(files=["one.whl", "two.whl", "missing.whl", "../two/two.whl"])
    assert facts.tools["zstd"] == "unknown"
    assert set(facts.tools) >= {"git", "tar", "gzip", "xz", "uv", "curl", "module"}
    assert all(value is None or value for value in facts.tools.values())
    assert "12.4.131" in [tool.version for tool in facts.nvcc]
    assert "11.4.0" in [tool.version for tool in facts.compilers]
    assert [(each.stack, each.current, each.stamp is None) for each in facts.environments] == [
        ("s", True, False),
        (None, False, True),
        (None, False, True),
    ]
    assert facts.environments[0].variant_digest == "d" * 64
    assert facts.busy == {"run": "r9", "token": "t"}
    assert facts.warnings == ("2 environment(s) without a stamp under the prefix",)
    assert facts.files_found == {"two.whl": f"{tmp_path}/two/two.whl"}


def test_packages_of_debian_are_looked_up_where_dpkg_is(tmp_path: Path) -> None:
    wanted = ["libaio-dev", "cmake", "libgeos-dev"]
    assert debian_packages(wanted, str(tmp_path)) == {}
    for name in ("libaio-dev:amd64.list", "cmake.list", "cmake.md5sums", "libgeos-dev.md5sums"):
        write_file(tmp_path / "var/lib/dpkg/info" / name, "")
    assert debian_packages(wanted, str(tmp_path)) == {"libaio-dev": True, "cmake": True, "libgeos-dev": False}


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


def test_bad_args_are_a_coded_error(node: Node) -> None:
    for args in ({"files": "x"}, {"reach": []}, {"interpreters": [3.11]}, {"reach": {"a": 1}}):
        with fails("request-invalid"):
            probe.run({"prefix": str(node.prefix), "args": args})


def asked_for(folders: list[str], prefix: str, *, asked: list[str]) -> dict[str, Any]:
    """The facts of the one interpreter that was asked for; the machine may have others."""
    (fact,) = (each for each in python_facts(folders, prefix, asked=asked) if each.get("also"))
    return fact


def test_d07_a_named_interpreter_keeps_the_name_it_was_asked_by_and_is_never_a_shim(tmp_path: Path) -> None:
    link = tmp_path / "mine"
    link.symlink_to(PYTHON)
    fact = asked_for([], str(tmp_path), asked=[str(link), str(tmp_path / "not-there")])
    assert (fact["path"], fact["also"], fact["version"].startswith(f"{MINOR}.")) == (PYTHON, [str(link)], True)
    places = [tmp_path / "shims", tmp_path / "soft" / "bin"]
    program(places[0] / "python3", "exit 127\n")
    places[1].mkdir(parents=True)
    (places[1] / "python3").symlink_to(PYTHON)
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
