"""What an image is made of, as typed instructions in stages. Pure: made from a lock, a target and the catalog.

The requests of the node program are those that the planner makes for a node whose prefix is inside the image, so a step
exists once. Three stages: `fetch` has a network and gets everything by hash; `build` has compilers and needs no
network; `runtime` is what runs.
"""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from envbuild.container.bases import AskedDigest, Containers, SystemPackages
from envbuild.container.place import Place
from envbuild.container.requests import Requests, make_requests
from envbuild.errors import EnvbuildError
from envbuild.model.lock import Lock, Variant
from envbuild.model.patch import Patch
from envbuild.model.target import Target
from envbuild.resolve.compat import Compat

NODE = "envbuild-node.pyz"
INDEXES = "indexes.json"
ENTRY = "entrypoint.sh"
USER = 10001
HOME = "/home/envbuild"


@dataclass(frozen=True, slots=True)
class Comment:
    """A line that says why, before the instruction it is about."""

    text: str


@dataclass(frozen=True, slots=True)
class Arg:
    """A build argument with its default."""

    name: str
    default: str = ""


@dataclass(frozen=True, slots=True)
class Copy:
    """Files of the context, or of another stage, to one place."""

    sources: tuple[str, ...]
    to: str
    stage: str | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """One shell line of ours; `mounts` are values of `--mount`, `ignore` hadolint rules that it breaks on purpose."""

    line: str
    mounts: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Env:
    """Variables. A value holds nothing to expand, except with `prepend`: then `:$NAME` follows."""

    values: Mapping[str, str]
    prepend: bool = False


@dataclass(frozen=True, slots=True)
class Labels:
    """Labels; `given` are those whose value is a build argument: label to argument."""

    values: Mapping[str, str]
    given: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Start:
    """What a container runs: user and group id, working directory, entry point and default command."""

    user: int
    folder: str
    entry: tuple[str, ...]
    command: tuple[str, ...]


Instruction = Comment | Arg | Copy | Run | Env | Labels | Start


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage: its name, the image it begins with (pinned where a digest is known), what is done in it."""

    name: str
    image: str
    digest: str | None
    instructions: tuple[Instruction, ...]


@dataclass(frozen=True, slots=True)
class ImageRecipe:
    """Everything that an image is made from. `files` are the committed texts of the context, `uncommitted` the others.

    `warnings` are for the user.
    """

    stack: str
    profile: str
    variant: Variant
    environment: str
    prefix: str
    stages: tuple[Stage, ...]
    files: Mapping[str, str]
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    uncommitted: Mapping[str, str] = field(default_factory=dict)

    @property
    def tag(self) -> str:
        """The name that a built image gets."""
        return f"localhost/envbuild/{self.stack}:{self.profile}-{self.variant.digest[:12]}"

    def stage(self, name: str) -> Stage:
        """One stage by name."""
        return next(each for each in self.stages if each.name == name)


def make_recipe(
    lock: Lock,
    variant: Variant,
    target: Target,
    place: Place,
    *,
    containers: Containers,
    compat: Compat,
    patches: Mapping[str, Patch],
    digests: Mapping[str, AskedDigest],
) -> ImageRecipe:
    """The recipe of one variant. Raises EnvbuildError: `hash-unrecorded` (exit 5), `image-no-file` (7)."""
    _refuse_unrecorded(variant)
    requests = make_requests(lock, variant, target, place, containers.prefix, compat, patches)
    warnings: list[str] = []
    maker = _Maker(lock, requests, place, containers.prefix, digests, warnings)
    if requests.variant.arch_list == ():
        warnings.append(
            f"the target {target.name} names no GPU, so extensions are compiled for what the torch of the base chooses"
        )
    names = [stage.name for stage in maker.stages()]
    if len(set(names)) != len(names):
        raise EnvbuildError("image-stage-clash", f"two stages have one name: {', '.join(names)}")
    return ImageRecipe(
        stack=lock.stack,
        profile=lock.profile,
        variant=requests.variant,
        environment=requests.environment,
        prefix=containers.prefix,
        stages=maker.stages(),
        files=maker.files(),
        notes=place.notes,
        warnings=tuple(dict.fromkeys(warnings)),
        # Addresses appear only in what is made on request.
        uncommitted={INDEXES: pretty(requests.indexes)},
    )


def _refuse_unrecorded(variant: Variant) -> None:
    from envbuild.lock.unrecorded import hash_unrecorded

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

    @property
    def folder(self) -> str:
        return f"{self.prefix}/image"

    def files(self) -> dict[str, str]:
        return {
            "fetch.json": pretty(self.requests.fetch),
            "build.json": pretty(self.requests.build),
            "variant.json": pretty(self.requests.variant.to_json_dict()),
            ENTRY: self._entry(),
        }

    def stages(self) -> tuple[Stage, ...]:
        return (
            Stage("wheelhouse", "scratch", None, ()),
            self._stage("fetch", self.place.fetch, self._fetch()),
            self._stage("build", self.place.build, self._build()),
            self._stage("runtime", self.place.runtime, self._runtime()),
        )

    def _stage(self, name: str, image: str, instructions: tuple[Instruction, ...]) -> Stage:
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
        return Stage(name, plain, digest or None, instructions)

    def _fetch(self) -> tuple[Instruction, ...]:
        mounts = (
            "type=bind,from=wheelhouse,target=/wheelhouse",
            "type=cache,target=/var/cache/envbuild",
            "type=secret,id=pip.conf,target=/etc/pip.conf",
            "type=secret,id=netrc,target=/root/.netrc",
            "type=secret,id=gitconfig,target=/root/.gitconfig",
            "type=secret,id=certificates,target=/run/secrets/certificates.crt",
        )
        return (
            Copy((NODE, "fetch.json", INDEXES), self.folder + "/"),
            Comment(
                "Everything by hash; mirrors, logins and certificates only as build secrets, which no layer keeps."
            ),
            Run(f"python3 {self.folder}/{NODE} image < {self.folder}/fetch.json", mounts),
        )

    def _build(self) -> tuple[Instruction, ...]:
        out: list[Instruction] = []
        if self.place.system is not None:
            out += _system(self.place.system, "to compile against")
        out += [
            Arg("ENVBUILD_NETWORK", "any"),
            Copy((self.requests.out,), self.requests.out, "fetch"),
            Copy((f"{self.prefix}/tools",), f"{self.prefix}/tools", "fetch"),
            Copy((NODE, "variant.json", "build.json"), self.folder + "/"),
            Comment("No network is needed; with ENVBUILD_NETWORK=off one that is there is an error."),
        ]
        python = self.requests.runner
        line = f'ENVBUILD_NETWORK="$ENVBUILD_NETWORK" PYTHONDONTWRITEBYTECODE=1 {python} {self.folder}/{NODE} image'
        mounts = (f"type=cache,target={self.requests.store}",) if self.requests.variant.sources else ()
        out.append(Run(f"{line} < {self.folder}/build.json", mounts))
        return tuple(out)

    def _runtime(self) -> tuple[Instruction, ...]:
        variant, out = self.requests.variant, list[Instruction]()
        if self.place.system is not None:
            out += _system(self.place.system, "at run time")
        out += [Copy((f"{self.prefix}/{name}",), f"{self.prefix}/{name}", "build") for name in ("envs", "current")]
        if self.requests.python_folder is not None:
            out.append(Comment("The environment's interpreter; the image brings none."))
            out.append(Copy((self.requests.python_folder,), self.requests.python_folder, "build"))
        out.append(Copy((NODE, "variant.json", ENTRY), self.folder + "/"))
        out.append(Run(self._user()))
        out.append(
            Comment("For RUN, exec and shells without the entry point; activate.sh knows more (paths that exist).")
        )
        current = f"{self.prefix}/current/{self.lock.stack}"
        out.append(Env(self._environment(current)))
        out.append(Env({"PATH": f"{current}/bin"}, prepend=True))
        out += [Arg("CREATED", "1980-01-01T00:00:00Z"), Arg("SOURCE"), Arg("REVISION")]
        out.append(self._labels(variant))
        out.append(Start(USER, HOME, ("/bin/sh", f"{self.folder}/{ENTRY}"), ("python",)))
        return tuple(out)

    def _environment(self, current: str) -> dict[str, str]:
        plain = {key: value for key, value in self.requests.variables.items() if isinstance(value, str)}
        mine = {"VIRTUAL_ENV": current, "ENVBUILD_STACK": self.lock.stack, "PYTHONNOUSERSITE": "1"}
        if self.requests.arch_list:
            # Else code that is compiled when it is first used takes what the base was built for.
            mine["TORCH_CUDA_ARCH_LIST"] = ";".join(self.requests.arch_list)
        if self.place.cuda is not None or self.requests.variant.flavour not in (None, "cpu"):
            mine |= {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
        return {**mine, **plain}

    def _user(self) -> str:
        folders = " ".join(map(shlex.quote, [HOME, *self._written()]))
        words = [
            f"echo 'envbuild:x:{USER}:{USER}::{HOME}:/bin/sh' >> /etc/passwd",
            f"echo 'envbuild:x:{USER}:' >> /etc/group",
            f"mkdir -p {folders}",
            f"chown {USER}:{USER} {folders}",
        ]
        return " && ".join(words)

    def _written(self) -> list[str]:
        """The folders of sources into which runs write; the stamp leaves out what they write there."""
        found = set()
        for source in self.requests.variant.sources:
            for path in source.generated if source.install != "wheel" else ():
                above = itertools.takewhile(lambda part: not set(part) & set("*?["), path.split("/")[:-1])
                found.add("/".join([self.requests.environment, "src", source.name, *above]))
        return sorted(found)

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
            },
            {
                "org.opencontainers.image.created": "CREATED",
                "org.opencontainers.image.source": "SOURCE",
                "org.opencontainers.image.revision": "REVISION",
            },
        )

    def _entry(self) -> str:
        return (
            "#!/bin/sh\n"
            "# Loads the environment, with the variables that depend on what is there, and becomes the command.\n"
            "set -eu\n"
            f". {self.prefix}/current/{self.lock.stack}/.envbuild/activate.sh\n"
            'exec "$@"\n'
        )


def _system(system: SystemPackages, why: str) -> list[Instruction]:
    names = " ".join(system.packages)
    line = (
        "rm -f /etc/apt/sources.list.d/cuda*.list"
        " && sed -i 's/^deb /deb [snapshot=yes] /' /etc/apt/sources.list"
        f" && apt-get update --snapshot {system.snapshot}"
        f" && apt-get install -y --no-install-recommends --snapshot {system.snapshot} {names}"
        " && rm -rf /var/lib/apt/lists/*"
    )
    return [
        Comment(
            f"Needed {why}; versions are those of the archive's snapshot of that day. NVIDIA changed its apt key in"
        ),
        Comment("April 2022, so its own list in older images would fail; nothing is wanted from it."),
        Run(line, ignore=("DL3008",)),
    ]
