from __future__ import annotations

from pathlib import Path

import pytest

from envbuild.conda.channels import CondaConfig, addresses, places, read_config
from envbuild.errors import EnvbuildError, ExitCode
from envbuild.model.stack import CondaChannel, CondaSpec
from tests.support.fails import fails
from tests.support.files import write_file


def spec(*names: str, **fields: object) -> CondaSpec:
    return CondaSpec(channels=tuple(CondaChannel(name=name) for name in names), **fields)  # type: ignore[arg-type]


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    (tmp_path / ".config" / "rattler").mkdir(parents=True)
    return {"HOME": str(tmp_path)}


def write(home: dict[str, str], name: str, text: str) -> None:
    write_file(Path(home["HOME"]) / name, text)


def test_the_stack_s_own_address_stands_above_the_user_s_configuration(home: dict[str, str]) -> None:
    write(home, ".condarc", "channel_alias: https://mirror.example.org/conda/\n")
    channel = CondaChannel(name="mine", url="file:///srv/channel/")
    own = CondaSpec(channels=(channel, CondaChannel(name="conda-forge")))
    assert addresses(own, read_config(home)) == {
        "mine": ("file:///srv/channel",),
        "conda-forge": ("https://mirror.example.org/conda/conda-forge",),
    }


def test_custom_mirrored_and_multichannels_of_condarc_are_followed(home: dict[str, str]) -> None:
    write(
        home,
        ".condarc",
        "custom_channels:\n  lab: https://lab.example.org/conda\n"
        "mirrored_channels:\n  conda-forge: [https://a.example.org/cf, https://b.example.org/cf]\n"
        "custom_multichannels:\n  all: [lab, https://c.example.org/more]\n",
    )
    found = {place.name: place.parts for place in places(spec("lab", "conda-forge", "all"), read_config(home))}
    assert found == {
        "lab": (("https://lab.example.org/conda/lab",),),
        "conda-forge": (("https://a.example.org/cf", "https://b.example.org/cf"),),
        "all": (("https://lab.example.org/conda/lab",), ("https://c.example.org/more",)),
    }


def test_the_stronger_file_and_the_variable_win(home: dict[str, str], tmp_path: Path) -> None:
    write(home, ".condarc", "channel_alias: https://weak.example.org\ncustom_channels: {a: https://a.example.org}\n")
    write(home, "strong.yml", "channel_alias: https://strong.example.org\n")
    config = read_config(home | {"CONDARC": str(tmp_path / "strong.yml")})
    assert (config.alias, config.custom) == ("https://strong.example.org", {"a": "https://a.example.org"})
    assert read_config(home | {"CONDA_CHANNEL_ALIAS": "https://v.example.org/"}).alias == "https://v.example.org"


def test_a_name_lies_at_anaconda_org_or_on_the_mirrors_of_rattler_s_configuration(home: dict[str, str]) -> None:
    found = addresses(spec("conda-forge"), read_config(home))
    assert found == {"conda-forge": ("https://conda.anaconda.org/conda-forge",)}
    text = '[mirrors]\n"https://conda.anaconda.org/conda-forge" = ["https://m.example.org/cf"]\n'
    write(home, ".config/rattler/config.toml", text)
    assert addresses(spec("conda-forge"), read_config(home)) == {"conda-forge": ("https://m.example.org/cf",)}


def test_addresses_for_other_machines_hold_no_credentials() -> None:
    config = CondaConfig(
        custom={"a": "https://me:pass@a.example.org", "b": "https://conda.anaconda.org/t/ab-0123456789"}
    )
    assert addresses(spec("a", "b"), config) == {
        "a": ("https://a.example.org/a",),
        "b": ("https://conda.anaconda.org/b",),
    }
    assert places(spec("b"), config)[0].urls == ("https://conda.anaconda.org/t/ab-0123456789/b",)


def test_anaconda_s_own_channels_are_refused_with_the_reason_unless_allowed() -> None:
    for name in ("defaults", "main", "anaconda", "r", "msys2"):
        with fails("conda-defaults-refused", ExitCode.REFUSED) as caught:
            places(spec("conda-forge", name), CondaConfig())
        assert "licence" in caught.value.why
        assert [each.name for each in places(spec(name, allow_defaults=True), CondaConfig())] == [name]
    # They are known under another name too.
    config = CondaConfig(mirrored={"conda-forge": ["https://repo.anaconda.com/pkgs/main"]})
    with pytest.raises(EnvbuildError, match=r"belongs to Anaconda"):
        places(spec("conda-forge"), config)
    allowed = addresses(spec("defaults", allow_defaults=True), CondaConfig())
    assert allowed == {"defaults": ("https://repo.anaconda.com/pkgs/main", "https://repo.anaconda.com/pkgs/r")}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (".condarc", "custom_channels: [a]\n"),
        (".condarc", "- a\n"),
        (".condarc", "mirrored_channels: {a: https://a.example.org}\n"),
        (".condarc", "channel_alias: [a]\n"),
        (".config/rattler/config.toml", 'mirrors = "x"'),
        (".config/rattler/config.toml", "[mirrors"),
    ],
)
def test_a_configuration_that_is_none_is_refused_by_its_file(home: dict[str, str], name: str, text: str) -> None:
    write(home, name, text)
    with fails("conda-config-invalid") as caught:
        read_config(home)
    assert name in caught.value.what
