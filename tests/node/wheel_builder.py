"""One builder as a process of its own: `python -m tests.node.wheel_builder '{"store": ..., "tmp": ...}'`.

Prints `building` when its build begins and a JSON line at the end. Options: `host` (the name it goes by: another one is
another machine to everybody else), `clock` (a file with the seconds that the file server has), `until` (the build or,
with `in_put`, the storing goes on when that file is there), `content`, `wait`, `run`, `fails` (the exit code
that the build fails with).
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from envbuild.node import identity, lease
from envbuild.node.protocol import NodeError
from envbuild.node.wheels import acquire
from envbuild.node.wheels import store as wheel_store
from tests.node.wheel_support import inputs, wheel
from tests.support.wheels import sha256


def _stall(path: str) -> None:
    print("building", flush=True)
    while not os.path.exists(path):
        time.sleep(0.02)


def main(options: dict[str, Any]) -> None:
    real = identity.here
    acquire._LONGEST_PAUSE = 0.05
    lease.BEAT = 0.03
    if "host" in options:
        identity.here = lambda: {**real(), "host": options["host"], "boot_id": options["host"]}
    if "clock" in options:

        def touch(path: str) -> None:
            now = float(Path(options["clock"]).read_text())
            os.utime(path, (now, now))

        lease.touch = touch
    finish = wheel_store._finish
    if options.get("in_put"):

        def stalled(out: Any) -> None:
            _stall(options["until"])
            finish(out)

        wheel_store._finish = stalled

    def build(out: str) -> dict[str, Any]:
        if not options.get("in_put"):
            _stall(options.get("until", "/"))
        if "fails" in options:
            raise NodeError("build-failed", "no compiler", why="for the test", exit_code=options["fails"])
        made = wheel(Path(out), options.get("content", "VERSION = 1\n"))
        return {"by": options.get("run", "run"), "wheel": str(made)}

    store = wheel_store.Store(options["store"], create=True)
    os.makedirs(options["tmp"], exist_ok=True)
    owner = {"run": options.get("run", "run"), "what": "apex"}
    try:
        entry, built = acquire.obtain(store, inputs(), owner, build, options["tmp"], options.get("wait"))
    except NodeError as error:
        print(json.dumps(error.as_dict()), flush=True)
        sys.exit(error.exit_code)
    print(json.dumps({"built": built, "by": entry.facts["by"], "sha256": sha256(Path(entry.wheel))}), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
