"""The requests of the node program inside an image: those that the planner makes, with paths of the image. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envbuild.catalog.indexes import load_indexes
from envbuild.catalog.toolchain import Toolchain, ToolchainPython, ToolchainUv, load_toolchain
from envbuild.container.stage_images import Place
from envbuild.errors import EnvbuildError
from envbuild.model.conda import CondaPackage
from envbuild.model.facts import DiskFacts, LibcFacts, NodeFacts, NvccFacts, OsFacts, PythonFacts
from envbuild.model.lock import ArtifactFile, Lock, LockedPackage, Variant
from envbuild.model.patch import Patch
from envbuild.model.resolution import Resolution
from envbuild.model.target import Target
from envbuild.node.image.fetch_stage import repository
from envbuild.node.protocol import PROTOCOL
from envbuild.plan.node_steps import Inputs, environment_path
from envbuild.plan.planner import make_plan
from envbuild.provision.contact.rattler_tool import LEAST_PYTHON
from envbuild.provision.contact.toolchain import BOOTSTRAP_PYTHON
from envbuild.redact import looks_secret
from envbuild.resolve.arch import bound_arch_list
from envbuild.resolve.artifacts import Platform, fitting_file
from envbuild.resolve.compat import Compat
from envbuild.resolve.inside_image import image_tag
from envbuild.resolve.variant_checks import request_for
from envbuild.resolve.versions import numbers

NODE = "image"
RUN = "image"
CUDA_HOME = "/usr/local/cuda"
# What packages are installed by; nothing of a source is in it, so it stays the same when only a source changes.
_OF_PACKAGES = ("base", "conda", "engine", "flavour", "id", "image", "interpreter", "packages", "platform", "provided",
                "python", "torch")  # fmt: skip
_ASKED_OF_PACKAGES = ("asked", "cache", "controller", "environment", "interpreter", "profile", "stack", "tmp", "tools",
                      "wait")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Requests:
    """The requests of the verb `image`, and what the recipe needs to know of them.

    `fetch` and `packages` say nothing of sources (`sources` does, None where there are none), so layers made by them
    outlive a change of one. `indexes`: {name: {url, kind}}, which `fetch` reads from a file of its own. `runner`: the
    interpreter that runs the node program in the build stages; `python_folder`: a standalone Python.
    """

    variant: Variant
    environment: str
    fetch: dict[str, Any]
    sources: dict[str, Any] | None
    indexes: dict[str, dict[str, Any]]
    packages: dict[str, Any]
    build: dict[str, Any]
    out: str
    store: str
    runner: str
    python_folder: str | None
    variables: Mapping[str, Any]
    arch_list: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Tools:
    """Tools of the image, as the planner asks for them; they are put there by the fetch stage, not by a step."""

    uv: str
    interpreter: str | None
    tools: tuple[Any, ...] = ()
    uv_sha256: str = ""
    rattler: str | None = None
    rattler_python: str | None = None


@dataclass(frozen=True, slots=True)
class ImageInputs:
    """What an image is made from: `asked` as for the planner, `channels`: where those of conda lie.

    `slim`: without the tests of packages.
    """

    lock: Lock
    variant: Variant
    target: Target
    place: Place
    prefix: str
    compat: Compat
    patches: Mapping[str, Patch]
    asked: Collection[str]
    channels: Mapping[str, Sequence[str]]
    slim: bool = False


def make_requests(given: ImageInputs) -> Requests:
    """Requests for one variant at one place.

    The environment is named by its packages, not by the whole variant: an image has one, and a layer of packages has to
    lie where it is used. Raises EnvbuildError `image-no-file`, `interpreter-unavailable` (7).
    """
    lock, variant, place, prefix, compat = given.lock, given.variant, given.place, given.prefix, given.compat
    toolchain = load_toolchain()
    python = _standalone(variant, place, toolchain)
    folder = f"{prefix}/tools/python-{python.sha256[:12]}" if python else None
    interpreter = f"{folder}/python/bin/python3" if folder else str(place.python)
    facts = _facts(variant, place, prefix, interpreter, compat)
    request = request_for(variant, facts.pythons[0], compat, given.target)
    variant = variant.with_arch_list(lock.stack, lock.profile, bound_arch_list(facts, request, compat)).without_sizes()
    machine = variant.machine
    uv = next(each for each in toolchain.uv if each.arch == machine)
    rattler = next(each for each in toolchain.rattler if each.arch == machine) if variant.conda else None
    tools = _Tools(f"{prefix}/tools/uv-{uv.sha256[:12]}/uv", interpreter)
    if rattler is not None:
        tools = _Tools(tools.uv, None, (), "", f"{prefix}/tools/py-rattler-{rattler.sha256[:12]}", interpreter)
    out = f"{prefix}/fetched"
    steps = _planned(given, variant, facts, tools, out)
    common = {"stage": "fetch", "find_links": ["/wheelhouse"], "cache": "/var/cache/envbuild", "out": out}
    files = [_row(package, file) for package, file in _chosen(variant, place)]
    fetch = {**common, **_with_tools(files, uv, tools.uv, python, folder), "addresses": f"{prefix}/image/indexes.json"}
    if variant.conda is not None and rattler is not None:
        fetch["files"] += [_archive(each) for each in variant.conda.packages]
        fetch["files"].append(
            {"package": "py-rattler", "index": "pypi", "file": rattler.file, "sha256": rattler.sha256}
        )
        fetch["tools"].append({"file": rattler.file, "folder": tools.rattler})
    named = {file["index"] for file in fetch["files"] if "index" in file}
    sources = {**common, "files": [], "sources": [source.to_json_dict() for source in variant.sources]}
    part = _packages_part(variant)
    environment = environment_path(prefix, lock.stack, lock.profile, part["digest"])
    for step in steps:
        step["args"]["environment"] = environment
    install = steps[0]["args"]
    packages: dict[str, Any] = {"stage": "packages", "variant": part, "requests": _packages_requests(part, steps)}
    if given.slim:
        packages["slim"] = True
    if variant.sources:
        packages["builds"] = True
    install["part"] = "rest"
    build = {
        "stage": "build", "variant": f"{prefix}/image/variant.json", "requests": steps, "added": f"{prefix}/added",
    }  # fmt: skip
    return Requests(
        variant=variant,
        environment=environment,
        fetch=_request(fetch, prefix),
        sources=_request(sources, prefix) if variant.sources else None,
        indexes=_addresses(named, variant, given.channels),
        packages=_request(packages, prefix),
        build=_request(build, prefix),
        out=out,
        store=f"{prefix}/store/wheels",
        runner=interpreter,
        python_folder=folder,
        variables=steps[-1]["args"]["variables"],
        arch_list=tuple((install.get("build") or {}).get("arch_list") or ()),
    )


def _addresses(
    named: Collection[str], variant: Variant, channels: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, Any]]:
    """What `fetch` reads from a file of its own, of the indexes and channels that it needs."""
    found: dict[str, dict[str, Any]] = {
        name: {"url": each.url, "kind": each.kind}
        for name, each in load_indexes().items()
        if name in named and each.url
    }
    for name in {each.channel for each in variant.conda.packages} if variant.conda else ():
        found[f"conda:{name}"] = {"urls": list(channels.get(name, ())), "kind": "channel"}
    return found


def _archive(package: CondaPackage) -> dict[str, Any]:
    where = {"channel": package.channel, "subdir": package.subdir}
    return {"package": package.name, "file": package.file, "sha256": package.sha256, **where}


def _with_tools(
    files: list[dict[str, Any]], uv: ToolchainUv, uv_path: str, python: ToolchainPython | None, folder: str | None
) -> dict[str, Any]:
    """`files` and `tools` of the fetch: uv out of its wheel, and a standalone Python into its folder."""
    files = [*files, {"package": "uv", "index": "pypi", "file": uv.file, "sha256": uv.sha256}]
    unpack: list[dict[str, str]] = [{"file": uv.file, "member": uv.member, "path": uv_path}]
    if python is not None and folder is not None:
        files.append({"file": python.name, "sha256": python.sha256, "url": python.url})
        unpack.append({"file": python.name, "folder": folder})
    return {"files": files, "tools": unpack}


def _request(args: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {"protocol": PROTOCOL, "verb": "image", "run": RUN, "prefix": prefix, "args": args}


def _packages_part(variant: Variant) -> dict[str, Any]:
    """What of a variant decides about its packages, with a digest of that."""
    decides = {key: value for key, value in variant.contents().items() if key in _OF_PACKAGES}
    text = json.dumps(decides, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    part = {key: value for key, value in variant.to_json_dict().items() if key in _OF_PACKAGES}
    return {**part, "digest": hashlib.sha256(text.encode()).hexdigest()}


def _packages_requests(part: Mapping[str, Any], steps: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The planner's `install` as far as it is about packages, and the import of torch where there is one."""
    install, *others = steps
    args = {key: install["args"][key] for key in _ASKED_OF_PACKAGES if key in install["args"]}
    artifacts = {key: value for key, value in install["args"]["artifacts"].items() if key != "sources"}
    made = [{**install, "args": {**args, "artifacts": artifacts, "part": "packages"}}]
    return made + [step for step in others if step["verb"] == "smoke" and part.get("torch")]


def _standalone(variant: Variant, place: Place, toolchain: Toolchain) -> ToolchainPython | None:
    """The build of CPython that the environment stands on, None where the image has the interpreter."""
    if variant.interpreter.kind == "standalone":
        return toolchain.by_name(str(variant.interpreter.name))
    if variant.conda is not None and numbers(variant.python) < LEAST_PYTHON:
        # For the stages that build: it runs py-rattler, and does not get into the image.
        return toolchain.find_python(BOOTSTRAP_PYTHON, variant.machine)
    if place.python is not None:
        return None
    return toolchain.find_python(variant.python, variant.machine)


def _facts(variant: Variant, place: Place, prefix: str, interpreter: str, compat: Compat) -> NodeFacts:
    """The inside of the image as a node's facts: no GPU, its own C library and toolkit."""
    tag = image_tag(variant, compat)
    packages = {"torch": compat.images[tag].torch} if tag else None
    there = PythonFacts(path=interpreter, version=f"{variant.python}.0", packages=packages)
    glibc = ".".join(map(str, place.glibc))
    return NodeFacts(
        protocol=PROTOCOL,
        node=NODE,
        hostname=NODE,
        user="root",
        home="/root",
        probed_at="1980-01-01T00:00:00Z",
        os=OsFacts(arch=variant.machine),
        libc=LibcFacts(kind="glibc", version=glibc),
        pythons=(there,),
        nvcc=(NvccFacts(path=f"{CUDA_HOME}/bin/nvcc", version=place.cuda),) if place.cuda else (),
        prefix=DiskFacts(path=prefix, writable=True),
    )


def _planned(given: ImageInputs, variant: Variant, facts: NodeFacts, tools: _Tools, out: str) -> list[dict[str, Any]]:
    """Install, smoke and activate as the planner has them for a node that fetches nothing itself."""
    lock, target = given.lock, given.target
    _refuse_secrets({**variant.environment, **target.environment})
    # What the base brings is not known here: its digest stands for it.
    facts = facts.model_copy(update={"pythons": ()})
    inner = Target(name=target.name, prefix=given.prefix, delivery="controller", environment=target.environment)
    resolution = Resolution(
        node=NODE,
        stack=lock.stack,
        profile=lock.profile,
        variant_id=variant.id,
        variant_digest=variant.digest,
        interpreter=tools.interpreter,
        arch_list=variant.arch_list,
        nvcc=facts.nvcc[0].path if facts.nvcc and variant.arch_list is not None else None,
        decisions=(),
        candidates=(),
    )
    bundles = {}
    for source in variant.sources:
        bundles[source.name] = repository(f"{out}/sources", source.name)
        for part in source.submodules:
            name = f"{source.name}/{part.path}"
            bundles[name] = repository(f"{out}/sources", name)
    artifacts: dict[str, Any] = {"find_links": [f"{out}/wheels"], "indexes": {}, "offline": True}
    if variant.conda is not None:
        artifacts["conda"] = {"folder": f"{out}/conda"}
    inputs = Inputs(
        run=RUN, controller={}, pyz_digest="", tools={NODE: tools},
        artifacts={NODE: {**artifacts, "sources": bundles}}, patches=given.patches, asked=given.asked,
    )  # fmt: skip
    plan = make_plan(inner, lock, {NODE: facts}, {NODE: resolution}, inputs)
    steps = [dict(step.request) for step in plan.nodes[0].steps if step.request is not None]
    for step in steps:
        # The variant is a file of its own, and room is no matter of the lock that the files are made from.
        step["args"] = {key: value for key, value in step["args"].items() if key not in ("variant", "needed")}
    smoke = next(step for step in steps if step["verb"] == "smoke")
    # No GPU is there and minutes of training are not a matter of a build: `envbuild image verify` runs the others.
    smoke["args"].update(items=[item for item in smoke["args"]["items"] if item["name"] == "sound"], cuda=False)
    return [step for step in steps if step["verb"] != "smoke" or step["args"]["items"]]


def _refuse_secrets(variables: Iterable[str]) -> None:
    """Raises EnvbuildError `variable-refused` (exit 7): whoever has an image can read every variable in it."""
    names = sorted(name for name in variables if looks_secret(name))
    if names:
        raise EnvbuildError(
            "variable-refused",
            f"an image must not hold {', '.join(names)}",
            why="the name looks like that of a secret, and everybody who has the image can read its variables",
            hint=f"remove it from the target; set it when the image runs: `docker run -e {names[0]} IMAGE`",
        )


def _chosen(variant: Variant, place: Place) -> list[tuple[LockedPackage, ArtifactFile]]:
    platform = Platform(variant.python, variant.machine, place.glibc)
    found = []
    for package in variant.packages:
        file = fitting_file(package, platform)
        if file is None:
            raise EnvbuildError(
                "image-no-file",
                f"no file of {package.name} {package.version} fits glibc {'.'.join(map(str, place.glibc))}",
                why=f"the lock has {', '.join(file.file for file in package.files)[:300]}",
                hint="choose a newer base with `--base` and say its `--glibc`",
            )
        found.append((package, file))
    return found


def _row(package: LockedPackage, file: ArtifactFile) -> dict[str, Any]:
    return {"package": package.name, "index": package.index, "file": file.file, "sha256": file.sha256}
