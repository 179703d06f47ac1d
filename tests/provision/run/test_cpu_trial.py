"""`smoke --cpu-trial` reaches the node program on every way to it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envbuild.cli.entry import main
from envbuild.provision import inspect
from envbuild.provision.images import provision as images
from envbuild.provision.jobs import smoke as jobs
from envbuild.provision.run.context import Question, Settings
from tests.provision.ansible.test_play import _Silent
from tests.provision.survey.test_up_to_date import prepared


class Asked(Exception):  # noqa: N818 - no error: what was asked
    pass


class Way:
    def ask(self, work: Any, question: Question) -> list[Any]:
        variant = work.prepared.lock.variants[0]
        raise Asked(question.args(variant, {}))


@pytest.mark.parametrize("trial", [True, False])
def test_the_question_to_an_environment_has_the_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trial: bool
) -> None:
    monkeypatch.setattr(inspect, "route_of", lambda _: Way())
    settings = Settings(tmp_path / "runs", cpu_trial=trial)
    with pytest.raises(Asked) as caught:
        inspect.smoke(prepared(prefix=str(tmp_path / "p")), settings, _Silent())
    assert caught.value.args[0]["cpu_trial"] is trial


@pytest.mark.parametrize("trial", [True, False])
def test_the_requests_of_jobs_and_images_have_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trial: bool) -> None:
    ready = prepared(prefix=str(tmp_path / "p"))
    work: Any = SimpleNamespace(
        prepared=ready, settings=Settings(tmp_path, cpu_trial=trial), run=SimpleNamespace(id="r")
    )
    site: Any = SimpleNamespace(nodes=1)
    request = jobs._requests(work, site, ("/p/envs/demo", ready.lock.variants[0], {}))
    assert request["smoke"]["args"]["cpu_trial"] is trial
    image = SimpleNamespace(environment="/p/envs/demo", variant=ready.lock.variants[0])
    monkeypatch.setattr(images, "wanted", lambda _: image)
    assert images.asks_of(work, "smoke")["cpu_trial"] is trial
    assert "cpu_trial" not in images.asks_of(work, "verify")


def test_the_command_line_gives_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[bool] = []

    def smoke(_: Any, settings: Settings, __: Any) -> Any:
        seen.append(settings.cpu_trial)
        raise KeyboardInterrupt

    monkeypatch.setattr(inspect, "smoke", smoke)
    place = ["--target", "local", "--prefix", str(tmp_path / "p")]
    for flags in ([], ["--cpu-trial"]):
        main(["smoke", *place, *flags])
    assert seen == [False, True]
