"""Locks of profiles with a conda section: one variant each, with its own digest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from archspec.cpu import TARGETS

from envbuild.catalog.node_facts import load_facts
from envbuild.cli.entry import main
from envbuild.conda.channels import Place
from envbuild.conda.virtual import of_facts
from envbuild.errors import ExitCode
from envbuild.lock.check import check_lock
from envbuild.lock.diff import diff_locks
from envbuild.lock.files import parse_lock
from envbuild.lock.record import render_lock
from envbuild.lock.variants import specs
from envbuild.model.lock import Lock
from envbuild.model.stack import Stack
from tests.conda.channel import channel, record
from tests.lock import build
from tests.lock.build import MakeSupply, make, make_wheel, make_wheels
from tests.support.fails import fails


@pytest.fixture(autouse=True)
def caches(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATTLER_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def forge(tmp_path: Path) -> Place:
    return channel(
        tmp_path / "forge",
        record("python", "3.11.9"),
        record("python", "3.10.1"),
        record("numpy", "1.26.0", "py311", "python >=3.11,<3.12.0a0", "__glibc >=2.17"),
        record("numpy", "2.0.0", "py311", "python >=3.11,<3.12.0a0", "__glibc >=2.28"),
        record("pytorch", "1.0.0", "cpu_py311", "python >=3.11,<3.12.0a0"),
        record("pytorch", "1.0.0", "cuda_py311", "python >=3.11,<3.12.0a0", "__cuda >=11.1", build_number=1),
    )


def stack(forge: Place, conda: dict[str, Any] | None = None, **profile: Any) -> Stack:
    section = {"channels": [{"name": "forge", "url": forge.urls[0]}]} | (conda or {})
    return build.stack(conda=section, **profile)


def archives(lock: Lock, number: int = -1) -> dict[str, str]:
    conda = lock.variants[number].conda
    return {each.name: f"{each.version} {each.build}" for each in conda.packages} if conda else {}


def test_a_conda_section_gives_one_more_variant_and_leaves_the_others_as_they_were(
    forge: Place, supply: MakeSupply, tmp_path: Path
) -> None:
    make_wheel(tmp_path / "house", "alpha", "1.0")
    wanted = stack(forge, {"packages": ["numpy"]}, packages=["alpha"])
    lock = make(wanted, supply(tmp_path / "house"))
    plain = make(stack(forge, packages=["alpha"]), supply(tmp_path / "house"))
    assert [variant.id for variant in lock.variants] == ["cp311-linux_x86_64", "cp311-linux_x86_64-conda"]
    assert [variant.engine for variant in lock.variants] == ["venv", "conda"]
    assert lock.variants[0].digest == plain.variants[0].digest
    assert archives(lock) == {"python": "3.11.9 0", "numpy": "1.26.0 py311"}
    assert [package.name for package in lock.variants[1].packages] == ["alpha"]
    assert lock.created_with["py-rattler"]
    text = render_lock(lock)
    assert "[[variant.conda.package]]" in text
    assert str(tmp_path) not in text
    assert parse_lock(text, "x") == lock
    with fails("lock-digest-mismatch"):
        parse_lock(text.replace('version = "3.11.9"', 'version = "3.11.8"').replace("3.11.9-0", "3.11.8-0"), "x")
    assert check_lock(lock, wanted, online=False) == []
    assert make(wanted, supply(tmp_path / "house"), previous=lock) == lock


def test_what_conda_provides_is_left_out_of_pip_s_part_at_the_version_that_the_stack_says(
    forge: Place, supply: MakeSupply, tmp_path: Path
) -> None:
    make_wheels(tmp_path / "house", "alpha 1.0: NumPy", "numpy 1.25.0")
    wanted = stack(forge, {"provides": {"NumPy": "numpy"}}, packages=["alpha", "numpy<1.27"])
    lock = make(wanted, supply(tmp_path / "house"))
    venv, conda = ([package.name for package in variant.packages] for variant in lock.variants)
    assert (venv, conda) == (["alpha", "numpy"], ["alpha"])
    assert archives(lock)["numpy"] == "1.26.0 py311"
    assert lock.variants[1].conda and lock.variants[1].conda.provides == {"numpy": "numpy"}
    assert check_lock(lock, wanted, online=False) == []


def test_a_wheel_and_a_conda_package_of_one_name_are_refused_naming_both(
    forge: Place, supply: MakeSupply, tmp_path: Path
) -> None:
    make_wheel(tmp_path / "house", "numpy", "1.25.0")
    with fails("conda-and-wheel", ExitCode.REFUSED) as caught:
        make(stack(forge, {"packages": ["numpy"], "only": True}, packages=["numpy"]), supply(tmp_path / "house"))
    assert "numpy-1.26.0-py311.conda" in caught.value.what
    assert "numpy-1.25.0-py3-none-any.whl" in caught.value.what


def test_torch_can_come_from_conda_for_each_flavour(forge: Place, supply: MakeSupply) -> None:
    section = {"provides": {"torch": "pytorch"}, "only": True}
    wanted = stack(forge, section, torch={"version": "1.0.0", "flavours": ["cu111", "cpu"]})
    lock = make(wanted, supply())
    assert [variant.id for variant in lock.variants] == [
        "cp311-linux_x86_64-cu111-conda",
        "cp311-linux_x86_64-cpu-conda",
    ]
    assert [archives(lock, number)["pytorch"] for number in (0, 1)] == ["1.0.0 cuda_py311", "1.0.0 cpu_py311"]
    assert [variant.torch for variant in lock.variants] == ["1.0.0", "1.0.0"]
    assert check_lock(lock, wanted, online=False) == []


def test_each_set_of_virtual_packages_is_a_variant_and_facts_stand_above_the_profile(
    forge: Place, supply: MakeSupply
) -> None:
    section = {"packages": ["numpy"], "only": True, "virtual": [{"__glibc": "2.28"}, {"__glibc": "2.17"}]}
    wanted = stack(forge, section)
    lock = make(wanted, supply())
    assert [variant.id for variant in lock.variants] == ["cp311-linux_x86_64-conda", "cp311-linux_x86_64-conda-2"]
    assert [archives(lock, number)["numpy"].split()[0] for number in (0, 1)] == ["2.0.0", "1.26.0"]
    assert lock.variants[0].digest != lock.variants[1].digest
    assert check_lock(lock, wanted, online=False) == []
    node = {"__glibc": "2.35", "__unix": "0"}
    one = make(wanted, supply(), virtual=(node,))
    assert [variant.conda.solved_for for variant in one.variants if variant.conda] == [node]
    assert check_lock(one, wanted, online=False) == []


def test_nodes_of_another_architecture_get_the_packages_of_theirs(supply: MakeSupply, tmp_path: Path) -> None:
    there = channel(
        tmp_path / "both",
        record("python", "3.11.9"),
        record("python", "3.11.8", subdir="linux-aarch64"),
        record("fast", "1.0", "x86"),
        record("fast", "1.0", "arm", "__archspec 1 neoverse_n1", subdir="linux-aarch64"),
        record("pure", "2.0", subdir="noarch"),
    )
    make_wheel(tmp_path / "house", "alpha", "1.0")
    wanted = stack(there, {"packages": ["fast", "pure"], "only": True}, packages=["alpha"])
    arm = TARGETS["neoverse_n1"]
    cpu = {"vendor": "0x41", "features": " ".join(arm.features), "part": arm.cpu_part}
    (plain,) = (each.model_dump(mode="json") for each in load_facts("polaris").values())
    plain |= {"node": "arm01", "cpu": cpu, "os": {**plain["os"], "arch": "aarch64"}}
    (tmp_path / "arm.json").write_text(json.dumps(plain))
    nodes = [of_facts(node) for ref in ("polaris", str(tmp_path / "arm.json")) for node in load_facts(ref).values()]
    lock = make(wanted, supply(tmp_path / "house"), virtual=nodes)
    assert [(each.id, each.platform) for each in lock.variants] == [
        ("cp311-linux_x86_64-conda", "linux_x86_64"),
        ("cp311-linux_aarch64-conda", "linux_aarch64"),
    ]
    assert archives(lock) == {"python": "3.11.8 0", "fast": "1.0 arm", "pure": "2.0 0"}
    assert {each.subdir for each in lock.variants[1].conda.packages} == {"linux-aarch64", "noarch"}  # type: ignore[union-attr]
    assert check_lock(lock, wanted) == []
    assert parse_lock(render_lock(lock), "x") == lock
    assert make(wanted, supply(tmp_path / "house"), previous=lock, virtual=nodes) == lock
    alone = make(wanted, supply(tmp_path / "house"), virtual=nodes[1:])
    assert ([each.id for each in alone.variants], check_lock(alone, wanted)) == (["cp311-linux_aarch64-conda"], [])


def test_without_channels_a_variant_says_that_it_is_unrecorded(forge: Place, supply: MakeSupply) -> None:
    wanted = stack(forge, {"packages": ["numpy"]})
    lock = make(wanted, supply(), conda_offline=True)
    conda = lock.variants[-1].conda
    assert conda and conda.unrecorded == "the channels were not asked"
    (finding,) = check_lock(lock, wanted, online=False)
    assert (finding.code, finding.kind) == ("conda-unrecorded", "note")
    assert parse_lock(render_lock(lock), "x") == lock
    recorded = make(wanted, supply(), previous=lock)
    lines = diff_locks(lock, recorded).text()
    assert "+ conda package numpy 1.26.0" in lines


def test_versions_stay_until_upgraded_and_a_check_asks_the_stack_and_the_channels_what_they_have_now(
    forge: Place, supply: MakeSupply, tmp_path: Path
) -> None:
    wanted = stack(forge, {"packages": ["numpy"]})
    lock = make(wanted, supply())
    assert check_lock(lock, wanted) == []
    more = stack(forge, {"packages": ["numpy", "pytorch"], "provides": {"a": "numpy"}, "channels": [{"name": "other"}]})
    subjects = {finding.subject for finding in check_lock(lock, more, online=False)}
    assert subjects >= {"conda.packages", "conda.provides", "conda.channels", "conda"}
    numpy = record("numpy", "1.26.0", "py311", "__glibc >=2.17")
    channel(tmp_path / "forge", record("python", "3.11.9"), record("python", "3.11.10"), numpy)
    assert make(wanted, supply(), previous=lock) == lock
    upgraded = make(wanted, supply(), previous=lock, upgrade=True)
    assert diff_locks(lock, upgraded).text() == (
        "cp311-linux_x86_64-conda:\n  ~ conda package python 3.11.9 -> 3.11.10"
    )
    channel(tmp_path / "forge", record("numpy", "1.26.0", "py311", sha256="f" * 64))
    found = {(finding.code, finding.kind, int(finding.exit_code)) for finding in check_lock(lock, wanted)}
    assert found == {("conda-package-gone", "problem", 1), ("conda-package-changed", "problem", 5)}
    for path in (tmp_path / "forge" / "noarch").iterdir():
        path.unlink()
    assert [finding.code for finding in check_lock(lock, wanted)] == ["channel-missing"]


@pytest.mark.parametrize(
    ("said", "asked"),
    [
        (["numpy==1.2.*"], "numpy 1.2.*"),
        (["numpy>=1.2,<2"], "numpy <2,>=1.2"),
        (["numpy===1.2+cu111"], "numpy ==1.2"),
        (["numpy[extra]~=1.2"], "numpy ~=1.2"),
        (["numpy==1.2; platform_machine == 'aarch64'"], "numpy ==1.2"),
    ],
)
def test_requirements_of_what_conda_provides_become_match_specs(forge: Place, said: list[str], asked: str) -> None:
    profile = stack(forge, {"provides": {"numpy": "numpy"}}, packages=said).profiles["exact"]
    assert profile.conda
    assert specs(profile, profile.conda, "3.9", "linux_aarch64") == ("python 3.9.*", asked)


def test_lock_create_solves_for_recorded_facts_and_says_how_much_is_conda_s(
    forge: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    path = tmp_path / "my.yaml"
    path.write_text(
        "name: mine\nsummary: s\nprofiles:\n  exact:\n"
        f"    python: ['3.11']\n    smoke: []\n    conda:\n      only: true\n      packages: [numpy]\n"
        f"      channels: [{{name: forge, url: '{forge.urls[0]}'}}]\n"
    )
    code = main(["lock", "create", str(path), "--facts", "polaris", "--json"])
    data = json.loads(capsys.readouterr().out)
    assert (code, [(row["id"], row["conda_packages"]) for row in data["variants"]]) == (
        ExitCode.OK,
        [("cp311-linux_x86_64-conda", 2)],
    )
    made = parse_lock((tmp_path / "my.lock.toml").read_text(), "x")
    (node,) = map(of_facts, load_facts("polaris").values())
    assert made.variants[0].conda and made.variants[0].conda.solved_for == node


def test_a_wheel_that_does_not_take_conda_s_version_is_refused_with_both(
    forge: Place, supply: MakeSupply, tmp_path: Path
) -> None:
    make_wheels(tmp_path / "house", "alpha 1.0: numpy>=2", "numpy 2.0.0")
    section = {"provides": {"numpy": "numpy"}, "only": True}
    with fails("resolution-failed") as caught:
        make(stack(forge, section, packages=["alpha"]), supply(tmp_path / "house"))
    assert "numpy==1.26.0+conda" in caught.value.why
    make_wheels(tmp_path / "house", "alpha 0.9: numpy<2, beta", "beta 1.0")
    lock = make(stack(forge, section, packages=["alpha"]), supply(tmp_path / "house"))
    assert {package.name: package.version for package in lock.variants[0].packages} == {"alpha": "0.9", "beta": "1.0"}
    # What conda calls a version and Python does not is left out unseen.
    there = channel(tmp_path / "forge", record("python", "3.11.9"), record("tzdata", "9e", subdir="noarch"))
    make_wheel(tmp_path / "house", "gamma", "1.0", requires=["tzdata"])
    wanted = stack(there, {"provides": {"tzdata": "tzdata"}, "only": True}, packages=["gamma"])
    lock = make(wanted, supply(tmp_path / "house"))
    assert [package.name for package in lock.variants[0].packages] == ["gamma"]
