"""What an image is made of, as typed instructions in stages. Pure: made from a lock, a target and the catalog.

The requests of the node program are those that the planner makes for a node whose prefix is inside the image, so a step
exists once. Stages in pairs, so that what has no source in it outlives a change of one:

    fetch       sources     have a network and get everything by hash
    packages    build       have compilers and need no network
    installed   runtime     what runs

Where an image lacks something of its distribution, `compilers` and `libraries` put it, with a network, under `packages`
and `installed`.
"""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envbuild.catalog.patches import load_patch
from envbuild.container.base_images import AskedDigest, SystemPackages
from envbuild.container.instructions import (
    Added,
    Arg,
    Comment,
    Copy,
    Env,
    Folder,
    Instruction,
    Labels,
    Run,
    Stage,
    Start,
)  # fmt: skip
from envbuild.container.node_requests import ImageInputs, Requests, make_requests
from envbuild.container.stage_images import Place
from envbuild.errors import EnvbuildError
from envbuild.model.lock import Lock, Variant
from envbuild.model.target import Target
from envbuild.text import plural

NODE = "envbuild-node.pyz"
INDEXES = "indexes.json"
ENTRY = "entrypoint.sh"
USER = 10001
HOME = "/home/envbuild"
SLIM = (
    "Slim, a deviation: folders `test` and `tests` of packages, and test programs in their `bin`, are left out, though "
    "RECORD names them."
)
NETWORK = (
    "What follows needs no network. `envbuild image build` gives it none and sets ENVBUILD_NETWORK=off, which makes "
    "a network that is there an error."
)
_KEY = "rm: NVIDIA changed its apt key in April 2022, so its list in older images fails, and nothing is wanted from it."
GIVEN = "For the labels, given by whoever builds: `--build-arg REVISION=...`."
WHO = (
    "The image runs as this user, not as root; this is its home. Others may write there too, for a container may run "
    "as the user who starts it: `--user`, Apptainer, enroot."
)


@dataclass(frozen=True, slots=True)
class ImageRecipe:
    """Everything that an image is made from. `files` are the committed texts of the context, `uncommitted` the others.

    `options` are those of `image dockerfile` that give this form, `warnings` are for the user. `trees`: source -> its
    tree after the patches, where it is known; `records`: the folder where that is recorded. `same_cuda`: the release
    of CUDA which both nvcc and torch are of, where both are known.
    """

    stack: str
    profile: str
    variant: Variant
    environment: str
    prefix: str
    stages: tuple[Stage, ...]
    files: Mapping[str, str]
    requests: Requests
    options: str = ""
    machines: str = ""
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    uncommitted: Mapping[str, str] = field(default_factory=dict)
    trees: Mapping[str, str] = field(default_factory=dict)
    records: Path | None = None
    same_cuda: str | None = None

    @property
    def tag(self) -> str:
        """The name that a built image gets."""
        return f"localhost/envbuild/{self.stack}:{self.profile}-{self.variant.digest[:12]}{'-slim' * self.slim}"

    @property
    def slim(self) -> bool:
        """Whether tests of packages are left out."""
        return bool(self.requests.packages["args"].get("slim"))

    @property
    def contents(self) -> str:
        """What is installed, in a few words."""
        variant = self.variant
        torch = f", torch {variant.torch}+{variant.flavour} among them" if variant.torch else ""
        sources = [f"{each.name}{' (patched)' if each.patches else ''}" for each in variant.sources]
        built = f"; built from source: {', '.join(sources)}" if sources else ""
        return f"Python {variant.python}, {plural(len(variant.packages), 'package')}{torch}{built}"

    def stage(self, name: str) -> Stage:
        """One stage by name."""
        return next(each for each in self.stages if each.name == name)


def make_recipe(given: ImageInputs, digests: Mapping[str, AskedDigest]) -> ImageRecipe:
    """The recipe of one variant.

    Raises EnvbuildError: `hash-unrecorded`, `conda-unrecorded` (exit 5), `image-no-file` (7), `image-stage-clash` (2).
    """
    _refuse_unrecorded(given.variant)
    requests = make_requests(given)
    lock, place, prefix = given.lock, given.place, given.prefix
    warnings: list[str] = []
    machines = _machines(given.target)
    maker = _Maker(lock, requests, place, prefix, digests, warnings, machines)
    if requests.variant.arch_list == ():
        warnings.append(
            f"the target {given.target.name} names no GPU, so extensions are compiled for what the torch of the base "
            "chooses"
        )
    stages = maker.stages()
    names = [stage.name for stage in stages]
    for stage in stages:
        # A builder looks for a stage of that name first.
        if stage.image.lower() in names:
            raise EnvbuildError(
                "image-stage-clash",
                f"the image {stage.image} has the name of a stage",
                why=f"the stages are {', '.join(names)}",
                hint=f"say which tag it has: `{stage.image}:latest`",
            )
    return ImageRecipe(
        stack=lock.stack,
        profile=lock.profile,
        variant=requests.variant,
        environment=requests.environment,
        prefix=prefix,
        stages=stages,
        files=maker.files(),
        requests=requests,
        options=" --slim" * given.slim,
        machines=machines,
        notes=(*place.notes, *([SLIM] if given.slim else [])),
        warnings=tuple(dict.fromkeys(warnings)),
        # Addresses appear only in what is made on request.
        uncommitted={INDEXES: pretty(requests.indexes)},
        same_cuda=place.same_cuda,
    )


def written(variant: Variant) -> list[tuple[str, str]]:
    """Source and path in it, with wildcards, of what runs write; the stamp leaves it out."""
    return [(each.name, path) for each in variant.sources if each.install != "wheel" for path in each.generated]


def owned(paths: Sequence[tuple[str, str]], environment: str) -> tuple[Instruction, ...]:
    """What makes `paths`, as `written` gives them, the user's; `environment` is its folder as a shell takes it.

    Their folders too, for new files; and what is there already, as some programs rewrite a file in place.
    """
    if not paths:
        return ()
    folders = set()
    for name, path in paths:
        above = itertools.takewhile(lambda part: not set(part) & set("*?["), path.split("/")[:-1])
        folders.add("/".join(["src", name, *above]))
    every = " ".join(f"{environment}/{shlex.quote(path)}" for path in sorted(folders))
    sources = " ".join(f"{environment}/src/{shlex.quote(name)}" for name in dict.fromkeys(name for name, _ in paths))
    there = " -o ".join(f"-path {environment}/{shlex.quote(f'src/{name}/{path}')}" for name, path in paths)
    names = ", ".join(f"{name}/{path}" for name, path in paths)
    return (
        Comment(
            f"What a source writes when it is built in place or started, {names}, is the user's, as are the folders it "
            "is in, in which any file may be replaced: a start may write it, or a build in an image built on this one. "
            "Other users may write it too. Elsewhere only the user's home and /tmp can be written."
        ),
        Run(
            f"mkdir -p {every} && chown {USER}:{USER} {every} && chmod a+rwx {every}"
            f" && find {sources} \\( {there} \\) -exec chown -h {USER}:{USER} {{}} +"
            " ! -type l -exec chmod a+rwX {} +"
        ),
    )


def about_patch(name: str, same_cuda: str | None, *, why: bool = False) -> str:
    """What a patch is for, and where the data say so that it changes nothing in this image."""
    patch = load_patch(name)
    idle = f" nvcc and torch are both of CUDA {same_cuda} here, so it changes nothing in this image."
    return f"{patch.summary}.{f' {patch.why}' * why}{idle * changes_nothing((name,), same_cuda)}"


def changes_nothing(names: Sequence[str], same_cuda: str | None) -> bool:
    """Whether patches change nothing where nvcc and torch are both of CUDA `same_cuda` (None: they are not)."""
    return same_cuda is not None and all(load_patch(name).idle == "same-cuda" for name in names)


def _machines(target: Target) -> str:
    """Whose variables are set beside those of the stack, in words; empty where the target has none."""
    return (target.summary.partition(";")[0] or target.name) if target.environment else ""


def about_variables(machines: str) -> str:
    """Whose variables the image sets."""
    own = f", and of the machines that it is for: {machines}" if machines else ""
    return f"Variables of the environment{own}. To change one: `docker run -e NAME=VALUE`."


def _refuse_unrecorded(variant: Variant) -> None:
    from envbuild.lock.unpinned import conda_unrecorded, hash_unrecorded

    if variant.conda is not None and not variant.conda.packages:
        raise conda_unrecorded(variant)
    for package in variant.packages:
        if all(file.sha256 == "unrecorded" for file in package.files):
            raise hash_unrecorded(package.files[0])


def pretty(data: Any) -> str:
    """JSON as a file that people compare."""
    return json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


@dataclass(frozen=True)
class _Maker:
    lock: Lock
    requests: Requests
    place: Place
    prefix: str
    digests: Mapping[str, AskedDigest]
    warnings: list[str]
    machines: str

    @property
    def folder(self) -> str:
        return f"{self.prefix}/image"

    def files(self) -> dict[str, str]:
        found = {"fetch.json": self.requests.fetch}
        if self.requests.sources is not None:
            found["sources.json"] = self.requests.sources
        found |= {"packages.json": self.requests.packages, "build.json": self.requests.build}
        found["variant.json"] = self.requests.variant.to_json_dict()
        return {**{name: pretty(data) for name, data in found.items()}, ENTRY: self._entry()}

    def stages(self) -> tuple[Stage, ...]:
        fetched = [self._stage("fetch", self.place.fetch, self._fetch())]
        if self.requests.sources is not None:
            fetched.append(self._stage("sources", self.place.fetch, self._sources()))
        place, system = self.place, list[Stage]()
        compilers = "compilers" if place.system is not None or place.lacks else None
        libraries = "libraries" if place.system is not None or place.network is not None else None
        if compilers is not None:
            system.append(self._stage(compilers, place.build, _for_building(place)))
        if libraries is not None:
            system.append(self._stage(libraries, place.runtime, _for_running(place)))
        return (
            Stage("wheelhouse", "scratch", None, ()),
            *fetched,
            *system,
            self._stage("packages", self.place.build, self._packages(), above=compilers),
            self._stage("installed", self.place.runtime, self._installed(), above=libraries),
            self._stage("build", self.place.build, self._build(), above="packages"),
            self._stage("runtime", self.place.runtime, self._runtime(), above="installed"),
        )

    def _stage(self, name: str, image: str, instructions: tuple[Instruction, ...], above: str | None = None) -> Stage:
        plain, _, digest = image.partition("@sha256:")
        locked = self.requests.variant.image
        if not digest and locked is not None and locked.name == plain and locked.digest != "unrecorded":
            digest = locked.digest
        if not digest and plain in self.digests:
            digest = self.digests[plain].digest
        if not digest and not plain.startswith("localhost/"):
            self.warnings.append(
                f"the digest of {plain} is not recorded, so its registry decides what the tag is today "
                "(`envbuild lock create STACK --images` asks)"
            )
        return Stage(name, plain, digest or None, instructions, above)

    def _fetch(self) -> tuple[Instruction, ...]:
        return (
            Folder(self.folder),
            Copy((NODE, "fetch.json", INDEXES), self.folder + "/"),
            Comment(
                "Downloads packages and tools of fetch.json from their indexes (addresses: indexes.json) or urls, and "
                "compares the sha256 of each. Optional secrets: mirrors (pip.conf), logins (netrc), certificates."
            ),
            self._fetching("fetch.json", "pip.conf"),
        )

    def _sources(self) -> tuple[Instruction, ...]:
        return (
            Folder(self.folder),
            Copy((NODE, "sources.json"), self.folder + "/"),
            Comment(
                "Fetches the commits of sources.json and compares their trees. A commit that an earlier build "
                "fetched is in the cache; the wheelhouse may have one as a git bundle, NAME-COMMIT-TREE.bundle (the "
                "tree's first 12 digits)."
            ),
            self._fetching("sources.json", "gitconfig"),
        )

    def _fetching(self, request: str, config: str) -> Run:
        where = {"pip.conf": "/etc/pip.conf", "gitconfig": "/root/.gitconfig"}[config]
        mounts = (
            "type=bind,from=wheelhouse,target=/wheelhouse",
            "type=cache,target=/var/cache/envbuild",
            f"type=secret,id={config},target={where}",
            "type=secret,id=netrc,target=/root/.netrc",
            "type=secret,id=certificates,target=/run/secrets/certificates.crt",
        )
        return Run(f"python3 {NODE} image < {request}", mounts)

    def _packages(self) -> tuple[Instruction, ...]:
        # Those of conda stay in this stage.
        folder = f"{self.requests.out}/conda"
        return (
            Comment(NETWORK),
            Arg("ENVBUILD_NETWORK", "any"),
            Folder(self.folder),
            Copy((f"{self.requests.out}/wheels",), f"{self.requests.out}/wheels", "fetch"),
            *((Copy((folder,), folder, "fetch"),) if self.requests.variant.conda else ()),
            Copy((f"{self.prefix}/tools",), f"{self.prefix}/tools", "fetch"),
            Copy((NODE, "packages.json"), self.folder + "/"),
            Comment(
                "Installs the packages of packages.json and compares every file with its RECORD and every version with "
                f"the lock's{'; imports torch' * bool(self.requests.variant.torch)}."
            ),
            Run(self._building("packages.json")),
        )

    def _build(self) -> tuple[Instruction, ...]:
        out: list[Instruction] = [Arg("ENVBUILD_NETWORK", "any")]
        if self.requests.sources is not None:
            out.append(Copy((f"{self.requests.out}/sources",), f"{self.requests.out}/sources", "sources"))
        out += [
            Copy(("variant.json", "build.json"), self.folder + "/"),
            Comment(
                f"{self._how_built()}Imports the modules of variant.json (no kernel runs, no GPU is needed) and "
                "writes the stamp, the hash of every file but byte code and what runs write, into the environment. "
                f"The folder `added` then has what is new, and the link current/{self.lock.stack} to the "
                "environment; the image that runs copies it."
            ),
        ]
        mounts = (f"type=cache,target={self.requests.store}",) if self.requests.variant.sources else ()
        out.append(Run(self._building("build.json"), mounts))
        return tuple(out)

    def _how_built(self) -> str:
        if not self.requests.variant.sources:
            return ""
        names = dict.fromkeys(name for each in self.requests.variant.sources for name in each.patches)
        patches = "".join(f" Patch {name}: {about_patch(name, self.place.same_cuda)}" for name in names)
        return (
            "Patches, builds and installs the sources of variant.json; wheels that earlier builds left are taken where "
            f"source, patches, flags, packages and compilers are the same.{patches} "
        )

    def _building(self, request: str) -> str:
        return f"PYTHONDONTWRITEBYTECODE=1 {self.requests.runner} {NODE} image < {request}"

    def _installed(self) -> tuple[Instruction, ...]:
        out: list[Instruction] = []
        if self.requests.python_folder is not None and self.requests.variant.conda is None:
            out.append(Comment("The environment's own Python, which this stage's image does not have."))
            out.append(Copy((self.requests.python_folder,), self.requests.python_folder, "packages"))
        out.append(Copy((f"{self.prefix}/envs",), f"{self.prefix}/envs", "packages"))
        # Nothing of these is of a source, so a changed one leaves this layer as it is.
        words = [
            f"echo 'envbuild:x:{USER}:{USER}::{HOME}:/bin/sh' >> /etc/passwd",
            f"echo 'envbuild:x:{USER}:' >> /etc/group",
            f"mkdir -p {HOME}",
            f"chown {USER}:{USER} {HOME}",
            f"chmod 777 {HOME}",
        ]
        out += [
            Comment("The entry point, and the program that `envbuild image verify` runs inside."),
            Copy((NODE, ENTRY), self.folder + "/"),
            Comment(WHO),
            Run(" && ".join(words)),
            Folder(HOME),  # here, as every image with this instruction costs a builder as much as a COPY
        ]
        return tuple(out)

    def _runtime(self) -> tuple[Instruction, ...]:
        current = f"{self.prefix}/current/{self.lock.stack}"
        return (
            Added("build", f"{self.prefix}/added", self.prefix, ("envs", "current", "image/variant.json")),
            *owned(written(self.requests.variant), shlex.quote(self.requests.environment)),
            Comment(f"{about_variables(self.machines)}{self._by_file()}"),
            Env(self._environment(current)),
            Env({"PATH": f"{current}/bin"}, prepend=True),
            Comment(GIVEN),
            Arg("CREATED", "1980-01-01T00:00:00Z"),
            Arg("SOURCE"),
            Arg("REVISION"),
            self._labels(self.requests.variant),
            Start(USER, "", ("/bin/sh", f"{self.folder}/{ENTRY}"), ("python",)),
        )

    def _by_file(self) -> str:
        """Which variables the entry point alone sets."""
        paths = {name: value["path"] for name, value in self.requests.variables.items() if not isinstance(value, str)}
        return "".join(
            f" {name} is set by the entry point where {path} is there (a host's: `-v {path}:{path}:ro`)."
            for name, path in paths.items()
        )

    def _environment(self, current: str) -> dict[str, str]:
        plain = {key: value for key, value in self.requests.variables.items() if isinstance(value, str)}
        mine = {"VIRTUAL_ENV": current, "ENVBUILD_STACK": self.lock.stack, "PYTHONNOUSERSITE": "1"}
        if self.requests.variant.conda is not None:
            mine["CONDA_PREFIX"] = current
        if self.requests.arch_list:
            # Else code that is compiled when it is first used takes what the base was built for.
            mine["TORCH_CUDA_ARCH_LIST"] = ";".join(self.requests.arch_list)
        if self.place.cuda is not None or self.requests.variant.flavour not in (None, "cpu"):
            mine |= {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
        return {**mine, **plain}

    def _labels(self, variant: Variant) -> Labels:
        runtime = self._stage("runtime", self.place.runtime, ())
        base = {"org.opencontainers.image.base.name": runtime.image}
        if runtime.digest:
            base["org.opencontainers.image.base.digest"] = f"sha256:{runtime.digest}"
        return Labels(
            {
                "org.opencontainers.image.title": self.lock.stack,
                **base,
                "dev.envbuild.stack": self.lock.stack,
                "dev.envbuild.profile": self.lock.profile,
                "dev.envbuild.variant": variant.id,
                "dev.envbuild.lock": f"sha256:{variant.digest}",
                "dev.envbuild.environment": self.requests.environment,
                **({"dev.envbuild.deviation": "slim"} if self.requests.packages["args"].get("slim") else {}),
            },
            {
                "org.opencontainers.image.created": "CREATED",
                "org.opencontainers.image.source": "SOURCE",
                "org.opencontainers.image.revision": "REVISION",
            },
        )

    def _kept(self) -> str:
        """Lines that keep what a container was started with, as activate.sh sets its variables whatever they are."""
        names = [name for name, value in self.requests.variables.items() if isinstance(value, str)]
        if not names:
            return ""
        kept = "".join(f' \\\n    ${{{name}+"{name}=${name}"}}' for name in names)
        return (
            f'# These stay as the container was given them: `-e NAME=VALUE`, else the image.\nset -- env{kept} "$@"\n'
        )

    def _entry(self) -> str:
        return (
            "#!/bin/sh\n"
            "# Loads the environment, with the variables that depend on what is there, and becomes the command.\n"
            "set -eu\n"
            "# A user whom the image does not know has no home and no name in it.\n"
            f'[ -n "${{HOME-}}" ] && [ -w "$HOME" ] || export HOME={HOME}\n'
            "id -un > /dev/null 2>&1 || export USER=envbuild\n"
            f"{self._kept()}"
            f". {self.prefix}/current/{self.lock.stack}/.envbuild/activate.sh\n"
            'exec "$@"\n'
        )


def _for_building(place: Place) -> tuple[Instruction, ...]:
    lacks = "".join(f"{name} is not in this image, and {why}. " for name, why in place.lacks.items())
    if place.system is not None:
        names = (*place.system.packages, *place.lacks)
        return _system(place.system.model_copy(update={"packages": names}), f"Needed to compile against. {lacks}")
    return _of_today(tuple(place.lacks), f"{lacks}Its version is what the archive has today, not pinned.")


def _for_running(place: Place) -> tuple[Instruction, ...]:
    network, system = place.network, place.system
    if network is None:
        return _system(system, "Needed at run time. ") if system is not None else ()
    why = f"{' and '.join(network.packages)} are not in this image, and {network.why}. "
    if system is not None:
        names = (*system.packages, *network.packages)
        return _system(system.model_copy(update={"packages": names}), f"Needed at run time. {why}")
    devices = "A container needs the host's devices, too: `--device /dev/infiniband --ulimit memlock=-1`."
    return _of_today(network.packages, f"{why}Their versions are what the archive has today, not pinned. {devices}")


def _of_today(packages: Sequence[str], why: str) -> tuple[Instruction, ...]:
    line = (
        "rm -f /etc/apt/sources.list.d/cuda*.list && apt-get update"
        f" && apt-get install -y --no-install-recommends {' '.join(packages)} && rm -rf /var/lib/apt/lists/*"
    )
    return (Comment(f"{why} {_KEY}"), Run(line, ignore=("DL3008",)))


def _system(system: SystemPackages, why: str) -> tuple[Instruction, ...]:
    names = " ".join(system.packages)
    line = (
        "rm -f /etc/apt/sources.list.d/cuda*.list"
        " && sed -i 's/^deb /deb [snapshot=yes] /' /etc/apt/sources.list"
        f" && apt-get update --snapshot {system.snapshot}"
        f" && apt-get install -y --no-install-recommends --snapshot {system.snapshot} {names}"
        " && rm -rf /var/lib/apt/lists/*"
    )
    return (
        Comment(f"{why}Versions are those of the archive's snapshot of that day. {_KEY}"),
        Run(line, ignore=("DL3008",)),
    )
