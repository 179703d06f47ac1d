"""Images pinned by digest: which ones a lock needs, what becomes of its variants, what the Dockerfile says."""

from __future__ import annotations

import functools
import hashlib
import json
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from envbuild import resources
from envbuild.cli.verbs import cli
from envbuild.container import registry
from envbuild.container.base_images import AskedDigest, Given, load_containers, read_digests, write_digests
from envbuild.container.recipe import render
from envbuild.container.registry import images_of, pin_images
from envbuild.container.select import recipe_for
from envbuild.errors import EnvbuildError
from envbuild.lock.files import read_lock
from envbuild.lock.record import write_lock
from envbuild.lock.variants import locked_image
from envbuild.model.lock import Lock, LockedImage
from tests.container.test_registry import Registry
from tests.container.test_registry import registry as registry_server
from tests.support.fails import fails

__all__ = ["registry_server"]  # a fixture

NGC = "nvcr.io/nvidia/pytorch:22.02-py3"
DIGEST = "7" * 64
DAY = date(2026, 11, 21)


def asked(*names: str) -> dict[str, AskedDigest]:
    return {name: AskedDigest(digest=DIGEST, asked="2026-11-21") for name in names}


@pytest.fixture
def lock() -> Lock:
    return read_lock(resources.lockfiles() / "megatron-deepspeed-slurm.exact.lock.toml")


def test_the_images_of_a_lock_are_those_of_its_stages_and_a_pinned_one_is_part_of_the_variant(
    lock: Lock, tmp_path: Path
) -> None:
    containers = load_containers()
    assert images_of(lock, shipped=False) == [containers.fetch, NGC]
    # Variants that stand on a node's own interpreter have none.
    smoke = read_lock(resources.lockfiles() / "torch-smoke.exact.lock.toml")
    names = images_of(smoke, shipped=False)
    assert containers.fetch in names and "docker.io/library/python:3.13-slim-bookworm" in names
    made = pin_images(lock, asked(NGC, "other"))
    (before,), (after,) = lock.variants, made.variants
    assert after.image == LockedImage(name=NGC, digest=DIGEST)
    assert after.digest != before.digest == lock.variants[0].digest
    assert pin_images(made, asked(NGC)) == made
    assert pin_images(lock, {}) == lock
    # Its digest holds, and the next `lock create` keeps it.
    write_lock(tmp_path / "x.lock.toml", made)
    assert read_lock(tmp_path / "x.lock.toml") == made
    assert locked_image(after.base, after.image) == after.image
    assert locked_image(after.base).digest == "unrecorded"  # type: ignore[union-attr]


def test_recorded_digests_are_in_the_dockerfile(monkeypatch: pytest.MonkeyPatch) -> None:
    fetch = load_containers().fetch
    monkeypatch.setattr("envbuild.container.select.read_digests", lambda *_path: asked(NGC, fetch))
    recipe = recipe_for("megatron-deepspeed-slurm")
    text = render(recipe)
    assert f"# digest: sha256:{DIGEST}\nFROM {fetch}@sha256:{DIGEST} AS tools\n" in text
    assert text.count(f"FROM {NGC}@sha256:{DIGEST} AS ") == 2
    assert f'org.opencontainers.image.base.digest="sha256:{DIGEST}"' in text
    assert not [each for each in recipe.warnings if "digest" in each]


PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A stack of the user's own, with its lock."""
    stack = tmp_path / "mine.yaml"
    stack.write_text(f"name: mine\nsummary: a test\nprofiles:\n  exact: {{python: ['{PYTHON}']}}\n")
    assert invoke("lock", "create", str(stack))[0] == 0
    return stack


def test_lock_create_asks_and_writes_beside_the_lock(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(reference: str) -> tuple[str, dict[str, str]]:
        if "slim" in reference:
            raise EnvbuildError("image-unknown", f"the registry has no {reference}", why="it answers 404")
        return DIGEST, {}

    monkeypatch.setattr(registry, "ask_image", ask)
    code, said, _ = invoke("lock", "create", str(mine), "--image", "all")
    assert code == 0, said
    slim = f"docker.io/library/python:{PYTHON}-slim-bookworm"
    assert f"warning: the registry has no {slim} (it answers 404)" in said
    fetch = load_containers().fetch
    assert recorded(mine, fetch) == {"digest": DIGEST, "asked": date.today().isoformat(), "platforms": {}}
    assert f"FROM {fetch}@sha256:{DIGEST} AS tools" in render(recipe_for(str(mine)))
    (mine.parent / "images.toml").write_text("[images.a]\ndigest = 'no'\n")
    assert invoke("lock", "create", str(mine), "--image", "all")[1] == "file-unreadable"
    with fails("output-unwritable"):
        write_digests(asked("a:1"), mine / "images.toml")


INDEX = {
    "manifests": [
        {"digest": f"sha256:{'a' * 64}", "platform": {"os": "linux", "architecture": "amd64"}},
        {"digest": f"sha256:{'b' * 64}", "platform": {"os": "linux", "architecture": "arm", "variant": "v7"}},
        {"digest": f"sha256:{'c' * 64}", "platform": {"os": "unknown", "architecture": "unknown"}},
        "damaged",
    ]
}


def invoke(*words: str) -> tuple[int, str, dict[str, Any]]:
    """Exit code, standard error (of an error its code) and the document."""
    done = CliRunner().invoke(cli, [*words, "--json"])
    if isinstance(done.exception, EnvbuildError):
        return int(done.exception.exit_code), done.exception.code, {}
    return done.exit_code, done.stderr, json.loads(done.stdout or "{}")


def recorded(stack: Path, image: str) -> dict[str, Any]:
    """What `images.toml` beside a stack says of an image."""
    return read_digests(stack.parent / "images.toml")[image].to_json_dict()


def test_a_tag_that_moved_is_told_with_both_digests_and_kept(
    mine: Path, registry_server: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = f"{registry_server.host}/team/image:1"
    body = json.dumps(INDEX).encode()
    registry_server.manifest(body=body)
    monkeypatch.setattr(registry, "ask_image", functools.partial(registry.ask_image, plain_http=True))
    code, said, _ = invoke("lock", "create", str(mine), "--image", image)
    assert code == 0, said
    row = recorded(mine, image)
    assert row["digest"] == hashlib.sha256(body).hexdigest() and row["asked"] == date.today().isoformat()
    assert row["platforms"] == {"linux/amd64": "a" * 64, "linux/arm/v7": "b" * 64}
    assert f"FROM {image}@sha256:{row['digest']} AS " in render(
        recipe_for(str(mine), given=Given(base=image, python="/usr/bin/python3", glibc="2.36"))
    )
    # The tag moves: it is told with both digests, kept, and taken on request.
    moved = json.dumps({**INDEX, "schemaVersion": 2}).encode()
    registry_server.manifest(body=moved)
    new = hashlib.sha256(moved).hexdigest()
    code, _, data = invoke("lock", "check", str(mine))
    (found,) = (each for each in data["findings"] if each["subject"] == image)
    assert (code, found["code"], found["kind"]) == (0, "image-tag-moved", "note")
    assert row["digest"] in found["says"] and new in found["says"]
    _, said, _ = invoke("lock", "create", str(mine), "--image", image)
    assert "has moved" in said and recorded(mine, image) == row
    assert invoke("lock", "create", str(mine), "--image", image, "--upgrade")[0] == 0
    assert recorded(mine, image)["digest"] == new


def test_a_registry_that_does_not_answer_leaves_what_is_recorded_and_is_no_problem_of_the_lock(
    mine: Path, registry_server: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = f"{registry_server.host}/team/image:1"
    by_hand = {"digest": DIGEST, "asked": "2026-11-01", "witness": "our mirror's own list"}
    write_digests({image: AskedDigest.from_plain(by_hand)}, mine.parent / "images.toml")
    before = (mine.parent / "images.toml").read_text()
    registry_server.manifest(429, {"Retry-After": "60"}, b"slow down")
    monkeypatch.setattr(registry, "ask_image", functools.partial(registry.ask_image, plain_http=True))
    rc, said, _ = invoke("lock", "create", str(mine), "--image", image)
    assert (rc, said) == (75, "registry-busy")
    assert (mine.parent / "images.toml").read_text() == before and "our mirror's own list" in before
    rc, _, data = invoke("lock", "check", str(mine))
    assert (rc, data["unchecked"]) == (0, 1)
    assert [each["code"] for each in data["findings"] if each["subject"] == image] == ["image-tag-unchecked"]
