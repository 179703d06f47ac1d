"""The action `node_files`: files of the controller, put into a folder of the node.

Like `ansible.builtin.copy`, which starts a Python on the node for each file and reads it twice.
"""

from __future__ import annotations

import shlex
from typing import Any

from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    """`files`: the file here by its name there; `dest`: the folder there; `folder`: an empty one, made as well."""

    _supports_check_mode = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send them; `rc`, `stdout`, `stderr`, `changed` and `failed`."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        files, dest, folder = (self._task.args[name] for name in ("files", "dest", "folder"))
        # Before the folder for temporary files, which Ansible would make with its parents for this user alone.
        done = self._sh(f"umask 022; mkdir -p -- {shlex.join([dest, folder])}")
        if done["rc"] == 0:
            try:
                sent = self._connection._shell.join_path(self._make_tmp_path(), "source")
                for name, src in files.items():
                    self._transfer_file(src, sent)
                    place = shlex.quote(f"{dest}/{name}")
                    # Copied, because a move keeps the mode, and the folder for temporary files may be on another disk.
                    copy = f"cp -- {shlex.quote(sent)} {place}.half && mv -f -- {place}.half {place}"
                    done = self._sh(f"umask 022; export LC_ALL=C; {copy}")
                    if done["rc"] != 0:
                        break
            finally:
                self._remove_tmp_path(self._connection._shell.tmpdir)
        failed = {"failed": True, "msg": "non-zero return code"} if done["rc"] else {}
        return {**result, **{key: done[key] for key in ("rc", "stdout", "stderr")}, "changed": not failed, **failed}

    def _sh(self, program: str) -> dict[str, Any]:
        # Whichever shell the account has; see `node_program`.
        command = f"exec /bin/sh -c {shlex.quote(f'{program}; exit $?')}"
        done: dict[str, Any] = self._low_level_execute_command(command, sudoable=False, executable=False)
        return done
