"""Installed from a wheel into an empty environment outside the checkout, envbuild does its main job.

Editable it is in the environment that runs all tests.
"""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path

import pytest

from envbuild import __version__
from envbuild.resources import checkout_source, pages
from tests.e2e.world import World, drift
from tests.node.env_support import make_repository, make_wheel, uv_path
from tests.support.files import write_file
from tests.support.programs import completed
from tests.test_snippets_others import shown

REPOSITORY = Path(__file__).resolve().parents[2]
UNREACHABLE = ("Failed to fetch", "error sending request", "dns")


def call(*argv: str | Path, cwd: Path) -> str:
    """What a program prints with this user's own configuration: packages come from where they come from here."""
    done = completed([str(each) for each in argv], cwd=cwd, timeout=280)
    if "--require-hashes" in argv and any(word in done.stderr for word in UNREACHABLE):
        pytest.skip(f"the locked dependencies are not available here: {done.stderr[-400:]}")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_what_a_machine_without_a_network_needs_is_carried_as_the_page_has_it(tmp_path: Path) -> None:
    """Two homes stand for the two machines; the repositories' names lead to small ones here."""
    near, far = (tmp_path / name for name in ("near", "far"))
    for each in (near, far):
        each.mkdir()
    call("git", "clone", "-q", REPOSITORY, near / "checkout", cwd=tmp_path)
    for name in ("zhisbug/Megatron-LM", "NVIDIA/apex", "alpa-projects/alpa"):
        make_repository(tmp_path / "hub" / name, {"a.py": f"{name!r}\n"})
    insteadof = f'[url "file://{tmp_path}/hub/"]\n\tinsteadOf = https://github.com/\n[safe]\n\tdirectory = *\n'
    (near / ".gitconfig").write_text(insteadof)
    locked = make_wheel(tmp_path / "wheels", "alpha")["files"][0]
    wheel = tmp_path / "wheels" / locked["file"]
    (near / "checkout" / "locked.txt").write_text(f"alpha @ {wheel.as_uri()} --hash=sha256:{locked['sha256']}\n")
    page = "offline.md"
    _shell(near, "checkout", *shown(page, "pip "), *shown(page, "for "))
    (near / "checkout" / "carried").rename(far / "carried")
    tmp_path.joinpath("hub").rename(tmp_path / "gone")
    said = _shell(
        far, ".", *shown(page, "python3 "), *shown(page, "export "), *shown(page, "git "),
        "git clone -q https://github.com/NVIDIA/apex && cat apex/a.py",
        "pip download -q --no-deps alpha", "envbuild --version",
    )  # fmt: skip
    assert said == f"'NVIDIA/apex'\nenvbuild {__version__}\n" and (far / wheel.name).is_file()


@pytest.mark.slow
def test_envbuild_is_installed_as_the_page_has_it(tmp_path: Path) -> None:
    """The address of the repository leads to this checkout; the second home has the wheels and no index."""
    for name in ("hub", "home", "offline"):
        (tmp_path / name).mkdir()
    call("git", "clone", "-q", "--bare", REPOSITORY, tmp_path / "hub" / "envbuild", cwd=tmp_path)
    insteadof = f'[url "file://{tmp_path}/hub/"]\n\tinsteadOf = https://github.com/OWNER/\n[safe]\n\tdirectory = *\n'
    (tmp_path / "home" / ".gitconfig").write_text(insteadof)
    (by_uv,) = shown("install.md", "uv tool ")
    printed = _shell(tmp_path / "home", ".", by_uv.replace("3.12", sys.executable), ".local/bin/envbuild --version")
    assert printed.endswith(f"envbuild {__version__}\n")
    download, venv = shown("install.md", "carried/python/")
    pack, unpack = shown("install.md", "tar ")
    _shell(tmp_path / "home", ".", *shown("install.md", "git clone "))
    clone = tmp_path / "home" / "envbuild"
    # In the place of the Python that uv downloads from GitHub.
    python = write_file(clone / "carried/python/cpython-3.12.0/bin/python3", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    _shell(tmp_path / "home", "envbuild", *shown("install.md", "uv build"), download, pack)
    (clone / "carried.tar").rename(tmp_path / "offline" / "carried.tar")
    lines = [unpack, venv, *shown("install.md", "tool/bin/pip"), *shown("install.md", "mkdir "), "envbuild --version"]
    assert _shell(tmp_path / "offline", ".", *lines) == f"envbuild {__version__}\n"


def _shell(home: Path, folder: str, *lines: str) -> str:
    """What lines print in a shell of that home, all of which have to end well."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "ENVBUILD_"))}
    env = {**kept, "HOME": str(home), "PATH": f"{home}/.local/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"}
    env["PIP_NO_COMPILE"] = "no"  # which is pip's yes: byte code of packages that one command is asked of
    done = completed(["bash", "-ec", "\n".join(lines)], cwd=home / folder, env=env, timeout=500)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
def test_the_wheel_holds_all_and_no_tests_and_an_installed_envbuild_does_its_main_job(world: World) -> None:
    """Made with the locked build backend, and installed with the locked dependencies and nothing else."""
    words = ("pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", world.top)
    call(sys.executable, "-m", *words, REPOSITORY, cwd=world.top)
    (wheel,) = world.top.glob("envbuild-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "envbuild/_data/playbooks/provision.yml" in names
    assert any(name.startswith("envbuild/_data/lockfiles/torch-smoke") for name in names)
    assert "envbuild/catalog/targets/local.yaml" in names
    assert {f"envbuild/_data/{page}" for page in pages()} < {*names}, "`help` reads these, and hints name them"
    assert "envbuild/py.typed" in names
    assert "envbuild/_data/playbooks/roles/environment/tasks/main.yml" in names
    assert [name for name in names if name.endswith(".data/data/share/man/man1/envbuild.1")]
    assert not [name for name in names if "tests/" in name or name.endswith(".pyc")]
    stamp = checkout_source(REPOSITORY)
    assert ("envbuild/_data/source.json" in names) == bool(stamp), "a checkout with changes has no commit"

    uv, venv = uv_path(), world.top / "venv"
    python = venv / "bin" / "python"
    call(uv, "venv", "--no-project", "--python", sys.executable, venv, cwd=world.top)
    listing = REPOSITORY / "lockfiles" / "development.txt"
    call(uv, "pip", "sync", "--python", python, "--require-hashes", listing, cwd=world.top)
    call(uv, "pip", "install", "--python", python, "--no-deps", wheel, cwd=world.top)
    where = call(python, "-I", "-c", "import envbuild; print(envbuild.__file__)", cwd=world.top).strip()
    assert where.startswith(str(venv))
    world.command = [str(python.with_name("envbuild"))]
    world.env["PATH"] = os.pathsep.join(part for part in world.env["PATH"].split(os.pathsep) if "venv" not in part)
    assert "torch-smoke" in world.good("stack", "list").out
    assert world.good("lock", "check", "torch-smoke", "--offline", "--json").json["ok"]
    assert world.good("target", "show", "local", "--json").json["shipped"]
    tasks = world.good("config", "show", "fabfile").out.strip()
    assert "pull-evidence" in call(python.with_name("fab"), "-r", tasks, "--list", cwd=world.top)
    world.tiny()
    assert world.built()["status"] == "ok"
    assert world.provision().json["steps_run"] == 0
    assert drift(world) == (0, {})
