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

from envbuild.container import apptainer, build
from envbuild.container.builders import find_builder
from envbuild.container.fetch_stages import WHEELHOUSE
from envbuild.provision.contact.first_contact import node_request
from envbuild.provision.images.obtain import Obtained, Wanted, settings_of
from envbuild.provision.jobs.answers import Asked, ask_in_job
from envbuild.provision.jobs.site import JobSite
from envbuild.provision.run.context import Prepared, Work
from envbuild.regular_file import sha256_of

LIMIT = 4 * 3600


def builds_in_job(prepared: Prepared) -> bool:
    """Whether the target wants its images built by a node of a job."""
    settings = settings_of(prepared)
    return settings.build == "job" and settings.image is None


def make_context(image: Wanted, prepared: Prepared, folder: Path, say: Callable[[str], None]) -> Obtained:
    """One file in `folder` with everything that a build without a network needs, as something that is carried.

    Its id is not known before a node has built it. Raises EnvbuildError: what `fill_wheelhouse`, `find_builder` and
    `Builder.save` raise.
    """
    assert image.recipe is not None  # noqa: S101 - see `builds_in_job`
    recipe, settings = image.recipe, settings_of(prepared)
    made = folder / f"context-{image.key[:12]}"
    try:
        definition = {apptainer.FILE: apptainer.render(recipe, carried=True)}
        build.write(made, build.texts(recipe) | definition)
        say("fetching what the image is made from")
        # The user's indexes, logins, certificates and git configuration are used here, so that none of them leaves.
        with _git_configuration(settings.gitconfig):
            own = [Path(each).expanduser() for each in settings.wheelhouse]
            build.fill_wheelhouse(recipe, own, made / WHEELHOUSE, fetch=True)
        for name, file in apptainer.archives(recipe).items():
            say(f"writing {name} to a file")
            find_builder(settings.builder).save(name, made / file)
        path = folder / f"{made.name}.tar"
        with tarfile.open(path, "w") as archive:
            archive.add(made, arcname=".")
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return Obtained("", "apptainer", path, sha256_of(path))


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
