"""What later jobs begin with, and what node-local jobs need."""

from __future__ import annotations

import shutil

from envbuild.model.target import Target
from envbuild.provision.jobs.provision import refuse_script
from envbuild.provision.jobs.site import is_local
from envbuild.provision.jobs.survey import login_facts
from envbuild.schedule.script import ensure_script
from tests.support.fails import fails
from tests.support.programs import completed

HOSTILE = "/shared/it's $(touch /nonexistent) {{x}}"


def test_the_script_of_a_stack_is_readable() -> None:
    made = ensure_script("/lus/me/eb", "opt-175b", "/usr/bin/python3", "/lus/me/eb/tools/n-1/n.pyz")
    assert made == (
        "#!/bin/sh\n"
        "# Written by envbuild: sees to the environment opt-175b on the disk of this node. Where it is there and in\n"
        "# use, that takes well under a second; else it comes out of its pack. Every job begins with it:\n"
        "#   /bin/sh /lus/me/eb/ensure/opt-175b.sh\n"
        "exec /usr/bin/python3 /lus/me/eb/tools/n-1/n.pyz ensure < /lus/me/eb/ensure/opt-175b.json\n"
    )


def test_paths_are_quoted_and_the_text_is_posix_sh() -> None:
    text = ensure_script(HOSTILE, "opt", HOSTILE, HOSTILE)
    for name in filter(shutil.which, ("dash", "bash", "busybox")):
        argv = [name, "sh", "-n"] if name == "busybox" else [name, "-n"]
        assert completed(argv, input=text).returncode == 0, text
    assert text.count("'\"'\"'") >= 2


def target(**more: object) -> Target:
    plain = {"name": "t", "hosts": {"slurm": "gpu"}, "connection": {"kind": "job"}, "scheduler": {"kind": "slurm"}}
    return Target.from_plain({**plain, "prefix": "/local/eb", "placement": "node-local", **more})


def test_what_node_local_jobs_need_is_refused_by_name() -> None:
    assert is_local(target())
    assert not is_local(target(placement="shared"))
    for call, code, exit_code in (
        (lambda: login_facts(target(), None), "shared-missing", 2),
        (lambda: refuse_script(target()), "script-impossible", 7),
        (lambda: refuse_script(target(engine="container", placement="image")), "script-impossible", 7),
    ):
        with fails(code, exit_code):
            call()
