"""The stages of a recipe that have a network, of which nothing stays: `tools` (uv, a Python) and `sources`. Pure.

No line of a source is in the context: an edit of ours is a pattern, made by the patch program, and the tree after it is
compared. The stage WHEELHOUSE is empty, or the folder of a bundle that is given to a build.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator

from envbuild import resources
from envbuild.catalog.patches import load_patch, patches_of_variant
from envbuild.container.base_images import Place
from envbuild.container.inside import Inside
from envbuild.container.instructions import comment, copy, run, workdir
from envbuild.export import steps
from envbuild.model.lock import LockedSource, Variant
from envbuild.plan.source_builds import bundle_name, bundles, patch_specs, python_name

UV = "requirements-uv.txt"
WHEELHOUSE = "wheelhouse"
WHEELHOUSE_MOUNT = f"type=bind,from={WHEELHOUSE},target=/{WHEELHOUSE}"
_SECRET = "type=secret,id={},target={}"  # noqa: S105 - the words of a mount
# Where Debian and Ubuntu have the certificates, so that pip, uv, git and curl read them without a word.
SECRETS = (
    _SECRET.format("netrc", "/root/.netrc"),
    _SECRET.format("certificates", "/etc/ssl/certs/ca-certificates.crt"),
)
_PIP = _SECRET.format("pip.conf", "/etc/pip.conf")
UV_TOML = _SECRET.format("uv.toml", "/etc/uv/uv.toml")
_GITCONFIG = _SECRET.format("gitconfig", "/root/.gitconfig")
_PATCHES = "patches"
_PROGRAM = "patch.py"


def wheelhouse() -> Iterator[str]:
    """The folders of a bundle that pip and uv look into, which they want to be there."""
    yield from workdir("/tools")
    yield from workdir("/wheels")


def tools(inside: Inside, *, archives: bool) -> Iterator[str]:
    """uv, and a Python where the images lack it; `archives`: source archives are among the packages."""
    yield from comment(f"uv creates the environment and installs packages. {UV} has its version and sha256.")
    yield from copy((UV,), "/")
    gitconfig = ", gitconfig for git" * bool(inside.variant.sources)
    seen = " While uv builds a source archive (sdist), its setup.py can read them." * archives
    yield from comment(
        f"Optional secrets, here and below (`--secret id=netrc,src=FILE`): pip.conf and uv.toml for index "
        f"mirrors{gitconfig}, netrc for credentials, certificates for a company's network. No layer keeps them.{seen}"
    )
    words = f"pip install --no-cache-dir --no-deps --require-hashes --find-links /{WHEELHOUSE}/tools"
    yield from run((f"{words} -r /{UV}",), (WHEELHOUSE_MOUNT, _PIP, *SECRETS))
    folder, build = inside.python_folder, inside.python_build
    if folder is None or build is None:
        return
    yield from comment(
        f"The images below lack Python {inside.variant.python}. This is CPython of python-build-standalone. The folder "
        "name has the first digits of its sha256."
    )
    here = f"/{WHEELHOUSE}/tools/{shlex.quote(python_name(build.name, build.sha256))}"
    yield from run(
        (
            f"{{ cp {here} /python.tar.gz 2> /dev/null || curl -fsSL -o /python.tar.gz {shlex.quote(build.url)}; }}",
            f"echo '{build.sha256}  /python.tar.gz' > /python.sha256",
            "sha256sum -c /python.sha256",
            f"mkdir -p {folder}",
            f"tar -xzf /python.tar.gz -C {folder}",
            "rm /python.*",
        ),
        (WHEELHOUSE_MOUNT, *SECRETS),
    )


def sources(inside: Inside, place: Place) -> Iterator[str]:
    """Each source, edited where it is."""
    yield from comment(
        "Each source is one commit, fetched from its repository or from a git bundle in the wheelhouse. `test` "
        "compares its tree (git's hash over all files) with the locked one, and again after the edits. .git is "
        "removed, because two fetches differ in it."
    )
    if any(source.patches for source in inside.variant.sources):
        yield from comment(f"The program in {_PATCHES} makes the edits that are described below.")
        yield from copy((_PATCHES,), f"/{_PATCHES}")
    for source in inside.variant.sources:
        yield from _source(source, inside, place)


def _source(source: LockedSource, inside: Inside, place: Place) -> Iterator[str]:
    top, mounts = f"/src/{source.name}", (WHEELHOUSE_MOUNT, _GITCONFIG, *SECRETS)
    after, names = source.patched_tree, bundles(inside.variant)
    for tree in steps.trees(source):
        branch = f" (branch or tag {source.ref})" if source.ref else ""
        below = f"{tree.path.rpartition('/')[2]}, a submodule within {source.name}"
        yield from comment(below if tree.path else f"{source.name}{branch}")
        if source.patches and not tree.path:
            yield from _about_patches(source, place.same_cuda)
        yield from workdir(f"{top}/{tree.path}" if tree.path else top)
        bundle = f"/{WHEELHOUSE}/sources/{shlex.quote(bundle_name(tree.name, names[tree.name]))}"
        commands = [
            "git init --quiet",
            f"echo {tree.commit} > .git/shallow",  # a git bundle has no history
            f"{{ git fetch --quiet {bundle} '+refs/*:refs/bundle/*' 2> /dev/null"
            f" || git fetch --quiet --depth 1 {shlex.quote(tree.git)} {tree.commit}; }}",
            f"git checkout --quiet {tree.commit}",
            f"test \"$(git rev-parse 'HEAD^{{tree}}')\" = {tree.tree}",
        ]
        if after and not tree.path:
            commands += [_edit_command(source), "git add --update", f'test "$(git write-tree)" = {after}']
        yield from run((*commands, "rm -rf .git"), mounts)
    if source.patches and not after:
        yield from comment("The tree after the edits is not recorded, so it is not compared.")
        if source.submodules:
            yield from workdir(top)
        yield from run((_edit_command(source),))


def _about_patches(source: LockedSource, same: str | None) -> Iterator[str]:
    """What the edits of a source are for, and where the data say so that one changes nothing in this image."""
    for name in source.patches:
        patch = load_patch(name)
        files = ", ".join(patch.files)
        idle = f" In this image nvcc and torch both have CUDA {same}, so the edit has no effect."
        changes_nothing = same is not None and patch.idle == "same-cuda"
        yield from comment(f"Edit {name}, in {files}: {patch.summary}. {patch.why}{idle * changes_nothing}")


def _edit_command(source: LockedSource) -> str:
    """The command, in the folder of the source, that makes its edits or fails."""
    return f"python3 /{_PATCHES}/{_PROGRAM} /{_PATCHES}/{source.name}.json ."


def edit_files(variant: Variant) -> dict[str, str]:
    """Name in the context -> text of what edits need: the patch program and its input; empty where none is made."""
    specs = patch_specs(variant, patches_of_variant(variant))
    edits = {
        f"{_PATCHES}/{name}.json": json.dumps(patches, indent=1, sort_keys=True) + "\n"
        for name, patches in specs.items()
    }
    program = resources.node_package() / "build" / _PROGRAM
    return {f"{_PATCHES}/{_PROGRAM}": program.read_text(encoding="utf-8"), **edits} if edits else {}
