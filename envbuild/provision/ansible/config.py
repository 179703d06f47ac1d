"""The configuration and environment that ansible-playbook gets: ours, and nothing that the user made for other uses."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

# ansible-runner drops a result whose text is longer.
_RESULT_BYTES = 64 * 1024 * 1024


def variables(private: Path, marker: str, value: str) -> dict[str, str]:
    """Variables for ansible-playbook, the marker of its processes among them; nodes reached locally see them too."""
    out = {
        marker: value,
        "ANSIBLE_CONFIG": str(private / "ansible.cfg"),
        "ANSIBLE_HOST_KEY_CHECKING": "True",
        "ANSIBLE_CALLBACK_PLUGINS": "",
        "AWX_LIB_DIRECTORY": "",
        "MAX_EVENT_RES": str(_RESULT_BYTES),
    }
    locale = os.environ.get("LC_ALL") or os.environ.get("LC_CTYPE") or os.environ.get("LANG") or ""
    if "utf" not in locale.lower():
        # ansible-core refuses to start under any other encoding.
        out["LC_ALL"] = "C.UTF-8"
    return out


def without_user_settings(env: Mapping[str, str]) -> dict[str, str]:
    """The environment without what the user set for other uses of Ansible.

    `JOB_ID` and its like make ansible-runner's callback call `int()`; schedulers put text there.
    """
    ours = {"ANSIBLE_CONFIG", "ANSIBLE_HOST_KEY_CHECKING", "ANSIBLE_CALLBACK_PLUGINS", "ANSIBLE_STDOUT_CALLBACK"}
    awkward = {"JOB_ID", "AD_HOC_COMMAND_ID", "PROJECT_UPDATE_ID", "ORIGINAL_STDOUT_CALLBACK"}
    return {
        key: value
        for key, value in env.items()
        if (not key.startswith("ANSIBLE_") or key in ours) and key not in awkward
    }


def configuration(private: Path) -> str:
    """The text of our own ansible.cfg. `%` is the interpolation sign of the format."""

    def text(path: Path) -> str:
        return str(path).replace("%", "%%")

    return f"""[defaults]
home = {text(private / "home")}
local_tmp = {text(private / "tmp")}
remote_tmp = /tmp
collections_path = {text(private / "collections")}
host_key_checking = True
gathering = explicit
nocows = True
retry_files_enabled = False
deprecation_warnings = False
no_target_syslog = True
any_errors_fatal = False
force_color = False
nocolor = True
timeout = 30
# How often its processes look for each other (s). The default, 0.001, costs 6 % of a core while nodes work.
internal_poll_interval = 0.01

[inventory]
enable_plugins = ansible.builtin.yaml
unparsed_is_failed = True

[connection]
pipelining = True

[ssh_connection]
pipelining = True
retries = 2
# How connections are shared is in the file of `-F`, which the inventory names.
ssh_args =
"""
