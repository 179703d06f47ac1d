"""An image is built at most once here; its id on nodes is that of its configuration, whatever a builder calls it."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from envbuild.container.builders import Builder
from envbuild.provision.images import obtain
from envbuild.provision.run.findings import Choice
from envbuild.provision.survey.prepare import prepare

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
    assert (first.id, first.built, again.id, again.built) == (ID, True, ID, False)
    assert (obtain.known_id(image), asked) == (ID, [MANIFEST, ID])
    assert built == [image.name]
