"""The last stage of a recipe, which runs: its user, variables, labels, and what runs may write. Pure."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterator, Mapping, Sequence

from envbuild.container.build_stages import HERE
from envbuild.container.inside import ImageInputs, Inside
from envbuild.container.instructions import comment, copy, env, labels, prepend_path, run
from envbuild.model.lock import Variant
from envbuild.model.target import Target

USER = 10001
HOME = "/home/envbuild"
_GIVEN = "Values for the labels; set them with `--build-arg REVISION=...`."
_WHO = (
    "The image runs as this user, not as root. Every user may write to this home, because a container may run as the "
    "user who starts it (`--user`, Apptainer, enroot)."
)


def runtime(given: ImageInputs, inside: Inside, image: str, digest: str | None) -> Iterator[str]:
    """What is done on `image`."""
    prefix, variant = given.prefix, inside.variant
    if inside.python_folder:
        yield from comment("Python itself (the environment has only a symlink to it) and the finished environment.")
        yield from copy((inside.python_folder,), inside.python_folder, "packages")
    else:
        yield from comment("The finished environment. Its Python is the one of this image, as in `packages`.")
    yield from copy((f"{prefix}/envs",), f"{prefix}/envs", "build")
    yield from comment(_WHO)
    yield from run(
        (
            f"echo 'envbuild:x:{USER}:{USER}::{HOME}:/bin/sh' >> /etc/passwd",
            f"echo 'envbuild:x:{USER}:' >> /etc/group",
            f"mkdir -p {HOME}",
            f"chown {USER}:{USER} {HOME}",
            f"chmod 777 {HOME}",
        )
    )
    yield from _environment(given, inside)
    yield from comment(_GIVEN)
    # buildah warns of an argument without a default.
    yield from ('ARG CREATED="1980-01-01T00:00:00Z"', 'ARG SOURCE=""', 'ARG REVISION=""')
    yield from _labels(given, inside, image, digest)
    yield from (f"USER {USER}:{USER}", f"WORKDIR {HOME}", 'CMD ["python"]')
    if variant.imports:
        yield from comment(
            "The test runs in the runtime image, as its user. It imports the modules of the stack. It runs no kernel, "
            "needs no GPU and leaves no file behind."
        )
        # No mount of a tmpfs: buildah 1.28 removes every file of the stage when that ends.
        home = "HOME=/tmp/test TMPDIR=/tmp/test PYTHONDONTWRITEBYTECODE=1"
        names = ", ".join(variant.imports)
        yield from run(("mkdir /tmp/test", f'{home} python -c "import {names}"', "rm -rf /tmp/test"))


def _environment(given: ImageInputs, inside: Inside) -> Iterator[str]:
    """The variables, and what runs may write."""
    for name, value in inside.variables.items():
        if not isinstance(value, str):
            path = value["path"]
            yield from comment(
                f"{name} is not set here. On a host that has {path}, run with `-v {path}:{path}:ro -e {name}={path}`."
            )
    values = {name: value for name, value in inside.variables.items() if isinstance(value, str)}
    mine = {"VIRTUAL_ENV": inside.environment, "PYTHONNOUSERSITE": "1"}
    if inside.arch_list:
        # Else code that is compiled when it is first used takes what the base was built for.
        mine["TORCH_CUDA_ARCH_LIST"] = ";".join(inside.arch_list)
    if given.place.cuda is not None or inside.variant.flavour not in (None, "cpu"):
        mine |= {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
    every = {**mine, **values, "VIRTUAL_ENV": inside.environment}
    yield from comment(_about(every, given.target))
    yield from env(every)
    yield from prepend_path("bin")
    yield from owned(_written(inside.variant))


def _labels(given: ImageInputs, inside: Inside, image: str, digest: str | None) -> list[str]:
    base = {"org.opencontainers.image.base.name": image}
    if digest:
        base["org.opencontainers.image.base.digest"] = f"sha256:{digest}"
    return labels(
        {
            "org.opencontainers.image.title": given.lock.stack,
            **base,
            "dev.envbuild.stack": given.lock.stack,
            "dev.envbuild.profile": given.lock.profile,
            "dev.envbuild.variant": inside.variant.id,
            "dev.envbuild.lock": f"sha256:{inside.variant.digest}",
            "dev.envbuild.environment": inside.environment,
        },
        {
            "org.opencontainers.image.created": "CREATED",
            "org.opencontainers.image.source": "SOURCE",
            "org.opencontainers.image.revision": "REVISION",
        },
    )


def _about(values: Mapping[str, str], target: Target) -> str:
    """Whose variables the image sets, and what a container needs beside them."""
    machines = (target.summary.partition(";")[0] or target.name) if target.environment else ""
    own = f" and of its machines: {machines}" if machines else ""
    words = f"Variables of the environment{own}. Change one with `docker run -e NAME=VALUE`."
    if "NVIDIA_VISIBLE_DEVICES" in values:
        words += (
            " NVIDIA_* give a container the GPUs and their driver with `docker run --gpus all`. `--ipc host` gives its "
            "ranks more shared memory than the default 64 MB."
        )
    if "TORCH_CUDA_ARCH_LIST" in values:
        words += " TORCH_CUDA_ARCH_LIST is for code compiled later, for example by an image built on this one."
    if any(name.startswith(("OMPI_", "UCX_")) for name in values):
        words += " Open MPI and UCX, if installed, read OMPI_* and UCX_*."
    if any(name.endswith(("_IFNAME", "NET_DEVICES")) for name in values):
        words += " On several nodes add `--network host`, because the interfaces named here are the host's."
    return words


def _written(variant: Variant) -> list[tuple[str, str]]:
    """Source and path in it, with wildcards, of what runs write.

    Also, into the folder of its source, a module that another program than torch compiles.
    """
    paths = [
        (source.name, path) for source in variant.sources if source.install != "wheel" for path in source.generated
    ]
    for source in variant.sources:
        modules = (source.build.modules if source.build else None) or ()
        folders = [(module.name, module.sources[0].rpartition("/")[0]) for module in modules if module.torch is False]
        paths += [(source.name, f"{folder}/{name}*.so") for name, folder in folders]
    return paths


def owned(paths: Sequence[tuple[str, str]]) -> list[str]:
    """What makes `paths` the user's, their folders too, for new files; and what is there already."""
    if not paths:
        return []
    folders = set()
    for name, path in paths:
        above = itertools.takewhile(lambda part: not set(part) & set("*?["), path.split("/")[:-1])
        folders.add("/".join(["src", name, *above]))
    every = " ".join(f"{HERE}/{shlex.quote(path)}" for path in sorted(folders))
    sources = " ".join(f"{HERE}/src/{shlex.quote(name)}" for name in dict.fromkeys(name for name, _ in paths))
    generated = " -o ".join(f"-path {HERE}/{shlex.quote(f'src/{name}/{path}')}" for name, path in paths)
    names = ", ".join(f"{name}/{path}" for name, path in paths)
    return [
        *comment(
            f"Sources write these files when they are built in place or started: {names}. The files and their folders "
            "belong to the user of the image, and other users may write them too. Elsewhere only the home and /tmp "
            "can be written."
        ),
        *run(
            (
                f"mkdir -p {every}",
                f"chown {USER}:{USER} {every}",
                f"chmod a+rwx {every}",
                f"find {sources} \\( {generated} \\) -exec chown -h {USER}:{USER} {{}} +"
                " ! -type l -exec chmod a+rwX {} +",
            )
        ),
    ]
