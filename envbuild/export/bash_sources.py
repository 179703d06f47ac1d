"""Sources in the printed script: fetched, patched by envbuild itself, built one after another, proven by an import."""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from envbuild.export import steps
from envbuild.model.lock import LockedSource, Variant
from envbuild.node.build.programs import editable
from envbuild.regular_file import read_text
from envbuild.resolve.variant_checks import needs_nvcc
from envbuild.text import visible

quote = shlex.quote


@cache
def _parts() -> dict[str, str]:
    """The texts of `script.sh`, by name."""
    _, *parts = re.split(r"^#: (\w+)\n", read_text(Path(__file__).with_name("script.sh")), flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def part(name: str, **values: str) -> str:
    """A part of `script.sh`, with its values."""
    return re.sub("@([A-Z]+)@", lambda match: values[match[1]], _parts()[name])


def block(name: str, **values: str) -> list[str]:
    """The lines of a part that stands in a function."""
    return part(name, **values).split("\n")[:-1]


def needs_of(variants: Sequence[Variant]) -> tuple[str, str, list[str]]:
    """For the head of a script: what else it needs, in words, the check of that, and functions for builds."""
    every = [source for variant in variants for source in variant.sources]
    trees = [tree for variant in variants for tree in variant.trees]
    patched = any(source.patches for source in every)
    compiled = any(
        isinstance(step, steps.Prove) or (isinstance(step, steps.Install) and step.how == "wheel")
        for source in every
        for step in steps.source_steps(source)
    )
    builds = {source.name: source.build for source in every if source.build}
    mpi = "mpi4py" in builds
    tools = ["gcc"] * bool(builds) + ["nvcc"] * any(map(needs_nvcc, builds.values())) + ["mpicc"] * mpi
    needs = f", {', '.join(tools)} to compile" if tools else ""
    needs += ", and envbuild for the patches of its sources" if patched else ", and nothing of envbuild"
    check = part("patches") * patched + part("mpi") * mpi
    helpers = [part("wheel")] * compiled
    if "editable" in {*(source.install for source in every), *(tree.install for tree in trees)}:
        helpers.append(part("editable", PROGRAM=inspect.getsource(editable)))
    return needs, check, helpers


def sources(
    stack: str, variant: Variant, build: Mapping[str, Any], bundles: Mapping[str, str] | None = None
) -> list[str]:
    """The lines that bring the sources of a stack's variant; `build` is that of the install request.

    `bundles`: paths in the bundle of repositories, by name, as in the request's `artifacts`.
    """
    if not variant.sources and not variant.trees:
        return []
    lines = [
        "",
        "  # Sources are built with the environment's own tools; two builds see the same variables.",
        '  export VIRTUAL_ENV="$environment" PATH="$environment/bin:$PATH"',
    ]
    seen = steps.variables(variant, build)
    lines += [f"  export {name}={quote(value)}" for name, value in seen.items()]
    if "CUDA_HOME" in seen:
        lines.append(f'  export PATH="$environment"/bin:{quote(seen["CUDA_HOME"])}/bin:"$PATH"')
    for source in variant.sources:
        lines += _source(stack, source, bundles or {})
    for tree in variant.trees:
        place, folder = quote(str(tree.at)), f'"$environment"/src/{quote(tree.name)}'
        absent = quote(f"the working tree {tree.at} is not there")
        lines += block("tree", NAME=tree.name, PLACE=place, FOLDER=folder, ABSENT=absent)
        lines += _on_path(tree.name, folder) if tree.install == "path" else [f"  editable {folder}"]
    return lines


def _source(stack: str, source: LockedSource, bundles: Mapping[str, str]) -> list[str]:
    above = '"$work"' if source.install == "wheel" else '"$environment"/src'
    lines = [
        "",
        f"  # {source.name} at {source.commit[:12]}" + (f" ({visible(source.ref)})" if source.ref else ""),
        f"  local folder={above}/{quote(source.name)}",
    ]
    for step in steps.source_steps(source):
        match step:
            case steps.Fetch(trees):
                lines += _checkouts(stack, source, trees, bundles)
            case steps.Edit(patches):
                # envbuild refuses one that is not the locked one any more.
                pins = {pin.name: f" --digest {pin.digest}" for pin in source.patch_pins}
                for name in patches:
                    apply = f"envbuild patch apply {quote(name)}"
                    lines.append(f'  {apply} "$folder" --commit {source.commit}{pins.get(name, "")} || exit')
            case steps.Compile(flags):
                words = "".join(f" {quote(flag)}" for flag in flags)
                command = f'"$environment/bin/python" setup.py build_ext --inplace{words}'
                lines.append(f"  ({_exports(source)}cd -- {_project(source)} && {command})")
            case steps.Install(how, flags):
                lines += _usable(source, how, flags)
            case steps.Prove(modules):
                lines.append(f"  imports {quote(source.name)} {' '.join(modules)}")
    return lines


def _project(source: LockedSource) -> str:
    return f'"$folder"/{quote(source.path)}' if source.path else '"$folder"'


def _exports(source: LockedSource) -> str:
    own = (source.build.environment if source.build else None) or {}
    return "".join(f"export {name}={quote(value)}; " for name, value in sorted(own.items()))


def _checkouts(stack: str, source: LockedSource, trees: Sequence[steps.Tree], bundles: Mapping[str, str]) -> list[str]:
    lines = []
    for tree in trees:
        where = f'"$folder"/{quote(tree.path)}' if tree.path else '"$folder"'
        bundle = bundles.get(tree.name)
        origin = f'"$work"/bundle/{quote(bundle)}' if bundle else quote(tree.git)
        lines.append(f"  checkout {origin} {tree.commit} {tree.tree} {where}")
    lines.append('  find "$folder" -name .git -prune -exec rm -rf -- {} +')
    for output in source.outputs:
        kept = f'"$prefix"/outputs/{quote(f"{stack}/{source.name}/{output}")}'
        place = f'"$folder"/{quote(output)}'
        lines.append(f'  mkdir -p -- {kept} "$(dirname -- {place})" && ln -sr -- {kept} {place}')
    return lines


def _usable(source: LockedSource, how: str, flags: Sequence[str]) -> list[str]:
    """How a checked tree becomes importable: a line in a .pth file, an editable install or a wheel."""
    project, exports, python = _project(source), _exports(source), '--python "$environment/bin/python"'
    kernels = ", ".join(steps.kernels(source))
    later = [f"  # envbuild would compile {kernels} now; after this script they are compiled at the first start."]
    if how == "path":
        return [*later * bool(kernels), *_on_path(source.name, project)]
    if how == "editable":
        command = f"editable {project}"
        return [*later * bool(kernels), f"  ({exports}{command})" if exports else f"  {command}"]
    wheels = f'"$work"/{quote(source.name + "-wheel")}'
    build = f"wheel {project} {wheels}{''.join(f' {quote(flag)}' for flag in flags)}"
    return [
        f"  ({exports}{build})" if exports else f"  {build}",
        f"  uv pip install {python} --no-deps --no-index --no-cache --reinstall {wheels}/*.whl",
    ]


def _on_path(name: str, project: str) -> list[str]:
    return [
        '  site=$("$environment/bin/python" -c \'import sysconfig; print(sysconfig.get_path("purelib"))\')',
        f"  printf '%s\\n' {project} > \"$site\"/{quote(f'envbuild-source-{name}.pth')}",
    ]
