"""What is refused before and while a lock is made: wrong flavours, homonyms, setup code that nobody allowed."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from envbuild.cli.catalog_cmd import stack_check
from envbuild.cli.lock_cmd import create
from envbuild.errors import EnvbuildError, ExitCode
from envbuild.lock.files import read_lock
from envbuild.lock.packages import Request, arguments, environment
from envbuild.lock.readers.uvtool import _failure, run_uv
from tests.lock.build import make_wheel, make_wheels
from tests.support.fails import fails
from tests.support.files import write_tar

STACK = "{{name: mine, summary: s, profiles: {{exact: {{python: ['3.11'], {0}}}}}}}\n"
SETUP = (
    "import pathlib, setuptools\npathlib.Path({!r}).write_text('ran')\nsetuptools.setup(name='old', version='1.0')\n"
)


def stack(tmp_path: Path, fields: str) -> str:
    path = tmp_path / "mine.yaml"
    path.write_text(STACK.format(fields))
    return str(path)


def refused(command: Any, *arguments: str) -> EnvbuildError:
    with pytest.raises(EnvbuildError) as caught:
        command.main(args=list(arguments), standalone_mode=False)
    return caught.value


def make_sdist(folder: Path, ran: Path, project: str = "old", metadata_version: str = "1.0") -> None:
    """old-1.0.tar.gz (or of another project), whose setup.py leaves the file `ran`."""
    metadata = f"Metadata-Version: {metadata_version}\nName: {project}\nVersion: 1.0\n"
    files = {f"{project}-1.0/setup.py": SETUP.format(str(ran)), f"{project}-1.0/PKG-INFO": metadata}
    write_tar(folder / f"{project}-1.0.tar.gz", files, "w:gz")


def test_d18_a_flavour_that_does_not_exist_is_refused_with_those_that_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = stack(tmp_path, "torch: {version: 1.10.0, flavours: [cu113, cu116]}")
    error = refused(create, path)
    assert (error.code, error.exit_code) == ("torch-flavour-exists", ExitCode.REFUSED)
    assert "cu102, cu111, cu113" in error.why
    assert "torch 1.10.0+cu113" in error.hint and "torch 1.12.1+cu116" in error.hint
    assert stack_check.main(args=[path], standalone_mode=False) == ExitCode.REFUSED
    assert "cu102, cu111, cu113" in " ".join(capsys.readouterr().err.split()), "the check says the same"


@pytest.mark.parametrize("name", ["Apex==0.9.10.dev0", "pytorch>=1"])
def test_d17_a_known_homonym_is_refused_by_name(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = stack(tmp_path, f"packages: ['{name}']")
    error = refused(create, path)
    assert (error.code, error.exit_code) == ("package-homonym", ExitCode.REFUSED)
    assert error.hint.endswith("if that was meant")
    assert stack_check.main(args=[path], standalone_mode=False) == ExitCode.REFUSED
    assert "package-homonym" in capsys.readouterr().err


@pytest.mark.usefixtures("home")
def test_d17_a_homonym_that_another_package_requires_is_refused_too(tmp_path: Path) -> None:
    links = make_wheels(tmp_path / "links", "alpha 1.0: apex", "apex 0.9.10")
    error = refused(create, stack(tmp_path, "packages: [alpha]"), "--find-links", str(links))
    assert (error.code, error.exit_code) == ("package-homonym", ExitCode.REFUSED)


@pytest.mark.usefixtures("home")
def test_d17_locking_runs_no_setup_code_unasked_and_names_all_source_distributions_at_once(tmp_path: Path) -> None:
    ran, links = tmp_path / "ran", tmp_path / "links"
    for project in ("old", "elder", "eldest"):
        make_sdist(links, ran, project)
    path = stack(tmp_path, "packages: [old==1.0, elder==1.0, eldest==1.0]")
    error = refused(create, path, "--find-links", str(links))
    assert (error.code, error.exit_code) == ("build-not-allowed", ExitCode.REFUSED)
    assert all(f"--allow-build {project}" in error.hint for project in ("old", "elder", "eldest"))
    assert error.why.startswith(f"{Path(path).name}:1: old==1.0\n")
    assert not ran.exists()


@pytest.mark.usefixtures("home")
def test_a_package_with_a_wheel_that_fits_is_neither_named_nor_built(tmp_path: Path) -> None:
    ran, links = tmp_path / "ran", tmp_path / "links"
    for project in ("screen", "viewer"):
        make_sdist(links, ran, project, "2.2")
    make_wheel(links, "viewer", "2.0", requires=["screen==1.0"])
    path, found = stack(tmp_path, "packages: [viewer]"), ("--find-links", str(links))
    error = refused(create, path, *found)
    assert error.code == "build-not-allowed"
    assert "--allow-build screen" in error.hint
    assert "--allow-build viewer" not in error.hint
    allowed = ("--allow-build", "viewer", "--allow-build", "screen", "-o", str(tmp_path / "lock"))
    create.main(args=[path, *found, *allowed], standalone_mode=False)
    create.main(args=[path, *found, *allowed[-2:]], standalone_mode=False)  # what the lock has stays allowed
    assert re.findall(r'{file = "(\S+)"', (tmp_path / "lock").read_text()) == [
        "screen-1.0.tar.gz",
        "viewer-2.0-py3-none-any.whl",
    ]


@pytest.mark.usefixtures("home")
def test_a_change_after_which_only_permissions_to_build_are_missing_resolves_a_conflict_too(tmp_path: Path) -> None:
    ran, links = tmp_path / "ran", tmp_path / "links"
    for name, version, requires in (
        ("alpha", "1.0", ["beta==1"]), ("alpha", "2.0", ["beta"]), ("beta", "1.0", []), ("beta", "2.0", []),
        ("gamma", "1.0", ["beta==2", "old"]),
    ):  # fmt: skip
        make_wheel(links, name, version, requires=requires)
    make_sdist(links, ran)
    error = refused(create, stack(tmp_path, "packages: [alpha==1.0, gamma==1.0]"), "--find-links", str(links))
    assert error.details["relaxations"] == [{"was": "alpha==1.0", "becomes": "alpha", "version": ""}]
    assert not ran.exists()


@pytest.mark.usefixtures("home")
def test_d90_a_version_before_a_release_is_taken_only_where_somebody_asks_for_it(tmp_path: Path) -> None:
    ran, links = tmp_path / "ran", tmp_path / "links"
    make_sdist(links, ran, "speed", "2.2")
    make_wheels(links, "speed 0.3.1.dev5", "beta 1.0b2")
    found = ("--find-links", str(links))
    error = refused(create, stack(tmp_path, "packages: [speed]"), *found)
    assert (error.code, error.exit_code) == ("build-not-allowed", ExitCode.REFUSED)
    assert "--allow-build speed" in error.hint and not ran.exists()

    def locked(fields: str) -> dict[str, str]:
        path = stack(tmp_path, fields)
        create.main(args=[path, *found], standalone_mode=False)
        lock = read_lock(Path(path).with_suffix(".lock.toml"))
        return {each.name: each.version for each in lock.variants[0].packages}

    assert locked("packages: ['speed==0.3.1.dev5']") == {"speed": "0.3.1.dev5"}
    assert locked("packages: [beta]") == {"beta": "1.0b2"}, "there is no release at all"


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    ("needs", "why"), [("oldbar", "an old release without a wheel"), ("gone", "an old release that needs what is gone")]
)
def test_d91_requirements_that_contradict_each_other_are_told_whatever_uv_tried_last(
    tmp_path: Path, needs: str, why: str
) -> None:
    ran, links = tmp_path / "ran", tmp_path / "links"
    if needs == "oldbar":
        make_sdist(links, ran, "sets", "2.2")
    else:
        make_wheel(links, "sets", "1.0", requires=("gone",))
    make_wheels(links, "sets 2.0: bar>=4", "bar 2.0", "bar 4.0")
    error = refused(create, stack(tmp_path, "packages: ['sets<3', 'bar<3']"), "--find-links", str(links))
    assert (error.code, error.exit_code) == ("resolution-failed", ExitCode.REFUSED), why
    assert "`bar<3`" in error.what and "`bar<3`" in error.hint and not ran.exists()
    create.main(
        args=[stack(tmp_path, "packages: ['sets<3', bar]"), "--find-links", str(links)], standalone_mode=False
    )  # as the hint says


def test_d96_a_missing_pkg_resources_is_told_as_what_to_constrain_and_an_allowed_build_is_given_it(
    tmp_path: Path,
) -> None:
    error = _failure("Failed to build `old==1.0`\nModuleNotFoundError: No module named 'pkg_resources'")
    assert error.hint.startswith("under `constraints:`, setuptools 82 removed pkg_resources")
    assert "write setuptools<82 into the stack file" in error.hint
    request = Request("3.11", "linux_x86_64", ("old",), constraints=("setuptools<82",), allow_build=("old",))
    assert "--build-constraints" in arguments(tmp_path, request), "what the hint says reaches the build"
    assert environment(tmp_path, request)["HOME"] == str(tmp_path), "setup code may write start-up files"


def test_d107_a_cache_that_cannot_be_written_is_no_contradiction_of_requirements() -> None:
    with fails("not-writable", 7):
        run_uv(["pip", "compile", "-"], environ={"UV_CACHE_DIR": "/proc/1/uv", "PATH": os.environ["PATH"]})
