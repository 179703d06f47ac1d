"""The shipped locks and the records of torch wheels that they rest on: every stack has them, and every gap is known."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import click
import pytest
from packaging.requirements import Requirement
from packaging.utils import parse_wheel_filename

from envbuild import resources
from envbuild.catalog.loader import list_stacks, lock_path
from envbuild.cli.lock_cmd import check
from envbuild.errors import EnvbuildError
from envbuild.export.lock_formats import Places, export_lock
from envbuild.lock.check import check_lock
from envbuild.lock.create import default_supply
from envbuild.lock.files import read_lock
from envbuild.lock.readers.pylock import platform_of
from envbuild.lock.readers.torch_wheels import check_against_records, choose_torch, load_records
from envbuild.lock.record import render_lock
from envbuild.model.lock import Lock
from envbuild.resolve.artifacts import rank
from tests.support.fails import fails
from tests.support.stacks import shipped_stack

PROFILES = [(name, profile) for name in list_stacks() for profile in shipped_stack(name).stack.profiles]
FILES = sorted(path.name for path in resources.lockfiles().glob("*.lock.toml"))
# What has no public record, as far as was found; a lock that gains or loses one must be looked at.
UNRECORDED = {
    "torch-1.8.2+cu111-cp38-cp38-linux_x86_64.whl",
    "torch-1.10.1+cu113-cp39-cp39-linux_x86_64.whl",
}


@cache
def shipped(file: str) -> Lock:
    return read_lock(resources.lockfiles() / file)


@pytest.mark.parametrize("file", FILES)
def test_a_shipped_lock_agrees_with_its_stack_and_every_gap_is_known(file: str) -> None:
    lock = shipped(file)
    stack = shipped_stack(lock.stack).stack
    findings = check_lock(lock, stack, online=False)
    assert [finding for finding in findings if finding.kind == "problem"] == []
    assert {finding.code for finding in findings} <= {"hash-unrecorded", "image-unrecorded", "conda-unrecorded"}
    as_of = stack.profiles[lock.profile].as_of
    assert lock.as_of == (as_of.isoformat() if as_of else None)
    text = (resources.lockfiles() / file).read_text(encoding="utf-8")
    assert render_lock(lock) == text
    sources = [source for variant in lock.variants for source in variant.sources]
    assert all(tuple(pin.name for pin in source.patch_pins) == source.patches for source in sources)
    urls = [source.git for source in sources] + [part.git for source in sources for part in source.submodules]
    assert text.count("://") == len(urls), "it has no address but those of its sources"
    assert all(url.startswith("https://github.com/") for url in urls)
    for variant in lock.variants:
        fits = platform_of(variant.python, variant.platform)
        for package in variant.packages:
            (item,) = package.files
            if item.file.endswith(".whl"):
                assert rank(item.file, fits) is not None
                assert str(parse_wheel_filename(item.file)[1]) == package.version
            assert item.sha256 != "unrecorded" or (item.file in UNRECORDED and item.reason)
            assert item.sha256 == "unrecorded" or item.size or item.witness
        check_against_records(variant.packages, load_records()[0])


def test_torch_comes_from_where_that_build_is_and_says_whose_metadata_it_uses() -> None:
    for stack, profile, *torch in (
        ("megatron-alpa", "exact", "1.8.2+cu111", "pytorch-lts-cu111", "torch 1.8.1 on pypi"),
        ("opt-175b", "exact", "1.11.0+cu113", "pytorch-cu113", "torch 1.11.0 on pypi"),
        ("opt-175b", "exact-torch-1.10", "1.10.0+cu113", "pytorch-stable", "torch 1.10.0 on pypi"),
        ("megatronapp", "ported", "2.1.0", "pypi", None),
    ):
        variant = shipped(lock_path(shipped_stack(stack), profile).name).variants[0]
        (package,) = (package for package in variant.packages if package.name == "torch")
        assert [package.version, package.index, package.metadata_from] == torch
    supply = default_supply()
    assert supply.pypi_flavours["2.13.0"] == "cu130"
    assert choose_torch("2.13.0", "cu130", "3.12", "linux_x86_64", supply, None).requirements == ("torch===2.13.0",)
    assert supply.torch_index("1.10.0", "cu113").kind == "find-links"
    with fails("index-unknown"):
        choose_torch("2.13.0", "cu101", "3.12", "linux_x86_64", supply, None)
    records, requires = load_records()
    for file, record in records.items():
        assert parse_wheel_filename(file)[0] == "torch"
        assert record.witness and record.sha256 != "unrecorded"
    assert len({record.sha256 for record in records.values()}) == len(records)
    assert all(Requirement(text).url is None for texts in requires.values() for text in texts)


def test_every_profile_has_its_lock_and_lock_check_without_a_stack_checks_all(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert sorted(lock_path(shipped_stack(name), profile).name for name, profile in PROFILES) == FILES
    assert int(check.main(args=["--offline", "--json"], standalone_mode=False)) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is True
    assert {Path(row["lock"]).name for row in found["locks"]} == set(FILES)
    with pytest.raises(click.UsageError):
        check.main(args=["--profile", "exact"], standalone_mode=False)


def test_the_shipped_lock_has_what_a_machine_needs() -> None:
    lock = shipped("torch-smoke.exact.lock.toml")
    variants = {variant.id: variant for variant in lock.variants}
    for python in ("cp311", "cp312", "cp313"):
        cpu = {p.name: p for p in variants[f"{python}-linux_x86_64-cpu"].packages}
        assert (cpu["torch"].version, cpu["torch"].index) == ("2.13.0+cpu", "pytorch-cpu")
        assert not [name for name in cpu if name.startswith("nvidia-")]
        gpu = {p.name: p for p in variants[f"{python}-linux_x86_64-cu130"].packages}
        assert (gpu["torch"].version, gpu["torch"].index) == ("2.13.0", "pypi")
        assert {"nvidia-nccl-cu13", "nvidia-cudnn-cu13", "nvidia-cublas", "triton"} <= gpu.keys()
        assert 2.5e9 < sum(f.size or 0 for p in gpu.values() for f in p.files) < 3.5e9
        system = variants[f"{python}-linux_x86_64-system"]
        assert (system.packages, system.provided, system.base.provides) == ((), {}, ("torch>=1.13",))
    assert all(file.sha256 != "unrecorded" and file.size for variant in lock.variants for file in variant.files)


def test_the_index_still_offers_what_the_shipped_lock_names() -> None:
    try:
        text = export_lock(
            shipped("torch-smoke.exact.lock.toml"), "cp312-linux_x86_64-cu130", "pylock", places=Places()
        )
    except EnvbuildError as error:
        if error.code != "index-unreachable":
            raise
        pytest.skip(f"the package index cannot be reached: {error.why}")
    assert text.count("url = ") == 29
