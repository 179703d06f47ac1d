"""The inside of an image as the resolver sees a node: its interpreter, variables and GPUs to compile for. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from envbuild.catalog.indexes import load_indexes
from envbuild.catalog.toolchain import ToolchainPython, load_toolchain
from envbuild.container.base_images import Place
from envbuild.errors import EnvbuildError
from envbuild.export import steps
from envbuild.model.facts import DiskFacts, LibcFacts, NodeFacts, NvccFacts, OsFacts, PythonFacts
from envbuild.model.lock import Lock, Variant, canonical_json
from envbuild.model.target import Target
from envbuild.node.protocol import PROTOCOL
from envbuild.node.redact import secrets_of
from envbuild.plan.node_steps import environment_path
from envbuild.plan.source_builds import arch_codes
from envbuild.resolve.arch import bound_arch_list
from envbuild.resolve.artifacts import Numbers, Platform, fitting_file
from envbuild.resolve.compat import Compat
from envbuild.resolve.request import image_tag
from envbuild.resolve.variant_checks import request_for

_NODE = "image"
_CUDA_HOME = "/usr/local/cuda"
# What packages are installed by; nothing of a source is in it, so it stays the same when only a source changes.
_OF_PACKAGES = ("base", "conda", "engine", "flavour", "id", "image", "interpreter", "packages", "platform", "provided",
                "python", "torch")  # fmt: skip


@dataclass(frozen=True, slots=True)
class ImageInputs:
    """What an image is made from."""

    lock: Lock
    variant: Variant
    target: Target
    place: Place
    prefix: str
    compat: Compat


@dataclass(frozen=True, slots=True)
class Inside:
    """`variant` as it is built there; `environment` its folder; `python` the interpreter that makes it.

    `python_build`, `python_folder`: a standalone Python and where it lies. `indexes`: {name: {url, kind}}. `variables`
    are those of the environment ({path} for one that is set where that is there), `build` those of the sources' builds.
    """

    variant: Variant
    environment: str
    python: str
    python_build: ToolchainPython | None
    python_folder: str | None
    glibc: Numbers
    indexes: dict[str, dict[str, Any]]
    variables: Mapping[str, Any]
    build: Mapping[str, str]
    arch_list: tuple[str, ...]

    @property
    def on_base(self) -> bool:
        """Whether the environment stands on packages of its image."""
        return self.variant.base.kind != "none"


def look_inside(given: ImageInputs) -> Inside:
    """Decide for one variant at one place.

    The environment is named by its packages, not by the whole variant: their layer outlives a change of a source.
    Raises EnvbuildError `image-no-file`, `interpreter-missing`, `variable-refused` (exit 7).
    """
    lock, variant, place, prefix = given.lock, given.variant, given.place, given.prefix
    build = None  # the CPython that the environment stands on, where the image lacks the interpreter
    if variant.interpreter.kind == "standalone":
        build = load_toolchain().by_name(str(variant.interpreter.name))
    elif place.python is None:
        build = load_toolchain().find_python(variant.python, variant.machine)
    folder = f"{prefix}/tools/python-{build.sha256[:12]}" if build else None
    python = f"{folder}/python/bin/python3" if folder else str(place.python)
    facts = _facts(variant, place, prefix, python, given.compat)
    request = request_for(variant, facts.pythons[0], given.compat, given.target)
    arch_list = bound_arch_list(facts, request, given.compat)
    variant = variant.with_arch_list(lock.stack, lock.profile, arch_list).without_sizes()
    _refuse_unfit(variant, place)
    cuda_home = _CUDA_HOME if place.cuda and variant.arch_list is not None else None
    variables = variant.variables(given.target.environment)
    _refuse_secrets(variables)
    names = {package.index for package in variant.packages}
    decides = {key: value for key, value in variant.contents().items() if key in _OF_PACKAGES}
    return Inside(
        variant=variant,
        environment=environment_path(
            prefix, lock.stack, lock.profile, hashlib.sha256(canonical_json(decides)).hexdigest()
        ),
        python=python,
        python_build=build,
        python_folder=folder,
        glibc=place.glibc,
        indexes={
            name: {"url": index.url, "kind": index.kind}
            for name, index in load_indexes().items()
            if name in names and index.url
        },
        variables=variables,
        build=steps.variables(variant, {"arch_list": arch_codes(variant), "cuda_home": cuda_home}),
        arch_list=arch_codes(variant),
    )


def _facts(variant: Variant, place: Place, prefix: str, interpreter: str, compat: Compat) -> NodeFacts:
    """The inside of the image as a node's facts: no GPU, its own C library and toolkit."""
    tag = image_tag(variant, compat)
    packages = {"torch": compat.images[tag].torch} if tag else None
    python = PythonFacts(path=interpreter, version=f"{variant.python}.0", packages=packages)
    glibc = ".".join(map(str, place.glibc))
    return NodeFacts(
        protocol=PROTOCOL,
        node=_NODE,
        hostname=_NODE,
        user="root",
        home="/root",
        probed_at="1980-01-01T00:00:00Z",
        os=OsFacts(arch=variant.machine),
        libc=LibcFacts(kind="glibc", version=glibc),
        pythons=(python,),
        nvcc=(NvccFacts(path=f"{_CUDA_HOME}/bin/nvcc", version=place.cuda),) if place.cuda else (),
        prefix=DiskFacts(path=prefix, writable=True),
    )


def _refuse_unfit(variant: Variant, place: Place) -> None:
    platform = Platform(variant.python, variant.machine, place.glibc)
    for package in variant.packages:
        if fitting_file(package, platform) is None:
            raise EnvbuildError(
                "image-no-file",
                f"no file of {package.name} {package.version} fits glibc {'.'.join(map(str, place.glibc))}",
                why=f"the lock has {', '.join(file.file for file in package.files)[:300]}",
                hint="choose a newer base with `--base-image`, and give its version of glibc with `--glibc`",
            )


def _refuse_secrets(variables: Mapping[str, Any]) -> None:
    """Raises EnvbuildError `variable-refused` (exit 7): whoever has an image can read every variable in it."""
    if names := secrets_of(variables):
        raise EnvbuildError(
            "variable-refused",
            f"an image must not contain {', '.join(names)}",
            why="the name or the value looks like a secret, and everybody who has the image can read its variables",
            hint=f"remove it from the target; set it when the image runs: `docker run -e {names[0]} IMAGE`",
        )
