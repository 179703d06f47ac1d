"""Commands of the pages that are no envbuild run as written in the tests of `ELSEWHERE`, which take them from here.

Those of docker are only looked at here, whether what they name is there; `container/test_docker.py` and
`container/test_images.py` build such a folder.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.e2e.world import World
from tests.support import checkout
from tests.support.programs import completed
from tests.test_snippets import LINE, TOP, run, texts, user
from tests.transport.sshd import Server, make_key

__all__ = ["user"]

MORE = [TOP / "CONTRIBUTING.md", *(TOP / "playbooks").glob("*.md")]
CONSOLE = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"^ {4}((?:export|for|git|grep|make|module|pip|python3|sh|ssh|ssh-keygen|\.) .*)$", re.MULTILINE)


def others(text: str) -> list[str]:
    """The commands of blocks that are not of envbuild or fab, without comments."""
    text = text.replace("\\\n", " ")
    shown = [line[2:] for block in CONSOLE.findall(text) for line in block.splitlines() if line[:2] == "$ "]
    ours = {re.sub(r"\s+# .*", "", line) for line in LINE.findall(text)}
    return [
        line for line in (re.sub(r"\s+# .*", "", each) for each in shown + INDENTED.findall(text)) if line not in ours
    ]


TEXTS = [*texts(), *((page.name, page.read_text(encoding="utf-8")) for page in MORE)]
ALL = [(page, command) for page, text in TEXTS for command in others(text)]


def says(*argv: str) -> str:
    """What a program prints, which has to end with 0."""
    given = {"cwd": TOP, "stdin": subprocess.DEVNULL, "timeout": 60}
    done = completed(argv, **given)
    assert done.returncode == 0, (argv, done.stdout[-500:], done.stderr[-500:])
    return done.stdout


def docker(command: str) -> None:
    """The files that a build takes from its context are there; what builds them: container/test_docker.py."""
    context = TOP / shlex.split(command)[-1]
    copied = [
        line.split()[1:-1] for line in (context / "Dockerfile").read_text().splitlines() if line.startswith("COPY ")
    ]
    named = [path for paths in copied for path in paths if not any(each.startswith("--from") for each in paths)]
    assert named and all((context / path).exists() for path in named)


# Lines of those who change envbuild: they run in a small copy of the checkout.
CONTRIBUTORS = r"make (?!provision$)|\.venv/bin/python -m pytest"
CHECKS = ((r"docker build ", docker),)
# What runs as it is written, with words in it for what a reader has, and where.
ELSEWHERE = {
    r"make provision$": "e2e/test_torch_smoke.py",
    f"{CONTRIBUTORS}": "test_snippets_others.py",
    r"srun --ntasks-per-node=1 <prefix>/bin/<stack> torchrun": "slurm/test_image_job.py",
    r"ssh-keygen -Y verify": "report/test_sign.py",
    r"module (use|load) ": "test_snippets_others.py",
    r"docker build -t torch-smoke image$": "test_snippets_shipped.py",
    r"ansible-playbook ": "provision/ansible/test_role.py",
    r"pip |python3 -m venv |export |for |git config": "e2e/test_packaging.py",
    r"uv (tool|python|build) |pipx |git clone |cd envbuild|\. \.venv|tool/bin/pip": "e2e/test_packaging.py",
    r"carried/python/|tar -.f carried\.tar|mkdir -p ~/\.local/bin": "e2e/test_packaging.py",
    r"ssh ": "test_snippets_others.py",
    r"kubectl apply -f run\.yaml$": "container/test_pods.py",  # no cluster here: it validates the file
}
# What the lines of contributors have done, by what they print.
SAYS = {
    "make test": ['-m "not slow"', " passed in "],
    "make test-slow": ["-m slow", "1 passed in "],
    ".venv/bin/python -m pytest -q tests/resolve": ["[100%]"],
}
# environment-modules, as a login shell has it.
MODULES = Path("/usr/share/modules/init/bash")


def shown(name: str, begin: str) -> list[str]:
    """The commands of a page that begin so, for the test that runs them."""
    found = [command for page, command in ALL if page == name and command.startswith(begin)]
    assert found, (name, begin)
    return found


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkout.small(tmp_path_factory.mktemp("copy"))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("command", SAYS)
def test_a_line_for_contributors_runs_in_a_small_copy(copy: Path, command: str) -> None:
    told = checkout.run(copy, command)
    assert all(word in told for word in SAYS[command]), told[-2000:]


def test_ci_runs_the_other_lines_for_contributors_on_the_whole_checkout() -> None:
    lines = {command for _, command in ALL if re.match(CONTRIBUTORS, command)}
    steps = re.findall(r"^step .* make (.+)$", (TOP / ".ci" / "run").read_text(), re.MULTILINE)
    assert lines >= SAYS.keys()
    assert {word for line in lines - SAYS.keys() for word in line.split()[1:]} <= {*" ".join(steps).split()}


@pytest.mark.slow
@pytest.mark.skipif(not MODULES.is_file(), reason="no environment-modules (apt-get install environment-modules)")
def test_a_module_is_loaded_as_the_page_has_it(user: World) -> None:
    said = "python -c \"import alpha, os; print(alpha.VERSION, os.environ['ENVBUILD_STACK'])\""
    lines = [f"source {MODULES}", *shown("use-an-environment.md", "module "), said]
    done = run(user, "; ".join(lines), PREFIX=str(user.prefix))
    assert (done.rc, done.out) == (0, "1.0 my\n"), done.err


@pytest.mark.slow
def test_a_connection_is_kept_open_as_the_page_has_it(tmp_path: Path) -> None:
    (line,) = shown("targets.md", "ssh ")
    key = make_key(tmp_path / "id")
    server = Server(tmp_path / "gpu01", "127.0.0.2", key).start()
    try:
        (tmp_path / "known").write_text(server.known)
        told = {"HostName": server.address, "Port": server.port, "IdentityFile": key, "ControlPath": tmp_path / "kept",
                "UserKnownHostsFile": tmp_path / "known"}  # fmt: skip
        (tmp_path / "config").write_text("".join(f"{name} {value}\n" for name, value in told.items()))
        ssh = f"ssh -F {tmp_path}/config"
        done = subprocess.run(["bash", "-ec", line.replace("ssh", ssh).replace("HOST", "gpu01")])
        assert done.returncode == 0
        assert says(*ssh.split(), "-o", "IdentityFile=none", "gpu01", "echo", "hello") == "hello\n"
        says(*ssh.split(), "-O", "exit", "gpu01")
    finally:
        server.stop()


@pytest.mark.parametrize(("page", "command"), ALL, ids=[f"{page}: {command[:40]}" for page, command in ALL])
def test_what_a_command_of_another_program_names_is_there(page: str, command: str) -> None:
    if any(re.match(pattern, command) for pattern in ELSEWHERE):
        return
    (check,) = {check for pattern, check in CHECKS if re.match(pattern, command)}
    check(command)


def test_every_kind_of_command_is_there() -> None:
    commands = {command for _, command in ALL}
    patterns = [*ELSEWHERE, *(pattern for pattern, _ in CHECKS)]
    assert [each for each in patterns if not any(re.match(each, command) for command in commands)] == []
    assert all((TOP / "tests" / name).is_file() for name in ELSEWHERE.values())
