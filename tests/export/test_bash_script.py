"""The printed script: it runs for real, and no value of a lock can become code."""

from __future__ import annotations

import builtins
import os
import shutil
import subprocess
import symtable
import sys
from pathlib import Path
from typing import Any

import pytest

from envbuild.bundle.collect import Contents, Piece, write_bundle
from envbuild.catalog.patches import digest_of, patches_of
from envbuild.catalog.toolchain import Toolchain, load_toolchain
from envbuild.export import bash_script
from envbuild.export.bash_script import render_script
from envbuild.lock.readers.git import git_reader
from envbuild.model.lock import Lock
from envbuild.model.plan import Plan
from envbuild.node import paths
from envbuild.plan.node_steps import Inputs
from envbuild.plan.planner import make_plan
from envbuild.plan.source_builds import bundle_name
from tests.lock.build import make_wheel, sha256
from tests.node.build.test_editable import PROJECT as OLD_PROJECT
from tests.node.env_support import locked
from tests.node.forge import FILES, PATCH, download, need_compiler
from tests.plan.test_planner import CONTROLLER, FakeTools
from tests.resolve.builders import compat, make_lock, node_facts, package, resolve_fleet, target, torch_lock
from tests.resolve.test_engine import stamped
from tests.support.fails import fails
from tests.support.files import write_file
from tests.support.programs import completed, executable
from tests.support.repositories import make_repository
from tests.support.wheels import write_wheel

HOSTILE = "$(touch pwned) `touch pwned` 'single' \"double\" \\ ; touch pwned # EOF"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


INDEX = {"nowhere": {"url": "http://127.0.0.1:9/simple", "kind": "simple"}}


def planned(lock: Lock, prefix: str = "/data/envbuild", **options: Any) -> Plan:
    version = ".".join(map(str, sys.version_info[:3]))
    node = options.pop("node", "cpu-laptop")
    facts = node_facts(
        node,
        pythons=[f"{version} at {os.path.realpath(sys.executable)}"],
        more={"prefix": {"path": prefix, "writable": True}, **options.pop("more", {})},
    )
    facts = options.pop("change", lambda value: value)(facts)
    fleet = {facts.node: facts}
    given: dict[str, Any] = {"environment": {}, "delivery": "auto", "tmp": None}
    where = target(**{name: options.pop(name, default) for name, default in given.items()})
    resolutions = resolve_fleet(fleet, lock, where, compat())
    tools = {facts.node: options.pop("tools", FakeTools())}
    more = {"indexes": INDEX, **options}
    inputs = Inputs(run="r", controller=CONTROLLER, tools=tools, **more)
    return make_plan(where, lock, fleet, resolutions, inputs)


def syntax_ok(script: str) -> None:
    done = completed(["bash", "-n"], input=script)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty HOME whose git knows only what a test says."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / ".config"))
    monkeypatch.delenv("GIT_CONFIG_GLOBAL", raising=False)
    uv = shutil.which("uv") or str(Path(sys.executable).parent / "uv")
    monkeypatch.setenv("PATH", f"{Path(uv).parent}:{os.environ['PATH']}")
    return folder


def wheel_package(folder: Path, name: str, version: str) -> dict[str, Any]:
    wheel = make_wheel(folder, name, version)
    row = {"file": wheel.name, "sha256": sha256(wheel), "size": wheel.stat().st_size}
    return {"name": name, "version": version, "index": "nowhere", "files": [row]}


def run(script: str, cwd: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run it; nothing is awaited of an index that is out of reach."""
    path = cwd / "script.sh"
    path.write_text(script)
    around = {**os.environ, "UV_HTTP_TIMEOUT": "2", "UV_HTTP_RETRIES": "0", **env}
    return completed(["bash", str(path), *args], cwd=cwd, env=around, timeout=120)


def real_lock(tmp_path: Path, home: Path, **changed: str) -> tuple[Lock, Path]:
    """Two wheels and one source as a path entry, reachable through find-links and insteadOf only."""
    wheels = tmp_path / "wheels"
    commit, tree = make_repository(tmp_path / "upstream", {"lib/inside.py": "value = 41\n", "setup.py": ""})
    subprocess.run(
        ["git", "config", "--global", f"url.file://{tmp_path}/upstream.insteadOf", "https://example.org/lib"],
        check=True,
    )
    source = {"name": "lib", "git": "https://example.org/lib", "commit": commit, "tree": tree, "install": "path"}
    lock = make_lock(
        {
            "id": "v",
            "python": PYTHON,
            "packages": [wheel_package(wheels, "alpha", "1.0"), wheel_package(wheels, "beta", "2.5")],
            "sources": [{**source, "path": "lib", **changed}],
            "environment": {"PLAIN": "1", "TRICKY": HOSTILE},
        }
    )
    return lock, wheels


def test_the_script_builds_a_working_environment(tmp_path: Path, home: Path) -> None:
    lock, wheels = real_lock(tmp_path, home)
    plan = planned(lock, str(tmp_path / "pre fix"))
    script = render_script(plan, lock)
    syntax_ok(script)
    # The index that the lock names is out of reach: one wheel is in a folder, the other on a mirror.
    (wheel,) = wheels.glob("beta-*")
    page = write_file(tmp_path / "simple/beta/index.html", f"<a href='{wheel.name}'>{wheel.name}</a>")
    wheel.rename(page.parent / wheel.name)
    places = {"UV_FIND_LINKS": str(wheels), "UV_DEFAULT_INDEX": page.parents[1].as_uri()}
    done = run(script, tmp_path, **places)
    assert done.returncode == 0, done.stderr
    environment = Path(plan.nodes[0].environment)
    code = "import alpha, beta, inside; print(alpha.version, beta.version, inside.value)"
    out = completed([environment / "bin/python", "-c", code], check=True)
    assert out.stdout.split() == ["1.0", "2.5", "41"]
    assert (tmp_path / "pre fix/current/demo").resolve() == environment.resolve()
    show = '. "$1"; printf "%s" "$TRICKY"; command -v python >&2'
    loaded = completed(["bash", "-c", show, "x", environment / ".envbuild/activate.sh"], check=True, cwd=tmp_path)
    assert loaded.stdout == HOSTILE
    assert loaded.stderr.strip() == str(environment / "bin/python")
    assert not list(tmp_path.rglob("pwned"))
    write_file(environment / "mine", "x")
    done = run(script, tmp_path)
    assert done.returncode == 7 and "is there already" in done.stderr
    assert (environment / "mine").read_text() == "x"


def test_the_question_of_what_is_required_uses_no_name_that_it_does_not_bring() -> None:
    text = bash_script.function().partition("<<'EOF'")[2].partition("\n")[2].partition("\nEOF")[0]
    tables = [symtable.symtable(text, "required", "exec")]
    known = {*dir(builtins), *(each.get_name() for each in tables[0].get_symbols() if each.is_assigned())}
    known |= {each.get_name() for each in tables[0].get_symbols() if each.is_imported() or each.is_namespace()}
    for table in tables:
        tables += table.get_children()
        used = {each.get_name() for each in table.get_symbols() if each.is_global() and each.is_referenced()}
        assert used <= known, used - known


def test_files_that_the_probe_found_are_taken_without_an_index_and_downloads_go_through_the_proxies_of_the_target(
    tmp_path: Path, home: Path
) -> None:
    lock, wheels = real_lock(tmp_path, home)
    found = {file.name: str(file) for file in wheels.iterdir()}
    plan = planned(lock, str(tmp_path / "p"), more={"files_found": found})
    done = run(render_script(plan, lock), tmp_path, UV_FIND_LINKS="", UV_OFFLINE="1")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "p/current/demo/bin/python").exists()
    script = render_script(planned(lock, str(tmp_path / "pre"), environment={"https_proxy": "http://p/'"}), lock)
    uv = executable(tmp_path / "bin/uv", '#!/bin/sh\nprintf "%s" "$https_proxy" > seen\nexit 1\n')
    assert run(script, tmp_path, PATH=f"{uv.parent}:{os.environ['PATH']}").returncode
    assert (tmp_path / "seen").read_text() == "http://p/'"


def test_what_the_controller_delivers_is_taken_from_a_bundle(tmp_path: Path, home: Path) -> None:
    lock, wheels = real_lock(tmp_path, home)
    plan = planned(lock, str(tmp_path / "p"), delivery="controller")
    script = render_script(plan, lock)
    alone = run(script, tmp_path)
    file = f"{paths.delivered(str(tmp_path / 'p'), lock.variants[0].digest)}/bundle.tar"
    make = f"run `envbuild bundle create demo --profile exact --variant v --output {file}`"
    assert (alone.returncode, make in alone.stderr) == (7, True)
    assert not (tmp_path / "p/envs").exists()
    variant = lock.variants[0]
    store, upstream = Path(paths.delivered(str(tmp_path / "p"), variant.digest)), tmp_path / "upstream"
    store.mkdir(parents=True)
    bundle = tmp_path / bundle_name("lib", variant.sources[0])
    with git_reader() as reader:
        reader.write_bundle(upstream.as_uri(), variant.sources[0].commit, bundle)
    pieces = [Piece(f"wheels/{path.name}", path, "wheel") for path in wheels.glob("*.whl")]
    pieces.append(Piece(f"sources/{bundle.name}", bundle, "source"))
    write_bundle(store / "bundle.tar", Contents("demo", "exact", (variant.machine,), (variant.id,)), pieces)
    shutil.rmtree(wheels)
    shutil.rmtree(upstream)
    done = run(script, tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "p/current/demo/bin/python").exists()


@pytest.mark.parametrize(
    ("tree", "code", "says"), [(None, None, "hash"), ("0" * 40, 5, "expected " + "0" * 40)], ids=["file", "tree"]
)
def test_a_file_with_another_hash_and_another_tree_stop_the_script(
    tmp_path: Path, home: Path, tree: str | None, code: int | None, says: str
) -> None:
    lock, wheels = real_lock(tmp_path, home, **({"tree": tree} if tree else {}))
    script = render_script(planned(lock, str(tmp_path / "p")), lock)
    if not tree:
        make_wheel(wheels, "beta", "2.5", body="evil = True\n")
    done = run(script, tmp_path, UV_FIND_LINKS=str(wheels))
    assert done.returncode == (code or done.returncode) != 0
    assert says in done.stderr.lower()
    assert not (tmp_path / "p/current/demo").exists()


@pytest.mark.parametrize(("asked", "stops"), [(["alpha"], True), (["alpha", "extra"], False)])
def test_d23_a_package_that_nothing_asks_for_stops_the_script_before_its_code_can_run(
    tmp_path: Path, home: Path, asked: list[str], stops: bool
) -> None:
    wheels, ran = tmp_path / "wheels", tmp_path / "ran"
    start = {"extra.pth": f"import pathlib; pathlib.Path({str(ran)!r}).touch()\n"}
    packages = [
        locked(write_wheel(wheels, name, "1.0", contents, requires=requires), name, "1.0")
        for name, contents, requires in (
            ("alpha", {}, ["Beta_x>=1; extra == 'all'"]),
            ("beta-x", {}, []),
            ("extra", start, []),
        )
    ]
    lock = make_lock({"id": "v", "python": PYTHON, "packages": packages})
    script = render_script(planned(lock, str(tmp_path / "p"), asked=asked), lock)
    syntax_ok(script)
    done = run(script, tmp_path, UV_FIND_LINKS=str(wheels), UV_OFFLINE="1")
    assert done.returncode == (5 if stops else 0), done.stderr
    assert ("names: extra\n" in done.stderr) is stops
    assert (tmp_path / "p/current/demo").exists() is not stops
    assert not (stops and ran.exists())


def test_hostile_values_stay_values(tmp_path: Path, home: Path) -> None:
    source = {
        "name": "lib",
        "git": "https://example.org/$(touch pwned)'\"",
        "commit": "1" * 40,
        "tree": "2" * 40,
        "path": "a $(touch pwned) 'b",
        "ref": "x\t$(touch pwned)".replace("\t", " "),
        "build": {"kind": "wheel", "flags": [HOSTILE]},
    }
    row = {
        "id": "v",
        "python": PYTHON,
        "sources": [source],
        "environment": {"A": HOSTILE, "P": {"path": HOSTILE, "if": "exists"}},
    }
    lock = make_lock(row)
    pypi = {"url": f"http://x/{HOSTILE}", "kind": "find-links"}
    where = f"{tmp_path}/{HOSTILE.replace('/', '_')}"
    script = render_script(planned(lock, where, environment={"B": HOSTILE}, indexes={"pypi": pypi}), lock)
    syntax_ok(script)
    done = run(script, tmp_path)
    assert done.returncode != 0
    assert not list(tmp_path.rglob("pwned"))


def told(plan: Plan, lock: Lock) -> Plan:
    """The plan with another variant in its requests, one that no planner would let through."""
    for node in plan.nodes:
        for step in node.steps:
            if step.kind == "install" and step.request is not None:
                step.request["args"]["variant"] = lock.variants[0].to_json_dict()
    return plan


def test_a_version_that_is_an_option_and_an_unrecorded_hash_are_refused() -> None:
    plan = planned(make_lock({"id": "v", "python": PYTHON}))
    bad = package("a", "1")
    bad["files"][0] |= {"sha256": "unrecorded", "reason": "never seen"}
    option = package("a", "1 --index-url http://x", file="a.whl")
    for row, code, exit_code in ((option, "version-unusable", None), (bad, "hash-unrecorded", 5)):
        lock = make_lock({"id": "v", "python": PYTHON, "packages": [row]})
        with fails(code, exit_code) as caught:
            render_script(told(plan, lock), lock)
    assert caught.value.why == "never seen"


def patched_lock(tmp_path: Path, **source: Any) -> Lock:
    """One source with a patch and an extension, reachable through insteadOf only."""
    need_compiler()
    commit, tree = make_repository(tmp_path / "upstream", FILES)
    url = "https://example.org/quick"
    subprocess.run(["git", "config", "--global", f"url.file://{tmp_path}/upstream.insteadOf", url], check=True)
    pin = {"name": PATCH, "digest": digest_of(PATCH), "least": 1, "most": 1}
    plain = {"name": "quick", "git": url, "commit": commit, "tree": tree, "patches": [PATCH], "patch_pins": [pin]}
    built = {"build": {"extensions": ["quick._fast"], "environment": {"CFLAGS": "-O1"}}}
    return make_lock({"id": "v", "python": PYTHON, "sources": [{**plain, **built, **source}]})


@pytest.fixture
def with_envbuild(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This envbuild as a command on PATH."""
    programs = home / "programs"
    executable(programs / "envbuild", f'#!/bin/sh\nexec "{sys.executable}" -m envbuild "$@"\n')
    monkeypatch.setenv("PATH", str(programs), prepend=":")


@pytest.mark.usefixtures("with_envbuild")
def test_patches_are_made_by_envbuild_and_extensions_are_imported(tmp_path: Path, home: Path) -> None:
    lock = patched_lock(tmp_path)
    plan = planned(lock, str(tmp_path / "p"), patches=patches_of(lock))
    script = render_script(plan, lock)
    syntax_ok(script)
    assert "and envbuild for the patches of its sources" in script
    folders = [each for each in os.environ["PATH"].split(":") if not (Path(each) / "envbuild").exists()]
    (home / "without").mkdir()
    (home / "without/uv").symlink_to(shutil.which("uv") or "")
    done = run(script, tmp_path, PATH=":".join([str(home / "without"), *folders]))
    assert (done.returncode, "envbuild is not on PATH" in done.stderr) == (7, True)
    assert not (tmp_path / "p").exists()
    done = run(script, tmp_path)
    assert done.returncode == 0, done.stderr
    site = tmp_path / f"p/current/demo/lib/python{PYTHON}/site-packages"
    assert "KIND = float\n" in (site / "quick/old.py").read_text()


@pytest.mark.usefixtures("with_envbuild")
@pytest.mark.parametrize(
    ("source", "code", "says"),
    [
        ({"patch_pins": [{"name": PATCH, "digest": "0" * 64, "least": 1, "most": 1}]}, 5, "patch-changed"),
        ({"build": {"extensions": ["quick._other"]}}, 4, "quick._other cannot be imported"),
    ],
)
def test_a_patch_that_is_not_the_locked_one_and_an_extension_that_cannot_be_imported_stop_the_script(
    tmp_path: Path, source: dict[str, Any], code: int, says: str
) -> None:
    lock = patched_lock(tmp_path, **source)
    done = run(render_script(planned(lock, str(tmp_path / "p"), patches=patches_of(lock)), lock), tmp_path)
    assert (done.returncode, says in done.stderr) == (code, True), done.stderr
    assert not (tmp_path / "p/current/demo").exists()


def test_what_is_compiled_has_its_gpus_and_kernels_are_not_promised() -> None:
    kernels = {"kind": "kernels", "modules": [{"name": "fused_a", "sources": ["a.cu"]}]}
    source = {"name": "m", "git": "https://x.org/m", "commit": "1" * 40, "tree": "2" * 40, "install": "path"}
    lock = make_lock(
        {
            "id": "v",
            "python": PYTHON,
            "torch": "2.5.0",
            "flavour": "cu124",
            "packages": [package("torch", "2.5.0")],
            "sources": [{**source, "build": kernels}],
        }
    )
    script = render_script(
        planned(lock, node="h100", more={"nvcc": [{"path": "/cuda/bin/nvcc", "version": "12.4"}]}), lock
    )
    syntax_ok(script)
    assert "export TORCH_CUDA_ARCH_LIST=9.0" in script
    assert "export CUDA_HOME=/cuda" in script
    assert "fused_a now; after this script they are compiled at the first start" in script


def test_temporary_files_are_where_the_target_says_and_an_nvcc_that_is_gone_stops_the_script(
    tmp_path: Path, home: Path
) -> None:
    lock, wheels = real_lock(tmp_path, home)
    plan = planned(lock, str(tmp_path / "p"), tmp=str(tmp_path / "scratch"))
    script = render_script(plan, lock)
    assert run(script, tmp_path, UV_FIND_LINKS=str(wheels), UV_OFFLINE="1").returncode == 0
    assert (tmp_path / "scratch").is_dir() and "TMPDIR" not in render_script(planned(lock, "/p"), lock)
    (step,) = (step for step in plan.nodes[0].steps if step.kind == "install")
    assert step.request is not None
    step.request["args"]["build"] = {"cuda_home": str(tmp_path / "cuda")}
    shutil.rmtree(tmp_path / "p")
    done = run(render_script(plan, lock), tmp_path)
    assert (done.returncode, f"there is no {tmp_path}/cuda/bin/nvcc, which the facts" in done.stderr) == (7, True)
    assert not (tmp_path / "p").exists()
    for folder in ("cuda", "module"):
        executable(tmp_path / folder / "bin" / "nvcc", "#!/bin/sh\n")
    path = f"{tmp_path / 'module' / 'bin'}:{os.environ['PATH']}"
    done = run(render_script(plan, lock), tmp_path, UV_FIND_LINKS=str(wheels), UV_OFFLINE="1", PATH=path)
    assert done.returncode == 0, done.stderr
    assert f"warning: {tmp_path}/cuda/bin/nvcc compiles, as the facts have it, not {tmp_path}/module/" in done.stderr


def test_the_head_says_how_a_standalone_interpreter_comes_to_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "new").mkdir()
    executable(tmp_path / "python/bin/python3", "#!/bin/sh\n")
    subprocess.run(["tar", "-czf", "new/a.tar.gz", "python"], cwd=tmp_path, check=True)
    archive, top = tmp_path / "new/a.tar.gz", tmp_path / "p/tools/python-1"
    build = load_toolchain().pythons[PYTHON].model_copy(update={"sha256": sha256(archive), "url": archive.as_uri()})
    monkeypatch.setattr(bash_script, "load_toolchain", lambda: Toolchain(pythons=(build,)))
    lock = make_lock({
        "id": "v", "python": PYTHON,
        "interpreter": {"kind": "standalone", "name": build.name, "sha256": build.sha256},
    })  # fmt: skip
    plan = planned(lock, str(tmp_path / "p"), tools=FakeTools(interpreter=f"{top}/python/bin/python3"))
    script = render_script(plan, lock)
    command = script.partition("# curl ")[2].partition("\nset -e")[0].replace("\n# ", "\n")
    done = completed(["bash", "-c", f"curl {command}"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert os.access(f"{top}/python/bin/python3", os.X_OK)


def test_indexes_bases_archives_and_builds_have_their_words() -> None:
    archive = package("old", "1.0", file="old-1.0.tar.gz")
    inplace = {"name": "ip", "git": "https://x.org/ip", "commit": "1" * 40, "tree": "2" * 40, "install": "editable"}
    submodule = {"path": "sub", "git": "https://x.org/sub", "commit": "3" * 40, "tree": "4" * 40}
    row = {
        "id": "v",
        "python": PYTHON,
        "packages": [package("new", "1.0", index="links"), archive],
        "sources": [
            {**inplace, "build": {"kind": "inplace", "flags": ["fast"]}, "submodules": [submodule]},
            {**inplace, "name": "w", "install": "wheel", "build": {"kind": "wheel", "flags": ["--cuda_ext"]}},
        ],
    }
    lock = make_lock(row)
    links = {"url": "https://x.org/l.html", "kind": "find-links"}
    script = render_script(planned(lock, indexes={"links": links}), lock)
    syntax_ok(script)
    assert "--no-index --find-links https://x.org/l.html" in script
    assert "--no-build-isolation --no-cache --no-binary old" in script, (
        "a cache knows nothing of the packages beside it"
    )
    assert "setup.py build_ext --inplace --fast" in script
    assert f"checkout https://x.org/sub {'3' * 40} {'4' * 40}" in script
    assert 'wheel "$folder" "$work"/w-wheel --cuda_ext' in script
    assert "and nothing of envbuild" in script
    assert "<<'EOF'" in script and "<<EOF" not in script


@pytest.mark.parametrize("install", ["path", "editable"])
def test_what_is_compiled_in_its_own_tree_is_imported_too(install: str) -> None:
    source = {"name": "ip", "git": "https://x.org/ip", "commit": "1" * 40, "tree": "2" * 40, "install": install}
    build = {"kind": "inplace", "extensions": ["ip.fast", "ip.more"]}
    lock = make_lock({"id": "v", "python": PYTHON, "sources": [{**source, "build": build}]})
    script = render_script(planned(lock), lock)
    syntax_ok(script)
    assert "\nimports() {" in script
    made, used, proven = (
        script.index(word)
        for word in (
            "--inplace",
            "envbuild-source-ip.pth" if install == "path" else 'editable "$folder"',
            "  imports ip ip.fast ip.more\n",
        )
    )
    assert made < used < proven


@pytest.mark.slow
def test_d01_the_script_installs_an_editable_source_of_old_setuptools(tmp_path: Path, home: Path) -> None:
    need_compiler()
    wheels = tmp_path / "wheels"
    tools = [download(wheels / each, each)[0] for each in ("setuptools==59.5.0", "wheel==0.40.0")]
    packages = []
    for path in tools:
        path.rename(wheels / path.name)
        name, version = path.name.split("-")[:2]
        row = {"file": path.name, "sha256": sha256(wheels / path.name)}
        packages.append({"name": name, "version": version, "index": "nowhere", "files": [row]})
    lock, _ = real_lock(tmp_path, home)
    commit, tree = make_repository(tmp_path / "upstream", OLD_PROJECT)
    pin = {"name": "opt", "git": "https://example.org/lib", "commit": commit, "tree": tree, "install": "editable"}
    lock = make_lock({"id": "v", "python": PYTHON, "packages": packages, "sources": [pin]})
    plan = planned(lock, str(tmp_path / "pre fix"))
    script = render_script(plan, lock)
    syntax_ok(script)
    done = run(script, tmp_path, UV_FIND_LINKS=str(wheels))
    assert done.returncode == 0, done.stderr
    environment = Path(plan.nodes[0].environment)
    for words, said in ((["opt-baselines"], "runs 7"), (["opt-count"], "0.0.1")):
        out = completed([environment / "bin" / words[0]], check=True)
        assert out.stdout.strip() == said


def test_a_finished_environment_is_said_and_nothing_is_done(tmp_path: Path, home: Path) -> None:
    lock = torch_lock((PYTHON,)) if PYTHON in ("3.11", "3.12", "3.13") else make_lock({"id": "v", "python": PYTHON})
    plan = planned(lock, change=lambda facts: stamped(facts, lock, lock.variants[0].digest))
    assert plan.nothing_to_do
    done = run(render_script(plan, lock), tmp_path)
    assert done.returncode == 0 and "nothing to do" in done.stdout


def test_two_environments_become_cases_of_the_node_name_and_none_fails(tmp_path: Path, home: Path) -> None:
    lock = make_lock({"id": "v", "python": PYTHON})
    one = planned(lock, str(tmp_path / "a"))
    other = planned(lock, str(tmp_path / "b"))
    second = other.nodes[0].model_copy(update={"node": "n 2"})
    both = one.model_copy(update={"nodes": (one.nodes[0], second)})
    script = render_script(both, lock)
    syntax_ok(script)
    done = run(script, tmp_path, "nobody")
    assert done.returncode == 2 and "no node nobody" in done.stderr
    assert run(script, tmp_path).returncode != 0
    assert run(render_script(one.model_copy(update={"nodes": ()}), lock), tmp_path).returncode == 7
