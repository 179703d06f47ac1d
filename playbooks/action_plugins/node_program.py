"""The action `node_program`: one call of the node program with a request on its standard input.

Like `ansible.builtin.command`, without a module of Ansible on the node: that would be another Python for each step.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    """`argv`: the command on the node; `request`: a file here, which it reads. It says itself whether it changed."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Call it; `rc`, `stdout`, `stderr`, `changed` and `failed`."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        # Whichever shell the account has. `exit` keeps sh there, which says that the program was killed: ssh gives 255
        # for that, and Ansible would take it for a lost connection and call the program again.
        program = f"env {self._compute_environment_string()} {shlex.join(self._task.args['argv'])}; exit $?"
        command = f"exec /bin/sh -c {shlex.quote(program)}"
        request = Path(self._task.args["request"]).read_bytes()
        done = self._low_level_execute_command(command, sudoable=False, in_data=request, executable=False)
        said = {stream: done[stream].rstrip("\r\n") for stream in ("stdout", "stderr")}
        failed = {"failed": True, "msg": "non-zero return code"} if done["rc"] else {}
        return {**result, **said, "rc": done["rc"], "changed": _changed(said["stdout"]), **failed}


def _changed(answer: str) -> bool:
    try:
        told = json.loads(answer)
    except ValueError:
        return False
    return isinstance(told, dict) and bool(told.get("changed"))
