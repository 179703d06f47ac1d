"""The shipped records of torch wheels, and the shipped lock that rests on them."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import parse_wheel_filename

from envbuild import resources
from envbuild.errors import EnvbuildError
from envbuild.export.lock_formats import Places, export_lock
from envbuild.lock.create import default_supply
from envbuild.lock.files import read_lock
from envbuild.lock.readers.torch_wheels import choose_torch, load_records
from envbuild.model.lock import Lock
from envbuild.node import pip_config
from tests.support.fails import fails


@pytest.fixture
def shipped() -> Lock:
    return read_lock(resources.lockfiles() / "torch-smoke.exact.lock.toml")


def test_every_record_is_a_torch_wheel_with_a_witness_and_no_hash_is_there_twice() -> None:
    records = load_records()
    for file, record in records.files.items():
        assert parse_wheel_filename(file)[0] == "torch"
        assert record.witness
        assert record.sha256 != "unrecorded"
    assert len({record.sha256 for record in records.files.values()}) == len(records.files)
    assert all(Requirement(text).url is None for texts in records.requires.values() for text in texts)


def test_a_wheel_that_is_here_is_the_recorded_one() -> None:
    records = load_records()
    folders = map(Path, pip_config.folders(pip_config.read(os.environ).find_links))
    here = [path for folder in folders for path in sorted(folder.glob("torch-*.whl")) if path.name in records.files]
    if not here:
        pytest.skip("no recorded torch wheel lies in a find-links folder of pip's configuration")
    for path in here:
        with path.open("rb") as stream:
            assert hashlib.file_digest(stream, "sha256").hexdigest() == records.files[path.name].sha256
        assert path.stat().st_size == records.files[path.name].size


def test_the_catalog_says_where_each_flavour_comes_from() -> None:
    supply = default_supply()
    assert supply.pypi_flavours["2.13.0"] == "cu130"
    assert choose_torch("2.13.0", "cu130", "3.12", "linux_x86_64", supply, None).requirements == ("torch===2.13.0",)
    assert supply.torch_index("1.10.0", "cu113").kind == "find-links"
    with fails("index-unknown"):
        choose_torch("2.13.0", "cu101", "3.12", "linux_x86_64", supply, None)


def test_the_shipped_lock_has_what_a_machine_needs(shipped: Lock) -> None:
    variants = {variant.id: variant for variant in shipped.variants}
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
    files = [f for v in shipped.variants for p in v.packages for f in p.files]
    assert all(f.sha256 != "unrecorded" and f.size for f in files)


def test_the_index_still_offers_what_the_shipped_lock_names(shipped: Lock) -> None:
    try:
        text = export_lock(shipped, "cp312-linux_x86_64-cu130", "pylock", places=Places())
    except EnvbuildError as error:
        if error.code != "index-unreachable":
            raise
        pytest.skip(f"the package index cannot be reached: {error.why}")
    assert text.count("url = ") == 29
