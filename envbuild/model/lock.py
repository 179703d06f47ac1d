"""A lock: exact contents for one stack and profile. Contents, never locations."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from packaging.utils import canonicalize_name
from pydantic import AfterValidator, Field, model_validator

from envbuild.model.common import (
    EMPTY_AS_NONE,
    AbsPath,
    Commit,
    CudaArch,
    Flavour,
    GitUrl,
    ModuleName,
    Name,
    PackageName,
    PythonVersion,
    RelPath,
    SettableName,
    Sha256,
    SourceName,
    StrictModel,
    Text,
    TreeHash,
    Unpacked,
    all_differ,
    without_secrets,
)
from envbuild.model.finding import requirement
from envbuild.model.stack import (
    Base,
    Build,
    CondaPackage,
    EnvironmentValue,
    EnvPath,
    LockedConda,
    LockPlatform,
    SmokeItem,
    Training,
)

LOCK_VERSION = 1


def canonical_json(data: Any) -> bytes:
    """JSON with sorted keys, no spaces and UTF-8: the form that every digest is computed over."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


class ArtifactFile(StrictModel):
    """One acceptable file of a package. `size` in bytes if the index states it, `unpacked` if the wheel was read.

    `sha256` is `unrecorded` if no record of it is known; `reason` then says why. `witness`: whose record it is, if
    envbuild did not download the file itself.
    """

    file: Annotated[Text, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+!-]*$")]
    sha256: Sha256 | Literal["unrecorded"]
    size: Annotated[int, Field(ge=0)] | None = None
    unpacked: Unpacked | None = None
    witness: Text | None = None
    reason: Text | None = None


class LockedPackage(StrictModel):
    """One package at one version; `index` is the *name* of the index that has it (catalog/compat/indexes.json).

    `metadata_from`: the build whose metadata gave the requirements, if its own could not be read.
    """

    name: PackageName
    version: Text
    index: Name = "pypi"
    metadata_from: Text | None = None
    files: Annotated[tuple[ArtifactFile, ...], Field(min_length=1)]


class LockedSubmodule(StrictModel):
    """A submodule at its path, pinned like a source."""

    path: RelPath
    git: GitUrl
    commit: Commit
    tree: TreeHash


class LockedPatch(StrictModel):
    """A patch of the catalog when locked: sha256 of what it does, least and most places that it must find."""

    name: Name
    digest: Sha256
    least: Annotated[int, Field(ge=1)]
    most: Annotated[int, Field(ge=1)]


class LockedImage(StrictModel):
    """The image of a base by its reference; `digest` is `unrecorded` until a registry has been asked (see `reason`)."""

    name: Text
    digest: Sha256 | Literal["unrecorded"]
    reason: Text | None = None


# What a locked source takes from its stack as it is; `tree` and `submodules` are resolved.
TAKEN = ("name", "git", "commit", "ref", "install", "path", "build", "patches", "generated", "outputs")


class LockedSource(StrictModel):
    """A git source, pinned by commit and tree, with how it is installed.

    `patch_pins` pin the contents of `patches`, in their order; empty where only the names are locked. `patched_tree`:
    the tree after them; None: nobody could look. `uses`: what the tree does that newer packages do not take (a trait of
    compat/packages.yaml) and where first, as `FILE:LINE`; None: its tree was not looked at. `needs`: packages that its
    tree says its build needs and its stack does not list (None: there are none). `unpacked`: what its tree takes, those
    of submodules included.
    """

    name: SourceName
    git: GitUrl
    commit: Commit
    tree: TreeHash
    ref: Text | None = None
    submodules: tuple[LockedSubmodule, ...] = ()
    install: Literal["wheel", "editable", "path"] = "wheel"
    path: RelPath | None = None
    build: Build | None = None
    patches: tuple[Name, ...] = ()
    patch_pins: tuple[LockedPatch, ...] = ()
    patched_tree: TreeHash | None = None
    generated: tuple[RelPath, ...] = ()
    outputs: tuple[RelPath, ...] = ()
    uses: dict[Name, Text] | None = None
    needs: tuple[PackageName, ...] | None = None
    unpacked: Unpacked | None = None

    @model_validator(mode="after")
    def _pins_are_of_the_patches(self) -> Self:
        if self.patch_pins and tuple(pin.name for pin in self.patch_pins) != self.patches:
            raise ValueError("`patch_pins` must pin each of `patches`, in their order")
        return self


class LockedTree(StrictModel):
    """A folder of the user as a source: its name and how it is installed. `at`: its path here; never in a lock."""

    name: SourceName
    install: Literal["path", "editable"] = "path"
    at: AbsPath | None = None


class LockedInterpreter(StrictModel):
    """`present`: the node's own CPython of that minor version. `standalone`: a build by name and hash."""

    kind: Literal["present", "standalone"] = "present"
    name: Text | None = None
    sha256: Sha256 | None = None

    @model_validator(mode="after")
    def _standalone_is_pinned(self) -> Self:
        if (self.kind == "standalone") != (self.name is not None and self.sha256 is not None):
            raise ValueError("a standalone interpreter has a name and a sha256; a present one has neither")
        return self


def digest_here(digest: str, trees: Iterable[Mapping[str, Any]]) -> str:
    """What tells environments of one machine apart: the digest, and where the working trees lie.

    Two clones get two environments of one variant.
    """
    places = {tree["name"]: tree["at"] for tree in trees if tree.get("at")}
    return hashlib.sha256(canonical_json([digest, places])).hexdigest() if places else digest


# What no digest covers.
_BESIDE: dict[str, Any] = {
    **dict.fromkeys(("id", "digest", "smoke", "training"), True),
    "packages": {"__all__": {"metadata_from": True, "files": {"__all__": {"size", "unpacked", "witness", "reason"}}}},
    "sources": {"__all__": {"ref", "uses", "needs", "unpacked"}},
    "trees": {"__all__": {"at"}},
    "image": {"reason"},
    "conda": {"solved_for": True, "packages": {"__all__": {"size", "unpacked", "requires"}}},
}


class Variant(StrictModel, defer_build=False):  # used whole and as a part: built once for both
    """One buildable environment. `id` is its readable label, `digest` its identity (see `compute_digest`).

    `provided` is what the base provides (name to version); empty in a shipped lock whose base is not known yet, and
    filled by `with_provided` from facts before anything is built. `arch_list` is what CUDA code of the sources is
    compiled for (TORCH_CUDA_ARCH_LIST), None where none is compiled, and in a lock: `with_arch_list` binds it.
    `conda`: what the engine conda installs before `packages`, the interpreter included.
    """

    @model_validator(mode="after")
    def _conda_is_of_its_engine(self) -> Self:
        if (self.conda is not None) != (self.engine == "conda"):
            raise ValueError("`conda` belongs to engine: conda, and only there")
        return self

    id: Name
    digest: Sha256
    engine: Literal["venv", "conda"] = "venv"
    platform: LockPlatform = "linux_x86_64"
    python: PythonVersion
    torch: Text | None = None
    flavour: Flavour | None = None
    base: Base = Base(kind="none")
    image: LockedImage | None = None
    provided: dict[str, str] = {}
    arch_list: Annotated[tuple[CudaArch, ...] | None, EMPTY_AS_NONE] = None
    interpreter: LockedInterpreter = LockedInterpreter()
    conda: LockedConda | None = None
    packages: tuple[LockedPackage, ...] = ()
    sources: tuple[LockedSource, ...] = ()
    trees: tuple[LockedTree, ...] = ()
    imports: tuple[ModuleName, ...] = ()
    environment: Annotated[dict[SettableName, EnvironmentValue], AfterValidator(without_secrets)] = {}
    smoke: tuple[SmokeItem, ...] = ()
    training: Training | None = None

    def __hash__(self) -> int:
        """That of the digest, so that what follows from a variant alone can be kept for all nodes that get it."""
        return hash(self.digest)

    @property
    def machine(self) -> str:
        """The processor, as `uname -m` says it."""
        return self.platform.removeprefix("linux_")

    @property
    def archives(self) -> tuple[CondaPackage, ...]:
        """The packages of conda."""
        return self.conda.packages if self.conda else ()

    @property
    def outside(self) -> str:
        """The first source that uses folders outside the environment, which no image can hold; or none."""
        names = (*(tree.name for tree in self.trees), *(source.name for source in self.sources if source.outputs))
        return next(iter(names), "")

    @property
    def files(self) -> Iterator[ArtifactFile]:
        """The files of all packages that are not conda's."""
        return (file for package in self.packages for file in package.files)

    def contents(self) -> dict[str, Any]:
        """What the digest covers: everything that decides which files and variables the environment has.

        Left out: the label, the smoke list and the way of training (they check an environment, they do not change one),
        where a record or metadata came from, where working trees lie, what was read in the trees of sources, and sizes.
        """
        data = self.model_dump(mode="json", by_alias=True, exclude_none=True, exclude=_BESIDE)
        for package in data["packages"]:
            package["files"].sort(key=lambda file: file["file"])
        # An empty list counts as not said, so that a lock outlives these fields.
        for source in data["sources"]:
            for key in ("patch_pins", "outputs"):
                if not source[key]:
                    del source[key]
        if not data["trees"]:
            del data["trees"]
        return data

    def compute_digest(self, stack: str, profile: str) -> str:
        """sha256 (hex) over the canonical contents, the stack and the profile."""
        return hashlib.sha256(
            canonical_json({"stack": stack, "profile": profile, "lock": LOCK_VERSION, **self.contents()})
        ).hexdigest()

    def with_fields(self, stack: str, profile: str, **fields: Any) -> Self:
        """The same variant with other fields, and with the digest of these."""
        made = self.model_copy(update=fields)
        return made.model_copy(update={"digest": made.compute_digest(stack, profile)})

    def variables(self, more: Mapping[str, EnvironmentValue]) -> dict[str, Any]:
        """The environment variables as plain data; `more` are the target's, which stand above the stack's."""
        merged = {**self.environment, **more}
        return {key: value.to_json_dict() if isinstance(value, EnvPath) else value for key, value in merged.items()}

    def with_provided(self, stack: str, profile: str, provided: dict[str, str]) -> Self:
        """The same variant on a known base: what it provides is in the digest, what it accepts is not installed."""
        known = dict(sorted(provided.items()))
        return self.with_fields(stack, profile, provided=known, packages=self.on_top(provided))

    def with_trees(self, places: Mapping[str, str]) -> Self:
        """The same variant with its working trees at these absolute paths, which are no part of its digest."""
        trees = tuple(tree.model_copy(update={"at": places.get(tree.name)}) for tree in self.trees)
        return self.model_copy(update={"trees": trees})

    @property
    def here(self) -> str:
        """Its digest on one machine (`digest_here`)."""
        return digest_here(self.digest, [tree.to_json_dict() for tree in self.trees])

    def on_top(self, provided: Mapping[str, str]) -> tuple[LockedPackage, ...]:
        """The packages without those that the base has in an accepted version."""
        accepted = {canonicalize_name(pin.name): pin.specifier for pin in map(requirement, self.base.accepts or ())}
        kept = {
            name
            for name, specifier in accepted.items()
            if name in provided and specifier.contains(provided[name], prereleases=True)
        }
        return tuple(package for package in self.packages if canonicalize_name(package.name) not in kept)

    def without_sizes(self) -> Self:
        """The same without sizes, which only a plan reads: an image does not change when a size becomes known."""
        nothing = {"unpacked": None}
        packages = (
            package.model_copy(update={"files": tuple(file.model_copy(update=nothing) for file in package.files)})
            for package in self.packages
        )
        sources = (source.model_copy(update=nothing) for source in self.sources)
        return self.model_copy(update={"packages": tuple(packages), "sources": tuple(sources)})

    @property
    def uses_cuda(self) -> bool:
        """Whether its torch is a CUDA build; a torch without a flavour counts as one."""
        locked = (package.version for package in self.packages if package.name == "torch")
        version = self.torch or self.provided.get("torch") or next(locked, None)
        return version is not None and (self.flavour or version.partition("+")[2]) != "cpu"

    def with_arch_list(self, stack: str, profile: str, arch_list: tuple[str, ...] | None) -> Self:
        """The same variant compiled for these GPUs, which become part of the digest; None: nothing is compiled."""
        if arch_list == self.arch_list:
            return self
        return self.with_fields(stack, profile, arch_list=arch_list)


class Lock(StrictModel):
    """One lock file: `<stack>.<profile>.lock.toml` in `lockfiles/`, `my.lock.toml` beside a user's `my.yaml`.

    `manifest_digest` is sha256 over the canonical profile of the stack file, so `--locked` notices a disagreement;
    `manifest_fields` is the same for each field of the profile alone, so that the disagreement can be named. `data` is
    the sha256 of each file that the document downloads, as this user first fetched it.
    """

    version: Literal[1] = 1
    stack: Name
    profile: Name
    manifest_digest: Sha256
    manifest_fields: dict[Name, Sha256] = {}
    as_of: Text | None = None
    created_with: dict[str, str] = {}
    data: dict[Text, Sha256] = {}
    variants: Annotated[tuple[Variant, ...], Field(min_length=1)]

    @property
    def sources(self) -> dict[str, LockedSource]:
        """The sources of all variants by name."""
        return {source.name: source for variant in self.variants for source in variant.sources}

    @model_validator(mode="after")
    def _digests_hold(self) -> Self:
        all_differ((variant.id for variant in self.variants), "two variants have the same id")
        for variant in self.variants:
            if variant.digest != variant.compute_digest(self.stack, self.profile):
                raise ValueError(f"variant {variant.id}: the digest does not match its contents (edited by hand?)")
        return self
