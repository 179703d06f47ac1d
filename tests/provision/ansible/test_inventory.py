from __future__ import annotations

import json
import os
import shlex
import string
import subprocess
import sys
import time
from pathlib import Path
from typing import cast

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from envbuild.errors import EnvbuildError
from envbuild.hostlist import expand_hosts, fold_hosts
from envbuild.model.target import Connection
from envbuild.provision.ansible.adapter import Inventory, host_variables
from envbuild.provision.ansible.steps import NodeHost
from envbuild.schedule.slurm import node_names
from envbuild.transport.ssh_config import arguments
from tests.support.fails import fails
from tests.support.need import need
from tests.support.programs import completed


class _Loader(yaml.SafeLoader):
    """Reads `!unsafe` texts as texts."""


_Loader.add_constructor("!unsafe", lambda loader, node: loader.construct_scalar(cast(yaml.ScalarNode, node)))


def _host(name: str = "gpu1", **more: object) -> NodeHost:
    return NodeHost(name=name, python="/opt/py/bin/python3", pyz="/p/tools/node.pyz", **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given_hosts", "expected"),
    [
        (("localhost",), ["localhost"]),
        (("nid[001-003]",), ["nid001", "nid002", "nid003"]),
        (("gpu2", "gpu[1-3]"), ["gpu2", "gpu1", "gpu3"]),
        (("a1,a2", "a1"), ["a1", "a2"]),
        (("r[1-2]n[01-02]",), ["r1n01", "r1n02", "r2n01", "r2n02"]),
        (("10.0.0.[7-8]",), ["10.0.0.7", "10.0.0.8"]),
    ],
)
def test_host_lists_expand_in_order_and_without_duplicates(given_hosts: tuple[str, ...], expected: list[str]) -> None:
    assert expand_hosts(given_hosts) == expected


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("gpu[1-", "hosts-invalid"),
        ("gpu[3-1]", "hosts-invalid"),
        ("@all", "hosts-invalid"),
        ("", "hosts-invalid"),
        ("-oProxyCommand=id", "host-invalid"),
        ("n{{7*7}}", "host-invalid"),
        ("gpu\nx", "host-invalid"),
        ("n[0-99999999999]", "hosts-too-many"),
        ("n[1-99999999]m,n1", "hosts-too-many"),
    ],
)
def test_bad_host_lists_are_refused_with_a_code(text: str, code: str) -> None:
    with pytest.raises(EnvbuildError) as caught:
        expand_hosts((text,))
    assert caught.value.code in {code, "hosts-invalid"}
    assert caught.value.exit_code == 2


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "text",
    [
        "g[-1-99999999]",
        "g[1_0-9999_9999]",
        "g[\u0661-\u0669\u0669\u0669\u0669\u0669\u0669\u0669\u0669]",
        "g[1-2]x[1-99999999]",
        "g[1-99999999/1]",
        "g[99999999-1]",
        ",".join(["g[1-20000]"] * 5000),
        "g" + "[1-9]" * 20_000,
    ],
)
def test_d67_hosts_are_counted_before_they_are_expanded(text: str) -> None:
    for read in (lambda: expand_hosts([text]), lambda: node_names(text)):  # of a target, and of Slurm
        began = time.process_time()
        with pytest.raises(EnvbuildError) as caught:
            read()
        assert time.process_time() - began < 1
        assert caught.value.code in {"hosts-invalid", "hosts-too-many"}
        assert caught.value.exit_code == 2
        assert len(caught.value.what) < 200


@pytest.mark.timeout(60)
def test_d67_many_names_with_two_numbers_take_no_minutes() -> None:
    names = [f"g{n}x{n * 7 % 1000}" for n in range(5000)]
    assert expand_hosts([",".join(names), "g[1-2]"]) == [*names, "g1", "g2"]
    assert fold_hosts([*names, "g1", "g2"]).endswith(",g[1-2]")
    assert fold_hosts(["r1n02", "r1n01", "r2n01", "login"]) == "r1n[01-02],r2n01,login"


@given(st.text(alphabet=string.printable, max_size=30))
def test_any_text_expands_to_plain_names_or_is_refused(text: str) -> None:
    try:
        names = expand_hosts((text,))
    except EnvbuildError as error:
        assert error.code in {"hosts-invalid", "host-invalid", "hosts-too-many"}
    else:
        assert names
        assert all(not name.startswith("-") and not set(name) & set(" \n{}'\"$`;|&") for name in names)


@pytest.mark.slow
def test_a_path_with_spaces_is_one_interpreter_to_ansible(tmp_path: Path) -> None:
    python = tmp_path / "it's here" / "python3"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    host = NodeHost(name="localhost", python=str(python), pyz="/p")
    (tmp_path / "vars.json").write_text(json.dumps(host_variables(host)))
    ansible = Path(sys.executable).with_name("ansible")
    argv = [str(ansible), "-i", "localhost,", "-c", "local", "all", "-m", "ping", "-e", f"@{tmp_path}/vars.json"]
    env = {**os.environ, "ANSIBLE_HOME": str(tmp_path / "home"), "ANSIBLE_PIPELINING": "True", "LC_ALL": "C.UTF-8"}
    # Ansible refuses a stdin that does not block, as some services leave it.
    done = completed(argv, env=env, stdin=subprocess.DEVNULL, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_ssh_inventory_quotes_paths_with_spaces_and_percent_signs(tmp_path: Path) -> None:
    known, config = tmp_path / "known %h hosts", tmp_path / "my config"
    known.touch()
    config.write_text("# mine\n")
    connection = Connection(
        kind="ssh", user="hpc", port=2222, identity="/k/my %h key", known_hosts=str(known), config=str(config)
    )
    inventory = Inventory((_host(),), connection)
    host = inventory.as_dict()["nodes"]["hosts"]["gpu1"]
    assert host["ansible_connection"] == "ansible.builtin.ssh"
    assert (host["ansible_user"], host["ansible_port"]) == ("hpc", 2222)
    options = shlex.split(host["ansible_ssh_common_args"])
    assert options == arguments(connection, "gpu1")
    assert 'IdentityFile="/k/my %%h key"' in options
    file = Path(options[options.index("-F") + 1])
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    lines = file.read_text().splitlines()
    assert f'UserKnownHostsFile "{str(known).replace("%", "%%")}"' in lines
    assert {"StrictHostKeyChecking yes", "BatchMode yes", "# mine"} <= set(lines)
    need("ssh")
    ssh = completed(["ssh", *options, "-G", "gpu1"], check=True).stdout
    assert f"userknownhostsfile {known}" in ssh.replace("%%", "%")


@pytest.mark.parametrize("path", ['/k/a"b', "/k/${HOME}", "/k/a\\b"])
def test_a_path_that_openssh_would_expand_is_refused(path: str) -> None:
    with fails("path-unusable"):
        arguments(Connection(kind="ssh", identity=path), "gpu1")


def test_every_text_in_the_file_is_marked_unsafe_and_the_file_is_private(tmp_path: Path) -> None:
    path = tmp_path / "inventory.yml"
    host = _host(store="/x", bundles={"bundle.tar": tmp_path / "{{ 7*7 }}.tar"}, run="now", tmp="/p/'tmp'")
    inventory = Inventory((host,), Connection())
    inventory.write(path)
    text = path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    values = [line.split(": ", 1)[1] for line in text.splitlines() if ": " in line and not line.endswith(": {}")]
    assert values
    assert all(value.startswith("!unsafe ") for value in values)
    assert yaml.load(text, Loader=_Loader) == inventory.as_dict()


@pytest.mark.parametrize("name", ["ansible_connection", "toolchain", "deliver"])
def test_a_request_that_no_step_of_a_playbook_takes_is_a_mistake(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="no playbook step"):
        host_variables(_host(requests={name: tmp_path / "x"}))
