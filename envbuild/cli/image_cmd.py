"""`envbuild image`: dockerfile, build, verify, pods."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envbuild.cli import choose, names
from envbuild.cli.output import Ui, common_options
from envbuild.cli.verbs import Group
from envbuild.container.builders import find_builder
from envbuild.errors import ExitCode, writing

if TYPE_CHECKING:
    from envbuild.container.builders import Builder
    from envbuild.container.recipe import ImageRecipe


def _program(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    from envbuild.model.target import program_path

    try:
        return program_path(value) if value is not None else None
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


recipe_options = choose.options(
    choose.profile_option,
    choose.variant_option,
    choose.target_name,
    click.option("--base-image", "base", metavar="IMAGE", help="Build and run on this image."),
    click.option("--run-image", "runtime", metavar="IMAGE", help="Run on this image."),
    click.option("--fetch-image", "fetch", metavar="IMAGE", help="Fetch with this image (Python 3.8 or newer, git)."),
    click.option(
        "--python",
        metavar="PATH",
        callback=_program,
        help="Interpreter in the base image (default: add a standalone build).",
    ),
    click.option("--glibc", metavar="VERSION", help="glibc version of the base image, which decides between wheels."),
)
_builder = click.option(
    "--builder", type=click.Choice(["buildah", "podman", "docker"]), help="Build with this program."
)


@click.group("image", cls=Group)
def image() -> None:
    """Images: the environment of a stack as a container image, from its lock."""


def _recipe(stack: str, flags: dict[str, Any], ui: Ui | None = None) -> ImageRecipe:
    """The recipe that was chosen; its warnings are told where there is a `ui`."""
    from envbuild.container.base_images import Given
    from envbuild.container.select import recipe_for

    given = Given(**{name: flags[name] for name in ("base", "runtime", "fetch", "python", "glibc")})
    recipe = recipe_for(stack, flags["profile"], flags["variant"], flags["target"], given)
    if ui is not None:
        for text in recipe.warnings:
            ui.warn(text)
    return recipe


@image.command("dockerfile")
@click.argument("stacks", metavar="[STACK]...", nargs=-1, shell_complete=names.stacks)
@recipe_options
@choose.output_option("Write the whole build context to this folder.", folder=True)
@click.option("--check", is_flag=True, help="Write nothing; exit 1 with a diff where files differ from the lock.")
@common_options
def dockerfile(ui: Ui, /, stacks: tuple[str, ...], output: Path | None, check: bool, **flags: Any) -> int:
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
    rows = [_dockerfile(recipe, output, check=check, write=write) for recipe in recipes]
    differ = any(row.get("diff") for row in rows)
    ui.result({"ok": not differ, "images": rows}, lambda: _shown(rows, check=check))
    return ExitCode.CHECK_FAILED if differ else ExitCode.OK


def _dockerfile(recipe: ImageRecipe, output: Path | None, *, check: bool, write: bool) -> dict[str, Any]:
    """One image: compared, written or as text."""
    from envbuild.container import build, select

    folder = output or select.committed(recipe.stack)
    row: dict[str, Any] = {"stack": recipe.stack, "profile": recipe.profile, "variant": recipe.variant.id}
    row |= {"warnings": list(recipe.warnings), "folder": str(folder)}
    texts = build.texts(recipe)
    if check:
        row["diff"] = build.compare(folder, texts)
    elif write:
        row["changed"] = build.write(folder, texts)
    else:
        row |= {"text": texts[build.DOCKERFILE], "folder": None}
    return row


def _shown(rows: list[dict[str, Any]], *, check: bool) -> str:
    parts = []
    for row in rows:
        if "text" in row:
            parts.append(row["text"])
        elif check:
            parts.append(row["diff"] or f"{row['stack']}: {row['folder']} is what the lock gives\n")
        else:
            outcome = f"wrote {', '.join(row['changed'])}" if row["changed"] else "unchanged"
            parts.append(f"{row['stack']}: {outcome} ({row['folder']})\n")
    return "".join(parts)


@image.command("build")
@choose.stack_argument(required=True)
@recipe_options
@click.option("--tag", metavar="NAME", help="Name of the image (default: localhost/envbuild/STACK:PROFILE-DIGEST).")
@click.option(
    "--wheelhouse", "wheelhouses", multiple=True, type=choose.THERE, metavar="BUNDLE|DIR",
    help="A bundle, or a folder with wheels and git bundles, to use instead of fetching; repeatable.",
)  # fmt: skip
@click.option(
    "--gitconfig",
    type=choose.FILE_THERE,
    help="git's configuration in the build (mirrors by insteadOf); a build secret.",
)
@click.option("--no-cache", is_flag=True, help="Use no layer of an earlier build.")
@click.option("--verify", "verified", is_flag=True, help="Then verify and smoke-test the image, in a container.")
@click.option("--push", metavar="REF", help="Push the image to this reference.")
@click.option("--insecure", is_flag=True, help="The registry of --push has no TLS.")
@_builder
@common_options
def build(
    ui: Ui, /, stack: str, tag: str | None, wheelhouses: tuple[Path, ...], gitconfig: Path | None, no_cache: bool,
    verified: bool, push: str | None, insecure: bool, builder: str | None, **flags: Any,
) -> int:  # fmt: skip
    """Build the image of STACK from its Dockerfile.

    Passes this machine's mirrors and credentials to the build as secrets.
    """
    from envbuild.container.build import Options, build_image

    recipe, with_ = _recipe(stack, flags, ui), find_builder(builder, builds=True)
    ui.note(f"building {recipe.stack}, profile {recipe.profile}, with {with_.name}")
    asked = Options(
        wheelhouses=wheelhouses, tag=tag, cache=not no_cache, gitconfig=gitconfig,
        on_line=ui.note if ui.verbose else None,
    )  # fmt: skip
    made = build_image(recipe, with_, asked)
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
    last = _verified(made["verified"]) if made.get("verified") else hint
    return f"{made['image']}\nid {made['id']}\n{last}\n"


def _look_into(
    with_: Builder, name: str, stack: str | None, *, smoke: bool, gpus: bool = False
) -> tuple[dict[str, Any], ExitCode]:
    """What `verify` finds in an image, and where that is well and asked for the smoke test; with the exit code."""
    from envbuild.container.verify_image import inspect_image, smoke_image, verify_image

    image = inspect_image(with_, name, stack)
    answer = verify_image(with_, image)
    if not (smoke and answer["ok"]):
        return answer, ExitCode.OK if answer["ok"] else ExitCode.CHECK_FAILED
    tested = smoke_image(with_, image, gpus=gpus)
    smoked = {key: tested[key] for key in ("ok", "checks")}
    return {**answer, "ok": tested["ok"], "smoke": smoked}, ExitCode(tested["exit"])


@image.command("verify")
@click.argument("name", metavar="IMAGE")
@click.option(
    "-s",
    "--stack",
    metavar="STACK",
    shell_complete=names.stacks,
    help="Your stack file, if the stack is not a shipped one.",
)
@click.option("--smoke", is_flag=True, help="Run the smoke test of the lock too.")
@click.option("--with-gpus", "gpus", is_flag=True, help="Give the container the GPUs of this machine.")
@click.option("--junit", type=choose.FILE, help="Also write the checks to this file as JUnit XML.")
@_builder
@common_options
def verify(
    ui: Ui, /, name: str, stack: str | None, smoke: bool, gpus: bool, junit: Path | None, builder: str | None
) -> int:
    """Compare the environment in IMAGE with its lock.

    Starts a container of it. Compares packages with the lock and every file with its RECORD, and measures the root.
    """
    from envbuild.container.verify_image import as_junit

    answer, code = _look_into(find_builder(builder), name, stack, smoke=smoke, gpus=gpus)
    if junit is not None:
        with writing(junit):
            junit.write_text(as_junit(name, answer), encoding="utf-8")
    ui.result(answer, lambda: _verified(answer))
    return code


def _verified(answer: dict[str, Any]) -> str:
    checks = [*answer["checks"], *answer.get("smoke", {}).get("checks", [])]
    lines = [f"{check['status']:<8} {check['name']}: {check['says']}" for check in checks]
    lines += [f"{drift['kind']:<8} {drift['path']}" for drift in answer["drift"]]
    good = f"as locked, root {answer['root']}" if answer["ok"] else "not as it should be"
    return "\n".join([f"{answer['image']}: {good}", *lines])


@image.command("pods")
@click.argument("stack", shell_complete=names.stacks)
@recipe_options
@click.option("--image", "reference", required=True, metavar="IMAGE", help="Image reference that the cluster can pull.")
@click.option("--name", metavar="NAME", help="Name of the run, its service and pods (default: the stack's).")
@click.option(
    "--kind", type=click.Choice(["job", "jobset", "pytorchjob"]), help="A Job of Kubernetes, or of an operator."
)
@click.option("--namespace", metavar="NAME", help="Namespace (default: that of kubectl).")
@click.option(
    "--nodes",
    type=choose.Count(min=1),
    help="Number of pods, each on its own node (default: the document's, else 1).",
)
@click.option(
    "--gpus-per-node", "gpus", type=choose.Count(min=0), help="GPUs of a pod (default: the document's or target's)."
)
@click.option(
    "--gpu-product", metavar="LABEL", help="Label nvidia.com/gpu.product of the nodes (default: of the target's GPU)."
)
@click.option("--cpus", type=choose.Count(min=1), help="CPUs of a pod.")
@click.option("--memory", metavar="SIZE", help="Memory of a pod, with /dev/shm: 200Gi.")
@click.option("--rdma", metavar="RESOURCE", help="The cluster's resource of an InfiniBand device.")
@click.option("--home", metavar="CLAIM", help="Existing volume claim for home and results (default: a new one).")
@click.option("--data", metavar="CLAIM", help="Existing volume claim for /data (default: a new one).")
@click.option("--node-selector", multiple=True, metavar="KEY=VALUE", help="Label that nodes must have. Repeatable.")
@click.option(
    "--toleration", "tolerations", multiple=True, metavar="KEY[=VALUE][:EFFECT]", help="Taint to tolerate. Repeatable."
)
@click.option("--pull-secret", metavar="NAME", help="Secret with the login of the image's registry.")
@choose.pairs_option("--env", "environment", metavar="NAME=VALUE", help_="A variable, as NCCL_DEBUG=INFO. Repeatable.")
@choose.pairs_option("--set", "settings", help_="A parameter of the stack's run. Repeatable.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@common_options
def pods(ui: Ui, /, stack: str, command: tuple[str, ...], settings: dict[str, str], **flags: Any) -> None:
    """Print STACK's own run as pods of Kubernetes. No cluster has run them.

    Or runs COMMAND (after `--`). Each pod starts it once the master's port answers, with NODE_RANK, NNODES,
    GPUS_PER_NODE, MASTER_ADDR and MASTER_PORT.
    """
    from envbuild.catalog.loader import load_stack
    from envbuild.container import pods as made
    from envbuild.container.base_images import load_containers
    from envbuild.container.select import image_target
    from envbuild.launch.recipes import launch
    from envbuild.launch.request import Place

    if command and settings:
        raise click.UsageError("--set is for the stack's own run: leave it out with COMMAND")
    recipe, known = _recipe(stack, flags), load_containers().stacks.get(stack)
    expects = image_target(flags["target"], known).expects
    document = known.pods if known else None
    gpus = flags["gpus"] if flags["gpus"] is not None else expects.gpus_per_node
    if gpus is None and document is None and recipe.variant.flavour != "cpu":
        raise click.UsageError("--gpus-per-node is needed: the target does not say it")
    own = ("kind", "namespace", "nodes", "gpu_product", "cpus", "memory", "rdma", "home", "data", "node_selector",
           "tolerations", "pull_secret", "environment")  # fmt: skip
    request = made.pod_request(
        document,
        image=flags["reference"],
        name=recipe.stack if flags["name"] is None else flags["name"],
        gpus=gpus,
        gpu_names=made.gpu_names(expects.gpu),
        **{name: flags[name] for name in own},
    )
    run = None
    if not command:
        place = Place(
            nodes=request.nodes,
            gpus_per_node=max(request.gpus, 1),
            environment=recipe.environment,
            direct=True,
            output=request.output,
            master=request.master,
            port=request.port,
            job=request.name,
            data=made.DATA,
        )
        run = launch(load_stack(stack).stack, recipe.profile, settings, place)
        command = made.launch_words(run, request.output)
    documents = made.manifests(recipe, request, command)
    text = made.render(documents, recipe, run)
    ui.result({"ok": True, "documents": documents, "text": text}, lambda: text, verbatim=True)
