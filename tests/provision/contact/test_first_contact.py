"""First contact on this machine: under several shells, with and without a Python, and with broken answers."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild import node_program, provision
from envbuild.errors import EnvbuildError
from envbuild.model.facts import NodeFacts
from envbuild.model.target import Connection
from envbuild.provision.contact import first_contact
from envbuild.provision.run.run_dir import RunDir
from tests.node.pythons import require_python
from tests.support.fails import fails
from tests.support.need import need
from tests.support.patience import until
from tests.support.programs import executable

NONCE = "0123456789abcdef0123456789abcdef"
BEGIN = f"===envbuild begin {NONCE}===\n"
END = f"===envbuild end {NONCE}===\n"


def request(prefix: str = "/nonexistent/prefix", **args: Any) -> dict[str, Any]:
    return {"protocol": 1, "verb": "probe", "run": "r", "prefix": prefix, "args": {"pythons": ["3.99"], **args}}


SHELLS = {
    "sh": ["/bin/sh"],
    "dash": ["dash"],
    "bash": ["bash"],
    "bash-posix": ["bash", "--posix"],
    "busybox": ["busybox", "sh"],
}


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_gives_the_same_findings_and_facts(shell: str, tmp_path: Path) -> None:
    argv = SHELLS[shell]
    need(argv[0])
    script = first_contact.build_script(request(str(tmp_path / "p")), NONCE)
    done = subprocess.run([*argv, "-s"], input=script.encode(), capture_output=True)
    assert done.stderr == b""
    found = first_contact.parse_output(done.stdout, NONCE)
    assert found.findings["arch"] == os.uname().machine
    assert found.findings["prefix_parent"] == str(tmp_path)
    assert found.findings["prefix_writable"] == "yes"
    assert found.findings["scheduler"] in ("none", "slurm", "pbs")
    assert found.exit == 0
    facts = NodeFacts.model_validate_json(json.dumps(found.result()))
    assert facts.prefix.path == str(tmp_path / "p")


def test_local_contact_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def remains() -> set[str]:
        return {str(path) for folder in ("/dev/shm", "/tmp") for path in Path(folder).glob("envbuild-*.pyz")}

    before = remains()
    found = first_contact.contact({"localhost": request(str(tmp_path / "p"))}, Connection())
    assert found["localhost"].result()["hostname"] == os.uname().nodename
    new = remains() - before  # and those of tests beside this one, which go too
    until(lambda: not any(map(os.path.exists, new)))
    assert not (tmp_path / "p").exists()


def test_prefix_is_data_and_never_code(tmp_path: Path) -> None:
    prefix = f'{tmp_path}/it\'s $(touch {tmp_path}/ran) `id` "x" @SENT@ *'
    found = asked(request(prefix))
    assert found.findings["prefix"] == prefix
    assert found.result()["prefix"]["path"] == prefix
    assert list(tmp_path.iterdir()) == []


def test_placeholders_of_the_prefix_are_filled_alike_by_sh_and_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", "relative/and/so/ignored")
    found = asked(request("{data}/{user}/e"))
    assert found.findings["prefix"] == found.result()["prefix"]["path"]
    assert found.findings["prefix"].startswith(f"{tmp_path}/.local/share/")


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """A PATH with what the script needs and no Python, `tmp_path/bin`, and a home."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("id", "ls", "uname", "head", "getconf", "ldd"):
        if path := shutil.which(name):
            (folder / name).symlink_to(path)
    return {"PATH": str(folder), "HOME": str(tmp_path)}


def asked(asks: dict[str, Any], *, bare: dict[str, str] | None = None, **more: Any) -> first_contact.ContactResult:
    """What /bin/sh answers. `bare`: its environment on a node that has no Python in the usual places."""
    script = first_contact.build_script(asks, NONCE)
    if bare is not None:
        more["env"], script = bare, without_python(script)
    done = subprocess.run(["/bin/sh", "-s"], input=script.encode(), capture_output=True, **more)
    return first_contact.parse_output(done.stdout, NONCE, "n1")


def without_python(script: str) -> str:
    """The same where there is no Python in the usual places."""
    for place in ("/usr/bin/python3", "/usr/local/bin/python3", "/usr/libexec/platform-python", "/opt/*"):
        script = script.replace(place, "/nonexistent")
    return script.replace(" /usr/local/bin /usr/bin\n", "\n")


def test_node_without_python_gives_findings_only(tmp_path: Path, bare: dict[str, str]) -> None:
    found = asked(request(str(tmp_path / "p")), bare=bare)
    assert found.python is None
    assert found.response is None
    assert found.findings["libc"]
    with fails("node-without-python", 7, match="n1 has no Python"):
        found.result()


@pytest.mark.parametrize("minor", ["3.6", "3.13"])
def test_python_of_the_toolchain_is_used(minor: str, tmp_path: Path, bare: dict[str, str]) -> None:
    real = require_python(minor)
    folder = tmp_path / "p/tools/python-x/bin"
    folder.mkdir(parents=True)
    (folder / f"python{minor}").symlink_to(real)
    found = asked(request(str(tmp_path / "p")), bare=bare)
    assert found.python == str(folder / f"python{minor}")
    assert found.result()["toolchain"] == ["python-x"]


def test_a_python_staged_in_a_shared_folder_runs_where_the_node_has_none(tmp_path: Path, bare: dict[str, str]) -> None:
    folder = tmp_path / "it's shared/tools/python-x/python/bin"
    folder.mkdir(parents=True)
    (folder / "python3").symlink_to(sys.executable)

    script = without_python(first_contact.look_script(str(tmp_path / "p"), str(tmp_path / "it's shared")))

    def python() -> str:
        done = subprocess.run(["/bin/sh"], input=script.encode(), env=bare, capture_output=True, check=True)
        return first_contact.read_findings(done.stdout)["python"]

    assert python() == str(folder / "python3")
    (tmp_path / "it's shared/tools").chmod(0o1777)
    assert python() == "", "others could have put it there"


@pytest.mark.parametrize("owner", ["everybody", "somebody"])
def test_a_python_that_another_user_can_replace_is_never_run(owner: str, tmp_path: Path, bare: dict[str, str]) -> None:
    executable(tmp_path / "p/tools/python-x/bin/python3", f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    tools = tmp_path / "p/tools"
    if owner == "everybody":
        tools.chmod(0o1777)
    elif os.geteuid() == 0:
        os.chown(tools, 65534, 65534)
    else:
        pytest.skip("only root can give a folder to another user")
    assert asked(request(str(tmp_path / "p")), bare=bare).python is None
    assert not (tmp_path / "ran").exists()


def test_shim_and_too_old_python_are_passed_over(tmp_path: Path, bare: dict[str, str]) -> None:
    for name, text in (("python3", "exit 127"), ("python3.13", "exit 1")):
        executable(tmp_path / "bin" / name, f"#!/bin/sh\n{text}\n")
    (tmp_path / "bin/python3.8").symlink_to(require_python("3.8"))
    assert asked(request(str(tmp_path / "p")), bare=bare).python == str(tmp_path / "bin/python3.8")


def test_a_newer_python_runs_the_node_program_where_an_old_one_comes_first(
    tmp_path: Path, bare: dict[str, str]
) -> None:
    """One of 3.6 runs the probe, and nothing else does where no newer one is."""
    (tmp_path / "bin/python3").symlink_to(require_python("3.6"))

    def ask(verb: str) -> first_contact.ContactResult:
        return asked(request(str(tmp_path / "p")) | {"verb": verb}, bare=bare)

    assert ask("probe").python == str(tmp_path / "bin/python3")
    assert ask("probe").result()["toolchain"] == []
    with fails("node-without-python", 7, match=r"no Python 3\.8 or newer, which `verify` needs"):
        ask("verify").result()
    (tmp_path / "bin/python3.8").symlink_to(require_python("3.8"))
    assert ask("probe").python == str(tmp_path / "bin/python3.8")


def test_prefix_in_somebody_elses_folder_is_not_writable() -> None:
    nobody: dict[str, Any] = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
    env = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}
    found = asked(request("/usr/envbuild-test"), env=env, cwd="/", **nobody)
    assert (found.findings["prefix_parent"], found.findings["prefix_writable"]) == ("/usr", "no")
    if found.python is None:
        pytest.skip("no Python that every user may run: the node program's own view is not proven here")
    assert found.result()["prefix"]["writable"] is False
    assert "not writable" in found.result()["prefix"]["reason"]


def test_error_of_the_node_program_is_raised_as_it_was() -> None:
    found = first_contact.run_node("localhost", request("/x/../y"), Connection())
    assert found.exit == 2
    with fails("prefix-invalid"):
        found.result()


CODES = {"bad": "no-request", "worse": "internal", "full": "disk-full"}


@pytest.fixture
def strange(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes whose contact ends otherwise than by what they say."""
    ask, ends = first_contact.run_node, {
        "bad": EnvbuildError("no-request", "no request for this node"),
        "worse": KeyError("worse"),
        "full": OSError(28, "No space left on device", "/tmp/x"),
    }  # fmt: skip

    def for_node(node: str, *asked: Any) -> first_contact.ContactResult:
        if node in ends:
            raise ends[node]
        return ask(node, *asked)

    monkeypatch.setattr(first_contact, "run_node", for_node)


@pytest.mark.usefixtures("strange")
def test_one_nodes_error_does_not_touch_the_others() -> None:
    names = ["good", "bad", "worse", "fine", "full"]
    found = first_contact.contact({name: request(node=name) for name in names}, Connection())
    assert list(found) == names
    errors = {node: (each.error.code, each.error.details["node"]) for node, each in found.items() if each.error}
    assert errors == {node: (code, node) for node, code in CODES.items()}
    assert found["good"].result()["node"] == "good"


@pytest.mark.usefixtures("strange")
def test_without_a_run_it_is_said_how_the_traceback_of_a_mistake_of_ours_is_shown() -> None:
    error = first_contact.contact({"worse": request()}, Connection())["worse"].error
    assert error is not None and error.exit_code == 70 and isinstance(error.__cause__, KeyError)
    assert (error.what, error.hint) == ("worse was not contacted", "run again with -v and report the traceback")


@pytest.mark.usefixtures("strange")
def test_a_run_keeps_the_traceback_of_a_mistake_of_ours_and_the_error_names_it(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path)
    found = first_contact.contact(dict.fromkeys(CODES, request()), Connection(), run=run)
    (kept,) = run.path.glob("traceback-*.txt")
    assert "in for_node\n    raise ends[node]" in kept.read_text()
    hints = {node: each.error.hint for node, each in found.items() if each.error}
    assert hints["worse"] == f"report its traceback: {kept}" and str(kept) not in hints["bad"] + hints["full"]


def test_every_contact_of_a_run_has_its_folder() -> None:
    without = {
        function.name
        for path in Path(provision.__file__).parent.rglob("*.py")
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef)
        for call in ast.walk(function)
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") in ("contact", "ask_each")
        if "run" not in {each.arg for each in call.keywords}
    }
    # What `doctor` and `store` ask is no run.
    assert without == {"probe_nodes", "node_caches", "node_wheels"}


@pytest.mark.parametrize(
    ("out", "code"),
    [
        ("", "contact-failed"),
        ("Welcome!\n", "contact-failed"),
        (f"x{BEGIN}python=\n{END}", "contact-failed"),
        (f"{BEGIN}python=\n", "contact-failed"),
        (f"{BEGIN}python=/p\nexit=1\n{END}", "node-program-died"),
        (f"{BEGIN}python=/p\nresponse={{\nexit=0\n{END}", "contact-failed"),
        (f'{BEGIN}python=/p\nresponse={{"ok": true, "result": NaN}}\n{END}', "contact-failed"),
        (f'{BEGIN}python=/p\nresponse={{"ok": true}}\n{END}', "contact-failed"),
        (f"{BEGIN}python=/p\nresponse=[1]\n{END}", "contact-failed"),
        (f"{BEGIN}python=/p\nresponse={'[' * 100_000}\n{END}", "contact-failed"),
    ],
)
def test_broken_answer_is_a_coded_error(out: str, code: str) -> None:
    with fails(code, 3) as caught:
        first_contact.parse_output(out.encode(), NONCE, "n1", "log text")
    assert caught.value.details["node"] == "n1"


def test_noise_around_the_markers_is_ignored() -> None:
    out = f"Welcome to n1\npython=/evil\n\n{BEGIN}arch=x86_64\npython=\n{END}bye\narch=sparc\n"
    found = first_contact.parse_output(out.encode(), NONCE)
    assert found.findings == {"arch": "x86_64", "python": ""}


@given(st.binary(max_size=300))
def test_no_output_crashes_the_reader(data: bytes) -> None:
    for out in (data, BEGIN.encode() + data + b"\n" + END.encode()):
        try:
            first_contact.parse_output(out, NONCE)
        except EnvbuildError as error:
            assert error.exit_code == 3


def test_script_refuses_what_it_would_paste_unquoted() -> None:
    with pytest.raises(ValueError, match="nonce"):
        first_contact.build_script(request(), "x'; rm")
    with pytest.raises(ValueError, match="verb"):
        first_contact.build_script({**request(), "verb": "a'b"}, NONCE)


@pytest.mark.parametrize(
    ("code", "deadline", "why"),
    [("import time; time.sleep(30)", 0.2, "no answer within 0.2 s"), ("print('x' * 300000)", 60, "without end")],
)
def test_d76_endless_time_or_output_is_a_coded_error(
    code: str, deadline: float, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_program, "_HERE", code)
    monkeypatch.setattr(first_contact, "OUTPUT_LIMIT", 100_000)
    with fails("contact-failed", match=why):
        first_contact.run_node("localhost", request(), Connection(), deadline=deadline)


def test_local_contact_imports_no_ssh() -> None:
    code = (
        "import sys\nfrom envbuild.provision.contact import first_contact\n"
        "from envbuild.model.target import Connection\n"
        "first_contact.run_node('localhost', {'protocol': 1, 'verb': 'probe', 'run': 'r', 'prefix': '/x', "
        "'args': {'pythons': ['3.99']}}, Connection())\n"
        "assert not {'fabric', 'paramiko', 'invoke'} & set(sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_nobody_to_contact_packs_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_contact.program_files, "packed", lambda: pytest.fail("packing takes 19 ms"))
    assert first_contact.contact({}, Connection(kind="ssh")) == {}
