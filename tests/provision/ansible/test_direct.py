"""What steps without Ansible do beside calling the node program: files are put where the playbooks put them."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

from envbuild.provision.ansible.steps import Limits, NodeHost, StepsResult, TaskEvent, run_here
from tests.support.fails import fails
from tests.support.patience import alive, text_of
from tests.support.programs import executable


def _put(playbook: str, store: Path, **files: Any) -> tuple[StepsResult, list[TaskEvent]]:
    events: list[TaskEvent] = []
    host = NodeHost("localhost", "/nowhere", "/nowhere", store=str(store), **files)
    result = run_here(playbook, host, on_event=events.append, limits=Limits(60))
    return result, events


def test_a_bundle_is_put_into_its_store_and_named_by_its_run(tmp_path: Path) -> None:
    (tmp_path / "made.tar").write_bytes(b"bundle")
    bundles = {"bundle.tar": tmp_path / "made.tar"}
    result, events = _put("provision.yml", tmp_path / "store", bundles=bundles, run="run-1")
    assert (result.status, [event.status for event in events]) == ("successful", ["started", "changed"])
    assert (tmp_path / "store/bundle.tar").read_bytes() == b"bundle"
    assert (tmp_path / "store/runs/run-1").is_dir()


def test_an_image_is_copied_for_its_owner_alone(tmp_path: Path) -> None:
    (tmp_path / "image.tar").write_bytes(b"image")
    result, _ = _put("image.yml", tmp_path / "store", image=tmp_path / "image.tar")
    place = tmp_path / "store/image.tar"
    assert (result.status, place.read_bytes(), stat.S_IMODE(place.stat().st_mode)) == ("successful", b"image", 0o600)


def test_an_interrupt_ends_the_steps_also_where_nobody_reads_what_is_said(tmp_path: Path) -> None:
    program, request, pid = tmp_path / "python", tmp_path / "install.json", tmp_path / "pid"
    request.write_text("{}")
    executable(program, f"#!/bin/sh\necho $$ >'{pid}'\nexec sleep 600\n")
    host = NodeHost("localhost", str(program), "/nowhere", requests={"install": request})

    def unread() -> None:
        raise BrokenPipeError

    with fails("interrupted"):
        limits = Limits(600, lambda: text_of(pid).endswith("\n"), unread)
        run_here("provision.yml", host, on_event=lambda _: None, limits=limits)
    assert not alive(int(text_of(pid)))
