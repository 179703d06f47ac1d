"""`envbuild up`: a folder of code becomes a verified environment, by one command, and a second time by none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.e2e.world import MINOR, World
from tests.support.files import write_file


@pytest.fixture
def code(tmp_path: Path) -> World:
    """A folder `own` with one package to install, and an import that nothing brings."""
    world = World(tmp_path)
    world.wheel()
    world.place_uv()
    files = {
        "README.md": "# own\n\n## Install\n\n```\npip install -r requirements.txt\n```\n",
        "requirements.txt": "alpha==1.0\n",
        "pyproject.toml": f'[project]\nname = "own"\nversion = "1"\nrequires-python = "=={MINOR}.*"\n',
        "own/__init__.py": "import alpha\ntry:\n    import nowhere\nexcept ImportError:\n    nowhere = None\n",
    }
    for path, text in files.items():
        write_file(world.work / "own" / path, text)
    return world


# `envbuild up` on that folder.
UP = ("up", "./own", "-t", "local")


def words_of(text: str) -> str:
    return " ".join(text.split())


def test_a_folder_is_drafted_locked_built_and_verified_and_a_second_time_nothing_is_done(code: World) -> None:
    done = code.run(*UP, "--yes", rc=0)
    assert (code.work / "own.yaml").is_file() and (code.work / "own.lock.toml").is_file()
    steps = ("wrote ./own.yaml", "resolving own", "plan: own", "own (exact) is provisioned on 1 node")
    said, push = done.err + done.out, "push first, then `envbuild up ADDRESS@COMMIT`"
    assert f"  kit       holds no code, so nobody can build from it: {push}" in said
    assert [said.find(step) for step in steps] == sorted(said.find(step) for step in steps) and "report" in done.out
    assert "runs: imports" not in said, "a draft knows nothing to launch, so nothing is refused"
    assert "2 of 2 modules" not in said and "smoke/sound/closure" in said, said
    again = code.run(*UP, rc=0)
    assert "drafted before: ./own.yaml" in again.err and "nothing to do" in again.err
    assert len(list(code.runs.iterdir())) == 2, "one run a command"
    assert "envbuild verify ./own.yaml --target local" in done.out
    page = ("explain", "./own.yaml", "--document", "own/README.md", "--other-text", "--output", "page.html")
    assert code.run(*page).rc == 0 and "pip install" in (code.work / "page.html").read_text()
    code.wheel(version="2.0")
    stack = code.work / "own.yaml"
    stack.write_text(stack.read_text().replace("alpha==1.0", "alpha==2.0"))
    changed = code.run(*UP)
    assert "  ~ package alpha 1.0 -> 2.0\n" in changed.err, changed.err
    (code.work / "own" / "requirements.txt").write_text("alpha==1.0\nbeta\n")
    changed = code.run(*UP)
    assert "requirements.txt changed after ./own.yaml was drafted: `mv ./own.yaml ./own.yaml.old`" in changed.err


def test_a_flavour_changes_no_draft_that_is_there(code: World) -> None:
    with (code.work / "own" / "requirements.txt").open("a") as stream:
        stream.write("torch==2.7.1\n")
    code.good("init", "--from", "./own", "--yes")
    done = code.run(*UP, "--flavour", "cpu", "--yes")
    assert done.code == "usage" and "./own.yaml has `flavours: [cu126]`" in done.err, done.err
    assert "write `flavours: [cpu]` into ./own.yaml" in done.err and not (code.work / "own.lock.toml").exists()
    (code.work / "own.yaml").unlink()
    code.run(*UP, "--flavour", "cpu")
    assert "flavours: [cpu]" in (code.work / "own.yaml").read_text()
    again = code.run(*UP, "--flavour", "cpu")
    assert again.code != "usage" and "drafted before" in again.err, again.err


@pytest.mark.slow
def test_a_needed_module_that_nothing_brings_is_said_first_with_what_to_write(code: World) -> None:
    (code.work / "own" / "own" / "__init__.py").write_text("import alpha, nowhere\n")
    done = code.run(*UP, "--yes")
    assert done.rc == 0 and done.out.startswith("! ")
    assert "Missing: 1 module that its code imports, nowhere. None of its code was imported." in done.out
    add = "add what brings nowhere to `packages:` of ./own.yaml, then `envbuild lock create ./own.yaml`"
    assert f"  next    {add} and `envbuild provision ./own.yaml --target local`" in done.out
    assert "missing: nowhere (own/own/__init__.py:1); none of the code was imported: name what brings them" in done.out
    again = code.run(*UP)
    assert again.rc == 0 and again.out.startswith("! own (exact) was already in place"), again.out
    assert "its comments leave open: nowhere (own/__init__.py:1:1" in words_of(again.err), again.err
    assert "Missing: 1 module that its code imports, nowhere. None of its code was imported." in again.out
    assert "nowhere (own/own/__init__.py:1)" in code.good("verify", "./own.yaml", "-t", "local").out
    assert "! own: its code imports nowhere, and no package provides that" in code.good("status", "-t", "local").out
    (code.work / "own" / "nowhere.py").touch()
    mended = code.run(*UP)
    changed = "what own imports (nowhere) changed after"
    assert f"{changed} ./own.yaml was drafted: `mv ./own.yaml ./own.yaml.old`" in mended.err
    assert changed in code.run("up", "-t", "local").err, "without its name as well"
    assert "Changed after the smoke test: 1 file of code." in mended.out
    (code.work / "own" / "nowhere.py").unlink()
    stack = code.work / "own.yaml"
    stack.write_text(stack.read_text().replace("    runs: imports", "    imports: [alpha]\n    runs: imports"))
    kept = code.run("up", "./own.yaml", "-t", "local", "--yes")
    assert kept.rc == 0 and "None of its code" not in kept.out
    (code.work / "own" / "own" / "__init__.py").write_text("import alpha\n")
    edited = code.run("up", "./own.yaml", "-t", "local").out
    assert "Missing" not in edited and "Changed after the smoke test: 1 file of code." in edited
    assert "no package provides" not in code.good("status", "-t", "local").out
    code.good("smoke", "./own.yaml", "-t", "local")
    assert "Missing" not in code.good("verify", "./own.yaml", "-t", "local").out, "the last smoke test has all"


@pytest.mark.slow
def test_what_failed_in_a_smoke_test_is_repeated_until_one_is_good(code: World) -> None:
    assert code.run(*UP, "--yes").rc == 0
    own = code.work / "own" / "own" / "__init__.py"
    good = own.read_text()
    own.write_text(good + "raise RuntimeError('is broken')\n")
    assert code.run("smoke", "./own.yaml", "-t", "local").rc == 1
    again = code.run(*UP)
    assert again.rc == 0 and again.out.startswith("! own (exact) was already in place"), again.out
    for done in again.out, code.good("verify", "./own.yaml", "-t", "local").out:
        said = words_of(done)
        assert "Changed after the smoke test: 1 file of code. Failed in the smoke test of 20" in said, said
        assert "Z: import own: RuntimeError: is broken" in said
        assert "next envbuild smoke ./own.yaml --target local" in said
    assert "! own: smoke/sound failed in the smoke test of 20" in code.good("status", "-t", "local").out
    code.good("smoke", "./own.yaml", "-t", "local", "--only", "sound/closure")
    assert "Failed in the smoke test" in code.run(*UP).out, "another check tells nothing of it"
    own.write_text(good)
    code.good("smoke", "./own.yaml", "-t", "local")
    code.good("smoke", "./own.yaml", "-t", "local", "--only", "sound/closure")
    kit = code.good("report", "kit", "-o", str(code.top / "kit")).err
    assert re.search(r"has the contents from the stamp; the report of 20\S+, which measured them, is added", kit), kit
    assert "a folder of the authors, which is not in this kit" in (code.top / "kit" / "README.md").read_text()
    assert "! " not in code.run(*UP).out.splitlines()[0]


@pytest.mark.slow
def test_without_a_terminal_the_plan_is_shown_and_nothing_is_built(code: World) -> None:
    done = code.run(*UP)
    assert (done.rc, done.code) == (7, "plan-unconfirmed") and "plan: own" in done.err
    assert not code.current.parent.exists() and not list((code.prefix / "envs").glob("*"))
    done = code.run("report", "kit")
    assert done.code == "evidence-missing" and "no run has one yet: `envbuild provision` makes one" in done.err
    starts = "\n    # starts: python train.py --steps 20  (README.md:9)\n"
    stack = code.work / "own.yaml"
    stack.write_text(stack.read_text().replace("\n", starts, 1))
    built = code.run("up", "own.yaml", "-t", "local", "--yes", "--json")
    assert built.json["stack"] == "own"
    said = words_of(built.err)
    assert "not run python train.py --steps 20 (README.md:9): `envbuild env run own -- COMMAND` in a checkout" in said
    second = code.run("up", "./own.yaml", "-t", "local", "--prefix", str(code.top / "other"))
    assert second.code == "plan-unconfirmed"
    assert "not confirmed" in code.good("run", "list").out.splitlines()[1]
    for words in (["report", "show"], ["report", "kit", "-o", str(code.top / "kit")]):
        done = code.good(*words)
        assert "the last run with a report is " in done.err, done.err
    done = code.run("report", "kit", max(path.name for path in code.runs.iterdir()))
    assert "(not confirmed) has no report" in done.err and "hint: the last run with a report is 20" in done.err
    assert code.good("verify", "own", "-t", "local").out.startswith("✓ own (exact)")
    assert "stack: ./own.yaml, of this folder" in code.good("verify").err
    assert "stack: ./own.yaml, of this folder" in code.good("verify", "-t", "local").err, "local names no stack"
    assert code.good("up", "-t", "local").out.startswith("✓ own (exact)")
    (code.work / "config.yaml").write_text("model: {lr: 0.1}\n")
    done = code.run("up", "config.yaml", "-t", "local", "--yes")
    assert done.code == "manifest-invalid" and "profiles is missing" in done.err
    (code.work / "own.yaml").rename(code.work / "kept")
    done = code.run("up", "./own", "-t", "locl", "--yes")
    assert done.code == "target-unknown" and not (code.work / "own.yaml").exists()
    (code.work / "own.yaml").touch()
    done = code.run(*UP, "--yes")
    assert "name another file: `envbuild init own-stack.yaml --from ./own`" in done.err
    asked = code.run("up", "nowhere", "-t", "local", "--yes")
    assert asked.code == "stack-unknown"


@pytest.mark.slow
def test_a_pinned_release_without_the_name_that_the_code_imports_gives_way_to_one_that_has_it(code: World) -> None:
    code.wheel(version="2.0", files={"alpha/__init__.py": b"from .new import fresh\n", "alpha/new.py": b"fresh = 2\n"})
    # transformers says it so, in two lines
    text = "try:\n    from alpha import fresh\nexcept ImportError as error:\n"
    (code.work / "own" / "own" / "__init__.py").write_text(text + "    raise RuntimeError(f'see:\\n{error}')\n")
    done = code.run(*UP, "--yes", rc=0)
    says = "alpha 1.0, which requirements.txt:1 asks for as `alpha==1.0`, has no fresh in alpha. Take alpha>=2.0 for"
    assert says in words_of(done.err) and "own (exact) is provisioned on 1 node" in done.out + done.err
    relaxed = '"alpha>=2.0"  # relaxed from alpha==1.0, which has no fresh in alpha; '
    assert relaxed in (code.work / "own.yaml").read_text()
    code.wheel(version="3.0", files={"alpha/__init__.py": b"fresh = 3\n"})
    (code.work / "own" / "own" / "__init__.py").write_text("from alpha import nothing\n")
    (code.work / "own.yaml").unlink()
    none = code.run(*UP, "--yes")
    assert none.rc == 1 and "has no nothing in alpha. Try a release that has it" in words_of(none.err)
    assert "relaxed" not in (code.work / "own.yaml").read_text()
