"""The hosts of an Ansible inventory, as Ansible's own parser reads them: names, addresses, users, ports; nothing else.

Static inventories (YAML, INI, TOML; a file or a folder) with their `group_vars` and `host_vars`. A program is not run:
the target file says so openly with `hosts: {command: [...]}`.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from envbuild.errors import EnvbuildError
from envbuild.hostlist import MAX_HOSTS, check_host
from envbuild.model.target import HostAddress
from envbuild.node import proc
from envbuild.provision.ansible.adapter import find_program, variables, without_user_settings
from envbuild.text import last_lines

DEADLINE = 120.0
LIMIT = 64 * 1024 * 1024
# Newest name first; the older ones are still read by Ansible.
_ADDRESS, _USER, _PORT = (("ansible_" + word, "ansible_ssh_" + word) for word in ("host", "user", "port"))
_CONFIGURATION = """[defaults]
nocolor = True
deprecation_warnings = False

[inventory]
enable_plugins = ansible.builtin.yaml, ansible.builtin.ini, ansible.builtin.toml
any_unparsed_is_failed = True
unparsed_is_failed = True
"""


def read_inventory(path: Path) -> dict[str, HostAddress]:
    """Hosts of an inventory by name, in its order, each with what the inventory says of reaching it.

    Raises EnvbuildError `hosts-file-missing`, `hosts-invalid`, `hosts-too-many` and `host-invalid` (exit 2),
    `installation-broken` (exit 70).
    """
    if not (path.is_file() or path.is_dir()):
        raise EnvbuildError(
            "hosts-file-missing", f"there is no inventory {path}", why="`hosts: {inventory: ...}` names it",
            hint="a relative path starts at the folder of the target file",
        )  # fmt: skip
    return hosts_of(_listed(path), path)


def _listed(path: Path) -> Any:
    with tempfile.TemporaryDirectory(prefix="envbuild-inventory-") as folder:
        private = Path(folder)
        (private / "ansible.cfg").write_text(_CONFIGURATION, encoding="utf-8")
        env = {**without_user_settings(os.environ), **variables(private, "ENVBUILD_INVENTORY", "1")}
        env["ANSIBLE_HOME"] = str(private / "home")
        argv = [str(find_program("ansible-inventory")), "--list", "-i", str(path.absolute())]
        done = proc.run(argv, timeout=DEADLINE, env=env, cwd=folder, limit=LIMIT)
    if done.truncated or done.timed_out:
        raise _invalid(path, "it is too large" if done.truncated else f"it was not read within {DEADLINE:g} s")
    if not done.ok:
        raise _invalid(path, last_lines(done.err) or f"ansible-inventory ended with {done.rc}")
    try:
        return json.loads(done.out)
    except (ValueError, RecursionError) as error:
        raise _invalid(path, f"ansible-inventory printed no JSON: {str(error)[:200]}") from None


def hosts_of(listed: Any, path: Path) -> dict[str, HostAddress]:
    """The hosts in what `ansible-inventory --list` printed for `path`."""
    try:
        variables = dict(listed.get("_meta", {}).get("hostvars", {}))
        names = dict.fromkeys(check_host(name) for group in listed.values() for name in group.get("hosts", ()))
    except (AttributeError, TypeError, ValueError):
        raise _invalid(path, "ansible-inventory printed something else than groups") from None
    if len(names) > MAX_HOSTS:
        raise EnvbuildError("hosts-too-many", f"{path} names more than {MAX_HOSTS} hosts", hint="split the inventory")
    hosts = {}
    for name in names:
        given = variables.get(name)
        hosts[name] = _address(path, name, given if isinstance(given, dict) else {})
    return hosts


def _address(path: Path, name: str, given: Mapping[str, Any]) -> HostAddress:
    """What is said of one host. What cannot be used is an error: without it another machine would be reached."""
    values: dict[str, Any] = {}
    for field, keys in (("address", _ADDRESS), ("user", _USER), ("port", _PORT)):
        key = next((key for key in keys if given.get(key) not in (None, "")), None)
        if key is None:
            continue
        value = given[key]
        if field == "port" and isinstance(value, str) and value.isascii() and value.isdigit():
            value = int(value[:6])
        try:
            HostAddress.from_plain({field: value})
            values[field] = check_host(value) if field == "address" else value
        except (ValidationError, EnvbuildError):
            why = "templates are not filled in" if "{{" in str(value) else "it is not a plain value"
            raise _invalid(path, f"{name}: {key} is {str(value)[:100]!r}; {why}") from None
    if values.get("address") == name:
        del values["address"]
    return HostAddress.from_plain(values)


def _invalid(path: Path, why: str) -> EnvbuildError:
    return EnvbuildError(
        "hosts-invalid",
        f"the hosts of {path} cannot be read",
        why=why,
        hint=f"`ansible-inventory --list -i {path}` shows what Ansible reads; programs that list hosts belong in "
        "`hosts: {command: [...]}`",
    )
