"""`envbuild image`: dockerfile, build, verify, pods."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envbuild.cli import names
from envbuild.cli.choose import options, output_option, profile_option, stack_argument, target_name, variant_option
from envbuild.cli.output import Ui, common_options
from envbuild.cli.verbs import Group
from envbuild.errors import EnvbuildError, ExitCode, writing

if TYPE_CHECKING:
    from envbuild.container.builders import Builder
    from envbuild.container.recipe import ImageRecipe


def _program(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    from envbuild.model.target import program_path

    try:
        return program_path(value) if value is not None else None
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


recipe_options = options(
    profile_option,
    variant_option,
    target_name,
    click.option("--base-image", "base", metavar="IMAGE", help="Build and run on this image."),
    click.option("--run-image", "runtime", metavar="IMAGE", help="Run on this image."),
    click.option("--fetch-image", "fetch", metavar="IMAGE", help="Fetch with this image (Python 3.8 or newer, git)."),
    click.option(
        "--python",
        metavar="PATH",
        callback=_program,
        help="The interpreter in the base; else a standalone build goes in.",
    ),
    click.option("--glibc", metavar="VERSION", help="The glibc of the base, which decides between wheels."),
)
_builder = click.option("--builder", type=click.Choice(["buildah", "podman", "docker"]), help="Use this program.")


@click.group("image", cls=Group)
def image() -> None:
    """Images: the environment of a stack as a container image, from its lock."""


def _recipe(stack: str, flags: dict[str, Any], ui: Ui | None = None) -> ImageRecipe:
    """The recipe that was chosen; its warnings are told where there is a `ui`."""
    from envbuild.container.base_images import Given
    from envbuild.container.select import Choice, recipe_for

    given = Given(**{name: flags[name] for name in ("base", "runtime", "fetch", "python", "glibc")})
    recipe = recipe_for(Choice(stack, flags["profile"], flags["variant"], flags["target"], given))
    if ui is not None:
        for text in recipe.warnings:
            ui.warn(text)
    return recipe


@image.command("dockerfile")
@click.argument("stacks", metavar="[STACK]...", nargs=-1, shell_complete=names.stacks)
@recipe_options
@click.option("--apptainer", is_flag=True, help="The same as a definition of Apptainer.")
@output_option("Write the whole build context there.", folder=True)
@click.option("--check", is_flag=True, help="Write nothing; exit 1 with a diff where files differ from the lock.")
@common_options
def dockerfile(
    ui: Ui, /, stacks: tuple[str, ...], apptainer: bool, output: Path | None, check: bool, **flags: Any
) -> int:
    """Print the Dockerfile of STACK, or write it and its context.

    Without STACK, all shipped stacks: their files in `containers/` are written, or checked with `--check`.
    """
    from envbuild.container import select

    every = not stacks
    names = stacks or select.shipped()
    if len(names) > 1 and output is not None:
        raise click.UsageError("--output wants one STACK")
    if every and not check and not select.in_checkout():
        raise click.UsageError("name a STACK; without one the files of a checkout are written")
    recipes = [_recipe(name, flags, None if check or every else ui) for name in names]
    write = output is not None or every
    rows = [_dockerfile(recipe, output, apptainer=apptainer, check=check, write=write) for recipe in recipes]
    differ = any(row.get("diff") for row in rows)
    ui.result({"ok": not differ, "images": rows}, lambda: _shown(rows, check=check))
    return ExitCode.CHECK_FAILED if differ else ExitCode.OK


def _dockerfile(
    recipe: ImageRecipe, output: Path | None, *, apptainer: bool, check: bool, write: bool
) -> dict[str, Any]:
    """One image: compared, written or as text."""
    from envbuild.container import apptainer as definition
    from envbuild.container import build, select

    folder = output or select.committed(recipe.stack)
    row: dict[str, Any] = {"stack": recipe.stack, "profile": recipe.profile, "variant": recipe.variant.id}
    row |= {"warnings": list(recipe.warnings), "folder": str(folder)}
    texts = build.texts(recipe)
    if apptainer:
        texts |= {definition.FILE: definition.render(recipe)}
    if check:
        row["diff"] = build.compare(folder, texts)
    elif write:
        row["changed"] = build.write(folder, texts)
    else:
        row |= {"text": texts[definition.FILE if apptainer else build.DOCKERFILE], "folder": None}
    return row


def _shown(rows: list[dict[str, Any]], *, check: bool) -> str:
    parts = []
    for row in rows:
        if "text" in row:
            parts.append(row["text"])
        elif check:
            parts.append(row["diff"] or f"{row['stack']}: {row['folder']} is what the lock gives\n")
        else:
            said = f"wrote {', '.join(row['changed'])}" if row["changed"] else "unchanged"
            parts.append(f"{row['stack']}: {said} ({row['folder']})\n")
    return "".join(parts)


@image.command("build")
@stack_argument(required=True)
@recipe_options
@click.option("--tag", metavar="NAME", help="Name of the image (default: localhost/envbuild/STACK:PROFILE-DIGEST).")
@click.option(
    "--wheelhouse", "wheelhouses", multiple=True, type=click.Path(path_type=Path, exists=True), metavar="BUNDLE|DIR",
    help="A bundle, or a folder with wheels and git bundles, that need not be fetched; repeatable.",
)  # fmt: skip
@click.option(
    "--gitconfig", type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="git's configuration in the build (mirrors by insteadOf); a build secret.",
)  # fmt: skip
@click.option("--no-cache", is_flag=True, help="Use no layer of an earlier build.")
@click.option("--verify", "verified", is_flag=True, help="Then verify and smoke-test it, in a container.")
@click.option("--push", metavar="REF", help="Push the image to this reference.")
@click.option("--insecure", is_flag=True, help="The registry of --push has no TLS.")
@_builder
@common_options
def build(
    ui: Ui, /, stack: str, tag: str | None, wheelhouses: tuple[Path, ...], gitconfig: Path | None, no_cache: bool,
    verified: bool, push: str | None, insecure: bool, builder: str | None, **flags: Any,
) -> int:  # fmt: skip
    """Build the image of STACK from its Dockerfile.

    This machine's mirrors and credentials are given to the build as secrets.
    """
    from envbuild.container.build import Options, build_image
    from envbuild.container.builders import find_builder

    recipe, with_ = _recipe(stack, flags, ui), find_builder(builder, builds=True)
    ui.note(f"building {recipe.stack}, profile {recipe.profile}, with {with_.name}")
    options = Options(
        wheelhouses=wheelhouses, tag=tag, cache=not no_cache, gitconfig=gitconfig,
        on_line=ui.note if ui.verbose else None,
    )  # fmt: skip
    made = build_image(recipe, with_, options)
    code = ExitCode.OK
    if verified:
        made["verified"], code = _look_into(with_, made["image"], stack, smoke=True)
    if push and code == ExitCode.OK:
        with_.push(made["image"], push, insecure=insecure)
        made["pushed"] = push
    ui.result({"ok": code == ExitCode.OK, **made}, lambda: _built(made))
    return code


def _built(made: dict[str, Any]) -> str:
    hint = f"`envbuild image verify {made['image']}` compares it with the lock"
    said = _verified(made["verified"]) if made.get("verified") else hint
    return f"{made['image']}\nid {made['id']}\n{said}\n"


def _look_into(
    with_: Builder, name: str, stack: str | None, *, smoke: bool, gpus: bool = False
) -> tuple[dict[str, Any], ExitCode]:
    """What `verify` finds in an image, and where that is well and asked for the smoke test; with the exit code."""
    from envbuild.container.verify_image import inspect_image, smoke_image, verify_image

    image = inspect_image(with_, name, stack)
    found = verify_image(with_, image)
    if not (smoke and found["ok"]):
        return found, ExitCode.OK if found["ok"] else ExitCode.CHECK_FAILED
    tested = smoke_image(with_, image, gpus=gpus)
    smoked = {key: tested[key] for key in ("ok", "checks")}
    return {**found, "ok": tested["ok"], "smoke": smoked}, ExitCode(tested["exit"])


@image.command("verify")
@click.argument("name", metavar="IMAGE")
@click.option(
    "-s", "--stack", metavar="STACK", shell_complete=names.stacks, help="Its stack, where that is a file of yours."
)
@click.option("--smoke", is_flag=True, help="Run the smoke test of the lock too.")
@click.option("--with-gpus", "gpus", is_flag=True, help="Give the container the GPUs of this machine.")
@click.option("--junit", type=click.Path(path_type=Path, dir_okay=False), help="Write the checks as JUnit there, too.")
@_builder
@common_options
def verify(
    ui: Ui, /, name: str, stack: str | None, smoke: bool, gpus: bool, junit: Path | None, builder: str | None
) -> int:
    """Compare the environment in IMAGE with its lock.

    In a container of it. Packages are compared with the lock, every file with its RECORD, and the root is measured.
    """
    from envbuild.container.builders import find_builder
    from envbuild.container.verify_image import as_junit

    found, code = _look_into(find_builder(builder), name, stack, smoke=smoke, gpus=gpus)
    if junit is not None:
        with writing(junit):
            junit.write_text(as_junit(name, found), encoding="utf-8")
    ui.result(found, lambda: _verified(found))
    return code


def _verified(found: dict[str, Any]) -> str:
    checks = [*found["checks"], *found.get("smoke", {}).get("checks", [])]
    lines = [f"{check['status']:<8} {check['name']}: {check['says']}" for check in checks]
    lines += [f"{each['kind']:<8} {each['path']}" for each in found["drift"]]
    good = f"as locked, root {found['root']}" if found["ok"] else "not as it should be"
    return "\n".join([f"{found['image']}: {good}", *lines])


@image.command("pods")
@click.argument("stack", shell_complete=names.stacks)
@recipe_options
@click.option("--image", "reference", required=True, metavar="IMAGE", help="The image, where the cluster can pull it.")
@click.option("--name", metavar="NAME", help="Name of the service and the pods (default: the stack's).")
@click.option("--rdma", metavar="RESOURCE", help="The cluster's resource of an InfiniBand device.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@common_options
def pods(
    ui: Ui, /, stack: str, reference: str, name: str | None, rdma: str | None, command: tuple[str, ...], **flags: Any
) -> None:
    """Print the pods of STACK for Kubernetes.

    Each runs COMMAND (after `--`) once the master's port answers. COMMAND sees NODE_RANK, NNODES, GPUS_PER_NODE,
    MASTER_ADDR and MASTER_PORT; without one the pods wait for you.
    """
    from envbuild.container import pods as made
    from envbuild.container.base_images import load_containers

    recipe = _recipe(stack, flags)
    known = load_containers().stacks.get(recipe.stack)
    if known is None or known.pods is None:
        with_pods = [each for each, about in load_containers().stacks.items() if about.pods is not None]
        raise EnvbuildError(
            "pods-unknown", f"the document of {recipe.stack} runs in no pods", hint=f"there are pods of {with_pods[0]}"
        )
    argv = command or ("sleep", "infinity")
    documents = made.manifests(recipe, known.pods, image=reference, name=name or recipe.stack, command=argv, rdma=rdma)
    text = made.render(documents, recipe)
    ui.result({"ok": True, "documents": documents, "text": text}, lambda: text, verbatim=True)
