"""What an image is made of, as typed instructions in stages: uv, git, curl and the sources' own builds. Pure.

    wheelhouse             empty, or a folder of wheels and git bundles that is given to a build
    tools      sources     have a network and get everything by hash; nothing of them stays
    compilers  libraries   what an image lacks of its distribution, under `packages` and `runtime`
    packages   build       the environment, with compilers
    runtime                what runs

Nothing of envbuild is in the image: `envbuild image verify` brings its program and takes it away again. What only
envbuild does is left out: its stamp, the wheel store, compiling kernels beforehand, proof that a build had no network.
"""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from packaging.version import Version

from envbuild.catalog.patches import load_patch
from envbuild.catalog.toolchain import load_toolchain
from envbuild.container import edits
from envbuild.container.base_images import AskedDigest, SystemPackages
from envbuild.container.inside import ImageInputs, Inside, look_inside
from envbuild.container.instructions import Arg, Comment, Copy, Env, Folder, Instruction, Labels, Run, Stage, Start
from envbuild.container.stage_images import Place
from envbuild.errors import EnvbuildError
from envbuild.export import steps
from envbuild.model.lock import LockedPackage, LockedSource, Variant
from envbuild.model.target import Target
from envbuild.plan.source_builds import bundle_name, bundles
from envbuild.text import plural

UV = "requirements-uv.txt"
USER = 10001
HOME = "/home/envbuild"
WHEELHOUSE = "wheelhouse"
_WHEELHOUSE = f"type=bind,from={WHEELHOUSE},target=/{WHEELHOUSE}"
_CACHE = "type=cache,target=/root/.cache/uv"
_SECRET = "type=secret,id={},target={}"  # noqa: S105 - the words of a mount
_NETRC = _SECRET.format("netrc", "/root/.netrc")
_PIP = _SECRET.format("pip.conf", "/etc/pip.conf")
_UV_TOML = _SECRET.format("uv.toml", "/etc/uv/uv.toml")
_GITCONFIG = _SECRET.format("gitconfig", "/root/.gitconfig")
# Where Debian and Ubuntu have them, so that pip, uv, git and curl read them without a word.
_CERTIFICATES = _SECRET.format("certificates", "/etc/ssl/certs/ca-certificates.crt")
_INSTALL = f"uv pip install --no-deps --require-hashes --find-links /{WHEELHOUSE}"
_VARIABLES = {"UV_LINK_MODE": "copy", "UV_PYTHON_DOWNLOADS": "never", "PYTHONDONTWRITEBYTECODE": "1"}
# The environment, in commands after the variable is set.
_HERE = '"$VIRTUAL_ENV"'
# What communication libraries, drivers and trackers read when a run starts, and no compiler.
_AT_RUN = ("CUDA_DEVICE_", "FI_", "GLOO_", "NCCL_", "OMPI_", "UCX_", "WANDB_")
# An older setuptools cannot make an editable wheel.
_EDITABLE_WHEELS = Version("64")
_KEY = "rm: NVIDIA changed its apt key in April 2022, so its list in older images fails, and nothing is wanted from it."
_GIVEN = "For the labels, given by whoever builds: `--build-arg REVISION=...`."
_WHO = (
    "The image runs as this user, not as root; this is its home. Others may write there too, for a container may run "
    "as the user who starts it: `--user`, Apptainer, enroot."
)
# As sed wants them: each package of the base, to be deleted from a requirements file.
_OF_BASE = (
    "import re; from importlib.metadata import distributions; "
    "[print('/^' + re.sub('[-_.]+', '-', each.metadata['Name']).lower() + '==/d') for each in distributions()]"
)


@dataclass(frozen=True, slots=True)
class ImageRecipe:
    """Everything that an image is made from. `files`: name -> text of the context beside the Dockerfile.

    `notes` are for the head of the Dockerfile, `warnings` for the user.
    """

    stack: str
    profile: str
    prefix: str
    inside: Inside
    stages: tuple[Stage, ...]
    files: Mapping[str, str]
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def variant(self) -> Variant:
        """The variant as it is built in the image."""
        return self.inside.variant

    @property
    def environment(self) -> str:
        """The folder of the environment in the image."""
        return self.inside.environment

    @property
    def tag(self) -> str:
        """The name that a built image gets."""
        return f"localhost/envbuild/{self.stack}:{self.profile}-{self.variant.digest[:12]}"

    @property
    def contents(self) -> str:
        """What is installed, in a few words."""
        variant = self.variant
        torch = f", torch {variant.torch}+{variant.flavour} among them" if variant.torch else ""
        sources = [f"{each.name}{' (edited)' if each.patches else ''}" for each in variant.sources]
        built = f"; built from source: {', '.join(sources)}" if sources else ""
        return f"Python {variant.python}, {plural(len(variant.packages), 'package')}{torch}{built}"

    def stage(self, name: str) -> Stage:
        """One stage by name."""
        return next(each for each in self.stages if each.name == name)


def make_recipe(given: ImageInputs, digests: Mapping[str, AskedDigest]) -> ImageRecipe:
    """The recipe of one variant.

    Raises EnvbuildError: `hash-unrecorded` (exit 5), `script-impossible`, those of `look_inside` (7),
    `image-stage-clash`, `version-unusable` (2).
    """
    steps.refuse_conda(given.variant)
    maker = _Maker(given, look_inside(given), digests)
    stages = tuple(maker.stages())
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
        stack=given.lock.stack,
        profile=given.lock.profile,
        prefix=given.prefix,
        inside=maker.inside,
        stages=stages,
        files=maker.files(),
        notes=(*maker.notes(stages), *given.place.notes),
        warnings=tuple(maker.warnings(stages)),
    )


@dataclass(frozen=True)
class _Maker:
    given: ImageInputs
    inside: Inside
    digests: Mapping[str, AskedDigest]

    @property
    def variant(self) -> Variant:
        return self.inside.variant

    def files(self) -> dict[str, str]:
        machine = self.variant.platform.removeprefix("linux_")
        uv = next(each for each in load_toolchain().uv if each.arch == machine)
        found = {UV: f"uv=={uv.version} --hash=sha256:{uv.sha256}\n"}
        # On a base one line a package, so that a line can be taken out.
        between = " " if self._on_base else " \\\n    "
        for name, packages in self._requirements().items():
            found[name] = "".join(f"{steps.requirement(package, between)}\n" for package in packages)
        return found | edits.edit_files(self.variant)

    def notes(self, stages: Sequence[Stage]) -> Iterator[str]:
        """What the head says; a string a paragraph."""
        names = [stage.name for stage in stages]
        sources = "sources" in names
        compiles = "compiles the sources" if sources else "removes what differs between two builds"
        system = [name for name in ("compilers", "libraries") if name in names]
        verb = "adds" if len(system) == 1 else "add"
        added = f"{' and '.join(f'`{name}`' for name in system)} {verb} packages of the system, " if system else ""
        images = {stage.name: stage.image for stage in stages}
        lacks = ", without compilers" * (images["runtime"] != images["packages"])
        yield (
            f"To build it, for {self.variant.machine}, with BuildKit, podman or buildah: `docker build .` in this "
            "folder. It needs no envbuild. `envbuild image verify IMAGE` compares what was built with the lock."
        )
        yield (
            f"Stages: `tools` downloads what the rest needs to install, {'`sources` the sources, ' * sources}{added}"
            f"`packages` downloads and installs the packages, `build` {compiles}, `runtime` is the image{lacks}, in "
            "which what the stack imports is imported once as a test."
        )

    def warnings(self, stages: Sequence[Stage]) -> Iterator[str]:
        """What the user has to know."""
        for image in dict.fromkeys(stage.image for stage in stages if not stage.digest and _is_of_registry(stage)):
            yield (
                f"the digest of {image} is not recorded, so its registry decides what the tag is today "
                "(`envbuild lock create STACK --image all` asks)"
            )
        if self.variant.arch_list == ():
            yield (
                f"the target {self.given.target.name} names no GPU, so extensions are compiled for what the torch of "
                "the base chooses"
            )

    def stages(self) -> Iterator[Stage]:
        place = self.given.place
        yield Stage(WHEELHOUSE, "scratch", None, ())
        yield self._stage("tools", place.fetch, self._tools())
        if self.variant.sources:
            yield self._stage("sources", place.fetch, self._sources(), above="tools")
        compilers = "compilers" if place.system is not None or place.lacks else None
        libraries = "libraries" if place.system is not None or place.network is not None else None
        if compilers:
            yield self._stage(compilers, place.build, _for_building(place))
        if libraries:
            yield self._stage(libraries, place.runtime, _for_running(place))
        yield self._stage("packages", place.build, self._packages(), above=compilers)
        yield self._stage("build", place.build, self._build(), above="packages")
        above = compilers if self._compiles_at_start else libraries
        yield self._stage("runtime", self._last_image, self._runtime(), above=above)

    def _stage(self, name: str, image: str, instructions: Iterator[Instruction], above: str | None = None) -> Stage:
        plain, _, digest = image.partition("@sha256:")
        locked = self.variant.image
        if not digest and locked is not None and locked.name == plain and locked.digest != "unrecorded":
            digest = locked.digest
        if not digest and plain in self.digests:
            digest = self.digests[plain].digest
        return Stage(name, plain, digest or None, tuple(instructions), above)

    @property
    def _compiles_at_start(self) -> bool:
        return any(steps.kernels(source) for source in self.variant.sources)

    @property
    def _last_image(self) -> str:
        return self.given.place.build if self._compiles_at_start else self.given.place.runtime

    @property
    def _on_base(self) -> bool:
        return self.variant.base.kind != "none"

    def _requirements(self) -> dict[str, tuple[LockedPackage, ...]]:
        """File name -> what is in it, in the order of installing: wheels by index, then all source archives."""
        found: dict[str, tuple[LockedPackage, ...]] = {}
        for each in steps.package_steps(self.variant, self.inside.indexes):
            word = "archives" if each.archive else each.index
            name = f"requirements-{word}.txt" if word else "requirements.txt"
            found[name] = (*found.get(name, ()), *each.packages)
        return found

    def _tools(self) -> Iterator[Instruction]:
        yield Comment(f"uv, which makes the environment and installs into it. {UV}: its version and sha256.")
        yield Copy((UV,), "/")
        gitconfig = ", gitconfig for git" * bool(self.variant.sources)
        seen = " While a source archive (sdist) is built, its setup.py can read them." * (
            "requirements-archives.txt" in self._requirements()
        )
        yield Comment(
            f"Optional secrets, here and below: pip.conf and uv.toml for mirrors of indexes{gitconfig}, netrc for "
            "credentials, certificates of a company's network (`--secret id=netrc,src=FILE`). No layer keeps "
            f"them.{seen}"
        )
        words = f"pip install --no-cache-dir --no-deps --require-hashes --find-links /{WHEELHOUSE}"
        yield Run((f"{words} -r /{UV}",), (_WHEELHOUSE, _PIP, _NETRC, _CERTIFICATES))
        folder, build = self.inside.python_folder, self.inside.python_build
        if folder is None or build is None:
            return
        yield Comment(
            f"Python {self.variant.python}, which the images below do not have: CPython of python-build-standalone, in "
            "a folder named by the first digits of its sha256."
        )
        there, url = f"/{WHEELHOUSE}/{shlex.quote(build.name)}", shlex.quote(build.url)
        yield Run(
            (
                f"{{ cp {there} /python.tar.gz 2> /dev/null || curl -fsSL -o /python.tar.gz {url}; }}",
                f"echo '{build.sha256}  /python.tar.gz' > /python.sha256",
                "sha256sum -c /python.sha256",
                f"mkdir -p {folder}",
                f"tar -xzf /python.tar.gz -C {folder}",
                "rm /python.*",
            ),
            (_WHEELHOUSE, _NETRC, _CERTIFICATES),
        )

    def _sources(self) -> Iterator[Instruction]:
        yield Comment(
            "Each source is one commit, of its repository or of a git bundle in the wheelhouse. Its tree, git's hash "
            "over all its files, must be the one that is written here; after our edits once more. .git is removed, "
            "since two fetches differ in it."
        )
        if any(source.patches for source in self.variant.sources):
            yield Comment(f"The program in {edits.FOLDER} makes edits, which are described below.")
            yield Copy((edits.FOLDER,), f"/{edits.FOLDER}")
        for source in self.variant.sources:
            yield from self._source(source)

    def _source(self, source: LockedSource) -> Iterator[Instruction]:
        top, mounts = f"/src/{source.name}", (_WHEELHOUSE, _GITCONFIG, _NETRC, _CERTIFICATES)
        after, names = source.patched_tree, bundles(self.variant)
        for tree in steps.trees(source):
            branch = f" (branch or tag {source.ref})" if source.ref else ""
            below = f"{tree.path.rpartition('/')[2]}, a submodule within {source.name}"
            yield Comment(below if tree.path else f"{source.name}{branch}")
            if source.patches and not tree.path:
                yield from self._about_patches(source)
            yield Folder(f"{top}/{tree.path}" if tree.path else top)
            bundle = f"/{WHEELHOUSE}/{shlex.quote(bundle_name(tree.name, names[tree.name]))}"
            commands = [
                "git init --quiet",
                f"{{ git fetch --quiet {bundle} '+refs/*:refs/bundle/*' 2> /dev/null"
                f" || git fetch --quiet --depth 1 {shlex.quote(tree.git)} {tree.commit}; }}",
                f"git checkout --quiet {tree.commit}",
                f"test \"$(git rev-parse 'HEAD^{{tree}}')\" = {tree.tree}",
            ]
            if after and not tree.path:
                commands += [edits.edit_command(source), "git add --update", f'test "$(git write-tree)" = {after}']
            yield Run((*commands, "rm -rf .git"), mounts)
        if source.patches and not after:
            yield Comment("Which tree it has to give is not recorded, so that is not compared.")
            if source.submodules:
                yield Folder(top)
            yield Run((edits.edit_command(source),))

    def _about_patches(self, source: LockedSource) -> Iterator[Instruction]:
        """What the edits of a source are for, and where the data say so that one changes nothing in this image."""
        same = self.given.place.same_cuda
        for name in source.patches:
            patch = load_patch(name)
            files = ", ".join(patch.files)
            idle = f" nvcc and torch are both of CUDA {same} here, so it changes nothing in this image."
            changes_nothing = same is not None and patch.idle == "same-cuda"
            yield Comment(f"Edit {name}, in {files}: {patch.summary}. {patch.why}{idle * changes_nothing}")

    def _packages(self) -> Iterator[Instruction]:
        inside, requirements = self.inside, self._requirements()
        yield Copy(("/usr/local/bin/uv",), "/usr/local/bin/uv", "tools")
        if inside.python_folder:
            yield Copy((inside.python_folder,), inside.python_folder, "tools")
        if requirements:
            yield Copy(tuple(requirements), "/requirements/")
        yield Comment("uv copies files instead of linking them and downloads no Python; Python writes no byte code.")
        yield Env(_VARIABLES)
        python = shlex.quote(inside.python)
        if self._on_base:
            yield Comment("What the base has stays as it is, its torch above all: it is taken out of the requirements.")
            yield Run((f'{python} -c "{_OF_BASE}" > /base.sed', "sed -i -f /base.sed /requirements/*.txt"))
        yield Comment("The environment, in a folder named by a hash of its packages; the `python` below is its own.")
        yield Env({"VIRTUAL_ENV": inside.environment})
        yield Env({"PATH": "bin"}, prepend=True, within="VIRTUAL_ENV")
        site_packages = " --system-site-packages" if self._on_base else ""
        yield Run((f"uv venv --no-project --python {python} {_HERE}{site_packages}",))
        every = tuple(self._installed(name, each) for name, each in requirements.items())
        if every:
            yield Comment(
                "The lists are complete, so uv looks for no dependencies. A list that the wheelhouse has whole is "
                "installed from it, and no index is asked."
            )
        if len(every) > 1 and "requirements-archives.txt" in requirements:
            yield Comment("Wheels first. Archives of source last: they are built with what is installed by then.")
        if any("--torch-backend" in each for each in every):
            yield Comment(f"--torch-backend: PyTorch's own index of wheels for {self.variant.flavour}.")
        if every:
            yield Run(every, (_WHEELHOUSE, _CACHE, _UV_TOML, _NETRC, _CERTIFICATES))

    @property
    def _site(self) -> str:
        return f"{_HERE}/lib/python{self.variant.python}/site-packages"

    def _installed(self, name: str, packages: tuple[LockedPackage, ...]) -> str:
        """The command that installs one list: from the wheelhouse, else from its index."""
        first, listed = packages[0], f"-r /requirements/{name}"
        wheels = any(file.file.endswith(".whl") for file in first.files)
        how = "--no-build" if wheels else "--no-build-isolation --no-binary :all:"
        index, where = self.inside.indexes.get(first.index) if wheels else None, ""
        if index is not None and index["kind"] == "find-links":
            where = f" --find-links {shlex.quote(index['url'])}"
        elif index is not None and first.index == f"pytorch-{self.variant.flavour}":
            where = f" --torch-backend {self.variant.flavour}"  # uv knows that address
        elif index is not None:
            where = f" --default-index {shlex.quote(index['url'])}"
        begun = f"{_INSTALL} {how}"
        return f"{{ {begun} --no-index {listed} 2> /dev/null || {begun}{where} {listed}; }}"

    def _build(self) -> Iterator[Instruction]:
        if self.variant.sources:
            seen = {name: value for name, value in self.inside.build.items() if not name.startswith(_AT_RUN)}
            gpus = (
                " TORCH_CUDA_ARCH_LIST: the GPUs that kernels are compiled for, by compute capability. A setup.py may "
                "name others, as Apex's does for a few kernels."
            )
            yield Comment(
                "Each source is built by its own setup.py or pyproject.toml, against the packages above (no build "
                "isolation), and what it compiled is imported. A fixed date (1980-01-01) and hash seed keep the time "
                "and chance of a build out of what these write." + gpus * ("TORCH_CUDA_ARCH_LIST" in seen)
            )
            yield Env(seen)
            if "CUDA_HOME" in seen:
                yield Env({"PATH": f"bin:{seen['CUDA_HOME']}/bin"}, prepend=True, within="VIRTUAL_ENV")
        for source in self.variant.sources:
            yield from self._built(source)
        last = (f"sed -i '/uv_cache.json,/d' {self._site}/*.dist-info/RECORD",
                f"rm -f {self._site}/*.dist-info/uv_cache.json")  # fmt: skip
        yield Comment("uv_cache.json has the time of installing, so two builds differ.")
        yield Run(last, ignore=("DL3059",) if self.variant.sources else ())

    def _built(self, source: LockedSource) -> Iterator[Instruction]:
        if source.install == "editable" and self._old():
            yield Comment(
                f"{source.name} is installed editable, so its tree is in the environment. `develop`, as this "
                f"setuptools is older than {_EDITABLE_WHEELS} and cannot make the wheel that `pip install -e` needs."
            )
        elif source.install != "wheel":
            word = "installed editable" if source.install == "editable" else "put on Python's path"
            yield Comment(f"{source.name} is {word}, so its tree is in the environment.")
        if modules := ", ".join(steps.kernels(source)):
            yield Comment(f"{modules}: compiled at the first start, so the runtime image has the compilers.")
        below = "" if source.install == "wheel" else "$VIRTUAL_ENV"
        yield Copy((f"/src/{source.name}",), f"{below}/src/{source.name}", "sources")
        yield Run(tuple(command for step in steps.source_steps(source) for command in self._commands(source, step)))

    def _commands(self, source: LockedSource, step: steps.SourceStep) -> Iterator[str]:
        """A step of a source whose tree is there."""
        below = "" if source.install == "wheel" else _HERE
        project = "/".join(shlex.quote(part) for part in ("src", source.name, source.path) if part)
        project = f"{below}/{project}"
        own = (source.build.environment if source.build else None) or {}
        more = "".join(f"{name}={shlex.quote(value)} " for name, value in sorted(own.items()))
        setup = f"env -C {project} {more}python setup.py"
        uv = f"env {more}uv" if more else "uv"
        pip = "pip install --no-cache --no-deps --no-index"
        match step:
            case steps.Compile(flags):
                yield f"{setup} build_ext --inplace{_words(flags)}"
            case steps.Install("path"):
                yield f"echo {project} > {self._site}/envbuild-source-{source.name}.pth"
            case steps.Install("editable") if self._old():
                yield f"{setup} develop --no-deps"
            case steps.Install("editable"):
                yield f"{uv} {pip} --no-build-isolation -e {project}"
            case steps.Install(_, flags):
                out = f"/wheels/{source.name}"
                wheel = f"{uv} build --wheel --no-cache --no-build-isolation --no-index --out-dir {out} {project}"
                yield f"{setup}{_words(flags)} bdist_wheel --dist-dir {out}" if flags else wheel
                yield f"uv {pip} --reinstall {out}/*.whl"
            case steps.Prove(modules):
                torch = ["torch"] if self.variant.torch or self._on_base else []
                yield f'python -c "import {", ".join([*torch, *modules])}"'
            case _:
                pass  # the stage `sources` has fetched and edited it

    def _old(self) -> bool:
        """Whether setuptools is one that cannot make an editable wheel."""
        found = [package for package in self.variant.packages if package.name == "setuptools"]
        return any(Version(each.version) < _EDITABLE_WHEELS for each in found)

    def _runtime(self) -> Iterator[Instruction]:
        inside, prefix = self.inside, self.given.prefix
        if inside.python_folder:
            yield Comment("Python itself, of which the environment has only a symlink, and the finished environment.")
            yield Copy((inside.python_folder,), inside.python_folder, "packages")
        else:
            yield Comment("The finished environment. Its Python is that of this image, as it was in `packages`.")
        yield Copy((f"{prefix}/envs",), f"{prefix}/envs", "build")
        yield Comment(_WHO)
        yield Run(
            (
                f"echo 'envbuild:x:{USER}:{USER}::{HOME}:/bin/sh' >> /etc/passwd",
                f"echo 'envbuild:x:{USER}:' >> /etc/group",
                f"mkdir -p {HOME}",
                f"chown {USER}:{USER} {HOME}",
                f"chmod 777 {HOME}",
            )
        )
        yield from self._environment()
        yield Comment(_GIVEN)
        yield Arg("CREATED", "1980-01-01T00:00:00Z")
        yield Arg("SOURCE")
        yield Arg("REVISION")
        yield self._labels()
        yield Start(USER, HOME, ("python",))
        if self.variant.imports:
            yield Comment(
                "The test, in the runtime image and as its user: what the stack imports is imported; no kernel runs, "
                "no GPU is needed. It leaves nothing behind."
            )
            # No mount of a tmpfs: buildah 1.28 removes every file of the stage when that ends.
            home = "HOME=/tmp/test TMPDIR=/tmp/test PYTHONDONTWRITEBYTECODE=1"
            names = ", ".join(self.variant.imports)
            yield Run(("mkdir /tmp/test", f'{home} python -c "import {names}"', "rm -rf /tmp/test"))

    def _environment(self) -> Iterator[Instruction]:
        """The variables, and what runs may write."""
        for name, value in self.inside.variables.items():
            if not isinstance(value, str):
                path = value["path"]
                yield Comment(
                    f"Not set here: {name}. On a host that has {path}, run with `-v {path}:{path}:ro -e {name}={path}`."
                )
        values = {name: value for name, value in self.inside.variables.items() if isinstance(value, str)}
        mine = {"VIRTUAL_ENV": self.inside.environment, "PYTHONNOUSERSITE": "1"}
        if self.inside.arch_list:
            # Else code that is compiled when it is first used takes what the base was built for.
            mine["TORCH_CUDA_ARCH_LIST"] = ";".join(self.inside.arch_list)
        if self.given.place.cuda is not None or self.variant.flavour not in (None, "cpu"):
            mine |= {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
        every = {**mine, **values, "VIRTUAL_ENV": self.inside.environment}
        yield Comment(_about(every, self.given.target))
        yield Env(every)
        yield Env({"PATH": "bin"}, prepend=True, within="VIRTUAL_ENV")
        yield from owned(_written(self.variant))

    def _labels(self) -> Labels:
        runtime = self._stage("runtime", self._last_image, iter(()))
        base = {"org.opencontainers.image.base.name": runtime.image}
        if runtime.digest:
            base["org.opencontainers.image.base.digest"] = f"sha256:{runtime.digest}"
        return Labels(
            {
                "org.opencontainers.image.title": self.given.lock.stack,
                **base,
                "dev.envbuild.stack": self.given.lock.stack,
                "dev.envbuild.profile": self.given.lock.profile,
                "dev.envbuild.variant": self.variant.id,
                "dev.envbuild.lock": f"sha256:{self.variant.digest}",
                "dev.envbuild.environment": self.inside.environment,
            },
            {
                "org.opencontainers.image.created": "CREATED",
                "org.opencontainers.image.source": "SOURCE",
                "org.opencontainers.image.revision": "REVISION",
            },
        )


def _is_of_registry(stage: Stage) -> bool:
    return stage.image != "scratch" and not stage.image.startswith("localhost/")


def _words(flags: Sequence[str]) -> str:
    return "".join(f" {shlex.quote(flag)}" for flag in flags)


def _about(values: Mapping[str, str], target: Target) -> str:
    """Whose variables the image sets, and what a container needs beside them."""
    machines = (target.summary.partition(";")[0] or target.name) if target.environment else ""
    own = f", and of the machines that it is for: {machines}" if machines else ""
    words = f"Variables of the environment{own}. To change one: `docker run -e NAME=VALUE`."
    if "NVIDIA_VISIBLE_DEVICES" in values:
        words += (
            " NVIDIA_*: with `docker run --gpus all` the container has the GPUs and their driver; `--ipc host` gives "
            "its ranks more shared memory than the 64 MB of a container."
        )
    if "TORCH_CUDA_ARCH_LIST" in values:
        words += " TORCH_CUDA_ARCH_LIST: for code compiled later, as by an image built on this one."
    if any(name.startswith(("OMPI_", "UCX_")) for name in values):
        words += " OMPI_* and UCX_*: read by Open MPI and UCX, where these are there."
    if any(name.endswith(("_IFNAME", "NET_DEVICES")) for name in values):
        words += " On several nodes also `--network host`: the interfaces named here are the host's."
    return words


def _written(variant: Variant) -> list[tuple[str, str]]:
    """Source and path in it, with wildcards, of what runs write.

    Also, into the folder of its source, a module that another program than torch compiles.
    """
    found = [(each.name, path) for each in variant.sources if each.install != "wheel" for path in each.generated]
    for source in variant.sources:
        modules = (source.build.modules if source.build else None) or ()
        folders = [(each.name, each.sources[0].rpartition("/")[0]) for each in modules if each.torch is False]
        found += [(source.name, f"{folder}/{name}*.so") for name, folder in folders]
    return found


def owned(paths: Sequence[tuple[str, str]]) -> tuple[Instruction, ...]:
    """What makes `paths` the user's, their folders too, for new files; and what is there already."""
    if not paths:
        return ()
    folders = set()
    for name, path in paths:
        above = itertools.takewhile(lambda part: not set(part) & set("*?["), path.split("/")[:-1])
        folders.add("/".join(["src", name, *above]))
    every = " ".join(f"{_HERE}/{shlex.quote(path)}" for path in sorted(folders))
    sources = " ".join(f"{_HERE}/src/{shlex.quote(name)}" for name in dict.fromkeys(name for name, _ in paths))
    there = " -o ".join(f"-path {_HERE}/{shlex.quote(f'src/{name}/{path}')}" for name, path in paths)
    names = ", ".join(f"{name}/{path}" for name, path in paths)
    return (
        Comment(
            f"What a source writes when it is built in place or started, {names}, is the user's, as are the folders it "
            "is in, in which any file may be replaced: a start may write it, or a build in an image built on this one. "
            "Other users may write it too. Elsewhere only the user's home and /tmp can be written."
        ),
        Run(
            (
                f"mkdir -p {every}",
                f"chown {USER}:{USER} {every}",
                f"chmod a+rwx {every}",
                f"find {sources} \\( {there} \\) -exec chown -h {USER}:{USER} {{}} +"
                " ! -type l -exec chmod a+rwX {} +",
            )
        ),
    )


def _for_building(place: Place) -> Iterator[Instruction]:
    lacks = "".join(f"{name} is not in this image, and {why}. " for name, why in place.lacks.items())
    if place.system is not None:
        names = (*place.system.packages, *place.lacks)
        return _system(place.system.model_copy(update={"packages": names}), f"Needed to compile against. {lacks}")
    return _of_today(tuple(place.lacks), f"{lacks}Its version is what the archive has today, not pinned.")


def _for_running(place: Place) -> Iterator[Instruction]:
    network, system = place.network, place.system
    if network is None:
        return _system(system, "Needed at run time. ") if system is not None else iter(())
    why = f"{' and '.join(network.packages)} are not in this image, and {network.why}. "
    if system is not None:
        names = (*system.packages, *network.packages)
        return _system(system.model_copy(update={"packages": names}), f"Needed at run time. {why}")
    devices = "A container needs the host's devices, too: `--device /dev/infiniband --ulimit memlock=-1`."
    return _of_today(network.packages, f"{why}Their versions are what the archive has today, not pinned. {devices}")


def _of_today(packages: Sequence[str], why: str) -> Iterator[Instruction]:
    yield Comment(f"{why} {_KEY}")
    yield _apt("", "", packages)


def _system(system: SystemPackages, why: str) -> Iterator[Instruction]:
    yield Comment(f"{why}Versions are those of the archive's snapshot of that day. {_KEY}")
    marked = "sed -i 's/^deb /deb [snapshot=yes] /' /etc/apt/sources.list"
    yield _apt(marked, f" --snapshot {system.snapshot}", system.packages)


def _apt(marked: str, snapshot: str, packages: Sequence[str]) -> Run:
    commands = (
        "rm -f /etc/apt/sources.list.d/cuda*.list",
        *([marked] if marked else []),
        f"apt-get update{snapshot}",
        f"apt-get install -y --no-install-recommends{snapshot} {' '.join(packages)}",
        "rm -rf /var/lib/apt/lists/*",
    )
    return Run(commands, ignore=("DL3008",))
