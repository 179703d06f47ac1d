"""Builds an image from its Dockerfile, with any builder, and this machine's mirrors and credentials."""

from __future__ import annotations

import difflib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envbuild.bundle.collect import Collector, Piece, default_index, unpack, verify
from envbuild.container.builders import Build, Builder
from envbuild.container.fetch_stages import WHEELHOUSE
from envbuild.container.recipe import ImageRecipe, render
from envbuild.errors import writing
from envbuild.node import pip_config, proc
from envbuild.node.bundle.archive import NAME
from envbuild.node.paths import EPOCH
from envbuild.node.protocol import utc_time
from envbuild.plan.source_builds import python_name
from envbuild.resolve.variant_checks import record_command

DOCKERFILE = "Dockerfile"
_DIFF_LINES = 60


def texts(recipe: ImageRecipe) -> dict[str, str]:
    """File name -> text of all of it."""
    allowed = sorted({name.partition("/")[0] for name in recipe.files})
    ignored = "*\n" + "".join(f"!{name}\n" for name in allowed)
    return {DOCKERFILE: render(recipe), ".dockerignore": ignored, **recipe.files}


def write(folder: Path, files: Mapping[str, str]) -> list[str]:
    """Write into `folder` (made where missing) what differs; its names. Raises EnvbuildError `output-unwritable`."""
    changed = []
    with writing(folder):
        for name, text in files.items():
            path, data = folder / name, text.encode()
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.is_file() or path.read_bytes() != data:
                path.write_bytes(data)
                changed.append(name)
    return changed


def compare(folder: Path, wanted: Mapping[str, str]) -> str:
    """A unified diff from what is in `folder` to the files `wanted`; empty when they agree."""
    out: list[str] = []
    for name, text in sorted(wanted.items()):
        path = folder / name
        if not path.exists():
            out.append(f"{path} is missing\n")
        elif (written := path.read_bytes().decode("utf-8", "replace")) != text:
            out += _diff(written, text, str(path))
    return "".join(out)


def _diff(written: str, wanted: str, name: str) -> list[str]:
    before, after = written.splitlines(keepends=True), wanted.splitlines(keepends=True)
    lines = list(difflib.unified_diff(before, after, name, f"{name} (from the lock)", n=2))
    lines = [line if line.endswith("\n") else f"{line}\n\\ no line break at the end\n" for line in lines]
    left = len(lines) - _DIFF_LINES
    return lines if left <= 0 else [*lines[:_DIFF_LINES], f"... {left} more lines of {name}\n"]


@dataclass(frozen=True)
class Options:
    """How an image is built: bundles or folders with files of the user's, mirrors of git, whether layers are kept, its
    name.
    """

    wheelhouses: tuple[Path, ...] = ()
    tag: str | None = None
    cache: bool = True
    gitconfig: Path | None = None
    on_line: Callable[[str], None] | None = None
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)


def build_image(recipe: ImageRecipe, builder: Builder, options: Options) -> dict[str, Any]:
    """Build; returns `image` (name), `id`, `builder` and `seconds`. Raises what `Builder.build` raises."""
    epoch = int(options.environ.get("SOURCE_DATE_EPOCH") or EPOCH)
    tag, begun = options.tag or recipe.tag, time.monotonic()
    with tempfile.TemporaryDirectory(prefix="envbuild-image-") as top:
        folder, house = Path(top, "context"), Path(top, WHEELHOUSE)
        write(folder, texts(recipe))
        offline = fill_wheelhouse(recipe, options.wheelhouses, house)
        with _secrets(recipe, options, offline=offline) as secrets:
            build = Build(
                folder, folder / DOCKERFILE, tag, arguments={"CREATED": utc_time(epoch), **_origin()},
                contexts={WHEELHOUSE: house}, secrets=secrets, cache=options.cache, epoch=epoch,
            )  # fmt: skip
            made = builder.build(build, options.on_line)
    return {"image": tag, "id": made, "builder": builder.name, "seconds": round(time.monotonic() - begun, 2)}


def fill_wheelhouse(recipe: ImageRecipe, wheelhouses: Sequence[Path], house: Path) -> bool:
    """Make `house` the folder of a bundle for the image; whether it has every package.

    From the user's bundles and folders, and what this machine keeps. Raises EnvbuildError `bundle-damaged`,
    `bundle-unsafe` (exit 5), `bundle-missing` (2), and as `Collector.collect`.
    """
    inside = recipe.inside
    for name in ("tools", "wheels"):  # pip and uv want them to be there
        (house / name).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".bundles-", dir=house.parent) as scratch:
        folders = tuple(
            _folder(wheelhouse, Path(scratch, str(number))) for number, wheelhouse in enumerate(wheelhouses)
        )
        collector = Collector(record_command(recipe.stack, recipe.profile), folders=folders, fetch=False)
        pieces = [*collector.uv(inside.variant.machine), *collector.collect(inside.variant, inside.glibc)]
        if (build := inside.python_build) is not None:
            path = f"tools/{python_name(build.name, build.sha256)}"
            if (archive := collector.local(path, build.sha256)) is not None:
                pieces.append(Piece(path, archive, "interpreter", build.sha256))
        for entry in pieces:
            (house / entry.path).parent.mkdir(exist_ok=True)
            try:
                os.link(entry.source.resolve(), house / entry.path)
            except OSError:  # a copy where it cannot have one more name
                shutil.copyfile(entry.source, house / entry.path)
    return sum(entry.what == "wheel" for entry in pieces) == len(inside.variant.packages)


def _folder(place: Path, scratch: Path) -> Path:
    """The folder of a bundle, every file of which is checked; another folder as it is."""
    if place.is_dir():
        if (place / NAME).exists():
            verify(place)
        return place
    unpack(place, scratch)
    return scratch


def _origin() -> dict[str, str]:
    """Where the build comes from, for the labels: the checkout's origin and commit, where this is one."""
    labels = {}
    for name, words in (("SOURCE", ["config", "--get", "remote.origin.url"]), ("REVISION", ["rev-parse", "HEAD"])):
        done = proc.run(["git", *words], timeout=30)
        text = done.out.strip()
        if done.ok and text and (name != "SOURCE" or text.startswith("https://")):
            labels[name] = re.sub(r"//[^/@]*@", "//", text)
    return labels


@contextmanager
def _secrets(recipe: ImageRecipe, options: Options, *, offline: bool) -> Iterator[dict[str, Path]]:
    """What a build may see of this machine's configuration, as build secrets: no layer and no log keeps it.

    `offline`: the wheelhouse has every package, and no index is asked.
    """
    environ = options.environ
    config = pip_config.read(environ)
    certificates = environ.get("SSL_CERT_FILE") or config.cert
    secrets: dict[str, Path] = {}
    indexes = [] if offline else [config.index_url or default_index(), *config.extra_index_urls]
    indexes = [url for url in indexes if url and pip_config.local_path(url) is None]
    with tempfile.TemporaryDirectory(prefix="envbuild-secrets-") as top:
        if certificates and Path(certificates).is_file():
            secrets["certificates"] = Path(certificates)
        native = "certificates" in secrets
        configurations = {
            "pip.conf": _pip_conf(indexes, offline=offline),
            "uv.toml": _uv_toml(indexes, offline=offline, native=native),
        }
        for name, lines in configurations.items():
            secrets[name] = Path(top, name)
            secrets[name].write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        netrc = Path(environ.get("NETRC") or Path(environ.get("HOME", "~"), ".netrc").expanduser())
        if netrc.is_file():
            secrets["netrc"] = netrc
        if options.gitconfig is not None and recipe.variant.sources:
            secrets["gitconfig"] = options.gitconfig
        yield secrets


def _pip_conf(indexes: list[str], *, offline: bool) -> list[str]:
    lines = ["[global]", *(["no-index = true"] if offline else [])]
    lines += [f"index-url = {indexes[0]}"] if indexes else []
    return lines + ([f"extra-index-url = {' '.join(indexes[1:])}"] if indexes[1:] else [])


def _uv_toml(indexes: list[str], *, offline: bool, native: bool) -> list[str]:
    """uv reads no pip.conf. A file is taken from any index that has it: its hash decides."""
    lines = ["system-certs = true"] if native else []
    lines += ["[pip]", 'index-strategy = "unsafe-best-match"', *(["no-index = true"] if offline else [])]
    lines += [f"index-url = {json.dumps(indexes[0])}"] if indexes else []
    return lines + ([f"extra-index-url = {json.dumps(indexes[1:])}"] if indexes[1:] else [])
