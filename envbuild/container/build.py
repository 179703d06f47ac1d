"""Building an image: the fetch stage with a network, everything else without, by whichever builder is there."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envbuild.container import context
from envbuild.container.builders import EPOCH, Build, Builder
from envbuild.container.dockerfile import render_fetch, render_rest
from envbuild.container.recipe import NODE, ImageRecipe
from envbuild.errors import EnvbuildError
from envbuild.node import pipconf
from envbuild.provision.payload import sha256_of

_CERTIFICATES = "/run/secrets/certificates.crt"


@dataclass(frozen=True)
class Options:
    """How an image is built: folders with files of the user's, mirrors of git, whether layers are kept, its name."""

    wheelhouses: tuple[Path, ...] = ()
    tag: str | None = None
    cache: bool = True
    gitconfig: Path | None = None
    on_line: Callable[[str], None] | None = None
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)


def build_image(recipe: ImageRecipe, builder: Builder, options: Options) -> dict[str, Any]:
    """Build; returns `image` (name), `id`, `seconds` {stage: s} and `network` of the build stage.

    Raises EnvbuildError: what `context.check` and `Builder.build` raise.
    """
    epoch = int(options.environ.get("SOURCE_DATE_EPOCH") or EPOCH)
    tag = options.tag or recipe.tag
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="envbuild-image-") as top:
        folder = Path(top, "context")
        context.write(recipe, folder)
        context.check(folder)
        begun = time.monotonic()
        fetched = f"{tag.rpartition(':')[0] or tag}-fetched:{recipe.variant.digest[:12]}"
        part = _write(Path(top, "Dockerfile.fetch"), render_fetch(recipe, cached=options.cache))
        with _wheelhouse(recipe, options) as house, _secrets(options) as secrets:
            first = Build(
                folder, part, fetched, target="fetch", contexts={"wheelhouse": house}, secrets=secrets, epoch=epoch,
                cache=options.cache,
            )  # fmt: skip
            builder.build(first, options.on_line)
        seconds["fetch"] = round(time.monotonic() - begun, 2)
        begun = time.monotonic()
        _bring(recipe, builder)
        rest = _write(Path(top, "Dockerfile"), render_rest(recipe, fetched, cached=options.cache))
        arguments = {"ENVBUILD_NETWORK": "off", "CREATED": _rfc3339(epoch), **_origin()}
        second = Build(
            folder, rest, tag, network=False, arguments=arguments, pull=False, epoch=epoch, cache=options.cache
        )
        found = builder.build(second, options.on_line)
        seconds["build"] = round(time.monotonic() - begun, 2)
        if not options.cache:
            builder.remove(fetched)
    return {"image": tag, "id": found, "builder": builder.name, "seconds": seconds}


def _write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def _rfc3339(epoch: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch))


def _bring(recipe: ImageRecipe, builder: Builder) -> None:
    """Images of the stages that are built without a network must be here before."""
    for name in ("build", "runtime"):
        stage = recipe.stage(name)
        reference = f"{stage.image}@sha256:{stage.digest}" if stage.digest else stage.image
        try:
            builder.id(reference)
        except EnvbuildError:
            builder.pull(reference)


def _origin() -> dict[str, str]:
    """Where the build comes from, for the labels: the checkout's origin and commit, where this is one."""
    found = {}
    for name, words in (("SOURCE", ["config", "--get", "remote.origin.url"]), ("REVISION", ["rev-parse", "HEAD"])):
        try:
            done = subprocess.run(["git", *words], capture_output=True, text=True, timeout=30, check=True)
        except (OSError, subprocess.SubprocessError):
            continue
        text = done.stdout.strip()
        if text and not (name == "SOURCE" and not text.startswith("https://")):
            found[name] = re.sub(r"//[^/@]*@", "//", text)
    return found


def wanted_files(recipe: ImageRecipe) -> dict[str, str]:
    """File name -> sha256 of everything that the fetch stage fetches by hash."""
    return {each["file"]: each["sha256"] for each in json.loads(recipe.files["fetch.json"])["args"]["files"]}


@contextmanager
def _wheelhouse(recipe: ImageRecipe, options: Options) -> Iterator[Path]:
    """One folder with what the user's folders have of the wanted files, and their sources.

    Folders of pip's find-links count too: the build does not see them.
    """
    folders = [*options.wheelhouses]
    folders += [Path(each) for each in pipconf.folders(pipconf.read(options.environ).find_links)]
    with tempfile.TemporaryDirectory(prefix="envbuild-wheelhouse-") as top:
        house = Path(top)
        for name, digest in wanted_files(recipe).items():
            there = next((each / name for each in folders if (each / name).is_file()), None)
            if there is not None and sha256_of(there) == digest:
                _link(there, house / name)
        for each in options.wheelhouses:
            for source in [*each.glob("*.bundle"), *(each / "sources").glob("*.git")]:
                to = house / source.relative_to(each)
                if source.is_dir():
                    shutil.copytree(source, to, dirs_exist_ok=True, symlinks=True)
                else:
                    _link(source, to)
        yield house


def _link(source: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source.resolve(), to)
    except OSError:
        shutil.copyfile(source, to)


@contextmanager
def _secrets(options: Options) -> Iterator[dict[str, Path]]:
    """What the fetch stage may see of this machine's configuration, as build secrets: no layer and no log keeps it."""
    environ = options.environ
    config = pipconf.read(environ)
    certificates = environ.get("SSL_CERT_FILE") or config.cert
    found: dict[str, Path] = {}
    with tempfile.TemporaryDirectory(prefix="envbuild-secrets-") as top:
        if certificates and Path(certificates).is_file():
            found["certificates"] = Path(certificates)
        lines = ["[global]"]
        index = config.index_url or _pip_default()
        if index and pipconf.local_path(index) is None:
            lines.append(f"index-url = {index}")
        extra = [url for url in config.extra_index_urls if pipconf.local_path(url) is None]
        lines += [f"extra-index-url = {' '.join(extra)}"] if extra else []
        lines += [f"cert = {_CERTIFICATES}"] if "certificates" in found else []
        if len(lines) > 1:
            found["pip.conf"] = _write(Path(top, "pip.conf"), "\n".join(lines) + "\n")
        netrc = Path(environ.get("NETRC") or Path(environ.get("HOME", "~"), ".netrc").expanduser())
        if netrc.is_file():
            found["netrc"] = netrc
        git = "[http]\n\tsslCAInfo = " + _CERTIFICATES + "\n" if "certificates" in found else ""
        if options.gitconfig is not None:
            git += options.gitconfig.read_text(encoding="utf-8")
        if git:
            found["gitconfig"] = _write(Path(top, "gitconfig"), git)
        yield found


def _pip_default() -> str:
    """The index that pip asks where nothing is configured; the image that fetches need not have pip."""
    try:
        from pip._internal.models.index import PyPI
    except ImportError:
        return ""
    return str(PyPI.simple_url)


def node_command(recipe_prefix: str, environment: str, verb: str) -> list[str]:
    """The node program in a container, through the entry point, under the environment's own interpreter."""
    folder = f"{recipe_prefix}/image"
    return ["/bin/sh", f"{folder}/entrypoint.sh", f"{environment}/bin/python", f"{folder}/{NODE}", verb]
