"""The exact text of Dockerfiles, and values that need care."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from envbuild import resources
from envbuild.catalog.indexes import load_indexes
from envbuild.catalog.patches import load_patch
from envbuild.container import build_context, plain, select
from envbuild.container.base_images import load_containers
from envbuild.container.checkout import from_checkout, shared
from envbuild.container.dockerfile import WHEELHOUSE, quoted, render, render_part
from envbuild.container.instructions import Added, Arg, Comment, Copy, Env, Folder, Labels, Run, Stage, Start
from envbuild.container.recipe import USER, ImageRecipe, owned
from envbuild.container.select import Choice, recipe_for, shipped
from envbuild.container.stage_images import Given
from envbuild.errors import EnvbuildError
from envbuild.export import source_patches
from envbuild.lock.files import read_lock
from envbuild.model.lock import Lock, Variant
from envbuild.node.image.slim import is_test

DIGEST = "4" * 64


@pytest.fixture(scope="module")
def recipes() -> dict[str, ImageRecipe]:
    return {name: recipe_for(Choice(name)) for name in shipped()}


def committed(recipe: ImageRecipe) -> dict[str, str]:
    """What `containers/` has of a stack: both forms."""
    return build_context.texts(from_checkout(recipe)) | plain.texts(plain.make_plain(recipe))


@pytest.mark.parametrize("name", shipped())
def test_the_committed_files_are_what_the_lock_gives(name: str, recipes: dict[str, ImageRecipe]) -> None:
    folder = resources.containers() / name
    there = {path.name: path.read_text() for path in folder.iterdir() if path.name not in build_context.UNCOMMITTED}
    assert there == committed(recipes[name])


@pytest.mark.parametrize("name", shipped())
def test_committed_files_name_no_host_of_a_package_index(name: str, recipes: dict[str, ImageRecipe]) -> None:
    pip = pytest.importorskip("pip._internal.models.index")
    hosts = {str(urlsplit(entry.url).hostname) for entry in load_indexes().values() if entry.url}
    hosts |= {pip.PyPI.netloc, pip.PyPI.file_storage_domain}
    assert len(hosts) > 2
    for text in committed(recipes[name]).values():
        assert not [host for host in hosts if host in text]


def _unquoted(data: Any) -> Any:
    """What hcl2 gives, with strings as they are meant."""
    if isinstance(data, dict):
        return {_unquoted(key): _unquoted(value) for key, value in data.items() if key != "__is_block__"}
    if isinstance(data, list):
        return [_unquoted(each) for each in data]
    return json.loads(data) if data.startswith('"') else data


def test_bake_is_the_language_of_docker_buildx_and_compose_that_of_docker_compose(
    recipes: dict[str, ImageRecipe],
) -> None:
    import hcl2

    top = resources.containers().parent
    words = [str(Path(sys.executable).parent / "docker-compose"), "-f", str(top / "compose.yaml"), "--profile", "*"]
    told = subprocess.run([*words, "config", "--format", "json"], capture_output=True, text=True, check=False)
    assert (told.returncode, told.stderr) == (0, "")
    services = json.loads(told.stdout)["services"]
    bake = _unquoted(hcl2.loads((top / "docker-bake.hcl").read_text()))
    targets = {name: body for block in bake["target"] for name, body in block.items()}
    assert bake["group"] == [{"default": {"targets": sorted(recipes)}}]
    for name, recipe in recipes.items():
        build = services[name]["build"]
        assert targets[name] == {
            "context": ".", "dockerfile": build["dockerfile"], "target": "runtime", "tags": [recipe.tag],
        }  # fmt: skip
        assert (build["context"], services[name]["image"]) == (str(top), recipe.tag)
        kept = services[name].get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices", [])
        gpus = [{"driver": "nvidia", "count": -1, "capabilities": ["gpu"]}]
        assert kept == ([] if name == "torch-smoke" else gpus)


def test_buildx_reads_the_file_of_bake_as_it_was_meant(recipes: dict[str, ImageRecipe]) -> None:
    folders = ("/usr/libexec/docker/cli-plugins", "/usr/lib/docker/cli-plugins", *os.get_exec_path())
    program = shutil.which("docker-buildx", path=os.pathsep.join(folders))
    if program is None:
        pytest.skip("docker-buildx is not there (Debian 13 has it)")
    top = resources.containers().parent
    words = [program, "bake", "--file", str(top / "docker-bake.hcl"), "--print"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=top)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["group"]["default"]["targets"] == sorted(recipes)
    assert {name: target["tags"] for name, target in told["target"].items()} == {
        name: [recipe.tag] for name, recipe in recipes.items()
    }
    assert all((top / target["dockerfile"]).is_file() for target in told["target"].values())


def test_bake_and_compose_name_every_image_with_its_files_and_compose_gives_gpus_to_those_of_cuda(
    recipes: dict[str, ImageRecipe],
) -> None:
    top = resources.containers().parent
    texts = shared(recipes.values())
    assert {name: (top / name).read_text() for name in texts} == texts
    services = yaml.safe_load(texts["compose.yaml"])["services"]
    for name, recipe in recipes.items():
        build = services[name]["build"]
        assert (top / build["dockerfile"]).is_file() and build["context"] == "."
        assert services[name]["image"] == recipe.tag
        assert f'dockerfile = "{build["dockerfile"]}"' in texts["docker-bake.hcl"]
        uses = services[name].get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices", [])
        assert bool(uses) == (name != "torch-smoke")


@pytest.mark.parametrize("name", shipped())
def test_the_plain_form_has_the_packages_sources_and_edits_of_the_lock_and_nothing_of_envbuild(
    name: str, recipes: dict[str, ImageRecipe]
) -> None:
    variant, made = recipes[name].variant, plain.make_plain(recipes[name])
    text = render(made)
    asked = "".join(body for file, body in made.files.items() if file.startswith("requirements"))
    for package in variant.packages:
        assert f"{package.name}=={package.version} " in asked
        assert all(file.sha256 in asked for file in package.files)
    assert "--require-hashes" in text and "<<" not in text
    for source in variant.sources:
        for pin in (source, *source.submodules):
            assert pin.commit in text and f"= {pin.tree}" in text
        assert (f"COPY patches/{source.name}.patch" in text) == bool(source.patches)
        applied = re.search(rf"git apply --index /patches/{source.name}.patch .*\n.*write-tree\)\" = (.*) ", text)
        assert (applied[1] if applied else None) == recipes[name].trees.get(source.name)
        assert (applied is not None) == bool(source.patches), "of every shipped one the tree after it is recorded"
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


def test_a_diff_is_made_without_submodules_that_no_edit_is_in(recipes: dict[str, ImageRecipe]) -> None:
    (apex,) = (source for source in recipes["opt-175b"].variant.sources if source.name == "apex")
    assert len(apex.submodules) > 1 and source_patches._edited(apex)["submodules"] == []
    anywhere = apex.model_copy(update={"patches": ("numpy-aliases",), "patch_pins": ()})
    assert any("*" in path for part in load_patch("numpy-aliases").parts for path in part.files)
    assert len(source_patches._edited(anywhere)["submodules"]) == len(apex.submodules)


def test_conda_has_no_plain_form() -> None:
    recipe = recipe_for(Choice("torch-smoke"))
    recipe = replace(recipe, variant=recipe.variant.model_copy(update={"conda": "a list"}))
    with pytest.raises(EnvbuildError) as caught:
        plain.make_plain(recipe)
    assert (caught.value.code, caught.value.exit_code) == ("conda-in-a-script", 7)


def test_every_shipped_stack_has_its_image() -> None:
    assert set(shipped()) == {path.stem for path in (resources.catalog() / "stacks").glob("*.yaml")}


@pytest.mark.parametrize("name", shipped())
def test_hadolint_has_nothing_to_say(name: str) -> None:
    program = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    if program is None:
        pytest.skip("hadolint is not installed")
    files = [str(path) for path in (resources.containers() / name).glob("Dockerfile*")]
    assert len(files) == 2
    done = subprocess.run([program, *files], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("name", shipped())
def test_no_package_comes_from_anywhere_but_by_hash(name: str, recipes: dict[str, ImageRecipe]) -> None:
    files = json.loads(recipes[name].files["fetch.json"])["args"]["files"]
    assert files and all(len(each["sha256"]) == 64 for each in files)
    assert "<<" not in render(recipes[name])


def test_the_text_of_every_kind_of_instruction() -> None:
    stages = (
        Stage("wheelhouse", "scratch", None, ()),
        Stage(
            "fetch", "registry.example.org/base:1", DIGEST,
            (Copy(("a", "b"), "/x/"), Run("true", ("type=cache,target=/c",))),
        ),
        Stage(
            "packages", "base:2", None,
            (Arg("A", "1"), Arg("B"), Comment("why " * 40), Folder("/y"), Copy(("/x",), "/x", "fetch")),
        ),
        Stage("build", "base:2", None, (Run("two", ("type=cache,target=/d",)),), above="packages"),
        Stage(
            "runtime", "localhost/base", None,
            (
                Added("build", "/p/added", "/p", ("envs", "current")),
                Run("one && two", ignore=("DL3008",)),
                Env({"V": 'a "b" $c \\'}), Env({"PATH": "/x/bin"}, prepend=True), Env({"W": "$x"}, within="V"),
                Labels({"l": 'a "b" $c \\'}, {"created": "CREATED"}),
                Start(7, "/home", ("/bin/sh", "e"), ("python",)),
            ),
        ),
    )  # fmt: skip
    recipe = recipe_for(Choice("torch-smoke"))
    made = replace(recipe, stack="s", stages=stages, notes=("A note.",))
    lines = render(made).splitlines()
    head = " ".join(line.removeprefix("# ") for line in lines[: lines.index("# A note.")])
    assert head.startswith("s: Python 3.11, 10 packages, torch ")
    assert "`envbuild image dockerfile s`; an edit is lost" in head
    assert head.endswith(
        f"for s (profile exact, variant {recipe.variant.id}, whose `digest` is {recipe.variant.digest})."
    )
    assert lines[lines.index("# A note.") :] == [
        "# A note.",
        "",
        WHEELHOUSE,
        "FROM scratch AS wheelhouse",
        "",
        f"# digest: sha256:{DIGEST}",
        f"FROM registry.example.org/base:1@sha256:{DIGEST} AS fetch",
        "COPY a b /x/",
        "RUN --mount=type=cache,target=/c true",
        "",
        "# digest: not recorded; a later build may get another image under this tag",
        "FROM base:2 AS packages",
        'ARG A="1"',
        'ARG B=""',
        "# " + " ".join(["why"] * 29),
        "# " + " ".join(["why"] * 11),
        "WORKDIR /y",
        "COPY --from=fetch /x /x",
        "",
        "FROM packages AS build",
        "RUN --mount=type=cache,target=/d two",
        "",
        "FROM localhost/base AS runtime",
        "COPY --from=build /p/added /p",
        "# hadolint ignore=DL3008",
        "RUN one && two",
        'ENV V="a \\"b\\" \\$c \\\\"',
        'ENV PATH="/x/bin:$PATH"',
        'ENV W="$V/\\$x"',
        'LABEL l="a \\"b\\" \\$c \\\\" created="${CREATED}"',
        "USER 7:7",
        "WORKDIR /home",
        'ENTRYPOINT ["/bin/sh", "e"]',
        'CMD ["python"]',
    ]
    part = render_part(made, ("build", "runtime"), {"packages": "localhost/made:1"})
    assert part.startswith("FROM localhost/made:1 AS build\nRUN --mount=type=cache,")
    assert "AS fetch" not in part and "AS runtime" in part
    assert "type=cache" not in render_part(made, ("build",), {}, cached=False)


def test_what_a_rebuild_brings_is_mounted_where_a_dockerfile_copies_it(recipes: dict[str, ImageRecipe]) -> None:
    recipe = recipes["opt-175b"]
    given = {"packages": "localhost/p", "installed": "localhost/i"}
    text = render_part(recipe, ("build", "runtime"), given, gathered="sources")
    assert [line for line in text.splitlines() if line.startswith("COPY ")] == [
        "COPY --from=build /opt/envbuild/added /opt/envbuild"
    ]
    for path in ("fetched/sources", "image/variant.json", "image/build.json"):
        place = f"/opt/envbuild/{path}"
        assert text.count(f"--mount=type=bind,from=sources,source={place},target={place} ") == 1


@pytest.mark.parametrize("value", ["a\nb", "a\rb", "\x00", "a\x1bb", "\x7f"])
def test_a_value_that_a_dockerfile_cannot_hold_is_refused(value: str) -> None:
    with pytest.raises(EnvbuildError) as caught:
        quoted(value)
    assert caught.value.code == "dockerfile-value"


@pytest.mark.parametrize(
    ("value", "text"),
    [("", '""'), ("$HOME", '"\\$HOME"'), ("\\", '"\\\\"'), ("\\$", '"\\\\\\$"'), ('"', '"\\""'), ("`x`", '"`x`"')],
)
def test_values_are_taken_literally(value: str, text: str) -> None:
    assert quoted(value) == text


@pytest.mark.parametrize("part", ["base", "runtime", "fetch"])
@pytest.mark.parametrize("name", ["A B", "-x", "x:$TAG", "x\nRUN true", "Build"])
def test_what_is_no_name_of_an_image_is_refused_before_anything_is_done(name: str, part: str) -> None:
    with pytest.raises(EnvbuildError) as caught:
        recipe_for(Choice("torch-smoke", given=Given(**{part: name})))
    assert (caught.value.code, caught.value.exit_code) == ("image-reference", 2)


@pytest.mark.parametrize("name", ["fetch", "packages"])
def test_an_image_with_the_name_of_a_stage_is_refused(name: str) -> None:
    given = Given(base=name, python="/usr/bin/python3", glibc="2.36")
    with pytest.raises(EnvbuildError) as caught:
        recipe_for(Choice("torch-smoke", given=given))
    assert (caught.value.code, caught.value.exit_code) == ("image-stage-clash", 2)
    recipe_for(Choice("torch-smoke", given=Given(base=f"{name}:1", python="/usr/bin/python3", glibc="2.36")))


def test_the_base_of_nvidia_keeps_its_torch_and_runs_on_its_own_interpreter(recipes: dict[str, ImageRecipe]) -> None:
    recipe = recipes["megatron-deepspeed-slurm"]
    assert recipe.stage("build").image == recipe.stage("runtime").image == "nvcr.io/nvidia/pytorch:22.02-py3"
    install = json.loads(recipe.files["build.json"])["args"]["requests"][0]["args"]
    assert install["interpreter"] == "/opt/conda/bin/python3"
    assert json.loads(recipe.files["variant.json"])["base"]["provides"][0] == "torch>=1.11.0a0,<1.12"
    assert not any(
        each["file"].startswith("torch-") for each in json.loads(recipe.files["fetch.json"])["args"]["files"]
    )
    assert any("digest of nvcr.io/nvidia/pytorch:22.02-py3 is not recorded" in text for text in recipe.warnings)
    assert any("names no GPU" in text for text in recipe.warnings)


def test_compiled_stacks_get_the_toolkit_of_their_torch_and_run_without_a_compiler(
    recipes: dict[str, ImageRecipe],
) -> None:
    recipe = recipes["opt-175b"]
    assert recipe.stage("build").image == "docker.io/nvidia/cuda:11.3.1-devel-ubuntu20.04"
    assert recipe.stage("runtime").image == "docker.io/nvidia/cuda:11.3.1-runtime-ubuntu20.04"
    install = json.loads(recipe.files["build.json"])["args"]["requests"][0]["args"]
    build = install["build"]
    assert (build["arch_list"], build["cuda_home"], build["nvcc"]) == (["8.0"], "/usr/local/cuda", "11.3")
    assert install["artifacts"]["offline"] is True
    assert recipe.variant.arch_list == ("8.0",)
    assert 'TORCH_CUDA_ARCH_LIST="8.0"' in render(recipe)
    # Nothing of Alpa's Megatron is compiled at its start any more; DeepSpeed's CPU optimizer at ALCF is.
    alpa, alcf = recipes["megatron-alpa"], recipes["megatron-deepspeed-alcf"]
    assert alpa.stage("runtime").image == alpa.stage("build").image.replace("-devel-", "-runtime-")
    assert alcf.stage("runtime").image == alcf.stage("build").image


def test_images_of_nvidias_toolkit_get_git_for_building_alone(recipes: dict[str, ImageRecipe]) -> None:
    for name, recipe in recipes.items():
        stages = {stage.name: stage for stage in recipe.stages}
        lines = {stage: [each.line for each in stages[stage].instructions if isinstance(each, Run)] for stage in stages}
        toolkit = stages["build" if "compilers" not in stages else "compilers"].image.startswith(
            "docker.io/nvidia/cuda:"
        )
        assert toolkit == any(" git " in line for line in lines.get("compilers", [])), name
        assert not any(
            " git " in line for stage in ("libraries", "installed", "runtime") for line in lines.get(stage, [])
        )
    alcf = next(stage for stage in recipes["megatron-deepspeed-alcf"].stages if stage.name == "compilers")
    (line,) = [each.line for each in alcf.instructions if isinstance(each, Run)]
    assert re.search(r"install .* --snapshot [0-9TZ]+ .* git ", line), "with what else it needs, of the same snapshot"
    assert "compilers" in {
        stage.name
        for stage in plain.make_plain(recipes["opt-175b"]).stages  # Apex's setup.py calls it
    }
    own = recipe_for(Choice("opt-175b", given=Given(base="localhost/mine", glibc="2.31")))
    assert "compilers" not in {stage.name for stage in own.stages}


def test_an_image_for_several_nodes_gets_what_nccl_loads_for_infiniband_in_both_forms(
    recipes: dict[str, ImageRecipe],
) -> None:
    wanted = {name: known.network for name, known in load_containers().stacks.items() if known.network}
    assert wanted["opt-175b"].packages == ("libibverbs1", "ibverbs-providers")
    for name, network in wanted.items():
        for recipe in (recipes[name], plain.make_plain(recipes[name])):
            stages = {stage.name: stage for stage in recipe.stages}
            below, name_of = set(), "runtime"
            while name_of := stages[name_of].above or "":
                below.add(name_of)
            assert "libraries" in below and "packages" not in below
            (line,) = [each.line for each in stages["libraries"].instructions if isinstance(each, Run)]
            assert f" {' '.join(network.packages)} " in line and "--device /dev/infiniband" in render(recipe)
    own = recipe_for(Choice("opt-175b", given=Given(runtime="localhost/mine")))
    assert "libraries" not in {stage.name for stage in own.stages}, "nobody knows what that image has"


def test_an_edit_that_changes_nothing_here_is_said_where_the_data_say_so(recipes: dict[str, ImageRecipe]) -> None:
    idle = re.compile(r"nvcc and torch are both of CUDA ([0-9.]+) here, so it changes nothing in this image\.")
    assert load_patch("apex-cuda-check").idle == "same-cuda"
    said = {
        (name, form.removeprefix("Dockerfile")): idle.findall(" ".join(text.replace("\n# ", " ").split()))
        for name, recipe in recipes.items()
        for form, text in committed(recipe).items()
        if form.startswith("Dockerfile")
    }
    toolkits = {"opt-175b": ["11.3"], "megatron-alpa": ["13.0"], "megatron-deepspeed-alcf": ["11.8"]}
    assert said == {(name, form): toolkits.get(name, []) for name in recipes for form in ("", ".plain")}
    own = recipe_for(Choice("opt-175b", given=Given(base="localhost/mine", glibc="2.31")))
    assert not idle.search(render(own)), "nobody knows which nvcc that image has"


def test_a_plain_form_whose_edits_change_nothing_can_be_built_without_them(recipes: dict[str, ImageRecipe]) -> None:
    words = "Or without envbuild, here: delete the lines with patches/ and `git write-tree` below"
    said = {name: render(plain.make_plain(recipe)) for name, recipe in recipes.items()}
    assert [name for name, text in said.items() if words in text.replace("\n# ", " ")] == ["opt-175b"]
    without = [
        line for line in said["opt-175b"].splitlines() if "patches/" not in line and "git write-tree" not in line
    ]
    joined = "\n".join(without).replace("\\\n", " ")
    (run,) = [line for line in joined.splitlines() if "/NVIDIA/apex" in line]
    assert re.search(r"= [0-9a-f]{40} +&& rm -rf \.git$", run), "the commands around them still follow each other"
    subprocess.run(["/bin/sh", "-n", "-c", re.sub(r"RUN (--\S+ +)*", "", run)], check=True)
    assert "COPY patches" not in joined and "git apply" not in joined


def test_what_a_run_writes_into_a_source_is_the_users_and_so_is_what_the_plain_form_compiles_there(
    recipes: dict[str, ImageRecipe], tmp_path: Path
) -> None:
    paths = [("a b", "data/*.so"), ("a b", "out/deep/*"), ("a b", "log")]
    (_, run) = owned(paths, shlex.quote(str(tmp_path / "an env")))
    assert isinstance(run, Run)
    for name in ("data/old.so", "data/old.txt", "out/deep/er/x", "log", "logs"):
        path = tmp_path / "an env" / "src" / "a b" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(0o644)
    (tmp_path / "chown").write_text(f'#!/bin/sh\nshift; printf "%s\\n" "$@" >> {tmp_path}/told\n')
    (tmp_path / "chown").chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run(["/bin/sh", "-c", run.line], env=env, check=True)
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
        lines = [line for line in render(plain.make_plain(recipe)).splitlines() if f"chown {USER}:{USER} " in line]
        assert all(any(f'"$VIRTUAL_ENV"/{folder} ' in line + " " for line in lines) for folder in helpers)


def test_the_plain_form_is_tested_in_the_image_that_runs_as_its_user(recipes: dict[str, ImageRecipe]) -> None:
    for recipe in recipes.values():
        stages = {stage.name: stage.instructions for stage in plain.make_plain(recipe).stages}
        *_, start, _, test = stages["runtime"]
        assert isinstance(start, Start) and isinstance(test, Run)
        assert f'python -c "import {", ".join(recipe.variant.imports)}"' in test.line


def test_the_entry_point_keeps_what_a_container_was_started_with(
    recipes: dict[str, ImageRecipe], tmp_path: Path
) -> None:
    entry = recipes["opt-175b"].files["entrypoint.sh"].replace("/opt/envbuild", str(tmp_path))
    activate = tmp_path / "current/opt-175b/.envbuild/activate.sh"
    activate.parent.mkdir(parents=True)
    activate.write_text("export NCCL_SOCKET_IFNAME=eth0 UCX_NET_DEVICES=eth0 NCCL_TOPO_FILE=/topo\nunset PYTHONPATH\n")
    shown = 'echo "$NCCL_SOCKET_IFNAME $UCX_NET_DEVICES $NCCL_TOPO_FILE ${PYTHONPATH-none} $1 $2"'
    given = {"PATH": os.environ["PATH"], "NCCL_SOCKET_IFNAME": "ib 0", "PYTHONPATH": "/host"}
    command = ["/bin/sh", "-c", entry, "sh", "sh", "-c", shown, "sh", "a b", "c"]
    done = subprocess.run(command, env=given, capture_output=True, text=True, check=True)
    assert done.stdout == "ib 0 eth0 /topo none a b c\n"


@pytest.mark.parametrize("home", [None, "/not/there", "here"])
def test_who_has_no_home_in_the_image_has_that_of_the_image(
    recipes: dict[str, ImageRecipe], tmp_path: Path, home: str | None
) -> None:
    """HOME is / for an unknown user of docker, and the folder of the host for Apptainer."""
    entry = recipes["opt-175b"].files["entrypoint.sh"].replace("/opt/envbuild", str(tmp_path))
    activate = tmp_path / "current/opt-175b/.envbuild/activate.sh"
    activate.parent.mkdir(parents=True)
    activate.touch()
    given = {"PATH": os.environ["PATH"]} | ({} if home is None else {"HOME": str(tmp_path / home)})
    (tmp_path / "here").mkdir()
    command = ["/bin/sh", "-c", entry, "sh", "sh", "-c", 'echo "$HOME ${USER-}"']
    (tmp_path / "id").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "id").chmod(0o755)
    given["PATH"] = f"{tmp_path}:{given['PATH']}"
    done = subprocess.run(command, env=given, capture_output=True, text=True, check=True)
    kept = str(tmp_path / "here") if home == "here" else "/home/envbuild"
    assert done.stdout == f"{kept} envbuild\n", "and has a name, which getpass asks for"


def test_a_build_holds_the_same_requests_as_the_planner_and_no_secret() -> None:
    recipe = recipe_for(Choice("torch-smoke"))
    verbs = [each["verb"] for each in json.loads(recipe.files["build.json"])["args"]["requests"]]
    assert verbs == ["install", "smoke", "activate"]
    text = render(recipe)
    assert text.count("type=secret") == 3
    assert "AS sources" not in text, "this stack has none"
    compiled = render(recipe_for(Choice("opt-175b")))
    assert compiled.count("type=secret") == 6 and compiled.count("type=secret,id=gitconfig") == 1
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
        return recipe_for(Choice("opt-175b"))

    def another_commit(variant: Variant) -> dict[str, Any]:
        moved = variant.sources[0].model_copy(update={"commit": "1" * 40, "tree": "2" * 40})
        return {"sources": (moved, *variant.sources[1:])}

    before, after = recipe_for(Choice("opt-175b")), with_lock(another_commit)
    assert before.environment == after.environment
    differ = {name for name in before.files if before.files[name] != after.files[name]}
    assert differ == {"sources.json", "variant.json"}
    for name in ("fetch", "packages", "installed"):
        copied = [each.sources for each in after.stage(name).instructions if isinstance(each, Copy)]
        assert before.stage(name) == after.stage(name) and not differ & set(itertools.chain(*copied))
    assert with_lock(lambda variant: {"packages": variant.packages[1:]}).environment != before.environment

    part = json.loads(before.files["packages.json"])["args"]
    assert part["requests"][0]["args"]["part"] == "packages"
    assert {"hydra-core", "torch"} <= set(part["requests"][0]["args"]["asked"])
    assert part["variant"]["packages"] == json.loads(before.files["variant.json"])["packages"]
    steps = json.loads(before.files["build.json"])["args"]["requests"]
    assert {each["args"]["environment"] for each in steps} == {before.environment}


def test_another_base_has_its_own_interpreter_or_gets_one() -> None:
    given = Given(base="localhost/mine:1", python="/usr/bin/python3", glibc="2.36")
    recipe = recipe_for(Choice("torch-smoke", given=given))
    assert {recipe.stage(name).image for name in ("build", "runtime")} == {"localhost/mine:1"}
    assert "/usr/bin/python3 envbuild-node.pyz image" in render(recipe)
    brought = recipe_for(Choice("torch-smoke", given=Given(base="localhost/mine:1", glibc="2.36")))
    assert "COPY --from=packages /opt/envbuild/tools/python-" in render(brought)
    assert any("url" in each for each in json.loads(brought.files["fetch.json"])["args"]["files"])


@pytest.mark.parametrize(
    ("choice", "code"),
    [
        (Choice("megatron-alpa", profile="exact"), "hash-unrecorded"),
        (Choice("megatron-deepspeed-alcf", profile="exact"), "image-base-unfit"),
        (Choice("torch-smoke", variant="cp311-linux_x86_64-system"), "image-base-unfit"),
        (Choice("torch-smoke", variant="nothing"), "variant-unknown"),
        (Choice("torch-smoke", given=Given(base="localhost/old", glibc="2.5")), "image-no-file"),
    ],
)
def test_what_no_image_can_be_made_of_is_refused(choice: Choice, code: str) -> None:
    with pytest.raises(EnvbuildError) as caught:
        recipe_for(choice)
    assert caught.value.code == code


def test_the_catalog_names_profiles_variants_and_targets_that_are_there() -> None:
    for name, known in load_containers().stacks.items():
        recipe = recipe_for(Choice(name))
        assert (recipe.profile, recipe.variant.id) == (known.profile, known.variant)


def test_edits_that_change_nothing_are_told_and_no_empty_patch_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(_source: object, folder: str, _origin: object) -> None:
        Path(folder).mkdir()
        Path(folder, "setup.py").write_text("pass\n")

    monkeypatch.setattr(source_patches.git_source, "mirror", lambda _pin, folder, _name: Path(folder).mkdir())
    monkeypatch.setattr(source_patches.git_source, "fetch", fetch)
    monkeypatch.setattr(source_patches, "apply", lambda *_: None)
    made = source_patches.make_patches(recipe_for(Choice("megatron-alpa", profile="ported")).variant, {})
    assert (made.files, made.trees) == ({}, {})
    assert "patches/apex.patch is not written" in "\n".join(made.failed)
    assert all("the patches change nothing" in each for each in made.failed)


def test_slim_is_said_as_a_deviation_and_both_forms_leave_out_the_same_files(tmp_path: Path) -> None:
    slim = recipe_for(Choice("torch-smoke", slim=True))
    made = plain.make_plain(slim)
    for each in (slim, made):
        text = render(each)
        assert "\n# Slim, a deviation: folders `test` and `tests`" in text and 'dev.envbuild.deviation="slim"' in text
    assert slim.tag.endswith("-slim") and slim.requests.packages["args"]["slim"] is True
    assert "deviation" not in render(recipe_for(Choice("torch-smoke")))

    site = tmp_path / "a" / "site-packages"
    names = [
        "a/tests/x.py", "a/b/test/c/x.py", "a/latest/x.py", "a/bin/test_x", "a/bin/x/test", "a/bin/my_test.so",
        "tests/x.py", "test/x/tests/y.py", "bin/test_x", "test_x.py", "a-1.0.dist-info/tests/x", "a/test.py",
        "a/bin/tests/x", "a/bin/x/y",
        "a/bin/contest", "a/bin/pytest", "a/bin/latest.so", "a/bin/test_jit", "a/bin/unit-tests",
        "a/bin/test_interpreter_async.pt", "a/bin/test",
    ]  # fmt: skip
    for name in names:
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).touch()
    for line in render(made).splitlines():
        command = line.strip(" &\\")
        if command.startswith('find "$VIRTUAL_ENV"/'):
            find, _, *words = shlex.split(command)
            subprocess.run([find, str(site), *words], check=True)
    left = {str(path.relative_to(site)) for path in site.rglob("*") if path.is_file()}
    assert left == {name for name in names if not is_test(name)}
    assert set(names) - left == {
        "a/tests/x.py", "a/b/test/c/x.py", "a/bin/test_x", "a/bin/my_test.so", "test/x/tests/y.py", "a/bin/tests/x",
        "a/bin/test_jit", "a/bin/unit-tests", "a/bin/test_interpreter_async.pt", "a/bin/test",
    }  # fmt: skip
