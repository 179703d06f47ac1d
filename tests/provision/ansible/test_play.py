"""Steps through the real Ansible on this machine, with small scripts for the toolchain payload; steps without it."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

from envbuild.errors import ExitCode
from envbuild.model.lock import Lock, Variant
from envbuild.model.stack import Profile, Stack
from envbuild.model.target import Target
from envbuild.provision.ansible.play import _parts, run_hosts
from envbuild.provision.ansible.steps import NodeHost, TaskEvent, Watch, run_here, tmp_folder
from envbuild.provision.run.context import Choice, Outcome, Prepared, Settings, Work
from envbuild.provision.run.evidence import first_error
from envbuild.provision.run.journal import read_journal
from envbuild.provision.run.run_dir import RunDir
from tests.support.fails import fails
from tests.support.files import write_file
from tests.support.patience import alive, text_of
from tests.support.programs import executable

REFUSED = '{"ok": false, "changed": true, "error": {"code": "toolchain-corrupt", "what": "damaged", "exit": 5}}'
FULL = "echo 'cp: error writing: No space left on device' >&2; exit 1"


def unseen(_: object) -> None:
    """Who looks at no event of a run."""


def _prepared(tmp_path: Path) -> Prepared:
    target = Target(name="here", prefix=str(tmp_path / "prefix"))
    variant = Variant(id="v", digest="0" * 64, python="3.11")
    variant = variant.model_copy(update={"digest": variant.compute_digest("s", "exact")})
    lock = Lock(stack="s", profile="exact", manifest_digest="0" * 64, variants=(variant,))
    stack = Stack(name="s", summary="a test", profiles={"exact": Profile(python=("3.11",))})
    return Prepared(stack, "exact", target, lock, tmp_path / "s.lock.toml", "0" * 64, Choice("here"))


def _payload(tmp_path: Path, script: str) -> tuple[Outcome, list[tuple[str | None, object]]]:
    """Run the toolchain step alone: the outcome, and (status, error) of the finished steps in the journal."""
    payload = tmp_path / "payload.sh"
    payload.write_text(f"#!/bin/sh\n{script}\n")
    run = RunDir.create(tmp_path / "runs")
    with run.open_journal() as journal:
        work = Work(Settings(tmp_path / "runs", deadline=60), run, journal, prepared=_prepared(tmp_path))
        files = {"localhost": NodeHost("here", sys.executable, "", payload=payload, prefix=f"{tmp_path}/prefix")}
        outcome = run_hosts({"localhost": {}}, files, work)
    assert work.tasks == 1
    events = read_journal(run.path / "journal.jsonl").events
    ended = [event.data for event in events if event.kind == "step-finished"]
    return outcome, [(data["status"], data["error"]) for data in ended]


def test_d11_a_delivery_is_named_by_its_run_wherever_its_bundle_lies(tmp_path: Path) -> None:
    """Else nobody takes it away when its environment is stamped. As in jobs: the login host gets no request."""
    run = RunDir.create(tmp_path / "runs")
    write_file(run.staging / "made.tar", b"bundle")
    store = tmp_path / "store"
    with run.open_journal() as journal:
        work = Work(Settings(tmp_path / "runs", deadline=60), run, journal, prepared=_prepared(tmp_path))
        bundles = {"bundle.tar": run.staging / "made.tar"}
        given = NodeHost(
            "localhost", sys.executable, "", bundles=bundles, store=str(store), prefix=str(tmp_path / "prefix")
        )
        files = {"localhost": given}
        assert run_hosts({"localhost": {}}, files, work).errors == {}
    assert (store / "bundle.tar").read_bytes() == b"bundle"
    assert [path.name for path in (store / "runs").iterdir()] == [run.id]


def test_of_the_seconds_that_a_node_tells_only_those_are_kept_that_can_be_reckoned_with() -> None:
    told = {"wheels": 1.5, "huge": 10**400, "endless": float("inf"), "none": float("nan"), "less": -1, "word": "x"}
    assert _parts({"result": {"seconds": told}}) == {"parts": {"wheels": 1.5}}
    assert _parts({"result": {"seconds": {"huge": 10**400}}}) == {}


def test_what_a_payload_says_is_the_answer_of_its_node(tmp_path: Path) -> None:
    outcome, ended = _payload(tmp_path, """echo '{"ok": true, "changed": true, "placed": []}'""")
    assert (outcome.errors, ended) == ({}, [("changed", None)])
    assert first_error(outcome.responses["localhost"].values()) is None
    outcome, ended = _payload(tmp_path, f"echo warm-up; echo '{REFUSED}'; exit 5")
    error = first_error(outcome.responses["localhost"].values())
    assert error is not None
    assert (error.code, error.exit_code) == ("toolchain-corrupt", ExitCode.INTEGRITY)
    assert outcome.errors == {}
    ((status, failure),) = ended
    assert isinstance(failure, dict) and (status, failure["code"]) == ("failed", "toolchain-corrupt")


@pytest.mark.parametrize(
    ("script", "code", "number", "how"),
    [
        (FULL, "disk-full", 75, "no room"),
        ("exit 3", "step-failed", 4, "ended without an answer (exit 3)"),
        ("kill -9 $$", "step-failed", 4, "was killed (signal 9; the kernel does this when memory runs out)"),
    ],
)
def test_d40_a_step_that_says_nothing_is_told_by_how_it_ended(
    tmp_path: Path, script: str, code: str, number: int, how: str
) -> None:
    outcome, _ = _payload(tmp_path, script)
    error = outcome.errors["localhost"]
    assert (error.code, int(error.exit_code)) == (code, number)
    assert how in error.what


@pytest.mark.parametrize(
    ("template", "home", "folder"),
    [
        (None, "/home/ada", None),
        ("/scratch/{user}", "", "/scratch/ada"),
        ("{home}/tmp", "/home/ada", "/home/ada/tmp"),
        ("{home}/tmp", "", None),
        ("{data}/tmp", "/home/ada", None),
    ],
)
def test_a_tmp_that_only_the_node_can_know_is_not_guessed(template: str | None, home: str, folder: str | None) -> None:
    assert tmp_folder(template, "ada", home) == folder


def test_an_image_is_copied_for_its_owner_alone(tmp_path: Path) -> None:
    (tmp_path / "image.tar").write_bytes(b"image")
    host = NodeHost("localhost", "/nowhere", "/nowhere", store=str(tmp_path / "store"), image=tmp_path / "image.tar")
    events: list[TaskEvent] = []
    result = run_here("image.yml", host, on_event=events.append, watch=Watch(60))
    place = tmp_path / "store/image.tar"
    assert (result.rc, [event.status for event in events]) == (0, ["started", "changed"])
    assert (place.read_bytes(), stat.S_IMODE(place.stat().st_mode)) == (b"image", 0o600)


def test_an_interrupt_ends_the_steps_also_where_nobody_reads_what_is_said(tmp_path: Path) -> None:
    program, request, pid = tmp_path / "python", tmp_path / "install.json", tmp_path / "pid"
    request.write_text("{}")
    executable(program, f"#!/bin/sh\necho $$ >'{pid}'\nexec sleep 600\n")
    host = NodeHost("localhost", str(program), "/nowhere", requests={"install": request})

    def unread() -> None:
        raise BrokenPipeError

    with fails("interrupted") as caught:
        watch = Watch(600, lambda: text_of(pid).endswith("\n"), unread)
        run_here("provision.yml", host, on_event=lambda _: None, watch=watch)
    assert caught.value.details["nodes"] == {"localhost": "install: started"}
    assert not alive(int(text_of(pid)))
    with fails("interrupted") as caught:
        run_here("provision.yml", host, on_event=lambda _: None, watch=Watch(600, lambda: True))
    assert caught.value.details["nodes"] == {}, "before its first step"
