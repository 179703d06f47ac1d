"""The sources of a plan: their patches, what is compiled for which GPUs, and where wheels are kept. Pure.

Also the place of a bundle on a node, and its part of an install request.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from envbuild.model.facts import NodeFacts
from envbuild.model.lock import LockedSource, LockedSubmodule, Variant
from envbuild.model.plan import Resolution
from envbuild.model.stack import Build
from envbuild.node import paths
from envbuild.resolve.arch import given_codes
from envbuild.resolve.rules.compilers import cxx_of
from envbuild.resolve.variant_checks import needs_nvcc, stack_arch_list
from envbuild.text import plural

if TYPE_CHECKING:
    from envbuild.model.patch import Patch

# CPU seconds: Apex with cpp_ext and cuda_ext takes 18.5 CPU minutes (measured); a source without CUDA code about this.
COMPILE_CPU_SECONDS = 1110.0
OTHER_CPU_SECONDS = 20.0
BUNDLE = "bundle.tar"


def patch_specs(variant: Variant, patches: Mapping[str, Patch]) -> dict[str, list[dict[str, Any]]]:
    """The patches of each source as JSON that `node/build/patch.py` takes, with the bounds that the lock pins.

    `patches` has those of the catalog by the names that sources use. Raises KeyError for one that is not there.
    """
    specs: dict[str, list[dict[str, Any]]] = {}
    for source in variant.sources:
        pins = {pin.name: (pin.least, pin.most) for pin in source.patch_pins}
        for name in source.patches:
            bounds = pins.get(name) or patches[name].expected(source.commit)
            specs.setdefault(source.name, []).append(patches[name].spec(bounds))
    return specs


def build_request(
    variant: Variant,
    facts: NodeFacts,
    resolution: Resolution,
    *,
    store: str | None,
    jobs: int | None,
    check_rebuild: bool,
) -> dict[str, Any]:
    """The `build` of an install request, with the compilers that the resolver chose; `store` is a path on the node."""
    nvcc = next((compiler for compiler in facts.nvcc if compiler.path == resolution.nvcc), None)
    compilers = compiler_variables(resolution.gcc)
    return {
        **({"variables": compilers} if compilers else {}),
        "store": store or posixpath.join(facts.stage_prefix, "store", "wheels"),
        "arch_list": list(arch_codes(variant)),
        "cuda_home": posixpath.dirname(posixpath.dirname(nvcc.path)) if nvcc else None,
        "nvcc": nvcc.version if nvcc else None,
        "jobs": jobs,
        "check_rebuild": check_rebuild,
    }


def compiler_variables(gcc: str | None) -> dict[str, str]:
    """The variables that make a build, nvcc included, use another gcc; empty for None."""
    return {"CC": gcc, "CXX": cxx_of(gcc), "NVCC_PREPEND_FLAGS": f"-ccbin {gcc}"} if gcc else {}


def arch_codes(variant: Variant) -> tuple[str, ...]:
    """The architectures of CUDA code: as the resolver bound them, or as the stack sets them."""
    return variant.arch_list if variant.arch_list is not None else given_codes(stack_arch_list(variant))


@lru_cache
def compile_text(variant: Variant, jobs: int | None) -> str:
    """What is compiled, for the plan: `compile apex (2 flags) for compute capability 9.0`; empty if nothing is."""
    codes = ", ".join(arch_codes(variant))
    names = [_one(source.name, source.build) for source in variant.sources if source.build]
    if not names:
        return ""
    code = f" for compute capability {codes}" if codes else ""
    many = f" with {plural(jobs, 'job')}" if jobs is not None else ""
    wheel = f"no wheel of {'it' if len(names) == 1 else 'them'}"
    return f"compile {', '.join(names)}{code}{many}, where the wheel store has {wheel}"


def _one(name: str, build: Build) -> str:
    parts = [plural(len(build.modules), "kernel")] if build.modules else []
    parts += [plural(len(build.flags), "flag")] if build.flags else []
    return f"{name} ({', '.join(parts)})" if parts else name


@lru_cache
def compile_seconds(variant: Variant, jobs: int | None) -> float:
    """Rough seconds of compiling everything; a wheel in the store takes none."""
    built = [source.build for source in variant.sources if source.build]
    work = sum(COMPILE_CPU_SECONDS if needs_nvcc(build) else OTHER_CPU_SECONDS for build in built)
    return round(work / max(jobs or 1, 1), 1)


def bundles(variant: Variant) -> dict[str, LockedSource | LockedSubmodule]:
    """The repositories of a bundle, by name; that of a submodule is `<source>/<path of the submodule>`."""
    repositories: dict[str, LockedSource | LockedSubmodule] = {}
    for source in variant.sources:
        repositories[source.name] = source
        repositories.update({f"{source.name}/{part.path}": part for part in source.submodules})
    return repositories


def bundle_name(name: str, source: LockedSource | LockedSubmodule) -> str:
    """The file name of a git bundle, the same in the cache and in a bundle."""
    return f"{name.replace('/', '-')}-{source.commit}-{source.tree[:12]}.bundle"


def python_name(name: str, sha256: str) -> str:
    """The file name of a standalone Python, the same in the cache and in a bundle."""
    return f"{sha256[:12]}-{name}"


def delivered(prefix: str, variant: Variant, file: str | None = None, digest: str | None = None) -> dict[str, Any]:
    """The `artifacts` of an install request for what comes in a bundle; `file` where it does not lie in its folder.

    `digest`: the bundle must be this one.
    """
    bundle = {"file": file or f"{paths.delivered(prefix, variant.digest)}/{BUNDLE}"}
    sources = {name: f"sources/{bundle_name(name, source)}" for name, source in bundles(variant).items()}
    return {"bundle": bundle | ({"digest": digest} if digest else {}), "sources": sources}
