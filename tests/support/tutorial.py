"""The tutorials as their readers follow them: write files, run commands, look for what they are shown to print.

In a block of `console` a line that begins with `$ ` is a command; it ends with exit 0, or as its comment `# exit N`
says. The lines below are found in what it prints, in that order, with any numbers; one that ends in `…` by its
beginning, and `…` alone stands for any lines. A block with a `title` is a file of that name. A block after
`<!-- not run: WHY -->` is left.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support.programs import completed

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"
BLOCK = re.compile(r'(<!-- not run: [^>]*-->\n+)?^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)


def commands(block: str) -> Iterator[tuple[str, list[str]]]:
    """Each command of a console block with the lines shown below it."""
    command, shown = "", list[str]()
    for line in block.replace("\\\n", "").splitlines():
        if line.startswith("$ "):
            if command:
                yield command, shown
            command, shown = line[2:], []
        else:
            shown.append(line)
    yield command, shown


def plain(line: str) -> str:
    """A line without what differs from run to run: numbers with their units, digests, width."""
    line = re.sub(r"\b[0-9a-f]{8,64}\b|\d{8}T\d{6}Z-[0-9a-f]{4}", "H", line)
    return " ".join(re.sub(r"\d[\d.,]*( [kMG]?B\b| s\b| min\b)?", "N", line).split())


def missing(shown: list[str], printed: str) -> list[str]:
    """The lines that are not in what was printed, in their order."""
    rest = iter([plain(line) for line in printed.splitlines()])
    wanted = [line for line in map(plain, shown) if line not in ("", "…")]
    return [w for w in wanted if not any(line.startswith(w[:-1]) if w.endswith("…") else line == w for line in rest)]


def follow(page: Path, top: Path, programs: Path = Path(sys.executable).parent, **more: str) -> None:
    """Do what a tutorial says as a new user, whose HOME lies below `top`; `more` are variables of the shell.

    `programs`: the folder with the command `envbuild`.
    """
    home, work = top / "home", top / "work"
    home.mkdir()
    work.mkdir()
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("ENVBUILD_", "XDG_", "GIT_"))
    } | more
    path = os.pathsep.join((str(programs), str(Path(sys.executable).parent), kept["PATH"]))
    env = {**kept, "HOME": str(home), "PATH": path, "COLUMNS": "160", "LC_ALL": "C.UTF-8"}
    ran = 0
    for left, language, title, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        if left:
            continue
        if title:
            (work / title).parent.mkdir(parents=True, exist_ok=True)
            (work / title).write_text(text, encoding="utf-8")
        for command, shown in commands(text) if language == "console" else ():
            said = re.search(r"# exit (\d+)", command)
            argv = ["bash", "-c", command]
            done = completed(argv, cwd=work, env=env, timeout=300)
            printed = done.stderr + done.stdout  # progress, then the result
            assert done.returncode == int(said[1] if said else 0), f"{command}\n{printed}"
            assert missing(shown, printed) == [], f"{command}\n{printed}"
            ran += 1
    assert ran > 2
