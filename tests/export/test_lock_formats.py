from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from uv import find_uv_bin

from envbuild import resources
from envbuild.errors import ExitCode
from envbuild.export.lock_formats import Places, export_lock
from envbuild.lock.create import create_lock
from envbuild.lock.files import read_lock
from envbuild.lock.readers.torch_wheels import Supply
from envbuild.model.lock import ArtifactFile, Lock, LockedImage, LockedPackage, LockedSource
from envbuild.model.stack import Stack
from envbuild.node import pip_config
from tests.lock.build import lock, make_wheel, package, variant
from tests.lock.conftest import home as home
from tests.lock.conftest import supply as supply
from tests.support.fails import fails
from tests.support.programs import completed

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def stack(*packages: str) -> Stack:
    profile = {"python": [PYTHON], "packages": list(packages), "smoke": []}
    return Stack.from_plain({"name": "demo", "summary": "s", "profiles": {"exact": profile}})


@pytest.fixture
def house(tmp_path: Path) -> Path:
    folder = tmp_path / "wheel house"
    make_wheel(folder, "alpha", "1.0", requires=["beta"])
    make_wheel(folder, "beta", "2.0")
    return folder


@pytest.fixture
def made(house: Path, supply: Callable[..., Supply]) -> Lock:
    return create_lock(stack("alpha"), "exact", supply=supply(house), standalone={})


@pytest.fixture
def python(tmp_path: Path, home: Path) -> Path:
    """An empty environment with pip of its own."""
    subprocess.run([find_uv_bin(), "venv", "-q", "-p", sys.executable, tmp_path / "venv"], check=True)
    return tmp_path / "venv" / "bin" / "python"


def installed(python: Path, *modules: str) -> list[str]:
    code = ";".join(f"import {module}; print({module}.version)" for module in modules)
    return completed([python, "-I", "-c", code], check=True).stdout.split()


def uv(python: Path, *arguments: str) -> list[str]:
    return [find_uv_bin(), "pip", *arguments, "--python", str(python)]


def pip(python: Path, *arguments: str) -> list[str]:
    # pip of this environment, working on the other one: the other one stays empty but for what the export names.
    return [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-index", "-q", *arguments]


def run(command: list[str], **options: object) -> None:
    env = dict(os.environ)
    pip_config.tell_certificates(env, pip_config.read(env).cert)  # uv is used as it can be on this machine
    given = {"env": env, "capture_output": True, "text": True, "timeout": 120} | options
    done = subprocess.run(command, **given)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("tool", ["uv", pytest.param("pip", marks=pytest.mark.slow)])
@pytest.mark.parametrize("form", ["pylock", "requirements"])
def test_each_export_is_installed_by_uv_and_by_pip(
    made: Lock, house: Path, python: Path, tmp_path: Path, tool: str, form: str
) -> None:
    if form == "pylock":
        path = tmp_path / "pylock.demo.toml"
        path.write_text(export_lock(made, None, "pylock", house))
        command = uv(python, "sync", str(path)) if tool == "uv" else pip(python, "-r", str(path))
        if tool == "pip" and b"pylock" not in _pip_help():
            pytest.skip("this pip cannot install from a pylock file (needs pip 26.1)")
    else:
        path = tmp_path / "requirements.txt"
        path.write_text(export_lock(made, None, "requirements"))
        options = ["--require-hashes", "--find-links", str(house), "-r", str(path)]
        command = uv(python, "install", *options) if tool == "uv" else pip(python, *options)
    run(command)
    assert installed(python, "alpha", "beta") == ["1.0", "2.0"]


def _pip_help() -> bytes:
    return subprocess.run([sys.executable, "-m", "pip", "install", "--help"], check=True, capture_output=True).stdout


def test_a_wheelhouse_that_lacks_or_changes_a_file_is_refused(made: Lock, house: Path) -> None:
    beta = house / "beta-2.0-py3-none-any.whl"
    good = beta.read_bytes()
    beta.write_bytes(good + b"x")
    with fails("hash-mismatch", ExitCode.INTEGRITY):
        export_lock(made, None, "pylock", house)
    beta.unlink()
    with fails("wheelhouse-incomplete") as caught:
        export_lock(made, None, "pylock", house)
    assert caught.value.why == beta.name


def test_an_export_without_a_wheelhouse_asks_the_index_where_the_files_are(made: Lock, house: Path) -> None:
    text = export_lock(made, None, "pylock", places=Places((str(house),)))
    data = tomllib.loads(text)
    assert data["lock-version"] == "1.0"
    assert data["requires-python"] == f"=={PYTHON}.*"
    assert [package["wheels"][0]["url"].startswith("file://") for package in data["packages"]] == [True, True]
    assert data["tool"]["envbuild"]["digest"] == made.variants[0].digest
    make_wheel(house, "beta", "2.0", body="# another build of the same version\n")
    with fails("address-mismatch", ExitCode.INTEGRITY):
        export_lock(made, None, "pylock", places=Places((str(house),)))
    (house / "beta-2.0-py3-none-any.whl").unlink()
    with fails("address-missing", ExitCode.TRY_AGAIN) as caught:
        export_lock(made, None, "pylock", places=Places((str(house),)))
    assert "beta" in caught.value.why


def test_an_unrecorded_hash_is_never_exported() -> None:
    gap = ArtifactFile(file="six-1.0-py3-none-any.whl", sha256="unrecorded", reason="its index was out of reach")
    holed = lock(variant(packages=(LockedPackage(name="six", version="1.0", files=(gap,)),)))
    for form in ("pylock", "requirements"):
        with fails("hash-unrecorded", ExitCode.INTEGRITY) as caught:
            export_lock(holed, None, form)
        assert "out of reach" in caught.value.why


def test_a_variant_or_format_that_the_lock_does_not_have_is_named() -> None:
    two = lock(variant("a"), variant("b"))
    for arguments, code in (
        (("c", "pylock"), "variant-unknown"),
        ((None, "pylock"), "variant-unknown"),
        (("a", "conda-explicit"), "format-not-available"),
    ):
        with fails(code, ExitCode.USAGE):
            export_lock(two, *arguments)
    with pytest.raises(ValueError, match="poetry"):
        export_lock(two, "a", "poetry")


def test_sources_that_an_export_cannot_carry_are_said_in_it() -> None:
    source = LockedSource(name="a", git="https://example.org/a", commit="1" * 40, tree="2" * 40)
    text = export_lock(lock(variant(packages=(package("six"),), sources=(source,))), None, "requirements")
    assert f"# not in this file: source a https://example.org/a at {'1' * 40}" in text
    assert "six==1.0 \\\n    --hash=sha256:" in text


def test_a_bill_of_materials_names_every_package_with_its_hash_and_every_source_with_its_commit() -> None:
    shipped = read_lock(resources.lockfiles() / "opt-175b.exact.lock.toml")
    (locked,) = [each for each in shipped.variants if each.id == "cp39-linux_x86_64-cu113-standalone"]
    document = json.loads(export_lock(shipped, locked.id, "cyclonedx"))
    found = {part["name"]: part for part in document["components"]}
    assert len(found) == len(locked.packages) + len(locked.sources)
    for each in locked.packages:
        part = found[each.name]
        assert part["purl"].startswith(f"pkg:pypi/{each.name}@") and part["version"] == each.version
        hashes = [{"alg": "SHA-256", "content": file.sha256} for file in each.files]
        assert part.get("hashes") == (hashes if len(hashes) == 1 else None)
    for source in locked.sources:
        assert found[source.name]["version"] == source.commit
    assert export_lock(shipped, locked.id, "cyclonedx") == json.dumps(document, indent=1, sort_keys=True) + "\n"


def test_a_bill_of_materials_names_the_image_and_the_packages_that_something_stands_on() -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    name = "registry.example.org/pytorch:1"
    image = LockedImage(name=name, digest="3" * 64)
    on_it = variant(packages=(package("six"),), image=image, provided={"torch": "2.1.0"})
    text = export_lock(lock(on_it), None, "cyclonedx")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    found = {part["name"]: part for part in json.loads(text)["components"]}
    assert (found[name]["type"], found[name]["hashes"]) == ("container", [{"alg": "SHA-256", "content": "3" * 64}])
    assert found["torch"]["properties"] == [{"name": "envbuild:pin", "value": "of the base"}]
    assert [each["aggregate"] for each in json.loads(text)["compositions"]] == ["incomplete"]


def test_d64_no_comment_of_an_export_ends_before_its_line() -> None:
    plain = variant(packages=(package("six"),))
    provided = tuple(f"a{char}evilpkg @ file:///x.whl" for char in "\n\r\x0b\x0c\x1c\x85\u2028\u2029")
    base = plain.base.model_copy(update={"kind": "system", "provides": provided})
    made = lock(plain).model_copy(update={"variants": (plain.model_copy(update={"base": base}),)})  # not by the loader
    text = export_lock(made, None, "requirements")
    assert [line for line in text.splitlines() if "evilpkg" in line and not line.startswith("#")] == []
    assert "evilpkg" in text
