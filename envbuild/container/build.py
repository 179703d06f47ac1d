"""Building an image: the fetch stage with a network, everything else without, by whichever builder is there."""

from __future__ import annotations

import hashlib
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
from types import MappingProxyType
from typing import Any

from platformdirs import user_cache_path

from envbuild.container import build_context
from envbuild.container.builders import Build, Builder
from envbuild.container.dockerfile import render_part
from envbuild.container.instructions import Copy
from envbuild.container.recipe import INDEXES, NODE, ImageRecipe
from envbuild.errors import EnvbuildError
from envbuild.hashing import sha256_of
from envbuild.node import git_source, pip_config
from envbuild.node.image import fetch_stage
from envbuild.node.paths import EPOCH
from envbuild.node.protocol import NodeError, utc_time
from envbuild.node.read_text import names
from envbuild.redact import redact_data
from envbuild.regular_file import read_text

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
    """Build; returns `image` (name), `id` and `seconds` {part: s}, 0 for a part that was there.

    Raises EnvbuildError: what `context.check` and `Builder.build` raise.
    """
    epoch = int(options.environ.get("SOURCE_DATE_EPOCH") or EPOCH)
    tag = options.tag or recipe.tag
    with tempfile.TemporaryDirectory(prefix="envbuild-image-") as top:
        folder = Path(top, "context")
        build_context.write(recipe, folder)
        build_context.check(folder)
        parts = _Parts(recipe, builder, options, folder, epoch)
        parts.fetch("fetch")
        if recipe.requests.sources is not None and shutil.which("git") is None:
            parts.fetch("sources")
        for name in ("compilers", "libraries"):
            if any(stage.name == name for stage in recipe.stages):
                parts.make(name, network=True)
        parts.make("packages", "compilers", "fetch")
        parts.make("installed", "libraries", "packages")
        found = parts.finish(tag)
    return {"image": tag, "id": found, "builder": builder.name, "seconds": parts.seconds}


@dataclass
class _Parts:
    """Stages that are built one by one as images of their own; one whose inputs did not change is there already.

    Builders compare what a COPY brings by copying it, gigabytes here: the name of a part says what it was made from.
    """

    recipe: ImageRecipe
    builder: Builder
    options: Options
    folder: Path
    epoch: int
    made: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    bases: dict[str, str] = field(default_factory=dict)
    there: dict[str, str] | None = None

    def fetch(self, name: str) -> None:
        """A stage with a network."""
        stages = ("wheelhouse", name)
        if not self._is_there(name, stages):
            with _wheelhouse(self.recipe, self.options) as house, _secrets(self.options) as secrets:
                self._build(name, stages, contexts={"wheelhouse": house}, secrets=secrets)

    def make(self, name: str, *after: str, network: bool = False) -> None:
        """A stage that takes files of the parts `after`, or goes on from one. Its image must be here before."""
        stage, base = self.recipe.stage(name), ""
        given = {each: self.made[each] for each in after if each in self.made}
        if stage.above not in given:
            reference = f"{stage.image}@sha256:{stage.digest}" if stage.digest else stage.image
            base = self._base(reference)
        if not self._is_there(name, (name,), given, base):
            arguments = {"ENVBUILD_NETWORK": "off"} if name == "packages" else {}
            self._build(name, (name,), given, network=network, pull=False, arguments=arguments)

    def finish(self, tag: str) -> str:
        """The stages `build` and `runtime` as the image `tag`; its id.

        They are one part: what differs in both of them is the source.
        """
        stages, given = ("build", "runtime"), dict(self.made)
        arguments = {"ENVBUILD_NETWORK": "off", "CREATED": utc_time(self.epoch), **_origin()}
        there = self._is_there("runtime", stages, given, str(arguments))
        made = self.made["runtime"]
        if there:
            self.builder.tag(made, tag)
            return self._here()[made]
        with self._sources() as contexts:
            more: dict[str, Any] = {"network": False, "arguments": arguments, "pull": False, "contexts": contexts}
            return self._build("runtime", stages, given, "sources" if contexts else "", also=tag, **more)

    @contextmanager
    def _sources(self) -> Iterator[dict[str, Path]]:
        """What stands for the stage `sources`: a folder with its files, which this machine's git fetches.

        It has what else the stage `build` copies, too. Only where `sources` was not built. Raises EnvbuildError as that
        stage does.
        """
        if self.recipe.requests.sources is None or "sources" in self.made:
            yield {}
            return
        args, begun = self.recipe.requests.sources["args"], time.monotonic()
        houses = list(map(str, self.options.wheelhouses))
        cache = str(user_cache_path("envbuild") / "artifacts" / "sources") if self.options.cache else None
        top = self.folder.parent / "sources"
        with _secrets(self.options) as secrets, _git_settings(self.options, secrets):
            try:
                git_source.check_pins(args["sources"])
                for source in args["sources"]:
                    fetch_stage.bring_source(source, f"{top}{args['out']}/sources", houses, cache)
            except NodeError as error:
                raise EnvbuildError.from_dict(redact_data(error.as_dict())) from error
        self.seconds["sources"] = max(0.01, round(time.monotonic() - begun, 2))
        copies = [each for each in self.recipe.stage("build").instructions if isinstance(each, Copy) and not each.stage]
        for copy in copies:
            for file in copy.sources:
                _link(self.folder / file, Path(f"{top}{copy.to}", file))
        yield {"sources": top}

    def _is_there(
        self, name: str, stages: tuple[str, ...], given: Mapping[str, str] = MappingProxyType({}), more: str = ""
    ) -> bool:
        """Name the part by all that it is made from; True when an earlier build made it."""
        text = render_part(self.recipe, stages, given)
        total = hashlib.sha256(f"{self.epoch}\n{more}\n{text}".encode())
        every = [each for stage in stages for each in self.recipe.stage(stage).instructions]
        copies = [each for each in every if isinstance(each, Copy) and not each.stage]
        # Where files come from is no matter: their hashes are in the request.
        for file in sorted({file for copy in copies for file in copy.sources} - {INDEXES}):
            total.update(hashlib.sha256((self.folder / file).read_bytes()).digest())
        key = total.hexdigest()[:12]
        self.made[name] = f"localhost/envbuild/{self.recipe.stack}-{name}:{self.recipe.profile}-{key}"
        self.seconds[name] = 0.0
        return self.options.cache and self.made[name] in self._here()

    def _build(
        self,
        name: str,
        stages: tuple[str, ...],
        given: Mapping[str, str] = MappingProxyType({}),
        gathered: str = "",
        **more: Any,
    ) -> str:
        begun = time.monotonic()
        text = render_part(self.recipe, stages, given, cached=self.options.cache, gathered=gathered)
        path = _write(self.folder.parent / f"Dockerfile.{name}", text)
        build = Build(
            self.folder, path, self.made[name], target=stages[-1], epoch=self.epoch, cache=self.options.cache, **more
        )
        found = self.builder.build(build, self.options.on_line)
        self.seconds[name] = max(0.01, round(time.monotonic() - begun, 2))  # 0 says that it was there
        return found

    def _base(self, reference: str) -> str:
        """The id of an image of a registry, which is pulled where it is not here; asked for once."""
        if reference not in self.bases:
            self.bases[reference] = self._id(reference)
            if not self.bases[reference]:
                self.builder.pull(reference)
                self.bases[reference] = self.builder.id(reference)
        return self.bases[reference]

    def _here(self) -> dict[str, str]:
        """Name -> id of what was here before this build."""
        if self.there is None:
            self.there = self.builder.ids()
        return self.there

    def _id(self, image: str) -> str:
        """The id of an image, empty where it is not here."""
        here = self._here()
        try:
            return here.get(image) or here.get(f"{image}:latest") or self.builder.id(image)
        except EnvbuildError:
            return ""


def _write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


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
    """File name (of conda: below its channel) -> sha256 of everything that the fetch stage fetches by hash."""
    files = json.loads(recipe.files["fetch.json"])["args"]["files"]
    return {f"{each['subdir']}/{each['file']}" if "subdir" in each else each["file"]: each["sha256"] for each in files}


@contextmanager
def _wheelhouse(recipe: ImageRecipe, options: Options) -> Iterator[Path]:
    """One folder with what the user's folders have of the wanted files, and their sources.

    Folders of pip's find-links count too, and channels that are folders: the build does not see them.
    """
    indexes = json.loads(recipe.uncommitted.get(INDEXES, "{}")).values()
    links = [*pip_config.read(options.environ).find_links, *(url for each in indexes for url in each.get("urls", ()))]
    folders = [*options.wheelhouses, *map(Path, pip_config.folders(links))]
    with tempfile.TemporaryDirectory(prefix="envbuild-wheelhouse-") as top:
        house = Path(top)
        for name, digest in wanted_files(recipe).items():
            places = (each / path for each in folders for path in (name, Path(name).name))
            there = next((path for path in places if path.is_file()), None)
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
    config = pip_config.read(environ)
    certificates = environ.get("SSL_CERT_FILE") or config.cert
    found: dict[str, Path] = {}
    with tempfile.TemporaryDirectory(prefix="envbuild-secrets-") as top:
        if certificates and Path(certificates).is_file():
            found["certificates"] = Path(certificates)
        lines = ["[global]"]
        index = config.index_url or _pip_default()
        if index and pip_config.local_path(index) is None:
            lines.append(f"index-url = {index}")
        extra = [url for url in config.extra_index_urls if pip_config.local_path(url) is None]
        lines += [f"extra-index-url = {' '.join(extra)}"] if extra else []
        lines += [f"cert = {_CERTIFICATES}"] if "certificates" in found else []
        if len(lines) > 1:
            found["pip.conf"] = _write(Path(top, "pip.conf"), "\n".join(lines) + "\n")
        netrc = Path(environ.get("NETRC") or Path(environ.get("HOME", "~"), ".netrc").expanduser())
        if netrc.is_file():
            found["netrc"] = netrc
        git = "[http]\n\tsslCAInfo = " + _CERTIFICATES + "\n" if "certificates" in found else ""
        if options.gitconfig is not None:
            git += read_text(options.gitconfig)
        if git:
            found["gitconfig"] = _write(Path(top, "gitconfig"), git)
        yield found


@contextmanager
def _git_settings(options: Options, secrets: Mapping[str, Path]) -> Iterator[None]:
    """This process's variables while git fetches here, as the stage `sources` has them as files.

    git is as this machine has it; a configuration or logins that were named take the place of the user's. What a
    configuration says of certificates outranks those that were given.
    """
    named, certificates = options.gitconfig, secrets.get("certificates")
    if not (named or certificates or options.environ.get("NETRC")):
        yield
        return
    before, user = dict(os.environ), Path(options.environ.get("HOME", "~")).expanduser().absolute()
    with tempfile.TemporaryDirectory(prefix="envbuild-git-") as home:
        # git finds logins in the home alone, and `~` in a configuration is the user's.
        for name in {*names(str(user))} - {".gitconfig", ".netrc", *([".config"] if named else [])}:
            Path(home, name).symlink_to(user / name)
        if "netrc" in secrets:
            Path(home, ".netrc").symlink_to(secrets["netrc"].absolute())
        lines = [f"[http]\n\tsslCAInfo = {_quoted(certificates)}"] if certificates else []
        lines += [f"[include]\n\tpath = {_quoted(path)}" for path in _git_files(options, user) if path.is_file()]
        config = _write(Path(home, ".gitconfig"), "".join(f"{line}\n" for line in lines))
        os.environ.update({"HOME": home, "GIT_CONFIG_GLOBAL": str(config)})
        os.environ.update({"XDG_CONFIG_HOME": f"{home}/.config"} if named else {})
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)


def _git_files(options: Options, user: Path) -> list[Path]:
    """The global configuration of git: what was named, else what git reads of a user."""
    environ = options.environ
    if options.gitconfig is not None or environ.get("GIT_CONFIG_GLOBAL") is not None:
        return [options.gitconfig or Path(environ["GIT_CONFIG_GLOBAL"])]
    return [Path(environ.get("XDG_CONFIG_HOME") or user / ".config", "git", "config"), user / ".gitconfig"]


def _quoted(path: Path) -> str:
    return json.dumps(str(path.absolute()), ensure_ascii=False)


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
