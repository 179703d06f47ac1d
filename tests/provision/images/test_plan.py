"""When a node needs an image, which id all should have, where it comes from, and what each node is asked."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from envbuild.container.builders import Buildah, Builder, Docker
from envbuild.model.facts import NodeFacts
from envbuild.model.plan import Resolution
from envbuild.model.target import ContainerSettings
from envbuild.provision.images import obtain, plan
from envbuild.provision.images.obtain import Obtained, Wanted
from envbuild.provision.images.plan import NodeImage, node_image
from envbuild.provision.run.context import Choice, Prepared
from envbuild.provision.survey.prepare import prepare
from tests.report.samples import facts
from tests.support.fails import fails

ONE, OTHER = "a" * 64, "b" * 64
ENV = "/opt/envbuild/envs/torch-smoke-exact-0123456789ab"
COMMAND = "/usr/bin/podman run --rm --interactive --pull=never --network=host --ipc=host --ulimit=memlock=-1:-1 {image}"


@pytest.fixture(scope="module")
def prepared() -> Prepared:
    found = prepare(Choice(target="pods-rtx4090", stack="torch-smoke", engine="container"), recorded=True)
    target = found.target.model_copy(update={"container": ContainerSettings(), "expects": found.target.expects})
    return found._replace(target=target)


@pytest.fixture(scope="module")
def image(prepared: Prepared) -> Wanted:
    return Wanted("key", "localhost/x:1", "/opt/envbuild", ENV, prepared.lock.variants[0])


def _told(**more: Any) -> dict[str, Any]:
    record = {"id": ONE, "key": "key", "runtime": "podman", "name": "localhost/x:1", "planned": COMMAND.split()}
    works = {"works": True, "version": "4.3.1", "path": "/usr/bin/podman"}
    return {"runtimes": {"podman": works}, "memlock": -1, "record": record, "present": True, "launcher": True, **more}


def _node(prepared: Prepared, image: Wanted, *, repair: bool = False, gpus: int = 0, **told: Any) -> NodeImage:
    there = NodeFacts.from_plain(facts("gpu1", gpus))
    return node_image("gpu1", prepared, image, _told(**told), there, repair=repair)


def test_a_node_needs_an_image_where_it_is_not_as_recorded_and_why_is_said(prepared: Prepared, image: Wanted) -> None:
    node = _node(prepared, image)
    assert (node.needs, " ".join(node.command), node.cuda) == ("", COMMAND, False)
    resolution = Resolution(node="gpu1", stack="torch-smoke", profile="exact", decisions=(), candidates=())
    made = plan.make_plan(prepared, image, {"gpu1": node}, {}, {"gpu1": resolution}, delivery="take in")
    assert made.nothing_to_do
    record = _told()["record"]
    for told, why in (
        ({"record": None}, "no image of this stack is in use there"),
        ({"present": False}, f"image {ONE[:12]} is no longer present in podman"),
        ({"launcher": False}, "the launcher is not there or was changed"),
        ({"record": {**record, "key": "old"}}, "the image in use was made from something else"),
        ({"record": {**record, "planned": ["podman"]}}, "it would be run with other options now"),
        ({"repair": True}, "--repair was given"),
    ):
        node = _node(prepared, image, **told)
        assert node.needs == why
        assert plan.todo({"gpu1": node}, ONE) == {"gpu1": why}


def test_a_node_with_another_id_than_the_others_gets_theirs(prepared: Prepared, image: Wanted) -> None:
    odd = _node(prepared, image, record={**_told()["record"], "id": OTHER})
    nodes = {"gpu1": _node(prepared, image), "gpu2": odd, "gpu3": _node(prepared, image)}
    assert plan.expected_id(nodes, None) == ONE
    assert plan.expected_id(nodes, OTHER) == OTHER, "what was built here counts for more"
    why = plan.todo(nodes, ONE)
    assert why == {"gpu2": f"it has the image {OTHER[:12]}, the others have {ONE[:12]}"}


def test_what_a_node_is_asked(prepared: Prepared, image: Wanted) -> None:
    node = _node(prepared, image)
    sent = Obtained(ONE, archive=Path("/runs/image.tar"), sha256=OTHER)
    args = plan.install_args(
        prepared, image, sent, node, _told(), archive="/opt/envbuild/images/image.tar"
    )  # fmt: skip
    assert (args["archive"], args["sha256"], "pull" in args) == ("/opt/envbuild/images/image.tar", OTHER, False)
    assert args["command"] == args["planned"] == COMMAND.split()
    assert all(args["asks"][verb]["image"] is True for verb in ("verify", "smoke"))
    assert [item["name"] for item in args["asks"]["smoke"]["items"]] == [i.name for i in image.variant.smoke]
    pulled = Obtained(ONE, pull=f"registry.example.org/x@sha256:{OTHER}")
    args = plan.install_args(prepared, image, pulled, node, _told(), archive=None)
    assert (args["pull"], args["digest"]) == (pulled.pull, f"sha256:{OTHER}")
    nothing = plan.install_args(prepared, image, Obtained(ONE), node, _told(), archive=None)
    assert not {"archive", "pull"} & set(nothing), "only the launcher has to be written"


def test_the_file_that_pyxis_runs_is_made_by_enroot(prepared: Prepared, image: Wanted) -> None:
    target = prepared.target.model_copy(
        update={"container": ContainerSettings(runtime="pyxis", registry="r.example.org/x")}
    )
    runtimes = {name: {"works": True, "path": f"/usr/bin/{name}"} for name in ("enroot", "pyxis")}
    runtimes["pyxis"]["path"] = "/usr/bin/srun"
    told = _told(runtimes=runtimes)
    with_pyxis = prepared._replace(target=target)
    node = node_image("gpu1", with_pyxis, image, told, NodeFacts.from_plain(facts("gpu1")), repair=False)
    args = plan.install_args(with_pyxis, image, Obtained(ONE), node, told, archive="/x")
    assert (args["program"], args["maker"], args["runtime"]) == ("/usr/bin/srun", "/usr/bin/enroot", "pyxis")
    alone = prepared.target.model_copy(update={"container": ContainerSettings(runtime="enroot")})
    with fails("container-needs-registry", 7, match="from a registry"):
        node_image(
            "gpu1", prepared._replace(target=alone), image, told, NodeFacts.from_plain(facts("gpu1")), repair=False
        )


def test_gpus_are_used_inside_only_where_the_container_has_them(prepared: Prepared, image: Wanted) -> None:
    cuda = image.variant.model_copy(update={"flavour": "cu118", "torch": "2.0.1"})
    with_gpu = Wanted("key", "x", "/opt/envbuild", ENV, cuda)
    assert _node(prepared, with_gpu, gpus=2, cdi=True).cuda
    none = prepared.target.model_copy(update={"container": ContainerSettings(gpus="none")})
    without = prepared._replace(target=none)
    assert not node_image("gpu1", without, with_gpu, _told(), NodeFacts.from_plain(facts("gpu1", 2)), repair=False).cuda


@pytest.mark.parametrize(
    ("builder", "words"),
    [
        (Buildah("buildah", "b"), "push --quiet x:1 docker-archive:/image.tar:x:1"),
        (Builder("podman", "b"), "save --format docker-archive --output /image.tar x:1"),
        (Docker("docker", "b"), "save --output /image.tar x:1"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_how_each_builder_writes_a_file(builder: Builder, words: str) -> None:
    assert builder.save_command("x:1", Path("/image.tar")) == ["b", *words.split()]


CONFIG = b'{"config": {}}'
ID = hashlib.sha256(CONFIG).hexdigest()
MANIFEST = "5" * 64


class Containerd(Builder):
    """Docker with containerd's store of images."""

    def id(self, image: str) -> str:
        return MANIFEST

    def save(self, image: str, path: Path) -> None:
        files = {f"blobs/sha256/{ID}": CONFIG}
        files["manifest.json"] = json.dumps([{"Config": f"blobs/sha256/{ID}", "Layers": []}]).encode()
        with tarfile.open(path, "w") as out:
            for name, data in files.items():
                member = tarfile.TarInfo(name)
                member.size = len(data)
                out.addfile(member, io.BytesIO(data))


def test_the_id_for_nodes_is_that_in_the_archive_where_docker_names_the_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(obtain, "find_builder", lambda *_args, **_more: Containerd("docker", "docker"))
    built: list[str] = []

    def build_image(recipe: Any, *_: Any) -> dict[str, Any]:
        built.append(recipe.tag)
        return {"id": MANIFEST, "seconds": {}}

    monkeypatch.setattr(obtain, "build_image", build_image)
    prepared = prepare(Choice(target="pods-rtx4090", stack="torch-smoke", engine="container"), recorded=True)
    image = obtain.wanted(prepared)
    asked: list[str] = []

    def needed(known: str) -> bool:
        asked.append(known)
        return len(asked) == 1

    first = obtain.obtain(image, prepared, tmp_path, file=needed, say=lambda _: None)
    again = obtain.obtain(image, prepared, tmp_path, file=needed, say=lambda _: None)
    assert (first.id, again.id) == (ID, ID)
    assert (obtain.known_id(image), asked) == (ID, [MANIFEST, ID])
    assert built == [image.name]
