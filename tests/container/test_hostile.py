"""D66: nothing that a stack, a lock or a target says becomes more than a value in a Dockerfile or a script."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner
from pydantic import ValidationError

from envbuild.cli.verbs import cli
from envbuild.container.instructions import Stage, run
from envbuild.container.recipe import ImageRecipe
from envbuild.container.recipe import render as dockerfile
from envbuild.container.select import recipe_for
from envbuild.errors import EnvbuildError
from envbuild.export.bash_sources import sources as bash
from envbuild.model.lock import Variant
from envbuild.model.target import ContainerSettings
from tests.container.test_dockerfile import recipe_of
from tests.support.plain import at, changed, places

# What a shell, a Dockerfile or both would take for more than a value.
HOSTILE = (
    "x; touch CANARY", "$(touch CANARY)", "`touch CANARY`", "x' ; touch CANARY '", 'x" ; touch CANARY "',
    "x\nRUN touch CANARY", "x && touch CANARY", "x \\", "--flag=CANARY", "${CANARY}", "x\r\nUSER root",
    "# CANARY\x1b[31m", "../CANARY",
)  # fmt: skip
SOURCE: dict[str, Any] = {
    "name": "quick", "git": "https://git.example.org/quick", "commit": "1" * 40, "tree": "2" * 40, "ref": "main",
    "install": "path", "path": "below", "generated": ["data/*.so"],
    "submodules": [{"path": "sub", "git": "https://git.example.org/sub", "commit": "3" * 40, "tree": "4" * 40}],
    "patches": ["numpy-aliases"], "patched_tree": "5" * 40,
    "build": {"kind": "inplace", "flags": ["cpp_ext"], "extensions": ["quick._fast"], "environment": {"CFLAG": "-O2"}},
}  # fmt: skip


@pytest.fixture(scope="module")
def plain() -> ImageRecipe:
    return recipe_for("torch-smoke")


def texts_of(data: Any) -> Iterator[tuple[Any, ...]]:
    """The place of every text in plain data."""
    return (place for place in places(data) if isinstance(at(data, place), str))


def commands(text: str) -> list[list[str]]:
    """The words of every instruction of a Dockerfile or line of a script, as a shell takes them apart."""
    joined = text.replace("\\\n", " ")
    return [shlex.split(line) for line in joined.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def stands_alone(text: str) -> bool:
    """Whether `touch` is a word of its own, which a value never gives: it is one word with what is around it."""
    return any("touch" in words for words in commands(text))


def test_every_field_of_a_source_stays_a_value_or_is_refused(plain: ImageRecipe) -> None:
    base = {**plain.variant.to_json_dict(), "sources": [SOURCE], "environment": {"TINY": "a"}, "imports": ["torch"]}
    assert "touch" not in dockerfile(recipe_of(Variant.from_plain(base)))
    tried = [("sources", 0, *path) for path in texts_of(SOURCE)] + [("environment", "TINY"), ("imports", 0)]
    tried += [("packages", 0, *path) for path in texts_of(base["packages"][0])]
    rendered = set()
    for path in tried:
        for value in HOSTILE:
            data = changed(base, path, value)
            try:
                made = recipe_of(Variant.from_plain(data))
                texts = {
                    "dockerfile": dockerfile(made),
                    "bash": "\n".join(bash("tiny", made.variant, {})),
                    **{name: text for name, text in made.files.items() if name.endswith(".txt")},
                }  # fmt: skip
            except (ValidationError, EnvbuildError):
                continue
            rendered.add(path)
            for name, text in texts.items():
                assert not stands_alone(text), (path, value, name)
                assert "\x1b" not in text and "\r" not in text, (path, value, name)
            lines = texts["dockerfile"].splitlines()
            assert [line for line in lines if line.startswith("USER ")] == ["USER 10001:10001"], (path, value)
            # What a Dockerfile itself would expand is not left in it.
            for line in (
                line for line in lines if line.lstrip().startswith(("ENV", "LABEL", "COPY", "WORKDIR", "TINY"))
            ):
                assert "${CANARY}" not in line.replace("\\${CANARY}", ""), (path, value)
    assert ("environment", "TINY") in rendered and ("sources", 0, "path") in rendered


@pytest.mark.parametrize(
    "value", ["/p\nRUN touch x", "/usr/bin/python3 -c pass; echo INJECTED; true", "python3", "/a/../b", "", "/x y"]
)
def test_d66_a_python_is_an_absolute_path_and_nothing_else(value: str) -> None:
    with pytest.raises(ValidationError):
        ContainerSettings.from_plain({"python": value})
    words = ["image", "dockerfile", "torch-smoke", "--base-image", "localhost/b", "--python", value]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 2 and "absolute path" in done.output and "FROM" not in done.stdout


@pytest.mark.parametrize("field", ["base", "runtime_image", "fetch_image", "registry"])
@pytest.mark.parametrize("value", HOSTILE)
def test_d66_an_image_of_a_target_is_a_reference(field: str, value: str) -> None:
    with pytest.raises(ValidationError):
        ContainerSettings.from_plain({field: value})


@pytest.mark.parametrize("value", ["x && touch CANARY", "a\\", "it's", '"', "$HOME"])
def test_a_command_of_a_dockerfile_is_one_line_whatever_is_quoted_in_it(plain: ImageRecipe, value: str) -> None:
    stage = Stage("s", "localhost/b", None, tuple(run((f"true {shlex.quote(value)}", "false"))))
    text = dockerfile(replace(plain, stages=(stage,))).rpartition("AS s\n")[2]
    assert shlex.split(text.replace("\\\n", " ")) == ["RUN", "true", value, "&&", "false"]
