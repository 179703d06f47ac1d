"""The man page: made from the commands, and what `man` shows without a complaint."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from envbuild.cli.verbs import COMMANDS
from tests.support.need import need
from tests.support.programs import completed

TOP = Path(__file__).parents[2]
PAGE = TOP / "docs" / "man" / "envbuild.1"


def test_the_man_page_is_what_the_commands_give() -> None:
    spec = importlib.util.spec_from_file_location("make_man", TOP / "docs" / "make_man.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    assert PAGE.read_text(encoding="utf-8") == made.page(), "docs/make_man.py writes it anew (make generated)"
    assert made.roff("a\\b\n  --c") == "a\\eb \\-\\-c" and made.roff(".x") == "\\&.x"


def test_man_shows_every_command_and_complains_of_nothing() -> None:
    need("man")
    done = completed(["man", "--warnings", "-l", str(PAGE)], env={"MANWIDTH": "80"})
    assert (done.returncode, done.stderr) == (0, "")
    first = {line.split()[0] for line in done.stdout.splitlines() if line.startswith("       ") and line.split()}
    assert first >= set(COMMANDS)
    assert max(map(len, done.stdout.splitlines())) <= 80
