"""What conda, micromamba and conda-lock take: read, and installed from, by rattler."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from envbuild.cli.entry import main
from envbuild.errors import ExitCode
from envbuild.export.lock_formats import explicit
from envbuild.lock.files import read_lock
from envbuild.model.lock import Variant
from envbuild.model.stack import CondaPackage, LockedConda
from tests.lock.build import SHA, package, variant
from tests.support.conda import Channel, Package
from tests.support.fails import fails


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A locked `environment.yml` on a channel with archives of both formats."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RATTLER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    forge = Channel(tmp_path / "forge", "forge")
    forge.add(Package("python", "3.11.9", files={"bin/python": b"#!/bin/sh\n"}))
    forge.add(Package("app", "1.0", files={"bin/app": b"#!/bin/sh\necho app\n"}, depends=["python"], suffix=".tar.bz2"))
    path = tmp_path / "environment.yml"
    path.write_text(f"name: mine\nchannels: ['{forge.url}']\ndependencies: [python=3.11, app]\n")
    assert main(["lock", "create", str(path), "--quiet"]) == ExitCode.OK
    return path


def exported(stack: Path, form: str, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(["lock", "export", str(stack), "--format", form]) == ExitCode.OK
    return capsys.readouterr().out


def test_an_explicit_list_is_installed_from(stack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from rattler import RepoDataRecord, install
    from rattler.explicit_environment.environment import ExplicitEnvironmentSpec

    spec = ExplicitEnvironmentSpec.from_str(exported(stack, "conda-explicit", capsys))
    parts = [entry.url.partition("#") for entry in spec.packages]
    assert str(spec.platform) == "linux-64"
    assert [Path(url).name for url, _, _ in parts] == ["python-3.11.9-0.conda", "app-1.0-0.tar.bz2"]
    assert all(hashed.startswith("sha256:") for _, _, hashed in parts)
    prefix = tmp_path / "prefix"

    async def put() -> None:
        paths = [url.removeprefix("file://") for url, _, _ in parts]
        records = [await RepoDataRecord.from_package_archive(path) for path in paths]
        await install(records, prefix, cache_dir=tmp_path / "packages", show_progress=False)

    asyncio.run(put())
    assert (prefix / "bin/app").read_text() == "#!/bin/sh\necho app\n"
    assert {path.name for path in (prefix / "conda-meta").glob("*.json")} == {"python-3.11.9-0.json", "app-1.0-0.json"}


def test_a_conda_lock_is_read_with_its_packages(
    stack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from rattler import LockFile

    path = tmp_path / "conda-lock.yml"
    path.write_text(exported(stack, "conda-lock", capsys))
    read = LockFile.from_path(path)
    environment = read.default_environment()
    assert environment is not None
    packages = environment.packages(read.platforms()[0]) or []
    assert {(each.name, Path(each.location).name) for each in packages} == {
        ("python", "python-3.11.9-0.conda"),
        ("app", "app-1.0-0.tar.bz2"),
    }


def variant_of(*wheels: str, unrecorded: str | None = None) -> Variant:
    row = {"name": "python", "version": "3.11.9", "build": "0", "channel": "forge", "subdir": "linux-64"}
    archive = CondaPackage.from_plain({**row, "file": "python-3.11.9-0.conda", "sha256": SHA})
    conda = LockedConda(unrecorded=unrecorded) if unrecorded else LockedConda(packages=(archive,))
    return variant(engine="conda", conda=conda, packages=tuple(map(package, wheels)))


def test_what_pip_installs_is_said_beside_the_list_and_without_packages_or_an_address_nothing_is_exported() -> None:
    text = explicit(variant_of("six"), [], {"forge": ("https://conda.example.org/forge",)})
    assert "# not in this file: six==1.0 of pip" in text
    assert f"https://conda.example.org/forge/linux-64/python-3.11.9-0.conda#sha256:{SHA}" in text
    with fails("conda-unrecorded", ExitCode.INTEGRITY):
        explicit(variant_of(unrecorded="not asked"), [], {})
    with fails("address-missing", ExitCode.TRY_AGAIN):
        explicit(variant_of(), [], {})


def test_an_environment_yml_is_planned_and_checked_like_a_stack_and_a_script_of_uv_and_git_is_refused(
    stack: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from envbuild.export.bash_script import render_script
    from envbuild.model.plan import NodePlan, Plan

    capsys.readouterr()
    assert main(["lock", "check", str(stack), "--offline"]) == ExitCode.OK
    locked = read_lock(stack.with_name("environment.lock.toml"))
    assert locked.variants[0].conda and all(each.unpacked for each in locked.variants[0].conda.packages)
    capsys.readouterr()
    assert main(["plan", "--stack", str(stack), "--engine", "conda", "--facts", "polaris", "--json"]) == ExitCode.OK
    shown = json.loads(capsys.readouterr().out)["plan"]
    assert shown["nodes"][0]["resolution"]["variant_id"] == "cp311-linux_x86_64-conda"
    nodes = [{key: node.get(key) for key in NodePlan.model_fields} for node in shown["nodes"]]
    plan = Plan.from_plain({**{key: shown[key] for key in ("stack", "profile", "target")}, "nodes": nodes})
    with fails("script-impossible", ExitCode.REFUSED):
        render_script(plan, locked)
