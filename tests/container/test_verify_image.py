"""What is said of an image whose containers say nothing."""

from __future__ import annotations

from typing import Any, cast

import pytest

from envbuild.container.builders import Builder
from envbuild.container.select import locked_stack
from envbuild.container.verify_image import Inspected, inspect_image, smoke_image, verify_image
from envbuild.errors import EnvbuildError
from envbuild.node import proc
from tests.support.fails import fails

VARIANT = next(each for each in locked_stack("torch-smoke").lock.variants if each.base.kind == "none")
LABELS = {
    "stack": "torch-smoke", "profile": "exact", "lock": f"sha256:{VARIANT.digest}",
    "environment": "/opt/envbuild/envs/s-1",
}  # fmt: skip


class Silent:
    """A builder whose containers end with `rc` and print nothing; `argv`: what the last one ran."""

    def __init__(self, rc: int, err: str = "no such file", **labels: str) -> None:
        self.rc, self.err, self.labels = rc, err, {**LABELS, **labels}
        self.argv: list[str] = []

    def inspect(self, _image: str) -> dict[str, Any]:
        return {"id": "1", "config": {"Labels": {f"dev.envbuild.{key}": value for key, value in self.labels.items()}}}

    def run(self, _image: str, argv: list[str], _stdin: bytes = b"", **_more: Any) -> proc.Finished:
        self.argv = argv
        return proc.Finished(self.rc, err=self.err)


def image(builder: Silent) -> Inspected:
    return inspect_image(cast(Builder, builder), "team/image:1")


@pytest.mark.parametrize("rc", [0, 1])
def test_an_image_whose_containers_say_nothing_is_not_called_verified(rc: int) -> None:
    silent = Silent(rc)
    with fails("image-does-not-run", 1) as caught:
        verify_image(cast(Builder, silent), image(silent))
    assert caught.value.why == "no such file" and "by hand" in caught.value.hint


@pytest.mark.parametrize(
    ("labels", "code", "exit_code"),
    [
        ({"stack": ""}, "image-not-ours", 2),
        ({"lock": "sha256:0"}, "image-of-another-lock", 7),
        ({"profile": "nothing"}, "profile-unknown", 2),
    ],
)
def test_an_image_is_compared_with_the_lock_that_its_labels_name(
    labels: dict[str, str], code: str, exit_code: int
) -> None:
    assert image(Silent(0)).variant == VARIANT
    with fails(code, exit_code):
        image(Silent(0, **labels))


@pytest.mark.parametrize(("rc", "why"), [(-9, "was killed (signal 9"), (125, "ended without an answer (exit 125)")])
def test_a_container_that_ends_without_a_word_is_told_by_its_end_and_had_the_gpus_of_the_caller(
    rc: int, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    silent = Silent(rc, "")
    with pytest.raises(EnvbuildError) as caught:
        smoke_image(cast(Builder, silent), image(silent), gpus=True)
    assert f"it {why}" in caught.value.why
    assert silent.argv[:2] == ["env", "CUDA_VISIBLE_DEVICES=3"]
