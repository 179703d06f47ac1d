"""The exact text of Dockerfiles, and values that need care."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from envbuild import resources
from envbuild.catalog.indexes import load_indexes
from envbuild.catalog.loader import load_target
from envbuild.catalog.patches import load_patch
from envbuild.container import build, select
from envbuild.container.base_images import Given, Place, load_containers
from envbuild.container.inside import ImageInputs
from envbuild.container.instructions import Stage, comment, copy, env, labels, prepend_path, quoted, run, workdir
from envbuild.container.recipe import _EMPTY, ImageRecipe, make_recipe, render
from envbuild.container.runtime_stage import USER, owned
from envbuild.container.select import locked_stack, recipe_for, shipped
from envbuild.lock.files import read_lock
from envbuild.model.lock import Lock, Variant
from envbuild.resolve.compat_read import load_compat
from tests.support.fails import fails
from tests.support.programs import completed, executable

DIGEST = "4" * 64


@pytest.fixture(scope="module")
def recipes() -> dict[str, ImageRecipe]:
    return {name: recipe_for(name) for name in shipped()}


@pytest.mark.parametrize("name", shipped())
def test_committed_files_name_no_host_of_a_package_index_and_hadolint_has_nothing_to_say(
    name: str, recipes: dict[str, ImageRecipe]
) -> None:
    pip = pytest.importorskip("pip._internal.models.index")
    hosts = {str(urlsplit(entry.url).hostname) for entry in load_indexes().values() if entry.url}
    hosts |= {pip.PyPI.netloc, pip.PyPI.file_storage_domain}
    assert len(hosts) > 2
    for text in build.texts(recipes[name]).values():
        assert not [host for host in hosts if host in text]
    program = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    if program is None:
        pytest.skip("hadolint is not installed")
    done = completed([program, str(resources.containers() / name / "Dockerfile")])
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("name", shipped())
def test_it_has_the_packages_sources_and_edits_of_the_lock_and_nothing_of_envbuild(
    name: str, recipes: dict[str, ImageRecipe]
) -> None:
    variant, made = recipes[name].variant, recipes[name]
    text = render(made)
    asked = "".join(body for file, body in made.files.items() if file.startswith("requirements"))
    for package in variant.packages:
        assert f"{package.name}=={package.version} " in asked
        assert all(file.sha256 in asked for file in package.files)
    assert "--require-hashes" in text and "<<" not in text
    for source in variant.sources:
        for pin in (source, *source.submodules):
            assert pin.commit in text and f"= {pin.tree}" in text
        edited = re.search(rf"/patches/patch.py /patches/{source.name}.json .*\n.*\n.*write-tree\)\" = (.*) ", text)
        assert (edited is not None) == bool(source.patches), "of every shipped one the tree after it is recorded"
        flags = source.build.flags if source.build else ()
        assert all(f"--{flag}" in text for flag in flags)
    for arch in variant.arch_list or ():
        assert arch in text
    builds, _, runs = text.partition(" AS runtime")
    for variable, value in variant.environment.items():
        assert not isinstance(value, str) or f"{variable}=" in runs
        assert not variable.startswith(("NCCL_", "UCX_", "OMPI_")) or variable not in builds
    commands = [line for line in text.splitlines() if not line.startswith(("#", "LABEL", "    dev.envbuild."))]
    assert not [line for line in commands if re.search(r"(?<![/.\w-])envbuild(?![:/'-]|-source)", line)]
    assert ".pyz" not in text and "ENTRYPOINT" not in text


def recipe_of(variant: Variant) -> ImageRecipe:
    """The recipe of a variant of `torch-smoke` on images of this machine."""
    lock, prefix = locked_stack("torch-smoke").lock, load_containers().prefix
    place = Place("localhost/f", "localhost/b", "localhost/r", "/usr/bin/python3.11", (2, 36))
    return make_recipe(ImageInputs(lock, variant, load_target("local").target, place, prefix, load_compat()), {})


def commands_of(lines: Iterable[str]) -> list[str]:
    """The shell commands of RUN lines."""
    whole = "\n".join(lines).replace(" \\\n", " ").splitlines()
    runs = (re.sub(r"RUN(\s+--mount=\S+)*\s+", "", line) for line in whole if line.startswith("RUN "))
    return [command for line in runs for command in re.split(r"\s+&& ", line)]


def test_the_text_of_every_kind_of_instruction() -> None:
    stages = (
        Stage("wheelhouse", "scratch", None, ()),
        Stage(
            "fetch", "registry.example.org/base:1", DIGEST,
            (*copy(("a", "b"), "/x/"), *run(("true",), ("type=cache,target=/c",))),
        ),
        Stage("packages", "base:2", None, (*comment("why " * 40), *workdir("/y"), *copy(("/x",), "/x", "fetch"))),
        Stage("build", "base:2", None, tuple(run(("two",), ("type=cache,target=/d",))), above="packages"),
        Stage(
            "runtime", "localhost/base", None,
            (
                *run(("one", "two 'a && b'"), ignore=("DL3008",)), *env({"V": 'a "b" $c \\'}), *env({}),
                *prepend_path("b$n:/x/bin"), *labels({"l": 'a "b" $c \\'}, {"created": "CREATED"}),
            ),
        ),
    )  # fmt: skip
    recipe = recipe_for("torch-smoke")
    made = replace(recipe, stack="s", stages=stages, notes=("A note.",))
    lines = render(made).splitlines()
    head = " ".join(line.removeprefix("# ") for line in lines[: lines.index("# A note.")])
    assert head.startswith("s: Python 3.11, 10 packages, torch ")
    assert "`envbuild image dockerfile s`, which overwrites your edits" in head
    assert head.endswith(f"for s: profile exact, variant {recipe.variant.id}, `digest` {recipe.variant.digest}.")
    assert lines[lines.index("# A note.") :] == [
        "# A note.",
        "",
        _EMPTY,
        "FROM scratch AS wheelhouse",
        "",
        f"# digest: sha256:{DIGEST}",
        f"FROM registry.example.org/base:1@sha256:{DIGEST} AS fetch",
        "COPY a b /x/",
        "RUN --mount=type=cache,target=/c true",
        "",
        "# The digest is not recorded: a later build may get another image under this tag.",
        "FROM base:2 AS packages",
        "# " + " ".join(["why"] * 29),
        "# " + " ".join(["why"] * 11),
        "WORKDIR /y",
        "COPY --from=fetch /x /x",
        "",
        "FROM packages AS build",
        "RUN --mount=type=cache,target=/d two",
        "",
        "FROM localhost/base AS runtime",
        "# hadolint ignore=DL3008",
        "RUN one && two 'a && b'",
        'ENV V="a \\"b\\" \\$c \\\\"',
        'ENV PATH="$VIRTUAL_ENV/b\\$n:/x/bin:$PATH"',
        'LABEL l="a \\"b\\" \\$c \\\\" created="${CREATED}"',
    ]


@pytest.mark.parametrize("value", ["a\nb", "a\rb", "\x00", "a\x1bb", "\x7f"])
def test_a_value_that_a_dockerfile_cannot_hold_is_refused(value: str) -> None:
    with fails("dockerfile-value"):
        quoted(value)


def test_compiled_stacks_get_the_toolkit_of_their_torch_and_run_without_a_compiler(
    recipes: dict[str, ImageRecipe],
) -> None:
    recipe = recipes["opt-175b"]
    assert recipe.stage("build").image == "docker.io/nvidia/cuda:11.3.1-devel-ubuntu20.04"
    assert recipe.stage("runtime").image == "docker.io/nvidia/cuda:11.3.1-runtime-ubuntu20.04"
    assert recipe.inside.build["CUDA_HOME"] == "/usr/local/cuda"
    assert recipe.variant.arch_list == ("8.0",)
    assert 'TORCH_CUDA_ARCH_LIST="8.0"' in render(recipe)
    # The base of NVIDIA keeps its torch and runs on its own interpreter.
    slurm = recipes["megatron-deepspeed-slurm"]
    assert slurm.stage("build").image == slurm.stage("runtime").image == "nvcr.io/nvidia/pytorch:22.02-py3"
    assert slurm.inside.python == "/opt/conda/bin/python3"
    assert slurm.variant.base.provides[0] == "torch>=1.11.0a0,<1.12"
    assert not any(name.startswith("torch=") for text in slurm.files.values() for name in text.splitlines())
    assert any("digest of nvcr.io/nvidia/pytorch:22.02-py3 is not recorded" in text for text in slurm.warnings)
    assert any("names no GPU" in text for text in slurm.warnings)
    # Kernels that are compiled at the first start, and DeepSpeed's CPU optimizer at ALCF, need the compilers.
    alpa, alcf = recipes["megatron-alpa"], recipes["megatron-deepspeed-alcf"]
    assert alpa.stage("runtime").image == alpa.stage("build").image
    assert alcf.stage("runtime").image == alcf.stage("build").image


def test_images_of_nvidias_toolkit_get_git_for_building_alone(recipes: dict[str, ImageRecipe]) -> None:
    for name, recipe in recipes.items():
        stages = {stage.name: stage for stage in recipe.stages}
        lines = {name: commands_of(stage.lines) for name, stage in stages.items()}
        toolkit = stages["build" if "compilers" not in stages else "compilers"].image.startswith(
            "docker.io/nvidia/cuda:"
        )
        assert toolkit == any("git" in line.split() for line in lines.get("compilers", [])), name
        assert not any("git" in line.split() for stage in ("libraries", "runtime") for line in lines.get(stage, []))
    alcf = next(stage for stage in recipes["megatron-deepspeed-alcf"].stages if stage.name == "compilers")
    (line,) = [line for line in commands_of(alcf.lines) if " git" in line]
    assert re.search(r"install .* --snapshot [0-9TZ]+ .* git$", line), "with what else it needs, of the same snapshot"
    assert "compilers" in {stage.name for stage in recipes["opt-175b"].stages}  # Apex's setup.py calls it
    own = recipe_for("opt-175b", given=Given(base="localhost/mine", glibc="2.31"))
    assert "compilers" not in {stage.name for stage in own.stages}


def test_an_image_for_several_nodes_gets_what_nccl_loads_for_infiniband(recipes: dict[str, ImageRecipe]) -> None:
    wanted = {name: known.network for name, known in load_containers().stacks.items() if known.network}
    assert wanted["opt-175b"].packages == ("libibverbs1", "ibverbs-providers")
    for name, network in wanted.items():
        stages = {stage.name: stage for stage in recipes[name].stages}
        below, name_of = set(), "runtime"
        while name_of := stages[name_of].above or "":
            below.add(name_of)
        assert "libraries" in below and "packages" not in below
        text = render(recipes[name])
        assert f" {' '.join(network.packages)} " in text and "--device /dev/infiniband" in text
    own = recipe_for("opt-175b", given=Given(runtime="localhost/mine"))
    assert "libraries" not in {stage.name for stage in own.stages}, "nobody knows what that image has"


def test_an_edit_that_changes_nothing_here_is_said_where_the_data_say_so(recipes: dict[str, ImageRecipe]) -> None:
    idle = re.compile(r"In this image nvcc and torch both have CUDA ([0-9.]+), so the edit has no effect\.")
    assert load_patch("apex-cuda-check").idle == "same-cuda"
    said = {
        name: idle.findall(" ".join(render(recipe).replace("\n# ", " ").split())) for name, recipe in recipes.items()
    }
    toolkits = {"opt-175b": ["11.3"], "megatron-alpa": ["13.0"], "megatron-deepspeed-alcf": ["11.8"]}
    assert said == {name: toolkits.get(name, []) for name in recipes}
    own = recipe_for("opt-175b", given=Given(base="localhost/mine", glibc="2.31"))
    assert not idle.search(render(own)), "nobody knows which nvcc that image has"


def test_what_a_run_writes_into_a_source_is_the_users_and_so_is_what_is_compiled_there(
    recipes: dict[str, ImageRecipe], tmp_path: Path
) -> None:
    paths = [("a b", "data/*.so"), ("a b", "out/deep/*"), ("a b", "log")]
    for name in ("data/old.so", "data/old.txt", "out/deep/er/x", "log", "logs"):
        path = tmp_path / "an env" / "src" / "a b" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(0o644)
    executable(tmp_path / "chown", f'#!/bin/sh\nshift; printf "%s\\n" "$@" >> {tmp_path}/told\n')
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "VIRTUAL_ENV": str(tmp_path / "an env")}
    subprocess.run(["/bin/sh", "-c", " && ".join(commands_of(owned(paths)))], env=env, check=True)
    top = f"{tmp_path}/an env/src/a b"
    told = {line.removeprefix(top) for line in (tmp_path / "told").read_text().splitlines()}
    assert told - {"10001:10001"} == {
        "",
        "/data",
        "/out/deep",
        "/data/old.so",
        "/out/deep/er",
        "/out/deep/er/x",
        "/log",
    }
    every = {path for path in (tmp_path / "an env").rglob("*") if path.stat().st_mode & 0o002}
    assert {str(path).removeprefix(top) for path in every} == told - {"10001:10001"}, "Apptainer runs it as its caller"

    for name, recipe in recipes.items():
        helpers = [
            f"src/{source.name}/{module.sources[0].rpartition('/')[0]}"
            for source in recipe.variant.sources
            for module in (source.build.modules if source.build else None) or ()
            if module.name == "helpers"
        ]
        assert bool(helpers) == name.startswith("megatron")
        lines = [line for line in render(recipe).splitlines() if f"chown {USER}:{USER} " in line]
        assert all(any(f'"$VIRTUAL_ENV"/{folder} ' in line + " " for line in lines) for folder in helpers)


def test_each_is_tested_as_its_user_and_has_secrets_only_where_something_is_downloaded(
    recipes: dict[str, ImageRecipe],
) -> None:
    assert recipes.keys() == {path.stem for path in (resources.catalog() / "stacks").glob("*.yaml")}
    for recipe in recipes.values():
        _, user, test = "\n".join(recipe.stage("runtime").lines).partition(f"USER {USER}:{USER}\n")
        assert user and f'python -c "import {", ".join(recipe.variant.imports)}"' in test
        stages = render(recipe).split("\nFROM ")
        text = "".join(stage for stage in stages if " AS packages" in stage or "tools" in stage.partition("\n")[0])
        assert render(recipe).count("type=secret") == text.count("type=secret") > 0
        assert all("required" not in line for line in text.splitlines())


def test_what_the_packages_are_made_from_says_nothing_of_a_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a change of one line of a source would install the packages again."""

    def with_lock(change: Callable[[Variant], dict[str, Any]]) -> ImageRecipe:
        def read(path: Path) -> Lock:
            lock = read_lock(path)
            return lock.model_copy(
                update={"variants": tuple(each.model_copy(update=change(each)) for each in lock.variants)}
            )

        monkeypatch.setattr(select, "read_lock", read)
        monkeypatch.setattr(select, "refuse_edited", lambda *_: None)
        return recipe_for("opt-175b")

    def another_commit(variant: Variant) -> dict[str, Any]:
        moved = variant.sources[0].model_copy(update={"commit": "1" * 40, "tree": "2" * 40})
        return {"sources": (moved, *variant.sources[1:])}

    before, after = recipe_for("opt-175b"), with_lock(another_commit)
    assert before.environment == after.environment
    differ = {name for name in before.files if before.files[name] != after.files[name]}
    assert all(name.startswith("patches/") for name in differ)
    for name in ("tools", "packages"):
        copied = [word for line in after.stage(name).lines if line.startswith("COPY") for word in line.split()]
        assert before.stage(name) == after.stage(name) and not differ & set(copied)
    assert with_lock(lambda variant: {"packages": variant.packages[1:]}).environment != before.environment


MINE = Given(base="localhost/mine:1", glibc="2.36")


def test_another_base_has_its_own_interpreter_or_gets_one() -> None:
    recipe = recipe_for("torch-smoke", given=replace(MINE, python="/usr/bin/python3"))
    assert {recipe.stage(name).image for name in ("build", "runtime")} == {"localhost/mine:1"}
    assert "uv venv --no-project --python /usr/bin/python3 " in render(recipe)
    brought = recipe_for("torch-smoke", given=MINE)
    assert "COPY --from=packages /opt/envbuild/tools/python-" in render(brought)
    assert "sha256sum -c /python.sha256" in render(brought)


@pytest.mark.parametrize(
    ("choice", "code"),
    [
        *((partial(recipe_for, "torch-smoke", given=Given(**{part: "x\nRUN true"})), "image-reference")
          for part in ("base", "runtime", "fetch")),
        (partial(recipe_for, "torch-smoke", given=replace(MINE, base="tools")), "image-stage-clash"),
        (partial(recipe_for, "torch-smoke", given=replace(MINE, base="packages")), "image-stage-clash"),
        (partial(recipe_for, "megatron-alpa", profile="exact"), "hash-unrecorded"),
        (partial(recipe_for, "megatron-deepspeed-alcf", profile="exact"), "image-base-unfit"),
        (partial(recipe_for, "torch-smoke", variant="cp311-linux_x86_64-system"), "image-base-unfit"),
        (partial(recipe_for, "torch-smoke", variant="nothing"), "variant-unknown"),
        (partial(recipe_for, "torch-smoke", given=Given(base="localhost/old", glibc="2.5")), "image-no-file"),
    ],
)  # fmt: skip
def test_what_no_image_can_be_made_of_is_refused(choice: Callable[[], ImageRecipe], code: str) -> None:
    with fails(code):
        choice()


@pytest.mark.parametrize(
    ("name", "value"), [("HF_TOKEN", "s3cret"), ("WANDB_API_KEY", "s3cret"), ("https_proxy", "http://me:s3cret@p:1")]
)
def test_a_secret_never_becomes_a_variable_of_an_image(name: str, value: str, tmp_path: Path) -> None:
    target = tmp_path / "t.yaml"
    target.write_text(f"name: t\nextends: local\nenvironment: {{{name}: '{value}'}}\n")
    with fails("variable-refused", 7) as caught:
        recipe_for("torch-smoke", target=str(target))
    assert f"docker run -e {name}" in caught.value.hint and "s3cret" not in str(caught.value.as_dict())
