"""The plain form of an image: uv, git and the source's own build, nothing of envbuild in it; pure.

The same packages, sources, edits, variables and paths as in the other form. What only envbuild does is left out: its
stamp and entry point, the wheel store, compiling kernels beforehand, proof that a build had no network.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from packaging.version import Version

from envbuild.catalog.patches import load_patch
from envbuild.catalog.toolchain import load_toolchain
from envbuild.container.dockerfile import render
from envbuild.container.instructions import (
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
)
from envbuild.container.recipe import (
    GIVEN,
    HOME,
    SLIM,
    WHO,
    ImageRecipe,
    about_patch,
    about_variables,
    changes_nothing,
    owned,
    written,
)
from envbuild.export import steps
from envbuild.export.source_patches import PATCHES, patched
from envbuild.model.lock import LockedPackage, LockedSource

DOCKERFILE = "Dockerfile.plain"
UV = "requirements-uv.txt"
_WHEELHOUSE = "type=bind,from=wheelhouse,target=/wheelhouse"
_SECRET = "type=secret,id={},target={}"  # noqa: S105 - the words of a mount
_NETRC = _SECRET.format("netrc", "/root/.netrc")
_INSTALL = "uv pip install --no-deps"
_UV = {"UV_NO_CACHE": "1", "UV_LINK_MODE": "copy", "UV_PYTHON_DOWNLOADS": "never", "PYTHONDONTWRITEBYTECODE": "1"}
# The environment, in commands after the variable is set.
_HERE = '"$VIRTUAL_ENV"'
# What communication libraries, drivers and trackers read when a run starts, and no compiler.
_AT_RUN = ("CUDA_DEVICE_", "FI_", "GLOO_", "NCCL_", "OMPI_", "UCX_", "WANDB_")
# An older setuptools cannot make an editable wheel.
_EDITABLE_WHEELS = Version("64")
# What `node/image/slim.py` takes out, in the layer that brought it.
_SLIM = (
    "find {} -mindepth 2 -type d -regex '.*/tests?' -not -path '*.dist-info/*' -prune -exec rm -rf {{}} +",
    "find {} -mindepth 3 -regextype posix-extended -type f -regex '.*/bin/([^/]*[_-])?tests?([_.-][^/]*)?' -delete",
)
# As sed wants them: each package of the base, to be deleted from a requirements file.
_OF_BASE = (
    "import re; from importlib.metadata import distributions; "
    "[print('/^' + re.sub('[-_.]+', '-', each.metadata['Name']).lower() + '==/d') for each in distributions()]"
)


def make_plain(recipe: ImageRecipe) -> ImageRecipe:
    """The plain form of a recipe. Raises EnvbuildError `conda-in-a-script` (exit 7), and what `requirement` raises."""
    steps.refuse_conda(recipe.variant)
    maker = _Maker(recipe)
    stages = {stage.name: stage for stage in maker.stages()}
    sources = bool(recipe.variant.sources)
    compiles = "compiles the sources" if sources else "removes what differs between two builds"
    system = [name for name in ("compilers", "libraries") if name in stages]
    verb = "adds" if len(system) == 1 else "add"
    added = f"{' and '.join(f'`{name}`' for name in system)} {verb} packages of the system, " if system else ""
    lacks = ", without compilers" * (stages["runtime"].image != stages["packages"].image)
    notes = (
        *_how(recipe),
        f"Stages: `tools` downloads what the rest needs to install, {'`sources` the sources, ' * sources}{added}"
        f"`packages` downloads and installs the packages, `build` {compiles}, `runtime` is the image{lacks}, in which "
        "what the stack imports is imported once as a test.",
        "Dockerfile, the other form, installs the same by a program of envbuild, which also checks and stamps it.",
    )
    return replace(
        recipe,
        stages=tuple(stages.values()),
        files=maker.files(),
        options=f"{recipe.options} --plain",
        notes=(*notes, *recipe.notes),
    )


def _how(recipe: ImageRecipe) -> tuple[str, ...]:
    """The command that builds it, and what has to be there first; a string a paragraph."""
    able = f"To build it, for {recipe.variant.machine}, with BuildKit, podman or buildah:"
    build = f"`docker build -f {DOCKERFILE} .` in"
    edited = patched(recipe.variant)
    names = " and ".join(f"{PATCHES}/{source.name}.patch" for source in edited)
    if not names:
        return (f"{able} {build} this folder. It needs no envbuild.",)
    without: tuple[str, ...] = ()
    if all(changes_nothing(source.patches, recipe.same_cuda) for source in edited):
        without = (
            f"Or without envbuild, here: delete the lines with {PATCHES}/ and `git write-tree` below; what is "
            "compiled stays the same.",
        )
    return (
        able,
        "1. `pip install .` in a checkout of envbuild.",
        f"2. `envbuild image dockerfile {recipe.stack}{recipe.options} --plain -o FOLDER` writes these files and "
        f"{names}, not kept here, as a patch quotes the source, which has a licence of its own. It needs git and a "
        "network.",
        f"3. {build} FOLDER. It needs no envbuild.",
        *without,
    )


@dataclass(frozen=True)
class _Maker:
    recipe: ImageRecipe

    def files(self) -> dict[str, str]:
        variant = self.recipe.variant
        machine = variant.platform.removeprefix("linux_")
        uv = next(each for each in load_toolchain().uv if each.arch == machine)
        found = {UV: f"uv=={uv.version} --hash=sha256:{uv.sha256}\n"}
        # On a base one line a package, so that a line can be taken out.
        between = " " if variant.base.kind != "none" else " \\\n    "
        for name, packages in self._requirements().items():
            found[name] = "".join(f"{steps.requirement(package, between)}\n" for package in packages)
        return found

    def _requirements(self) -> dict[str, tuple[LockedPackage, ...]]:
        """File name -> what is in it, in the order of installing: wheels by index, then all source archives."""
        found: dict[str, tuple[LockedPackage, ...]] = {}
        for each in steps.package_steps(self.recipe.variant, self.recipe.requests.indexes):
            word = "archives" if each.archive else each.index
            name = f"requirements-{word}.txt" if word else "requirements.txt"
            found[name] = (*found.get(name, ()), *each.packages)
        return found

    def stages(self) -> Iterator[Stage]:
        recipe, names = self.recipe, {stage.name: stage for stage in self.recipe.stages}
        yield names["wheelhouse"]
        yield replace(names["fetch"], name="tools", instructions=tuple(self._tools()))
        if recipe.variant.sources:
            yield replace(names["fetch"], name="sources", instructions=tuple(self._sources()), above="tools")
        yield from (names[name] for name in ("compilers", "libraries") if name in names)
        yield replace(names["packages"], instructions=tuple(self._packages()))
        yield replace(names["build"], instructions=tuple(self._build()))
        last = names["installed"]
        if any(steps.kernels(source) for source in recipe.variant.sources):
            last = names["packages"]  # it has the compilers
        yield replace(last, name="runtime", instructions=tuple(self._runtime()))

    def _tools(self) -> Iterator[Instruction]:
        yield Comment(f"uv, which makes the environment and installs into it. {UV}: its version and sha256.")
        yield Copy((UV,), "/")
        gitconfig = ", gitconfig for git" * bool(self.recipe.variant.sources)
        seen = " While a source archive (sdist) is built, its setup.py can read them." * (
            "requirements-archives.txt" in self._requirements()
        )
        yield Comment(
            f"Optional secrets, here and below: pip.conf and uv.toml for mirrors of indexes{gitconfig}, netrc for "
            f"credentials (`--secret id=netrc,src=FILE`). No layer keeps them.{seen}"
        )
        pip = _SECRET.format("pip.conf", "/etc/pip.conf")
        words = "pip install --no-cache-dir --no-deps --require-hashes --find-links /wheelhouse"
        yield Run(f"{words} -r /{UV}", (_WHEELHOUSE, pip, _NETRC))
        folder = self.recipe.requests.python_folder
        if folder is not None:
            build = next(each for each in load_toolchain().builds if each.sha256[:12] == folder[-12:])
            yield Comment(
                f"Python {self.recipe.variant.python}, which the images below do not have: CPython of "
                "python-build-standalone, in a folder named by the first digits of its sha256."
            )
            yield Run(
                f"curl -fsSL -o /python.tar.gz {shlex.quote(build.url)}"
                f" && echo '{build.sha256}  /python.tar.gz' > /python.sha256 && sha256sum -c /python.sha256"
                f" && mkdir -p {folder} && tar -xzf /python.tar.gz -C {folder} && rm /python.*"
            )

    def _sources(self) -> Iterator[Instruction]:
        yield Comment(
            "Each source is one commit. Its tree, git's hash over all its files, must be the one that is written here; "
            "after a patch once more. .git is removed, since two fetches differ in it."
        )
        for source in self.recipe.variant.sources:
            yield from self._source(source)

    def _source(self, source: LockedSource) -> Iterator[Instruction]:
        top, mounts = f"/src/{source.name}", (_SECRET.format("gitconfig", "/root/.gitconfig"), _NETRC)
        path, after = f"{PATCHES}/{source.name}.patch", self.recipe.trees.get(source.name)
        for tree in steps.trees(source):
            branch = f" (branch or tag {source.ref})" if source.ref else ""
            below = f"{tree.path.rpartition('/')[2]}, a submodule within {source.name}"
            yield Comment(below if tree.path else f"{source.name}{branch}")
            yield Folder(f"{top}/{tree.path}" if tree.path else top)
            commands = [
                "git init --quiet",
                f"git fetch --quiet --depth 1 {shlex.quote(tree.git)} {tree.commit}",
                "git checkout --quiet FETCH_HEAD",
                f"test \"$(git rev-parse 'HEAD^{{tree}}')\" = {tree.tree}",
            ]
            if after and not tree.path:
                yield from _patches(source, self.recipe.same_cuda)
                yield Copy((path,), f"/{PATCHES}/")
                commands += [f"git apply --index /{path}", f'test "$(git write-tree)" = {after}']
            yield Run(" && ".join([*commands, "rm -rf .git"]), mounts)
        if source.patches and not after:
            yield from _patches(source, self.recipe.same_cuda)
            yield Comment("Which tree it has to give is not recorded, so that is not compared.")
            if source.submodules:
                yield Folder(top)
            yield Copy((path,), f"/{PATCHES}/")
            yield Run(f"git apply --check /{path} && git apply /{path}")

    def _packages(self) -> Iterator[Instruction]:
        requests, variant = self.recipe.requests, self.recipe.variant
        yield Copy(("/usr/local/bin/uv",), "/usr/local/bin/uv", "tools")
        if requests.python_folder:
            yield Copy((requests.python_folder,), requests.python_folder, "tools")
        if variant.packages:
            yield Copy(tuple(self._requirements()), "/requirements/")
        yield Comment(
            "uv keeps no cache, copies files instead of linking them, and downloads no Python; Python writes no byte "
            "code."
        )
        yield Env(_UV)
        if variant.base.kind != "none":
            yield Comment("What the base has stays as it is, its torch above all: it is taken out of the requirements.")
            yield Run(f'{requests.runner} -c "{_OF_BASE}" > /base.sed && sed -i -f /base.sed /requirements/*.txt')
        yield Comment("The environment, in a folder named by a hash of its packages; the `python` below is its own.")
        yield Env({"VIRTUAL_ENV": self.recipe.environment})
        yield Env({"PATH": "bin"}, prepend=True, within="VIRTUAL_ENV")
        site_packages = " --system-site-packages" if variant.base.kind != "none" else ""
        create = f"uv venv --no-project --python {requests.runner} {_HERE}{site_packages}"
        mounts = (_WHEELHOUSE, _SECRET.format("uv.toml", "/etc/uv/uv.toml"), _NETRC)
        words = f"{_INSTALL} --require-hashes --find-links /wheelhouse"
        every = [f"{words} {self._where(each)} -r /requirements/{name}" for name, each in self._requirements().items()]
        yield Run(create)
        if every:
            yield Comment("The lists are complete, so uv looks for no dependencies.")
        if len(every) > 1 and "requirements-archives.txt" in self._requirements():
            yield Comment("Wheels first. Archives of source last: they are built with what is installed by then.")
        if any("--torch-backend" in each for each in every):
            yield Comment(f"--torch-backend: PyTorch's own index of wheels for {self.recipe.variant.flavour}.")
        if every and self.recipe.slim:
            yield Comment(SLIM)
            every += [line.format(self._site) for line in _SLIM]
        if every:
            yield Run(" && ".join(every), mounts)

    @property
    def _site(self) -> str:
        return f"{_HERE}/lib/python{self.recipe.variant.python}/site-packages"

    def _where(self, packages: tuple[LockedPackage, ...]) -> str:
        """Options of uv: from which index, and whether anything is built."""
        first = packages[0]
        if not any(file.file.endswith(".whl") for file in first.files):
            return "--no-build-isolation --no-binary :all:"
        index = self.recipe.requests.indexes.get(first.index)
        if index is None or not index["url"]:
            return "--no-build"
        if index["kind"] == "find-links":
            return f"--no-build --find-links {shlex.quote(index['url'])}"
        if first.index == f"pytorch-{self.recipe.variant.flavour}":
            return f"--no-build --torch-backend {self.recipe.variant.flavour}"  # uv knows that address
        return f"--no-build --default-index {shlex.quote(index['url'])}"

    def _build(self) -> Iterator[Instruction]:
        variant, requests = self.recipe.variant, self.recipe.requests
        if variant.sources:
            install = requests.build["args"]["requests"][0]["args"]
            every = steps.variables(variant, install.get("build") or {})
            seen = {name: value for name, value in every.items() if not name.startswith(_AT_RUN)}
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
        for source in variant.sources:
            yield from self._built(source)
        last = [f"sed -i '/uv_cache.json,/d' {self._site}/*.dist-info/RECORD"]
        last += [f"rm -f {self._site}/*.dist-info/uv_cache.json"]
        yield Comment("uv_cache.json has the time of installing, so two builds differ.")
        yield Run(" && ".join(last), ignore=("DL3059",) if variant.sources else ())

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
        yield Run(" && ".join(self._commands(source)))

    def _commands(self, source: LockedSource) -> list[str]:
        """From the tree of a source to modules that can be imported."""
        below = "" if source.install == "wheel" else _HERE
        project = "/".join(shlex.quote(part) for part in ("src", source.name, source.path) if part)
        project = f"{below}/{project}"
        own = (source.build.environment if source.build else None) or {}
        more = "".join(f"{name}={shlex.quote(value)} " for name, value in sorted(own.items()))
        flags = "".join(f" {shlex.quote(flag)}" for flag in steps.flags(source))
        setup = f"env -C {project} {more}python setup.py"
        uv = f"env {more}uv" if more else "uv"
        pip = "pip install --no-deps --no-index"
        commands = []
        if source.build is not None and source.build.kind == "inplace":
            commands.append(f"{setup} build_ext --inplace{flags}")
        if source.install == "path":
            commands.append(f"echo {project} > {self._site}/envbuild-source-{source.name}.pth")
        elif source.install == "editable":
            wheel = f"{uv} {pip} --no-build-isolation -e {project}"
            commands.append(f"{setup} develop --no-deps" if self._old() else wheel)
        else:
            out = f"/wheels/{source.name}"
            wheel = f"{uv} build --wheel --no-build-isolation --no-index --out-dir {out} {project}"
            commands.append(f"{setup}{flags} bdist_wheel --dist-dir {out}" if flags else wheel)
            commands.append(f"uv {pip} --reinstall {out}/*.whl")
        names = steps.extensions(source)
        if names:
            torch = ["torch"] if self.recipe.variant.torch or self.recipe.variant.base.kind != "none" else []
            commands.append(f'python -c "import {", ".join([*torch, *names])}"')
        return commands

    def _old(self) -> bool:
        """Whether setuptools is one that cannot make an editable wheel."""
        found = [package for package in self.recipe.variant.packages if package.name == "setuptools"]
        return any(Version(each.version) < _EDITABLE_WHEELS for each in found)

    def _runtime(self) -> Iterator[Instruction]:
        recipe = self.recipe
        if recipe.requests.python_folder:
            yield Comment("Python itself, of which the environment has only a symlink, and the finished environment.")
            yield Copy((recipe.requests.python_folder,), recipe.requests.python_folder, "packages")
        else:
            yield Comment("The finished environment. Its Python is that of this image, as it was in `packages`.")
        yield Copy((f"{recipe.prefix}/envs",), f"{recipe.prefix}/envs", "build")
        who = [each for each in recipe.stage("installed").instructions if isinstance(each, Run)]
        yield Comment(WHO)
        yield from who
        for name, value in recipe.requests.variables.items():
            if not isinstance(value, str):
                path = value["path"]
                yield Comment(
                    f"Not set here: {name}. On a host that has {path}, run with `-v {path}:{path}:ro -e {name}={path}`."
                )
        for each in recipe.stage("runtime").instructions:
            match each:
                case Env(_, prepend=True):
                    yield Env({"PATH": "bin"}, prepend=True, within="VIRTUAL_ENV")
                    yield from owned(self._written(), _HERE)
                case Env(values):
                    yield Comment(self._about(values))
                    mine = {name: value for name, value in values.items() if name != "ENVBUILD_STACK"}
                    yield Env({**mine, "VIRTUAL_ENV": recipe.environment})
                case Labels(values, given):
                    yield Labels({**values, "dev.envbuild.form": "plain"}, given)
                case Arg(name):
                    if name == "CREATED":
                        yield Comment(GIVEN)
                    yield each
                case Start():
                    yield replace(each, folder=HOME, entry=())
                    yield from self._test()
                case _:
                    pass

    def _about(self, values: Mapping[str, str]) -> str:
        gpus = (
            " NVIDIA_*: with `docker run --gpus all` the container has the GPUs and their driver; `--ipc host` gives "
            "its ranks more shared memory than the 64 MB of a container."
        )
        nodes = " On several nodes also `--network host`: the interfaces named here are the host's."
        later = " TORCH_CUDA_ARCH_LIST: for code compiled later, as by an image built on this one." * (
            "TORCH_CUDA_ARCH_LIST" in values
        )
        mpi = " OMPI_* and UCX_*: read by Open MPI and UCX, where these are there."
        words = about_variables(self.recipe.machines) + gpus * ("NVIDIA_VISIBLE_DEVICES" in values) + later
        words += mpi * any(name.startswith(("OMPI_", "UCX_")) for name in values)
        return words + nodes * any(name.endswith(("_IFNAME", "NET_DEVICES")) for name in values)

    def _written(self) -> list[tuple[str, str]]:
        """What runs write: also, into the folder of its source, a module that another program than torch compiles."""
        found = written(self.recipe.variant)
        for source in self.recipe.variant.sources:
            modules = (source.build.modules if source.build else None) or ()
            folders = [(each.name, each.sources[0].rpartition("/")[0]) for each in modules if each.torch is False]
            found += [(source.name, f"{folder}/{name}*.so") for name, folder in folders]
        return found

    def _test(self) -> Iterator[Instruction]:
        if self.recipe.variant.imports:
            yield Comment(
                "The test, in the runtime image and as its user: what the stack imports is imported; no kernel runs, "
                "no GPU is needed. It leaves nothing behind."
            )
            # No mount of a tmpfs: buildah 1.28 removes every file of the stage when that ends.
            names = ", ".join(self.recipe.variant.imports)
            home = "HOME=/tmp/test TMPDIR=/tmp/test PYTHONDONTWRITEBYTECODE=1"
            yield Run(f'mkdir /tmp/test && {home} python -c "import {names}" && rm -rf /tmp/test')


def _patches(source: LockedSource, same_cuda: str | None) -> Iterator[Instruction]:
    """What the patches of a source are for."""
    for name in source.patches:
        patch = load_patch(name)
        files = ", ".join(dict.fromkeys(file for part in patch.parts for file in part.files))
        yield Comment(f"Patch {name}, in {files}: {about_patch(name, same_cuda, why=True)}")


def texts(recipe: ImageRecipe) -> dict[str, str]:
    """File name -> text of everything of the plain form that is generated and can be committed; `recipe` as made."""
    return {DOCKERFILE: render(recipe), **recipe.files}
