"""Plans of conda environments, and the virtual packages that they are solved for."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import archspec.cpu
import pytest
from archspec.cpu import TARGETS

from envbuild.cli.entry import main
from envbuild.conda.virtual import BASELINE, met, microarchitecture, of_facts, platform_of, solutions
from envbuild.errors import ExitCode
from envbuild.model.facts import CpuFacts, DiskFacts, DriverFacts, LibcFacts, NodeFacts, OsFacts
from envbuild.model.stack import CondaSpec
from envbuild.node.probe.system import cpu_facts
from tests.conda.channel import channel, record


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A locked stack with one variant for new nodes and one for old ones."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RATTLER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    forge = channel(
        tmp_path / "forge",
        record("python", "3.11.9"),
        record("lib", "1.0", "0", "__glibc >=2.17"),
        record("lib", "2.0", "0", "__glibc >=2.28"),
    )
    path = tmp_path / "my.yaml"
    path.write_text(
        "name: mine\nsummary: s\nprofiles:\n  exact:\n    python: ['3.11']\n    smoke: []\n    conda:\n"
        "      virtual: [{__glibc: '2.28'}, {__glibc: '2.17'}]\n      packages: [lib]\n"
        f"      channels: [{{name: forge, url: '{forge.urls[0]}'}}]\n"
    )
    assert main(["lock", "create", str(path), "--quiet"]) == ExitCode.OK
    return path


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = main(["plan", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def install(data: dict[str, Any]) -> dict[str, Any]:
    steps = data["plan"]["nodes"][0]["steps"]
    return dict(next(step for step in steps if step["kind"] == "install"))


def test_the_install_request_says_what_conda_installs_and_from_where(
    stack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, data = planned(capsys, "--stack", str(stack), "--engine", "conda", "--facts", "polaris")
    assert code == ExitCode.OK
    step = install(data)
    args = step["request"]["args"]
    assert args["variant"]["engine"] == "conda"
    assert [each["file"] for each in args["variant"]["conda"]["packages"]] == [
        "python-3.11.9-0.conda",
        "lib-2.0-0.conda",
    ]
    assert args["interpreter"] is None
    assert set(args["tools"]) == {"uv", "uv_sha256", "rattler", "rattler_python"}
    assert args["artifacts"]["conda"] == {"channels": {"forge": [(tmp_path / "forge").as_uri()]}}
    assert "2 conda packages from forge" in step["what"]
    tools = data["plan"]["nodes"][0]["steps"][0]
    assert "py-rattler" in tools["what"] and not tools.get("unsized"), "it is packed here, not downloaded"
    assert not [text for text in data["plan"]["warnings"] if "not-yet-supported" in text]
    # Another node gets the solution for its glibc.
    _, data = planned(capsys, "--stack", str(stack), "--engine", "conda", "--facts", "aws-p3-16xlarge")
    variant = install(data)["request"]["args"]["variant"]
    assert (variant["id"], variant["conda"]["packages"][-1]["file"]) == (
        "cp311-linux_x86_64-conda-2",
        "lib-1.0-0.conda",
    )
    # What is delivered is taken from its folder.
    target = tmp_path / "target.yaml"
    target.write_text("name: t\nengine: conda\nprefix: /data/envbuild\ndelivery: controller\n")
    _, data = planned(capsys, "--stack", str(stack), "--target", str(target), "--facts", "polaris")
    artifacts = install(data)["request"]["args"]["artifacts"]
    assert artifacts["bundle"]["file"].startswith("/data/envbuild/")
    assert "conda" not in artifacts and "indexes" not in artifacts
    # Without the option the environment is uv's.
    _, data = planned(capsys, "--stack", str(stack), "--facts", "polaris", "--python", "3.11")
    for node in data["plan"]["nodes"]:
        asked = [step["request"]["args"] for step in node["steps"] if step.get("request")]
        assert all("conda" not in args.get("tools", {}) for args in asked)
        assert node["resolution"]["variant_id"] == "cp311-linux_x86_64"


def test_a_lock_without_recorded_packages_is_refused_with_the_command_that_records_them(
    stack: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lock", "create", str(stack), "--conda-unrecorded", "--quiet"]) == ExitCode.OK
    code, data = planned(capsys, "--stack", str(stack), "--engine", "conda", "--facts", "polaris")
    assert code == ExitCode.REFUSED
    assert "conda-unrecorded" in json.dumps(data)
    assert "envbuild lock create mine --profile exact" in json.dumps(data)
    main(["explain", str(stack), "--engine", "conda", "--facts", "polaris", "--json"])
    decisions = json.loads(capsys.readouterr().out)["decisions"]
    assert ("conda-unrecorded", "refuse") in {(row["rule"], row["verdict"]) for row in decisions}


def facts(**fields: object) -> NodeFacts:
    needed = {"protocol": 1, "node": "n", "hostname": "n", "user": "u", "probed_at": "", "prefix": DiskFacts(path="/p")}
    return NodeFacts(**{"os": OsFacts(), "libc": LibcFacts(), **needed, **fields})  # type: ignore[arg-type]


def test_they_are_what_the_facts_of_a_node_say() -> None:
    node = facts(
        os=OsFacts(kernel="5.15.0-91-generic", arch="x86_64"),
        libc=LibcFacts(kind="glibc", version="2.35"),
        driver=DriverFacts(version="535", cuda_ceiling="12.2"),
    )
    assert of_facts(node) == {
        "__unix": "0", "__linux": "5.15.0", "__glibc": "2.35", "__archspec": "1=x86_64", "__cuda": "12.2",
    }  # fmt: skip
    assert of_facts(facts(libc=LibcFacts(kind="musl", version="1.2"))) == {"__unix": "0", "__linux": "0"}


def test_the_processor_is_called_as_archspec_calls_it_whatever_machine_asks() -> None:
    def named(family: str, **cpu: str) -> str:
        return of_facts(facts(os=OsFacts(arch=family), cpu=CpuFacts(**cpu)))["__archspec"]

    intel, arm = TARGETS["skylake_avx512"], TARGETS["neoverse_n1"]
    assert named("x86_64", vendor=intel.vendor, features=" ".join(intel.features)) == "1=skylake_avx512"
    assert named("x86_64", vendor="Somebody", features=" ".join(intel.features)) == "1=x86_64_v4"
    assert named("aarch64", vendor="0x41", features=" ".join(arm.features), part=arm.cpu_part) == "1=neoverse_n1"
    assert named("x86_64", vendor="GenuineIntel", features="fpu") == "1=x86_64"
    assert named("aarch64") == "1=aarch64"
    assert platform_of({"__archspec": "1=neoverse_n1"}) == platform_of({"__archspec": "1=aarch64"}) == "linux_aarch64"
    assert platform_of({"__archspec": "1=zen3"}) == platform_of({}) == "linux_x86_64"
    assert microarchitecture(platform.machine(), CpuFacts(**cpu_facts())) == archspec.cpu.host().name


def test_without_facts_they_stand_on_the_baseline_the_profile_and_the_flavour() -> None:
    assert solutions(CondaSpec(), "cu113") == ({**BASELINE, "__cuda": "11.3"},)
    assert solutions(CondaSpec(), "cpu") == (BASELINE,)
    profile = CondaSpec(virtual=({"__glibc": "2.28", "__cuda": "11.8"}, {"__glibc": "2.17"}))
    assert [(each["__glibc"], each.get("__cuda")) for each in solutions(profile, None)] == [
        ("2.28", "11.8"),
        ("2.17", None),
    ]
    assert all("__cuda" not in each for each in solutions(profile, "cpu"))
    node = {"__glibc": "2.31"}
    assert solutions(CondaSpec(), "cu118", (node, dict(node))) == (node,), "those of nodes are taken whole and once"


@pytest.mark.parametrize(
    ("spec", "holds"),
    [
        ("__glibc >=2.28,<3.0.a0", True),
        ("__glibc>=2.36", False),
        ("__glibc", True),
        ("__cuda", False),
        # Code for an older processor runs on a newer one.
        ("__archspec 1 haswell", True),
        ("__archspec 1=x86_64_v3", True),
        ("__archspec 1 skylake", False),
        ("__archspec 1 zen2", False),
    ],
)
def test_a_spec_holds_or_does_not(spec: str, holds: bool) -> None:
    assert met(spec, {"__glibc": "2.35", "__archspec": "1=haswell"}) is holds
