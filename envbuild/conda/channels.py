"""Addresses of channels: from the stack, else the user's conda and rattler configuration, else anaconda.org.

The strongest file first, as in conda: `$CONDARC`, those in the home, those of the system. Addresses here may have
credentials; `addresses` gives them without, for other machines.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import TypeAdapter, ValidationError

from envbuild.catalog.yaml_load import read_yaml
from envbuild.errors import EnvbuildError
from envbuild.model.stack import CondaChannel, CondaSpec
from envbuild.node.conda.logins import condarc_files, rattler_files, without_login
from envbuild.regular_file import parse_toml, read_file

ALIAS = "https://conda.anaconda.org"
# What Anaconda's terms of service cover: the channels that the name `defaults` stands for, and their copies.
ANACONDA_HOST = "repo.anaconda.com"
ANACONDA_NAMES = frozenset({"defaults", "main", "anaconda", "r", "msys2"})
_DEFAULTS = (f"https://{ANACONDA_HOST}/pkgs/main", f"https://{ANACONDA_HOST}/pkgs/r")


@dataclass(frozen=True)
class Place:
    """A channel and its addresses: `parts` are channels that count as one, each with its mirrors, the first best."""

    name: str
    parts: tuple[tuple[str, ...], ...]

    @property
    def urls(self) -> tuple[str, ...]:
        """All addresses, without a slash at the end."""
        return tuple(dict.fromkeys(url for mirrors in self.parts for url in mirrors))


@dataclass(frozen=True)
class CondaConfig:
    """The channels in the user's files; `mirrors`: beginning of an address to its mirrors."""

    alias: str = ALIAS
    custom: Mapping[str, str] = field(default_factory=dict)
    multi: Mapping[str, Sequence[str]] = field(default_factory=dict)
    mirrored: Mapping[str, Sequence[str]] = field(default_factory=dict)
    defaults: Sequence[str] = _DEFAULTS
    mirrors: Mapping[str, Sequence[str]] = field(default_factory=dict)


def read_config(environ: Mapping[str, str]) -> CondaConfig:
    """What these files say. Raises EnvbuildError `manifest-*` and `conda-config-invalid` (exit 2)."""
    text, texts = TypeAdapter(str | None), TypeAdapter(list[str] | None)
    named, listed = TypeAdapter(dict[str, str] | None), TypeAdapter(dict[str, list[str]] | None)
    forms: dict[str, TypeAdapter[Any]] = {
        "channel_alias": text, "default_channels": texts, "custom_channels": named, "custom_multichannels": listed,
        "mirrored_channels": listed,
    }  # fmt: skip
    files = [_checked(path, read_yaml(path).data or {}, forms) for path in condarc_files(environ)]
    alias = next((data["channel_alias"] for data in files if data.get("channel_alias")), ALIAS)
    mirrors = _strongest("mirrors", [_checked(p, _toml(p), {"mirrors": listed}) for p in rattler_files(environ)])
    return CondaConfig(
        alias=(environ.get("CONDA_CHANNEL_ALIAS") or alias).rstrip("/"),
        custom=_strongest("custom_channels", files),
        multi=_strongest("custom_multichannels", files),
        mirrored=_strongest("mirrored_channels", files),
        defaults=next((data["default_channels"] for data in files if data.get("default_channels")), _DEFAULTS),
        mirrors={key.rstrip("/"): value for key, value in mirrors.items()},
    )


def _strongest(key: str, files: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for file in files:
        merged = {**(file.get(key) or {}), **merged}
    return merged


def _checked(path: Path, data: Any, forms: Mapping[str, TypeAdapter[Any]]) -> dict[str, Any]:
    """The keys of `forms` in a file, each in its form."""
    checked, key = {}, ""
    try:
        for key in forms.keys() & data.keys():
            checked[key] = forms[key].validate_python(data[key])
    except (ValidationError, AttributeError) as error:
        why = f"`{key}` does not have the form that conda writes" if key else "it is not a mapping"
        raise EnvbuildError("conda-config-invalid", f"{path} is not a valid conda configuration", why=why) from error
    return checked


def _toml(path: Path) -> Any:
    try:
        return parse_toml(read_file(path).decode("utf-8"))
    except (OSError, ValueError) as error:
        raise EnvbuildError("conda-config-invalid", f"{path} is not valid TOML", why=str(error)) from error


def places(spec: CondaSpec, config: CondaConfig | None = None) -> tuple[Place, ...]:
    """The addresses of a profile's channels.

    Raises EnvbuildError `conda-defaults-refused` (exit 7) and what `read_config` raises.
    """
    config = config or read_config(os.environ)
    result = tuple(Place(channel.name, tuple(_parts(channel, config))) for channel in spec.channels)
    for url in (url for place in result for url in place.urls):
        without_login(url)  # so that no message shows its token
    if not spec.allow_defaults:
        for place in result:
            _refuse_defaults(place)
    return result


def addresses(spec: CondaSpec, config: CondaConfig | None = None) -> dict[str, tuple[str, ...]]:
    """Channel name to base addresses, without credentials: each machine has its own. Raises as `places` does."""
    return {place.name: tuple(map(without_login, place.urls)) for place in places(spec, config)}


def _parts(channel: CondaChannel, config: CondaConfig) -> Iterator[tuple[str, ...]]:
    if channel.url is not None:
        yield _mirrors((channel.url,), config)
    elif channel.name in config.mirrored:
        yield _mirrors(config.mirrored[channel.name], config)
    elif channel.name in config.multi or channel.name == "defaults":
        for part in config.multi.get(channel.name, config.defaults):
            yield _mirrors((part if "://" in part else _address(part, config),), config)
    else:
        yield _mirrors((_address(channel.name, config),), config)


def _address(name: str, config: CondaConfig) -> str:
    base = config.custom.get(name, config.alias)
    return f"{base if '://' in base else f'{config.alias}/{base}'}".rstrip("/") + f"/{name}"


def _mirrors(urls: Sequence[str], config: CondaConfig) -> tuple[str, ...]:
    """The addresses with what stands in for them put in their place."""
    result: list[str] = []
    for url in (address.rstrip("/") for address in urls):
        key = next((key for key in config.mirrors if url == key or url.startswith(f"{key}/")), None)
        result += [url] if key is None else [mirror.rstrip("/") + url[len(key) :] for mirror in config.mirrors[key]]
    return tuple(dict.fromkeys(result))


def _refuse_defaults(place: Place) -> None:
    theirs = [url for url in place.urls if _of_anaconda(url)]
    if not theirs and place.name not in ANACONDA_NAMES:
        return
    raise EnvbuildError(
        "conda-defaults-refused",
        f"the channel {place.name} belongs to Anaconda",
        why=f"{', '.join(map(without_login, theirs or place.urls))}: Anaconda's terms ask organisations of more "
        "than 200 people for a paid licence",
        hint=f"write conda-forge in place of {place.name}; or, if you may, `allow_defaults: true` in the `conda:` "
        "section of a stack file, which an environment.yml cannot have",
    )


def _of_anaconda(url: str) -> bool:
    parts = urlsplit(url)
    first = parts.path.strip("/").partition("/")[0]
    return parts.hostname == ANACONDA_HOST or (parts.hostname == urlsplit(ALIAS).hostname and first in ANACONDA_NAMES)
