"""`imports:` of every shipped stack names what the script imports that the stack is there to start."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuild.catalog.yaml_load import load_yaml
from envbuild.model.stack import Profile
from tests.support.stacks import shipped_stack

ENTRIES = load_yaml(Path(__file__).parent / "entries.yaml")
# Profiles of the Python layer say that nothing can be started with them.
PROFILES = [
    (name, profile)
    for name in ENTRIES
    for profile, made in shipped_stack(name).stack.profiles.items()
    if not any("For imports and reading only" in each for each in made.deviations)
]


def missing(profile: Profile, wanted: list[str]) -> list[str]:
    """The modules that no import of the profile brings in; `a.b` brings in `a`."""
    return [name for name in wanted if not any(f"{each}.".startswith(f"{name}.") for each in profile.imports)]


@pytest.mark.parametrize(("name", "profile"), PROFILES)
def test_d52_imports_name_what_the_training_script_imports(name: str, profile: str) -> None:
    made = shipped_stack(name).stack.profiles[profile]
    dispensable = {
        module for source in made.sources for patch in source.patches for module in ENTRIES[name].get(patch, ())
    }
    assert set(missing(made, ENTRIES[name]["imports"])) <= dispensable
    # torch first: the libraries of what was compiled are those that it loads.
    assert made.imports[0] == "torch"


def test_d52_a_list_without_a_module_is_found() -> None:
    made = shipped_stack("megatronapp").stack.profiles["ported"]
    short = made.model_copy(update={"imports": ("torch", "megatron.core.enums", "megatronic")})
    assert missing(short, ["torch", "megatron", "megatron.core", "megatron.training"]) == ["megatron.training"]


@pytest.mark.parametrize(("name", "profile"), PROFILES)
def test_d55_every_megatron_with_datasets_builds_its_index_builder_ahead_of_time(name: str, profile: str) -> None:
    sources = [source for source in shipped_stack(name).stack.profiles[profile].sources if source.install != "wheel"]
    built = [s for s in sources if s.build and any(m.name == "helpers" for m in s.build.modules or ())]
    # metaseq brings its own data; of Megatron it takes the parallel layers.
    assert len(built) == (0 if name == "opt-175b" else 1)
    for source in built:
        assert "megatron-data-helpers" in source.patches
        assert not any("helpers" in pattern for pattern in source.generated)
        assert [m.torch for m in source.build.modules if m.name == "helpers"] == [False]  # type: ignore[union-attr]
