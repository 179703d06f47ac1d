"""The node protocol as the controller sees it: through the real zipapp, one process a request."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.node import protocol
from envbuild.node.protocol import NodeError
from envbuild.node_program import node_pyz
from tests.support.fails import fails
from tests.support.patience import PATIENCE, alive, text_of, until

REQUEST = {"protocol": 1, "verb": "probe", "run": "r1", "prefix": "/nonexistent/prefix", "args": {}}


@pytest.fixture(scope="module")
def pyz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pyz") / "envbuild-node.pyz"
    path.write_bytes(node_pyz())
    return path


def call(pyz: Path, data: bytes, *argv: str) -> tuple[int, dict[str, Any], str]:
    done = subprocess.run([sys.executable, "-I", str(pyz), *argv], input=data, capture_output=True, timeout=60)
    lines = done.stdout.splitlines()
    assert len(lines) == 1, done
    return done.returncode, json.loads(lines[0]), done.stderr.decode()


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "request-invalid"),
        (b"[]", "request-invalid"),
        (b"{", "request-invalid"),
        (b"\xff\xfe", "request-invalid"),
        (b'{"protocol": 1, "protocol": 1}', "request-invalid"),
        (b'{"protocol": 1, "verb": "probe", "run": "r", "prefix": "/x", "args": {"x": NaN}}', "request-invalid"),
        (b"[" * 200_000, "request-invalid"),
        (b'{"protocol": 2, "verb": "probe", "run": "r", "prefix": "/x"}', "request-invalid"),
        (b'{"protocol": 1, "verb": "install", "run": "r", "prefix": "/x"}', "request-invalid"),
        (b'{"protocol": 1, "verb": "probe", "run": "r"}', "request-invalid"),
        (b'{"protocol": 1, "verb": "probe", "run": "r", "prefix": "/x", "args": []}', "request-invalid"),
        (b'{"protocol": 1, "verb": "probe", "run": "r", "prefix": "relative"}', "prefix-invalid"),
        (b'{"protocol": 1, "verb": "probe", "run": "r", "prefix": "/x/../y"}', "prefix-invalid"),
        (b'{"protocol": 1, "verb": "probe", "run": "r", "prefix": "/{unknown}"}', "prefix-invalid"),
        (b'{"protocol": 1, "verb": "probe", "run": "r", "prefix": "/x:y"}', "prefix-invalid"),
        (b'{"protocol": 1, "verb": "probe", "run": "r", "prefix": "//"}', "prefix-invalid"),
    ],
)
def test_bad_request_is_a_coded_error(data: bytes, code: str) -> None:
    with fails(code, 2):
        protocol.parse_request(data, "probe")


def test_a_refused_request_and_an_unknown_or_missing_verb_are_answered(
    pyz: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for data, words in ((b"{", ("probe",)), (b"{}", ("explode",)), (b"{}", ())):
        exit_code, response, _ = call(pyz, data, *words)
        assert exit_code == response["error"]["exit"] == 2
        assert (response["ok"], response["changed"], response["error"]["code"]) == (False, False, "request-invalid")
    monkeypatch.setattr(protocol, "REQUEST_LIMIT", 10)
    with fails("request-invalid", 2) as caught:
        protocol.parse_request(json.dumps(REQUEST).encode(), "probe")
    assert "larger than 10 bytes" in caught.value.why


def test_prefix_placeholders_are_filled_on_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/alice")
    monkeypatch.setenv("XDG_DATA_HOME", "/scratch/alice/data")
    assert protocol.expand_prefix("{home}/e") == "/home/alice/e"
    assert protocol.expand_prefix("{data}/e") == "/scratch/alice/data/e"
    assert protocol.expand_prefix("/lus/{user}//e/") == f"/lus/{protocol.user_name()}/e"
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    assert protocol.expand_prefix("{data}/e") == "/home/alice/.local/share/e"


def with_probe(tmp_path: Path, body: str) -> Path:
    """A copy of the node program whose `probe` is `body`."""
    import io
    import zipfile

    path = tmp_path / "altered.pyz"
    with zipfile.ZipFile(io.BytesIO(node_pyz())) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            new.writestr(name, body if name == "envbuild/node/facts.py" else old.read(name))
    return path


def answer(tmp_path: Path, body: str, **args: Any) -> tuple[int, dict[str, Any], str]:
    """Of that program, asked with `args`."""
    return call(with_probe(tmp_path, body), json.dumps({**REQUEST, "args": args}).encode(), "probe")


def test_nothing_but_the_response_reaches_stdout(tmp_path: Path) -> None:
    body = (
        "import os, subprocess, sys\n"
        "def run(request):\n"
        "    print('printed')\n"
        "    os.write(1, b'written\\n')\n"
        "    subprocess.call(['echo', 'from a child'])\n"
        "    return True, {'answer': 42}\n"
    )
    exit_code, response, err = answer(tmp_path, body)
    assert exit_code == 0
    assert response == {"protocol": 1, "verb": "probe", "ok": True, "changed": True, "result": {"answer": 42}}
    assert {"printed", "written", "from a child"} <= set(err.splitlines())


@pytest.mark.parametrize(
    ("statement", "exit_code", "wanted"),
    [
        ("raise KeyError('gone')", 70, {"code": "node-internal", "why": "KeyError: 'gone'"}),
        ("return False, {'x': float('nan')}", 70, {"code": "node-internal"}),
        ("return False, {'ok': False}", 1, None),
        (
            "e = NodeError('a-code', 'what', 'why', 'hint', Exit.INTEGRITY, {'k': 1}); e.changed=True; raise e",
            5,
            {"code": "a-code", "what": "what", "why": "why", "hint": "hint", "exit": 5, "details": {"k": 1}},
        ),
    ],
    ids=["an exception", "a result that is no JSON", "a check that failed", "an error of the verb"],
)
def test_a_verb_ends_in_its_exit_code(
    tmp_path: Path, statement: str, exit_code: int, wanted: dict[str, Any] | None
) -> None:
    body = f"from envbuild.node.protocol import Exit, NodeError\ndef run(request):\n    {statement}\n"
    code, response, err = answer(tmp_path, body)
    assert (code, response["ok"]) == (exit_code, wanted is None)
    assert wanted is None or {key: response["error"][key] for key in wanted} == wanted
    assert response["changed"] is ("changed=True" in statement)
    assert ("Traceback" in err) == (exit_code == 70)


def test_log_goes_to_stderr_and_to_the_named_file_where_that_can_be_written(tmp_path: Path) -> None:
    imports = "from envbuild.node.protocol import log\n"
    body = imports + "def run(_):\n    log('one')\n    log('zw\\u00f6')\n    return False, {}\n"
    path = tmp_path / "log.jsonl"
    _, _, err = answer(tmp_path, body, log=str(path))
    assert err.splitlines() == ["one", "zwö"]
    assert [json.loads(line)["message"] for line in path.read_text().splitlines()] == ["one", "zwö"]
    exit_code, _, err = answer(tmp_path, body, log=str(path / "log"))
    assert exit_code == 0, "the work goes on"
    assert "log file not written" in err


def test_file_names_that_are_not_utf_8_do_not_break_the_response() -> None:
    line = protocol.encode({"path": b"a\xff".decode("utf-8", "surrogateescape"), "two": "lines\nhere"})
    assert json.loads(line) == {"path": "a?", "two": "lines\nhere"}
    assert line.count(b"\n") == 1


def _started(pyz: Path) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-I", str(pyz), "probe"]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(json.dumps(REQUEST).encode())
    process.stdin.close()
    process.stdin = None
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_ends_the_children_and_exits_130(tmp_path: Path, number: signal.Signals) -> None:
    marker = tmp_path / "child"
    body = (
        "from envbuild.node import proc\n"
        "def run(request):\n"
        f"    proc.run(['/bin/sh', '-c', 'sleep 300 & echo $! > {marker}; wait'])\n"
        "    return False, {}\n"
    )
    process = _started(with_probe(tmp_path, body))
    child = int(until(lambda: text_of(marker).strip()))
    process.send_signal(number)
    out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    error = json.loads(out)["error"]
    assert (error["code"], "the same command" in error["hint"]) == ("interrupted", True)
    until(lambda: not alive(child))


def test_what_is_being_put_away_when_more_signals_come_is_put_away(tmp_path: Path) -> None:
    begun, away = tmp_path / "begun", tmp_path / "away"
    body = (
        "import time\n"
        "def run(request):\n"
        "    try:\n"
        f"        open({str(begun)!r}, 'w').close()\n"
        "        while True:\n"
        "            time.sleep(0.1)\n"  # Python notices a signal that comes just before a sleep after it
        "    finally:\n"
        f"        open({str(begun) + '-2'!r}, 'w').close()\n"
        "        time.sleep(1)\n"
        f"        open({str(away)!r}, 'w').close()\n"
    )
    process = _started(with_probe(tmp_path, body))
    for seen, numbers in ((begun, [signal.SIGTERM]), (tmp_path / "begun-2", [signal.SIGTERM, signal.SIGHUP])):
        until(seen.exists)
        for number in numbers:
            process.send_signal(number)
    out, _ = process.communicate(timeout=PATIENCE)
    assert (process.returncode, json.loads(out)["error"]["code"]) == (130, "interrupted")
    assert away.exists()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(st.one_of(st.binary(max_size=200), JSON.map(lambda value: json.dumps(value).encode())))
def test_no_request_crashes_the_reader(data: bytes) -> None:
    try:
        request = protocol.parse_request(data, "probe")
    except NodeError as error:
        assert error.code in {"request-invalid", "prefix-invalid"}
    else:
        assert os.path.isabs(request["prefix"])
