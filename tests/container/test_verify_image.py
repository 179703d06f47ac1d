"""What is said of an image whose containers say nothing."""

from __future__ import annotations

from typing import Any, cast

import pytest

from envbuild.container.builders import Builder
from envbuild.container.verify_image import smoke_image, verify_image
from envbuild.errors import EnvbuildError
from envbuild.node import proc

LABELS = {"stack": "s", "profile": "p", "lock": "sha256:0", "environment": "/opt/envbuild/envs/s-1"}


class Silent:
    """A builder whose containers end with `rc` and print nothing."""

    def __init__(self, rc: int, err: str = "no such file") -> None:
        self.rc, self.err = rc, err

    def inspect(self, _image: str) -> dict[str, Any]:
        return {"id": "1", "config": {"Labels": {f"dev.envbuild.{name}": value for name, value in LABELS.items()}}}

    def run(self, _image: str, _argv: list[str], _stdin: bytes = b"", **_more: Any) -> proc.Finished:
        return proc.Finished(self.rc, err=self.err)


@pytest.mark.parametrize("rc", [0, 1])
def test_an_image_whose_smoke_list_cannot_be_read_is_not_called_tested(rc: int) -> None:
    with pytest.raises(EnvbuildError) as caught:
        smoke_image(cast(Builder, Silent(rc)), "team/image:1", gpus=False)
    assert (caught.value.code, caught.value.exit_code) == ("image-does-not-run", 1)
    assert "variant.json cannot be read" in caught.value.what and caught.value.why == "no such file"
    assert "by hand" in caught.value.hint
    with pytest.raises(EnvbuildError) as caught:
        verify_image(cast(Builder, Silent(rc)), "team/image:1")
    assert caught.value.code == "image-does-not-run"


@pytest.mark.parametrize(("rc", "why"), [(-9, "was killed (signal 9"), (125, "ended without an answer (exit 125)")])
def test_a_container_that_ends_without_a_word_is_told_by_its_end(rc: int, why: str) -> None:
    with pytest.raises(EnvbuildError) as caught:
        smoke_image(cast(Builder, Silent(rc, "")), "team/image:1", gpus=False)
    assert f"it {why}" in caught.value.why


def test_the_gpus_of_an_image_that_is_tested_are_those_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    calls: list[list[str]] = []

    class Telling(Silent):
        def run(self, _image: str, argv: list[str], _stdin: bytes = b"", **_more: Any) -> proc.Finished:
            calls.append(argv)
            return proc.Finished(0, out='{"smoke": []}' if argv[0] == "cat" else "")

    with pytest.raises(EnvbuildError):
        smoke_image(cast(Builder, Telling(0)), "team/image:1", gpus=True)
    assert calls[-1][:2] == ["env", "CUDA_VISIBLE_DEVICES=3"]
