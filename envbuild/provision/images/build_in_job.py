"""An image that is built in a job (`build: job`): what it needs is fetched here, one node makes the file from it.

No builder of this machine takes part: the definition of `image dockerfile --apptainer` is built by the Apptainer of a
compute node.
"""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from envbuild.bundle.collect import artifact_cache, collect
from envbuild.catalog.toolchain import load_toolchain
from envbuild.container import apptainer, build
from envbuild.container.build import Options, fill_wheelhouse, link
from envbuild.container.builders import find_builder
from envbuild.container.recipe import WHEELHOUSE, ImageRecipe
from envbuild.hashing import sha256_of
from envbuild.model.lock import ArtifactFile, LockedPackage
from envbuild.model.target import ContainerSettings
from envbuild.plan.source_builds import bundle_name, bundles
from envbuild.provision.contact.first_contact import node_request
from envbuild.provision.contact.toolchain import fetched_python
from envbuild.provision.images.obtain import Obtained, Wanted, settings_of
from envbuild.provision.jobs.answers import Asked, ask_in_job
from envbuild.provision.jobs.site import JobSite
from envbuild.provision.run.context import Work
from envbuild.provision.run.findings import Prepared

LIMIT = 4 * 3600


def builds_in_job(prepared: Prepared) -> bool:
    """Whether the target wants its images built by a node of a job."""
    settings = settings_of(prepared)
    return settings.build == "job" and settings.image is None


def make_context(image: Wanted, prepared: Prepared, folder: Path, say: Callable[[str], None]) -> Obtained:
    """One file in `folder` with everything that a build without a network needs, as something that is carried.

    Its id is not known before a node has built it. Raises EnvbuildError: what `collect`, `find_builder` and
    `Builder.save` raise.
    """
    assert image.recipe is not None  # noqa: S101 - see `builds_in_job`
    recipe, settings = image.recipe, settings_of(prepared)
    made = folder / f"context-{image.key[:12]}"
    try:
        definition = {apptainer.FILE: apptainer.render(recipe, carried=True)}
        build.write(made, build.texts(recipe) | definition)
        say("fetching what the image is made from")
        _fetch(recipe, settings, made / WHEELHOUSE)
        for name, file in apptainer.archives(recipe).items():
            say(f"writing {name} to a file")
            find_builder(settings.builder).save(name, made / file)
        path = folder / f"{made.name}.tar"
        with tarfile.open(path, "w") as archive:
            archive.add(made, arcname=".")
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return Obtained("", "apptainer", path, sha256_of(path), built=True)


def _fetch(recipe: ImageRecipe, settings: ContainerSettings, house: Path) -> None:
    """All that the build would download into the wheelhouse of the context; from the user's own folders first.

    The user's indexes, logins, certificates and git configuration are used here, so that none of them leaves.
    """
    variant, folders = recipe.variant, tuple(Path(each).expanduser() for each in settings.wheelhouse)
    lacking = set(fill_wheelhouse(recipe, Options(folders), house))
    uv = next(each for each in load_toolchain().uv if each.arch == variant.machine)
    packages = [each for each in variant.packages if each.name in lacking]
    if not (house / uv.file).exists():
        file = ArtifactFile(file=uv.file, sha256=uv.sha256)
        packages.append(LockedPackage(name="uv", version=uv.version, index="pypi", files=(file,)))
    lacking = {name for name, each in bundles(variant).items() if not (house / bundle_name(name, each)).exists()}
    sources = tuple(each for each in variant.sources if {name.partition("/")[0] for name in lacking} & {each.name})
    wanted = variant.model_copy(update={"packages": tuple(packages), "sources": sources})
    with _git_configuration(settings.gitconfig):
        pieces = collect(wanted, cache=artifact_cache(), glibc=recipe.inside.glibc)
    for each in pieces:
        link(each.source, house / each.source.name)
    if (build := recipe.inside.python_build) is not None:
        link(fetched_python(build).source, house / build.name)


@contextmanager
def _git_configuration(path: str | None) -> Iterator[None]:
    before = os.environ.get("GIT_CONFIG_GLOBAL")
    if path is not None:
        os.environ["GIT_CONFIG_GLOBAL"] = str(Path(path).expanduser())
    try:
        yield
    finally:
        if path is not None and before is not None:
            os.environ["GIT_CONFIG_GLOBAL"] = before
        elif path is not None:
            del os.environ["GIT_CONFIG_GLOBAL"]


def build_in_job(
    work: Work, site: JobSite, login: Mapping[str, Any], args: Mapping[str, Any], folder: str
) -> dict[str, Any]:
    """One job of one node makes the file of the image from what was carried; its `path`, `bytes` and `sha256`.

    `login`: what the login host said; `folder`: that of the job. Raises EnvbuildError as `ask_in_job` and the verb do
    (`image-build-failed`, exit 4).
    """
    target, facts = work.prepared.target, login["facts"]
    one = target.scheduler.model_copy(update={"nodes": 1})
    alone = replace(site, target=target.model_copy(update={"scheduler": one}))
    told = {**args, "action": "build"}
    request = node_request("container", facts["prefix"]["path"], told, work.run.id)
    answers = ask_in_job(work, alone, Asked("envbuild-image", folder, {"build": request}), site.limit(LIMIT))
    told_by = [each["build"] for each in answers.values()]
    # A job that was requeued has had two nodes.
    answer = next((each for each in told_by if each.error is None), told_by[0])
    return dict(answer.result()["file"])
