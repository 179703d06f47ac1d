"""Hosts that somebody else names, and which of them are meant."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
import yaml

from envbuild.catalog.loader import load_target
from envbuild.errors import EnvbuildError
from envbuild.model.target import Connection, HostAddress, Target
from envbuild.provision.ansible.adapter import connection_variables
from envbuild.provision.ansible.inventory_hosts import _listed, hosts_of
from envbuild.provision.run.context import Narrowing, Selection
from envbuild.provision.survey.hosts import list_hosts, narrow, settle_hosts, unsupported
from envbuild.transport.ssh import _command
from tests.support.fails import fails
from tests.support.files import write_file

NAMES = [f"gpu{i:02}" for i in range(1, 9)]


def settled(folder: Path, hosts: object, narrowing: Narrowing | None = None) -> tuple[Target, Selection | None]:
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump({"name": "mine", "extends": "ssh", "prefix": "/p", "hosts": hosts}))
    loaded = load_target(str(path))
    assert unsupported(loaded.target, only_ask=True) == {}
    return settle_hosts(loaded, narrowing or Narrowing())


def refused(folder: Path, hosts: object, narrowing: Narrowing | None = None) -> EnvbuildError:
    with pytest.raises(EnvbuildError) as caught:
        settled(folder, hosts, narrowing)
    assert caught.value.exit_code == 2
    return caught.value


def program(folder: Path, text: str) -> dict[str, list[str]]:
    path = folder / "list-hosts"
    path.write_text("#!/bin/sh\n" + text + "\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return {"command": ["./list-hosts"]}


# An Ansible inventory, through Ansible


def test_an_inventory_names_hosts_and_how_they_are_reached(tmp_path: Path) -> None:
    (tmp_path / "hosts.ini").write_text(
        "[gpu]\ngpu[01:02] ansible_port=2222\ngpu03 ansible_host=10.0.0.3 ansible_user=you\n"
        "[other]\ngpu01\nlogin ansible_connection=local ansible_ssh_common_args='-o ProxyCommand=id'\n"
        "[gpu:vars]\nansible_user=me\nansible_become_password=secret\n"
    )
    write_file(tmp_path / "host_vars" / "gpu02.yml", "ansible_port: 2200\n")
    target, selection = settled(tmp_path, {"inventory": "hosts.ini"})
    assert (set(target.hosts), selection) == ({"gpu01", "gpu02", "gpu03", "login"}, None)
    assert target.connection.hosts == {
        "gpu01": HostAddress(user="me", port=2222),
        "gpu02": HostAddress(user="me", port=2200),
        "gpu03": HostAddress(address="10.0.0.3", user="you"),
    }
    assert "secret" not in repr(target)


def test_a_yaml_inventory_is_read_and_a_path_is_meant_from_the_folder_of_the_file_that_names_it(tmp_path: Path) -> None:
    folder = tmp_path / "base"
    write_file(folder / "all.yaml", "all: {hosts: {a1: {ansible_port: 22}, a2: }}\n")
    (folder / "base.yaml").write_text("name: base\nextends: ssh\nprefix: /p\nhosts: {inventory: ./all.yaml}\n")
    mine = tmp_path / "mine.yaml"
    mine.write_text("name: mine\nextends: ./base/base.yaml\n")
    target, _ = settle_hosts(load_target(str(mine)), Narrowing(limit=("a1",)))
    assert (target.hosts, target.connection.hosts) == (("a1",), {"a1": HostAddress(port=22)})


UNSAFE = {
    "template": ("ansible_host=\"{{ lookup('pipe', 'touch owned') }}\"", "templates are not filled in"),
    "option": ("ansible_host=-oProxyCommand=id", "not a plain value"),
    "account": ("ansible_host=you@elsewhere", "not a plain value"),
    "words": ("ansible_user='a b; id'", "not a plain value"),
    "number": ("ansible_port=99999", "not a plain value"),
    "name": ("ansible_port=ssh", "not a plain value"),
}


def test_an_address_that_cannot_be_used_safely_is_an_error_and_not_another_machine(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("".join(f"{name} {line}\n" for name, (line, _) in UNSAFE.items()))
    variables = _listed(path)["_meta"]["hostvars"]  # of all at once: Ansible is slow to start
    assert [each.name for each in tmp_path.iterdir()] == ["hosts"], "nothing was run"
    for name, (_, why) in UNSAFE.items():
        with fails("hosts-invalid", 2) as caught:
            hosts_of({"_meta": {"hostvars": {"gpu01": variables[name]}}, "g": {"hosts": ["gpu01"]}}, Path("hosts"))
        assert "gpu01: ansible_" in caught.value.why and why in caught.value.why


def test_a_program_as_inventory_is_not_run(tmp_path: Path) -> None:
    program(tmp_path, f"touch {tmp_path}/ran; echo '{{}}'")
    error = refused(tmp_path, {"inventory": "list-hosts"})
    assert (error.code, "command: [...]" in error.hint) == ("hosts-invalid", True)
    assert not (tmp_path / "ran").exists()


def test_an_inventory_that_is_not_there_that_is_broken_and_that_is_empty(tmp_path: Path) -> None:
    assert refused(tmp_path, {"inventory": "none.ini"}).code == "hosts-file-missing"
    (tmp_path / "broken.yaml").write_text("all: [\x1b[31m\n")
    error = refused(tmp_path, {"inventory": "broken.yaml"})
    assert (error.code, "\x1b" in error.why) == ("hosts-invalid", False)
    (tmp_path / "empty.yaml").write_text("all: {hosts: {}}\n")
    assert refused(tmp_path, {"inventory": "empty.yaml"}).code == "hosts-none"


@pytest.mark.parametrize(
    ("listed", "code"),
    [
        ([], "hosts-invalid"),
        ({"g": {"hosts": [7]}}, "hosts-invalid"),
        ({"_meta": {"hostvars": "x"}, "g": {"hosts": ["x"]}}, "hosts-invalid"),
        ({"g": {"hosts": ["{{ x }}"]}}, "host-invalid"),
        ({"g": {"hosts": [f"n{i}" for i in range(20_001)]}}, "hosts-too-many"),
    ],
)
def test_hostile_answers_of_the_parser_are_refused(listed: object, code: str) -> None:
    with fails(code, 2):
        hosts_of(listed, Path("hosts"))


def test_strange_variables_of_the_parsers_answer_count_as_none() -> None:
    listed = {
        "_meta": {"hostvars": {"a": [], "b": {"ansible_host": "b", "ansible_ssh_port": "22"}, "c": "x"}},
        "g": {"hosts": ["a", "b", "c"]},
    }
    assert hosts_of(listed, Path("hosts")) == {"a": HostAddress(), "b": HostAddress(port=22), "c": HostAddress()}


# A program


def test_a_program_of_the_targets_folder_prints_host_lists_and_gets_its_arguments_as_they_are(tmp_path: Path) -> None:
    target, _ = settled(tmp_path, program(tmp_path, "echo 'gpu[01-03]'; echo; echo 'gpu02 a,b'"))
    assert target.hosts == ("gpu01", "gpu02", "gpu03", "a", "b")
    target, _ = settled(tmp_path, {"command": ["basename", "-a", "-s", "; touch owned", "a; touch owned", "b"]})
    assert target.hosts == ("a", "b")
    assert not (tmp_path / "owned").exists()
    assert list_hosts(["x"], tmp_path) == (["x"], {})


@pytest.mark.parametrize(
    ("text", "code", "why"),
    [
        ("echo gpu01; echo no credentials >&2; exit 3", "hosts-command-failed", "exit 3: no credentials"),
        ("yes gpu01", "hosts-command-failed", "more than 4 MiB"),
        ("true", "hosts-none", "names none"),
        ("echo -oProxyCommand", "host-invalid", "`./list-hosts` printed it"),
        ("echo '@all'", "hosts-invalid", "`./list-hosts` printed it"),
        ("printf 'a\\033[31mb'", "hosts-invalid", "names have letters"),
        ("seq -f n%g 20001", "hosts-too-many", ""),
    ],
)
def test_a_program_that_fails_or_prints_no_hosts_is_a_coded_error(
    tmp_path: Path, text: str, code: str, why: str
) -> None:
    error = refused(tmp_path, program(tmp_path, text))
    assert (error.code, why in error.why) == (code, True), error.why
    assert (error.what + error.why).isprintable()


def test_d76_a_program_that_is_not_there_or_never_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no such program" in refused(tmp_path, {"command": ["./none"]}).why
    monkeypatch.setattr("envbuild.provision.survey.hosts.COMMAND_DEADLINE", 0.2)
    assert "within 0.2 s" in refused(tmp_path, program(tmp_path, "sleep 60")).why


# Which of them


def test_inside_a_pbs_job_its_node_file_names_the_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def of_job(told: str) -> list[str]:
        pbs = {"hosts": {"pbs": told}, "scheduler": {"kind": "pbs"}}
        path = tmp_path / "mine.yaml"
        path.write_text(yaml.safe_dump({"name": "mine", "extends": "ssh", "prefix": "/p", **pbs}))
        loaded = load_target(str(path))
        assert unsupported(loaded.target) == {}
        return list(settle_hosts(loaded, Narrowing())[0].hosts)

    nodes = tmp_path / "nodes"
    nodes.write_text("x3001.example.org\nx3001.example.org\nx3002.example.org\n")
    monkeypatch.delenv("PBS_NODEFILE", raising=False)
    with fails("hosts-outside-job", 2):
        of_job("nodefile")
    monkeypatch.setenv("PBS_NODEFILE", str(nodes))
    assert of_job("nodefile") == of_job("./nodes") == ["x3001.example.org", "x3002.example.org"]
    with fails("hosts-file-missing", 2):
        of_job("./gone")


def test_limit_and_exclude_keep_the_order_and_say_how_many_are_left(tmp_path: Path) -> None:
    chosen, selection = narrow(NAMES, Narrowing(("gpu[05-07],gpu01",), ("gpu06",)), "t")
    assert chosen == ["gpu01", "gpu05", "gpu07"]
    assert (str(selection), selection and selection.as_dict()) == (
        "3 of 8 nodes, by --limit and --exclude",
        {"nodes": 3, "of": 8, "by": ["--limit", "--exclude"]},
    )
    assert str(narrow(NAMES, Narrowing(exclude=("gpu08",)), "t")[1]) == "7 of 8 nodes, by --exclude"
    assert narrow(NAMES, Narrowing(), "t") == (NAMES, None)
    assert refused(tmp_path, ["a", "b"], Narrowing(exclude=("a", "b"))).code == "hosts-none"


@pytest.mark.parametrize("narrowing", [Narrowing(limit=("gpu[08-10]",)), Narrowing(exclude=("gpu09", "gpu10"))])
def test_an_unknown_host_is_an_error_with_the_nearest_name(narrowing: Narrowing) -> None:
    with fails("host-unknown", 2) as caught:
        narrow(NAMES, narrowing, "the target t")
    assert caught.value.what == f"`{narrowing.options[0]}` names gpu09 and 1 more, which are not of the target t"
    assert caught.value.hint == "did you mean `gpu08`?"


def test_a_scheduler_chooses_the_nodes_of_its_jobs(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\nextends: slurm\nprefix: /p\nhosts: {slurm: gpu}\nconnection: {kind: job}\n")
    loaded = load_target(str(path), template=True)
    assert settle_hosts(loaded, Narrowing()) == (loaded.target, None)
    with fails("option-does-not-fit", 2):
        settle_hosts(loaded, Narrowing(limit=("gpu01",)))


# How they are reached


def test_what_is_said_of_one_host_stands_above_the_connection() -> None:
    special = {"a": HostAddress(address="10.0.0.1", port=2222), "b": HostAddress(user="you")}
    connection = Connection(kind="ssh", user="me", port=22, hosts=special)
    told = {host: connection_variables(connection, host) for host in ("a", "b", "c")}
    keys = ("ansible_host", "ansible_user", "ansible_port")
    assert [tuple(told[host][key] for key in keys) for host in "abc"] == [
        ("10.0.0.1", "me", 2222),
        ("b", "you", 22),
        ("c", "me", 22),
    ]
    asked = [" ".join(_command(host, connection)) for host in "abc"]
    ends = ("-l me -p 2222 -- 10.0.0.1", "-l you -p 22 -- b", "-l me -p 22 -- c")
    assert [words.endswith(end) for words, end in zip(asked, ends, strict=True)] == [True] * 3, asked
