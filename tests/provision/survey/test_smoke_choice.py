"""`smoke --only` reaches the node program on every way to it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envbuild.cli.entry import main
from envbuild.model.stack import SmokeItem
from envbuild.provision import provision
from envbuild.provision.images import provision as images
from envbuild.provision.run.context import Prepared, Question, Settings
from envbuild.provision.survey.prepare import as_asked, chosen
from tests.provision.ansible.test_play import unseen
from tests.provision.survey.test_up_to_date import prepared
from tests.support.fails import fails

ONLY = ("machine",)


def with_machine(top: Path) -> Prepared:
    """A stack whose smoke list has `machine`."""
    ready = prepared(prefix=str(top / "p"))
    variant = ready.lock.variants[0].model_copy(update={"smoke": (SmokeItem(name="machine"),)})
    return ready._replace(lock=ready.lock.model_copy(update={"variants": (variant,)}))


class Asked(Exception):  # noqa: N818 - no error: what was asked
    pass


class Way:
    def ask(self, work: Any, question: Question) -> list[Any]:
        variant = work.prepared.lock.variants[0]
        raise Asked(question.args(variant, {}))


def test_the_question_to_an_environment_has_the_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provision, "route_of", lambda _: Way())
    settings = Settings(tmp_path / "runs", only=ONLY)
    with pytest.raises(Asked) as caught:
        provision.smoke(with_machine(tmp_path), settings, unseen)
    assert caught.value.args[0]["only"] == ["machine"]


def test_the_requests_of_images_have_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ready = prepared(prefix=str(tmp_path / "p"))
    work: Any = SimpleNamespace(prepared=ready, settings=Settings(tmp_path, only=ONLY), run=SimpleNamespace(id="r"))
    image = SimpleNamespace(environment="/p/envs/demo", variant=ready.lock.variants[0])
    monkeypatch.setattr(images, "wanted", lambda _: image)
    assert images.asks_of(work, "smoke")["only"] == ["machine"]


def test_the_command_line_gives_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[object] = []

    def smoke(_: Any, settings: Settings, __: Any) -> Any:
        seen.append(settings.only)
        raise KeyboardInterrupt

    monkeypatch.setattr(provision, "smoke", smoke)
    place = ["--target", "local", "--prefix", str(tmp_path / "p")]
    for flags in ([], ["--only", "machine/gemm", "--only", "training"]):
        main(["smoke", *place, *flags])
    assert seen == [(), ("machine/gemm", "training")]


def test_a_name_that_the_stack_does_not_have_is_refused_before_anybody_is_asked(tmp_path: Path) -> None:
    with fails("smoke-unknown", 2) as error:
        provision.smoke(with_machine(tmp_path), Settings(tmp_path / "runs", only=("machine/gem",)), unseen)
    assert "machine/gemm" in (error.value.hint or "")
    assert not (tmp_path / "runs").exists()


def test_a_node_is_told_verified_peaks_and_what_the_links_of_gpus_give_one_way(tmp_path: Path) -> None:
    told = as_asked(prepared(prefix=str(tmp_path / "p")), Settings(tmp_path), {"items": []})
    links, peaks = told["links"], told["peaks"]
    assert (peaks["NVIDIA H200"], "NVIDIA H100 PCIe" in peaks) == (989.0, False), "of which we know it from memory"
    assert (links["NVIDIA H200"], links["Tesla V100-SXM2-16GB"], "NVIDIA L4" in links) == (450.0, 150.0, False)
    assert not {"NVIDIA A100 80GB PCIe", "NVIDIA H100 PCIe", "NVIDIA GeForce RTX 3090"} & {*links}, "who has a bridge?"


def test_nodes_meet_only_where_that_was_asked_for(tmp_path: Path) -> None:
    ready = with_machine(tmp_path)

    def nodes(*only: str) -> int | None:
        return chosen(ready, Settings(tmp_path, only=only)).target.smoke_nodes

    assert (nodes(), nodes("nodes"), nodes("nodes/all-reduce"), nodes("machine/gemm")) == (None, None, None, 0)
