"""Images pinned by digest: which ones a lock needs, what becomes of its variants, what the Dockerfile says."""

from __future__ import annotations

import functools
import json
import sys
from datetime import date
from pathlib import Path

import pytest
from click.testing import CliRunner

from envbuild import resources
from envbuild.cli.verbs import cli
from envbuild.container import registry
from envbuild.container.base_images import AskedDigest, load_containers, read_digests
from envbuild.container.dockerfile import render
from envbuild.container.pin_digests import pin_images, references_of
from envbuild.container.select import Choice, recipe_for
from envbuild.errors import EnvbuildError
from envbuild.lock.files import read_lock, write_lock
from envbuild.lock.variants import locked_image
from envbuild.model.lock import Lock, LockedImage

NGC = "nvcr.io/nvidia/pytorch:22.02-py3"
DIGEST = "7" * 64
DAY = date(2026, 11, 21)


def asked(*names: str) -> dict[str, AskedDigest]:
    return {name: AskedDigest(digest=DIGEST, asked="2026-11-21") for name in names}


@pytest.fixture
def lock() -> Lock:
    return read_lock(resources.lockfiles() / "megatron-deepspeed-slurm.exact.lock.toml")


def test_the_images_of_a_lock_are_those_of_its_stages(lock: Lock) -> None:
    containers = load_containers()
    assert references_of(lock, containers, None) == [containers.fetch, NGC]
    # Variants that stand on a node's own interpreter have none.
    smoke = read_lock(resources.lockfiles() / "torch-smoke.exact.lock.toml")
    names = references_of(smoke, containers, None)
    assert containers.fetch in names and "docker.io/library/python:3.13-slim-bookworm" in names


def test_a_pinned_image_is_part_of_the_variant(lock: Lock, tmp_path: Path) -> None:
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
    recipe = recipe_for(Choice("megatron-deepspeed-slurm"))
    text = render(recipe)
    assert f"# digest: sha256:{DIGEST}\nFROM {fetch}@sha256:{DIGEST} AS fetch\n" in text
    assert text.count(f"FROM {NGC}@sha256:{DIGEST} AS ") == 2
    assert f'org.opencontainers.image.base.digest="sha256:{DIGEST}"' in text
    assert not [each for each in recipe.warnings if "digest" in each]


def test_lock_create_asks_and_writes_beside_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stack = tmp_path / "mine.yaml"
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    stack.write_text(f"name: mine\nsummary: a test\nprofiles:\n  exact: {{python: ['{python}']}}\n")
    wanted: list[str] = []

    def ask(reference: str) -> str:
        wanted.append(reference)
        if "slim" in reference:
            raise EnvbuildError("image-unknown", f"the registry has no {reference}", why="it answers 404")
        return DIGEST

    monkeypatch.setattr(registry, "ask_all", functools.partial(registry.ask_all, ask=ask, today=DAY))
    done = CliRunner().invoke(cli, ["lock", "create", str(stack), "--images", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["changed"] is True
    assert (
        f"warning: the registry has no docker.io/library/python:{python}-slim-bookworm (it answers 404)" in done.stderr
    )
    assert read_digests(tmp_path / "images.toml") == {
        load_containers().fetch: AskedDigest(digest=DIGEST, asked=DAY.isoformat())
    }
    text = render(recipe_for(Choice(str(stack))))
    assert f"FROM {load_containers().fetch}@sha256:{DIGEST} AS fetch" in text
