"""The stages of a recipe that install and build: what the distribution lacks, the packages, the sources. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from packaging.version import Version

from envbuild.container.base_images import Place, SystemPackages
from envbuild.container.fetch_stages import SECRETS, UV_TOML, WHEELHOUSE, WHEELHOUSE_MOUNT
from envbuild.container.inside import Inside
from envbuild.container.instructions import comment, copy, env, prepend_path, run
from envbuild.export import steps
from envbuild.model.lock import LockedPackage, LockedSource, Variant

ARCHIVES = "requirements-archives.txt"
# The environment, in commands after the variable is set.
HERE = '"$VIRTUAL_ENV"'
_CACHE = "type=cache,target=/root/.cache/uv"
_INSTALL = f"uv pip install --no-deps --require-hashes --find-links /{WHEELHOUSE}/wheels"
_VARIABLES = {"UV_LINK_MODE": "copy", "UV_PYTHON_DOWNLOADS": "never", "PYTHONDONTWRITEBYTECODE": "1"}
# What communication libraries, drivers and trackers read when a run starts, and no compiler.
_AT_RUN = ("CUDA_DEVICE_", "FI_", "GLOO_", "NCCL_", "OMPI_", "UCX_", "WANDB_")
# An older setuptools cannot make an editable wheel.
_EDITABLE_WHEELS = Version("64")
_KEY = (
    "rm removes NVIDIA's apt list: its key changed in April 2022, so the list fails in older images. Nothing is "
    "installed from it."
)
# As sed wants them: each package of the base, to be deleted from a requirements file.
_OF_BASE = (
    "import re; from importlib.metadata import distributions; "
    "[print('/^' + re.sub('[-_.]+', '-', each.metadata['Name']).lower() + '==/d') for each in distributions()]"
)


def requirements(inside: Inside) -> dict[str, tuple[LockedPackage, ...]]:
    """File name -> what is in it, in the order of installing: wheels by index, then all source archives."""
    lists: dict[str, tuple[LockedPackage, ...]] = {}
    for step in steps.package_steps(inside.variant, inside.indexes):
        word = "archives" if step.archive else step.index
        name = f"requirements-{word}.txt" if word else "requirements.txt"
        lists[name] = (*lists.get(name, ()), *step.packages)
    return lists


def for_building(place: Place) -> Iterator[str]:
    """What the build image lacks of its distribution."""
    system = place.system
    lacks = "".join(f"The image lacks {name}: {why}. " for name, why in place.lacks.items())
    why = f"Packages to compile against. {lacks}" if system else lacks
    packages = (*(system.packages if system else ()), *place.lacks)
    return _apt(packages, why, system, "The version is not pinned: apt installs what the archive has today.")


def for_running(place: Place) -> Iterator[str]:
    """What the runtime image lacks of its distribution."""
    network, system = place.network, place.system
    why = "Packages needed at run time. " if system else ""
    if network is not None:
        why += f"The image lacks {' and '.join(network.packages)}: {network.why}. "
    packages = (*(system.packages if system else ()), *(network.packages if network else ()))
    today = "The versions are not pinned: apt installs what the archive has today."
    devices = "A container also needs the host's devices: `--device /dev/infiniband --ulimit memlock=-1`."
    return _apt(packages, why, system, f"{today} {devices}")


def _apt(packages: Sequence[str], why: str, system: SystemPackages | None, unpinned: str) -> Iterator[str]:
    """Packages as the archive had them at the snapshot; without one, as it has them today, and that is said."""
    pinned = "The versions are those of the archive's snapshot of that day."
    yield from comment(f"{why}{pinned if system else unpinned} {_KEY}")
    snapshot = f" --snapshot {system.snapshot}" if system else ""
    commands = (
        "rm -f /etc/apt/sources.list.d/cuda*.list",
        *(["sed -i 's/^deb /deb [snapshot=yes] /' /etc/apt/sources.list"] if system else []),
        f"apt-get update{snapshot}",
        f"apt-get install -y --no-install-recommends{snapshot} {' '.join(packages)}",
        "rm -rf /var/lib/apt/lists/*",
    )
    yield from run(commands, ignore=("DL3008",))


def packages(inside: Inside) -> Iterator[str]:
    """uv installs every list into a new environment."""
    lists = requirements(inside)
    yield from copy(("/usr/local/bin/uv",), "/usr/local/bin/uv", "tools")
    if inside.python_folder:
        yield from copy((inside.python_folder,), inside.python_folder, "tools")
    if lists:
        yield from copy(tuple(lists), "/requirements/")
    yield from comment("uv copies files instead of linking them and downloads no Python; Python writes no byte code.")
    yield from env(_VARIABLES)
    python = shlex.quote(inside.python)
    if inside.on_base:
        yield from comment(
            "Packages of the base stay as they are, above all its torch. These lines remove them from the requirements."
        )
        yield from run((f'{python} -c "{_OF_BASE}" > /base.sed', "sed -i -f /base.sed /requirements/*.txt"))
    yield from comment(
        "The environment. The folder name has a hash of its packages. `python` below is the environment's own."
    )
    yield from env({"VIRTUAL_ENV": inside.environment})
    yield from prepend_path("bin")
    site_packages = " --system-site-packages" if inside.on_base else ""
    yield from run((f"uv venv --no-project --python {python} {HERE}{site_packages}",))
    every = tuple(_installed(inside, name, packages) for name, packages in lists.items())
    if every:
        yield from comment(
            "The lists are complete, so uv resolves no dependencies. If the wheelhouse has all files of a list, uv "
            "installs from it and contacts no index."
        )
    if len(every) > 1 and ARCHIVES in lists:
        yield from comment("Wheels come first. Source archives come last, because the installed packages build them.")
    if any("--torch-backend" in instruction for instruction in every):
        yield from comment(f"--torch-backend selects PyTorch's own index of wheels for {inside.variant.flavour}.")
    if every:
        yield from run(every, (WHEELHOUSE_MOUNT, _CACHE, UV_TOML, *SECRETS))


def _installed(inside: Inside, name: str, packages: tuple[LockedPackage, ...]) -> str:
    """The command that installs one list: from the wheelhouse, else from its index."""
    first, listed = packages[0], f"-r /requirements/{name}"
    wheels = any(file.file.endswith(".whl") for file in first.files)
    how = "--no-build" if wheels else "--no-build-isolation --no-binary :all:"
    index, where = inside.indexes.get(first.index) if wheels else None, ""
    if index is not None and index["kind"] == "find-links":
        where = f" --find-links {shlex.quote(index['url'])}"
    elif index is not None and first.index == f"pytorch-{inside.variant.flavour}":
        where = f" --torch-backend {inside.variant.flavour}"  # uv knows that address
    elif index is not None:
        where = f" --default-index {shlex.quote(index['url'])}"
    begun = f"{_INSTALL} {how}"
    return f"{{ {begun} --no-index {listed} 2> /dev/null || {begun}{where} {listed}; }}"


def build(inside: Inside) -> Iterator[str]:
    """Every source, by its own build."""
    site = _site(inside)
    if inside.variant.sources:
        seen = {name: value for name, value in inside.build.items() if not name.startswith(_AT_RUN)}
        gpus = (
            " TORCH_CUDA_ARCH_LIST lists the compute capabilities that kernels are compiled for. A setup.py may add "
            "others; Apex's does for a few kernels."
        )
        yield from comment(
            "Each source is built by its own setup.py or pyproject.toml against the packages above, without build "
            "isolation. Then its compiled modules are imported. A fixed date (1980-01-01) and hash seed make builds "
            "repeatable." + gpus * ("TORCH_CUDA_ARCH_LIST" in seen)
        )
        yield from env(seen)
        if "CUDA_HOME" in seen:
            yield from prepend_path(f"bin:{seen['CUDA_HOME']}/bin")
    for source in inside.variant.sources:
        yield from _built(inside, source)
    last = (f"sed -i '/uv_cache.json,/d' {site}/*.dist-info/RECORD",
            f"rm -f {site}/*.dist-info/uv_cache.json")  # fmt: skip
    yield from comment("uv_cache.json holds the time of the installation, so two builds would differ.")
    yield from run(last, ignore=("DL3059",) if inside.variant.sources else ())


def _built(inside: Inside, source: LockedSource) -> Iterator[str]:
    if source.install == "editable" and _old(inside.variant):
        yield from comment(
            f"{source.name} is installed editable, so its files are in the environment. `develop` is used because "
            f"setuptools before {_EDITABLE_WHEELS} cannot make the wheel that `pip install -e` needs."
        )
    elif source.install != "wheel":
        word = "installed editable" if source.install == "editable" else "put on Python's path"
        yield from comment(f"{source.name} is {word}, so its files are in the environment.")
    if modules := ", ".join(steps.kernels(source)):
        yield from comment(f"{modules}: compiled at the first start. The runtime image therefore has compilers.")
    below = "" if source.install == "wheel" else "$VIRTUAL_ENV"
    yield from copy((f"/src/{source.name}",), f"{below}/src/{source.name}", "sources")
    yield from run(tuple(command for step in steps.source_steps(source) for command in _commands(inside, source, step)))


def _commands(inside: Inside, source: LockedSource, step: steps.SourceStep) -> Iterator[str]:
    """A step of a source whose tree is there."""
    below = "" if source.install == "wheel" else HERE
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
            yield f"echo {project} > {_site(inside)}/envbuild-source-{source.name}.pth"
        case steps.Install("editable") if _old(inside.variant):
            yield f"{setup} develop --no-deps"
        case steps.Install("editable"):
            yield f"{uv} {pip} --no-build-isolation -e {project}"
        case steps.Install(_, flags):
            out = f"/wheels/{source.name}"
            wheel = f"{uv} build --wheel --no-cache --no-build-isolation --no-index --out-dir {out} {project}"
            yield f"{setup}{_words(flags)} bdist_wheel --dist-dir {out}" if flags else wheel
            yield f"uv {pip} --reinstall {out}/*.whl"
        case steps.Prove(modules):
            torch = ["torch"] if inside.variant.torch or inside.on_base else []
            yield f'python -c "import {", ".join([*torch, *modules])}"'
        case _:
            pass  # the stage `sources` has fetched and edited it


def _old(variant: Variant) -> bool:
    """Whether setuptools is one that cannot make an editable wheel."""
    setuptools = [package for package in variant.packages if package.name == "setuptools"]
    return any(Version(package.version) < _EDITABLE_WHEELS for package in setuptools)


def _site(inside: Inside) -> str:
    return f"{HERE}/lib/python{inside.variant.python}/site-packages"


def _words(flags: Sequence[str]) -> str:
    return "".join(f" {shlex.quote(flag)}" for flag in flags)
