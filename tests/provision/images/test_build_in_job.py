"""Images that a job builds: what a target may ask for, and what is fetched here beforehand."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envbuild.catalog.node_facts import load_facts
from envbuild.container.base_images import Given
from envbuild.container.build import fill_wheelhouse
from envbuild.container.recipe import ImageRecipe
from envbuild.container.select import Choice as ImageChoice
from envbuild.container.select import recipe_for
from envbuild.errors import EnvbuildError
from envbuild.model.lock import Variant
from envbuild.model.target import ContainerSettings, Target
from envbuild.provision.images import obtain
from envbuild.provision.images.obtain import wanted
from envbuild.provision.run.context import Choice, Prepared
from envbuild.provision.survey.hosts import unsupported
from envbuild.provision.survey.plan_run import plan_recorded
from envbuild.provision.survey.prepare import prepare
from tests.node.env_support import make_repository
from tests.support.files import write_file

UV = SimpleNamespace(arch="x86_64", file="uv-1-py3-none-any.whl", sha256=hashlib.sha256(b"uv").hexdigest(), version="1")
GIVEN = Given(base="localhost/base", fetch="localhost/base", python="/usr/bin/python3.11", glibc="2.36")


@pytest.mark.parametrize(
    ("container", "connection", "named"),
    [
        ({}, "job", ""),
        ({"runtime": "apptainer"}, "job", ""),
        ({"runtime": "podman"}, "job", "runtime: podman"),
        ({"runtime": "enroot"}, "job", "runtime: enroot"),
        ({"registry": "registry.example.org/x"}, "job", "a registry"),
        ({}, "ssh", "not reached through jobs"),
        ({"image": f"registry.example.org/x@sha256:{'0' * 64}", "runtime": "podman"}, "ssh", ""),
    ],
)
def test_a_job_builds_for_apptainer_alone(container: dict[str, Any], connection: str, named: str) -> None:
    target = Target.from_plain(
        {
            "name": "mine", "hosts": {"slurm": "gpu"} if connection == "job" else ["n1"],
            "connection": {"kind": connection}, "scheduler": {"kind": "slurm"}, "prefix": "/shared/envbuild",
            "engine": "container", "placement": "image", "container": {**container, "build": "job"},
        }
    )  # fmt: skip
    missing = unsupported(target)
    assert [named in each and "build: job" in each for each in missing] == [True] * bool(named)


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ImageRecipe:
    """One wheel and one source; this user's own configuration and cache are out of sight."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("envbuild.bundle.collect.load_toolchain", lambda _: SimpleNamespace(uv=[UV]))
    commit, tree = make_repository(tmp_path / "hub" / "lib", {"lib.py": ""})
    source = {"name": "lib", "git": "https://git.example.org/lib", "commit": commit, "tree": tree, "ref": "main"}
    file = {"file": "alpha-1.0-py3-none-any.whl", "sha256": hashlib.sha256(b"wheel").hexdigest()}
    made = recipe_for(ImageChoice("torch-smoke", given=GIVEN))
    package = {"name": "alpha", "version": "1.0", "index": "pypi", "files": [file]}
    more = {"packages": [package], "sources": [source], "torch": None, "flavour": None}
    variant = Variant.from_plain(
        {key: v for key, v in {**made.variant.to_json_dict(), **more}.items() if v is not None}
    )
    return replace(made, inside=replace(made.inside, variant=variant))


def test_files_and_commits_come_into_the_wheelhouse_by_the_users_own_configuration(
    tmp_path: Path, recipe: ImageRecipe
) -> None:
    config = tmp_path / "mirror.gitconfig"
    config.write_text(f'[url "file://{tmp_path}/hub/"]\n\tinsteadOf = https://git.example.org/\n')
    house = tmp_path / "house"
    write_file(house / "alpha-1.0-py3-none-any.whl", b"wheel")
    (house / UV.file).write_bytes(b"uv")
    with obtain._git_configuration(str(config)):
        assert fill_wheelhouse(recipe, [house], tmp_path / "made", fetch=True)
    (source,) = recipe.variant.sources
    files = [path for path in (tmp_path / "made").rglob("*") if path.is_file()]
    assert sorted(path.relative_to(tmp_path / "made").as_posix() for path in files) == [
        f"sources/lib-{source.commit}-{source.tree[:12]}.bundle",
        f"tools/{UV.file}",
        "wheels/alpha-1.0-py3-none-any.whl",
    ]


def test_what_cannot_be_had_here_is_said_before_a_job_is_submitted(tmp_path: Path, recipe: ImageRecipe) -> None:
    house = tmp_path / "house"
    write_file(house / "alpha-1.0-py3-none-any.whl", b"another wheel")
    with pytest.raises(EnvbuildError) as caught:
        fill_wheelhouse(recipe, [house], tmp_path / "made", fetch=True)
    assert caught.value.code in ("network-unreachable", "package-not-found")


def test_polaris_as_shipped_builds_in_a_job_where_the_engine_is_container(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    given = {"name": "mine", "extends": "polaris", "engine": "container", "placement": "image"}
    path.write_text(json.dumps({**given, "scheduler": {"account": "proj-1", "queue": "debug"}}))
    prepared = prepare(Choice(target=str(path), profile="ported"), recorded=True)
    assert unsupported(prepared.target) == {} and obtain.builds_in_job(prepared)
    assert wanted(prepared).key != wanted(_built_here(prepared)).key, "what a job builds is another image"
    made, survey = plan_recorded(prepared, load_facts("polaris"))
    assert survey.errors == {} and made.warnings == ()
    assert [step.kind for step in made.nodes[0].steps] == ["install", "smoke"]


def _built_here(prepared: Prepared) -> Prepared:
    return prepared._replace(target=prepared.target.model_copy(update={"container": ContainerSettings()}))
