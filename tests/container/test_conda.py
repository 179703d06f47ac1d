"""The engine conda inside an image: its requests, and its stages carried out here one after another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from envbuild.cli.entry import main
from envbuild.container.dockerfile import render
from envbuild.container.recipe import ImageRecipe
from envbuild.container.select import Choice, recipe_for
from envbuild.errors import EnvbuildError, ExitCode
from envbuild.node.env import verify
from envbuild.node.image import build_stage
from tests.node.conda.support import rattler_folder
from tests.node.env_support import MINOR, PYTHON, make_wheel, uv_path
from tests.support.conda import Channel, fill

VARIANT = f"cp{MINOR.replace('.', '')}-linux_x86_64-conda"


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, conda_python: Path) -> Path:
    """A locked stack with conda packages of a channel in a folder and a wheel."""
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    make_wheel(tmp_path / "house", scripts={"alpha-run": "alpha:main"})
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "house"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    channel = fill(Channel(tmp_path / "forge", "forge"), conda_python)
    section: dict[str, Any] = {"channels": [{"name": "forge", "url": channel.url}], "packages": ["tool", "pure"]}
    profile = {"python": [MINOR], "packages": ["alpha==1.0"], "conda": section, "imports": ["alpha", "pure"]}
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"name": "mine", "summary": "s", "profiles": {"exact": profile}}))
    assert main(["lock", "create", str(path), "--quiet"]) == ExitCode.OK
    return path


@pytest.fixture
def recipe(stack: Path) -> ImageRecipe:
    return recipe_for(Choice(str(stack), variant=VARIANT))


def test_archives_are_fetched_by_hash_and_addresses_are_not_committed(recipe: ImageRecipe, tmp_path: Path) -> None:
    fetch = json.loads(recipe.files["fetch.json"])["args"]
    rows = {row["file"]: row for row in fetch["files"] if row.get("channel")}
    assert set(rows) == {each.file for each in recipe.variant.conda.packages}  # type: ignore[union-attr]
    assert rows["pure-1.5-py_0.conda"]["subdir"] == "noarch"
    assert str(tmp_path) not in "".join(recipe.files.values())
    assert json.loads(recipe.uncommitted["indexes.json"])["conda:forge"]["urls"] == [f"file://{tmp_path}/forge"]
    install = json.loads(recipe.files["packages.json"])["args"]["requests"][0]["args"]
    assert install["interpreter"] is None and install["tools"]["rattler"].startswith(
        f"{recipe.prefix}/tools/py-rattler-"
    )
    text = render(recipe)
    assert f"COPY --from=fetch {recipe.prefix}/fetched/conda {recipe.prefix}/fetched/conda" in text
    assert "tools/python-" not in text.partition("AS installed")[2].partition("AS build")[0], "conda brings its own"


def test_the_stages_make_a_stamped_environment(
    recipe: ImageRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = tmp_path / "image"

    def request(name: str) -> dict[str, Any]:
        text = recipe.files[name].replace(recipe.prefix, str(prefix)).replace("/var/cache", str(tmp_path / "cache"))
        return dict(json.loads(text))

    fetch = request("fetch.json")
    fetch["args"].update(files=[row for row in fetch["args"]["files"] if row.get("channel")], tools=[])
    fetch["args"]["find_links"] = [str(tmp_path / "forge")]
    (prefix / "image").mkdir(parents=True)
    (prefix / "image" / "indexes.json").write_text(recipe.uncommitted["indexes.json"])
    (prefix / "image" / "variant.json").write_text(recipe.files["variant.json"])
    build_stage.run(fetch)
    monkeypatch.setattr(build_stage, "network_state", lambda: "off")
    tools = {"uv": uv_path(), "rattler": rattler_folder(), "rattler_python": PYTHON}
    packages, build = request("packages.json"), request("build.json")
    for step in (packages["args"]["requests"][0], build["args"]["requests"][0]):
        step["args"].update(tools=tools)
        step["args"]["artifacts"]["find_links"] = [str(tmp_path / "house")]
    told = build_stage.run(packages)[1]
    assert told["packages"] == 2
    done = build_stage.run(build)[1]
    environment = build["args"]["requests"][0]["args"]["environment"]
    ask = {"protocol": 1, "verb": "verify", "run": "r", "prefix": str(prefix)}
    found = verify.run({**ask, "args": {"stack": "mine", "environment": environment, "deep": True}})[1]
    assert (found["ok"], found["root"]) == (True, done["root"])


def test_the_engine_picks_the_variant(stack: Path, tmp_path: Path) -> None:
    assert recipe_for(Choice(str(stack))).variant.engine == "venv"
    assert recipe_for(Choice(str(stack), engine="conda")).variant.id == VARIANT
    target = tmp_path / "target.yaml"
    target.write_text("name: t\nprefix: /data/envbuild\nengine: container\ncontainer: {engine: conda}\n")
    assert recipe_for(Choice(str(stack), target=str(target))).variant.id == VARIANT
    with pytest.raises(EnvbuildError, match="no variant of the engine conda"):
        recipe_for(Choice("torch-smoke", engine="conda"))


def test_what_is_not_recorded_is_no_image(stack: Path) -> None:
    assert main(["lock", "create", str(stack), "--conda-unrecorded", "--quiet"]) == ExitCode.OK
    with pytest.raises(EnvbuildError) as caught:
        recipe_for(Choice(str(stack), variant=VARIANT))
    assert (caught.value.code, caught.value.exit_code) == ("conda-unrecorded", 5)
