"""The engine conda from a stack file to a verified environment, with the real command and a channel in a folder."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
from pathlib import Path

import pytest
import yaml

from tests.e2e.world import MINOR, World
from tests.node.forge import ACTIVATED, FILES, PATCH, need_compiler
from tests.support.conda import Channel, Package, section
from tests.support.files import write_file
from tests.support.private_channel import guarded
from tests.support.programs import completed

pytestmark = pytest.mark.slow


@pytest.fixture
def stack(world: World, conda_python: Path) -> Path:
    """A locked stack with conda packages, a wheel and a git source whose extension is compiled."""
    need_compiler()
    conda = section(world.top / "forge", conda_python)
    world.wheel(scripts={"alpha-run": "alpha:main"})
    build = {"kind": "wheel", "extensions": ["quick._fast"]}
    source = {**world.repository("quick", {**FILES, **ACTIVATED}), "ref": "main", "patches": [PATCH], "build": build}
    path = world.stack(conda=conda, sources=[source], imports=["alpha", "quick._fast", "quick.activated"])
    world.lock(path)
    return path


def test_a_stack_becomes_an_environment_that_is_activated_verified_and_repaired(world: World, stack: Path) -> None:
    node = world.built("--engine", "conda")
    assert world.python("import sys; print(sys.prefix)") == str(world.current)
    assert world.python("import alpha, pure; print(alpha.VERSION, pure.VERSION)") == "1.0 1.5"
    assert world.python("import quick._fast as f; print(f.answer())") == "7"
    script = world.current / ".envbuild" / "activate.sh"
    code = (
        f'. "{script}"; echo "$CONDA_PREFIX $TOOL_HOME"; deactivate; echo "${{CONDA_PREFIX-none}} ${{TOOL_HOME-none}}"'
    )
    said = completed(["sh", "-uc", code], check=True, env={"PATH": os.environ["PATH"]})
    assert said.stdout.splitlines() == [f"{world.current} {world.current}/share", "none none"]
    venv = world.built()
    assert (venv["status"], venv["root"] == node["root"]) == ("ok", False)
    paths = {
        engine: world.good("env", "activate", "tiny", *engine, "--json").json["path"]
        for engine in ((), ("--engine", "conda"))
    }
    assert Path(paths["--engine", "conda"]).joinpath("conda-meta").is_dir() and paths[()] != paths["--engine", "conda"]
    assert paths["--engine", "conda"] in world.good("env", "activate", "tiny", "--engine", "conda").out
    listed = world.good("status", "--all", "--engine", "conda").out.splitlines()
    assert (len(listed), listed[1].split()[:2]) == (2, ["tiny", "finished"])
    assert world.built("--engine", "conda")["root"] == node["root"]
    again = world.built("--engine", "conda")
    assert (again["root"], again["status"]) == (node["root"], "unchanged")
    assert world.run("verify", "--stack", f"./{stack.name}").rc == 0
    library = world.current / "lib" / "libtool.so"
    data = bytearray(library.read_bytes())
    data[0] ^= 1
    library.write_bytes(data)
    found = world.run("verify", "--stack", f"./{stack.name}", "--json", rc=1)
    assert found.node["drift"] == [{"path": "lib/libtool.so", "kind": "changed", "package": "tool 2.0 h1_3"}]
    said = world.run("verify", "--stack", f"./{stack.name}")
    assert "lib/libtool.so (tool 2.0 h1_3)" in said.out
    assert world.built("--engine", "conda", "--repair")["root"] == node["root"]


def test_an_environment_yml_becomes_a_verified_environment_in_three_commands(world: World, conda_python: Path) -> None:
    (channel,) = section(world.top / "forge", conda_python)["channels"]
    world.wheel()
    text = f"name: tiny\nchannels: ['{channel['url']}']\ndependencies: [python={MINOR}, pure, {{pip: [alpha==1.0]}}]\n"
    (world.work / "environment.yml").write_text(text)
    world.good("lock", "create", "environment.yml")
    node = world.good("provision", "--stack", "environment.yml", "--engine", "conda", "--json").node
    assert node["packages"]["pure"] == "1.5 py_0 (conda)"
    assert node["packages"]["alpha"] == "1.0"
    assert world.good("verify", "--stack", "environment.yml").rc == 0
    assert world.python("import alpha, pure; print(alpha.VERSION, pure.VERSION)") == "1.0 1.5"


def test_private_channels_give_an_environment_and_their_words_are_written_nowhere(
    world: World, conda_python: Path
) -> None:
    words = {name: f"canary-{name}-0123456789" for name in ("bearer", "basic", "token")}
    hosts = {name: f"127.0.0.{last}" for last, name in enumerate(words, 1)}
    asked = {
        "bearer": f"Bearer {words['bearer']}",
        "basic": "Basic " + base64.b64encode(f"me:{words['basic']}".encode()).decode(),
        "token": f"/t/{words['token']}",
    }
    filled = {name: Channel(world.top / "served" / name / "forge", name) for name in words}
    archive = next((conda_python / "linux-64").iterdir())
    os.link(archive, filled["bearer"].folder / "linux-64" / archive.name)
    said = json.loads((conda_python / "index.json").read_text())
    filled["bearer"].take(filled["bearer"].folder / "linux-64" / archive.name, said)
    filled["basic"].add(Package("tool", files={"lib/tool": b"1"}))
    filled["token"].add(Package("data", files={"lib/data": b"2"}, subdir="noarch", index={"noarch": "generic"}))
    with contextlib.ExitStack() as open_:
        urls = {
            name: open_.enter_context(guarded(each.folder.parent, asked[name], hosts[name]))[0]
            for name, each in filled.items()
        }
        stored = {"BasicHTTP": {"username": "me", "password": words["basic"]}}
        write_file(world.home / ".rattler" / "credentials.json", json.dumps({hosts["basic"]: stored}))
        (world.home / "auth.json").write_text(json.dumps({hosts["bearer"]: {"BearerToken": words["bearer"]}}))
        world.env |= {"RATTLER_AUTH_FILE": str(world.home / "auth.json"), "no_proxy": ",".join(hosts.values())}
        mirrors = {name: [f"{urls[name]}{asked[name] if name == 'token' else ''}/forge"] for name in words}
        (world.home / ".condarc").write_text(yaml.safe_dump({"mirrored_channels": mirrors}))
        world.wheel()
        path = world.stack(conda={"channels": [{"name": name} for name in words], "packages": ["tool", "data"]})
        world.lock(path)
        (world.work / "far.yaml").write_text("name: far\nextends: local\ndelivery: controller\n")
        usual = ("provision", "--stack", f"./{path.name}", "--engine", "conda", "--json")
        told = [world.good(*usual)]
        shutil.rmtree(world.prefix)
        told.append(world.good(*usual, "--target", "./far.yaml"))
        shutil.rmtree(world.prefix)
        (world.home / ".rattler" / "credentials.json").unlink()
        refused = world.run(*usual)
    assert told[0].node["root"] == told[1].node["root"]
    assert (refused.rc, refused.error["code"]) == (7, "channel-refused")
    encoded = base64.b64encode(f"me:{words['basic']}".encode()).decode()
    for word in (*words.values(), encoded):
        assert not any(word in each.out + each.err for each in (*told, refused))
        files = [each for each in world.top.rglob("*") if each.is_file() and not each.is_symlink()]
        found = {str(each.relative_to(world.home)) for each in files if word.encode() in each.read_bytes()}
        # rattler keeps repodata under the address that it asked.
        assert {each for each in found if not each.startswith(".cache/rattler/")} <= {".condarc", "auth.json"}
