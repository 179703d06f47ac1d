"""An image that is built in a job (`build: job`): what it needs is fetched here, one node makes the file from it.

No builder of this machine takes part: the definition of `image apptainer` is built by the Apptainer of a compute node.
"""

from __future__ import annotations

import json
import shutil
import sys
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import platformdirs

from envbuild.container import apptainer, build_context
from envbuild.container.builders import find_builder
from envbuild.container.recipe import INDEXES, NODE, ImageRecipe
from envbuild.errors import EnvbuildError
from envbuild.hashing import sha256_of
from envbuild.model.container import ContainerSettings
from envbuild.node import proc
from envbuild.provision.contact.first_contact import node_request
from envbuild.provision.images.obtain import Obtained, Wanted, settings_of
from envbuild.provision.jobs.ask import Asked, ask_in_job
from envbuild.provision.jobs.site import JobSite
from envbuild.provision.run.context import Work
from envbuild.provision.run.findings import Prepared

# Seconds that fetching here and building there may take; the first is for the whole of a stack.
FETCH_DEADLINE = 4 * 3600.0
LIMIT = 4 * 3600


def builds_in_job(prepared: Prepared) -> bool:
    """Whether the target wants its images built by a node of a job."""
    settings = settings_of(prepared)
    return settings.build == "job" and settings.image is None


def make_context(image: Wanted, prepared: Prepared, folder: Path, say: Callable[[str], None]) -> Obtained:
    """One file in `folder` with everything that a build without a network needs, as something that is carried.

    Its id is not known before a node has built it. Raises EnvbuildError: what `context.check`, fetching, `find_builder`
    and `Builder.save` raise.
    """
    assert image.recipe is not None  # noqa: S101 - see `builds_in_job`
    recipe, settings = image.recipe, settings_of(prepared)
    made = folder / f"context-{image.key[:12]}"
    try:
        build_context.write(recipe, made, more=apptainer.files(recipe, carried=True))
        build_context.check(made)
        say("fetching what the image is made from")
        _fetch(recipe, settings, made)
        for name, file in apptainer.archives(recipe).items():
            say(f"writing {name} to a file")
            find_builder(settings.builder).save(name, made / file)
        path = folder / f"{made.name}.tar"
        with tarfile.open(path, "w") as archive:
            archive.add(made, arcname=".")
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return Obtained("", "apptainer", path, sha256_of(path), built=True)


def _fetch(recipe: ImageRecipe, settings: ContainerSettings, folder: Path) -> None:
    """Everything of the fetch stages into the wheelhouse of the context, by the same requests.

    The user's indexes, logins, certificates and git configuration are used here, so that none of them leaves.
    """
    git: dict[str, str | None] = (
        {"GIT_CONFIG_GLOBAL": str(Path(settings.gitconfig).expanduser())} if settings.gitconfig else {}
    )
    own = {
        "find_links": [str(Path(each).expanduser()) for each in settings.wheelhouse],
        "cache": str(platformdirs.user_cache_path("envbuild") / "artifacts" / "images"),
        "indexes": json.loads(recipe.uncommitted[INDEXES]),
        "out": str(folder / "fetched"),
        "addresses": None,
        "tools": [],  # unpacked where they are used
    }
    for name in ("fetch.json", "sources.json"):
        if name not in recipe.files:
            continue
        request = json.loads(recipe.files[name])
        request["args"] |= own
        done = proc.run(
            [sys.executable, "-I", str(folder / NODE), "image"],
            timeout=FETCH_DEADLINE, env=proc.clean_env(git), stdin=json.dumps(request).encode(),
        )  # fmt: skip
        _raise_for(done)
    house = folder / apptainer.WHEELHOUSE
    (folder / "fetched" / "wheels").rename(house)
    if (folder / "fetched" / "sources").exists():
        (folder / "fetched" / "sources").rename(house / "sources")
    (folder / "fetched").rmdir()


def _raise_for(done: proc.Finished) -> None:
    try:
        answer = json.loads(done.out)
    except ValueError:
        answer = {"ok": False}
    if answer.get("ok"):
        return
    if "error" in answer:
        raise EnvbuildError.from_dict(answer["error"])
    why = "no end in time" if done.timed_out else done.err.strip()[-800:]
    raise EnvbuildError(
        "image-fetch-failed", "what the image is made from could not be fetched here", why=why,
        hint="the same command tries again"
    )  # fmt: skip


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
