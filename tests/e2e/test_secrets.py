"""What a target's variables hold reaches the environment and nothing else; what the caller's hold reaches no sink."""

from __future__ import annotations

import json
import shutil
import stat

import pytest

from tests.e2e.world import Done, World
from tests.node.forge import FILES
from tests.support.canary import ALONE, BACKEND, CANARY, FAILING, SECRET_NAMES, TELLING, holding

# A token, the login of a proxy, and a variable whose name says nothing, which no build needs.
CALLERS = {
    "DEPLOY_TOKEN": CANARY,
    "https_proxy": f"http://user:{CANARY}@127.0.0.1:9",
    "no_proxy": "localhost,127.0.0.1",
    "SITE_NOTE": "a note of the caller",
}


def assert_nowhere(world: World, done: Done) -> None:
    assert not holding(done.out.encode())
    assert not holding(done.err.encode())
    files = [path for path in world.top.rglob("*") if path.is_file() and not path.is_symlink()]
    assert len(files) > 10
    assert [str(path) for path in files if holding(path.read_bytes())] == []


def test_a_secret_variable_of_a_target_is_set_and_stays_out_of_output_and_run_directory(world: World) -> None:
    world.tiny()
    text = f"name: mine\nextends: local\nenvironment: {{SITE_API_TOKEN: {CANARY}, SITE_PLAIN: visible}}\n"
    (world.work / "mine.yaml").write_text(text)
    done = world.good("provision", "--target", "./mine.yaml", "--stack", "./tiny.yaml", "--json", "-v")
    assert CANARY not in done.out + done.err
    assert CANARY in (world.current / ".envbuild" / "activate.sh").read_text()
    files = [path for path in world.runs.rglob("*") if path.is_file()]
    assert any(path.parent.parent.name == "requests" and b"visible" in path.read_bytes() for path in files)
    assert [str(path) for path in files if CANARY.encode() in path.read_bytes()] == []


@pytest.mark.slow
def test_d68_no_secret_variable_of_caller_or_target_reaches_a_sink_by_any_verb(world: World) -> None:
    world.tiny()
    theirs = {name: f"c4nary-of-the-target-{number}" for number, name in enumerate(SECRET_NAMES)}
    callers = {name: f"c4nary-of-the-caller-{number}" for number, name in enumerate(SECRET_NAMES)}
    (world.work / "mine.yaml").write_text(f"name: mine\nextends: local\nenvironment: {json.dumps(theirs)}\n")
    (world.work / "hosts.yaml").write_text(
        "name: hosts\nextends: ssh\nhosts: {command: [sh, -c, 'env | grep DB_PASS >&2; exit 3']}\nprefix: /x\n"
        f"environment: {json.dumps(theirs)}\n"
    )
    place = ("--target", "./mine.yaml", "--stack", "./tiny.yaml")
    lines = [
        ("provision", *place, "-v"), ("plan", *place), ("plan", *place, "--json"), ("verify", *place, "--json"),
        ("provision", *place, "--print-script"), ("target", "show", "./mine.yaml"), ("report", "show", "last"),
        ("target", "show", "./mine.yaml", "--json"),
        ("doctor", "--facts-out", "facts.json", "--target", "./hosts.yaml"),
        ("run", "show", "last"),
    ]  # fmt: skip
    said = [world.run(*words, env=callers, fresh=words[0] in ("provision", "doctor")) for words in lines]
    assert [done.rc for done in said] == [0, 0, 0, 0, 0, 0, 0, 0, 2, 0]
    assert "DB_PASS=***" in said[-2].err, "the program printed its environment"
    assert "${DB_PASS:?" in said[4].out, "a script asks for what it does not hold"
    assert [words for words, done in zip(lines, said, strict=True) if "c4nary" in done.out + done.err] == []
    files = [path for path in world.top.rglob("*") if path.is_file() and path.parent != world.work]
    holding_it = {path.name for path in files if b"c4nary" in path.read_bytes() and not path.is_symlink()}
    assert holding_it <= {"activate.sh", "variables.json", "tiny", "stamp.json"}
    assert "activate.sh" in holding_it, "the environment itself has them"


def test_d68_an_image_and_the_plan_of_a_run_hold_no_secret_and_the_refusal_says_what_to_do(world: World) -> None:
    world.tiny()
    (world.work / "mine.yaml").write_text("name: mine\nextends: local\nenvironment: {SENTRY_DSN: c4nary-value}\n")
    done = world.refused(7, "variable-refused", "image", "dockerfile", "./tiny.yaml", "--target", "./mine.yaml")
    assert "docker run -e SENTRY_DSN" in done.err
    assert "c4nary" not in done.err + done.out
    place = ("--target", "local", "--stack", "./tiny.yaml", "--prefix", str(world.top / CANARY))
    done = world.good("provision", *place, env={"DEPLOY_TOKEN": CANARY})
    assert "plan: tiny" in done.err and "***" in done.err
    assert CANARY not in done.out + done.err


SETUP = {"setup.py": FAILING, "pyproject.toml": ALONE}


@pytest.mark.slow
def test_d22_a_build_that_prints_its_environment_and_fails_tells_no_secret(world: World) -> None:
    for name in ("setuptools", "wheel"):  # a setup.py has them locked; this one needs neither
        world.wheel(name, "99.0", files={f"no_{name}.py": b""})
    place = ("provision", "--target", "local", "--stack", "./tiny.yaml")
    for files, source in (
        ({"backend.py": BACKEND}, {"install": "wheel"}),
        (SETUP, {"install": "wheel"}),
        (SETUP, {"install": "path", "build": {"kind": "inplace"}}),
    ):
        shutil.rmtree(world.hub / "quick", ignore_errors=True)
        world.tiny(sources=[{**world.repository("quick", {**FILES, **files}), **source}])
        for form in (["--json"], []):
            done = world.run(*place, *form, env=CALLERS, fresh=True, rc=4)
            assert "could not be built" in done.out
            assert_nowhere(world, done)
    logs = list((world.prefix / "logs").iterdir())
    assert len(logs) == 6
    for log in logs:
        assert "PATH=" in log.read_text(), "the build was to print what it sees"
        assert "the build ends here" in log.read_text()
        assert stat.S_IMODE(log.stat().st_mode) == 0o600


@pytest.mark.slow
def test_d22_a_build_sees_the_variables_of_tools_and_of_its_stack_alone(world: World) -> None:
    seen = world.top / "seen"
    backend = (
        f"\nimport os\nopen({str(seen)!r}, 'w').write('\\n'.join(f'{{k}}={{v}}' for k, v in os.environ.items()))\n"
    )
    pin = world.repository("quick", {**FILES, "backend.py": FILES["backend.py"] + backend})
    world.tiny(sources=[{**pin, "build": {"environment": {"QUICK_PARTS": "all"}}}], environment={"HF_MODE": "fast"})
    world.built(env={**CALLERS, "CFLAGS": "-O1", "CUDA_CACHE_PATH": "/nowhere"}, fresh=True)
    lines = seen.read_text().splitlines()
    assert {"QUICK_PARTS=all", "CUDA_CACHE_PATH=/nowhere"} <= set(lines)
    assert f"HOME={world.home}" not in lines, "setup code may write start-up files"
    assert "HF_MODE=fast" not in lines, "of the stack's variables a build sees those that tools read"
    assert any(line.startswith("CFLAGS=-O1") for line in lines)
    assert {line.partition("=")[0] for line in lines}.isdisjoint({*CALLERS, "PIP_FIND_LINKS"} - {"no_proxy"})


@pytest.mark.slow
def test_d22_a_module_that_prints_its_environment_when_it_is_imported_tells_no_secret(world: World) -> None:
    module = TELLING + "\nraise OSError(os.environ['DEPLOY_TOKEN'])\n"
    world.wheel("alpha", "1.0", files={"alpha/__init__.py": module.encode()})
    world.tiny(imports=["alpha"])
    done = world.run("provision", "--target", "local", "--stack", "./tiny.yaml", env=CALLERS, fresh=True, rc=1)
    assert_nowhere(world, done)
