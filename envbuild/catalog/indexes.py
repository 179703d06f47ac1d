"""The wheel indexes that locks name (`compat/indexes.json`), and which distributions bring a module.

Where an index really is, is the user's business.

`pypi` has no address: it means the default index of uv and pip as they are configured on the machine that asks.
JSON, as the fetch stage of a Dockerfile in a checkout reads the file with nothing but Python.
"""

from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, Literal

from packaging.utils import canonicalize_name
from packaging.version import Version
from pydantic import Field

from envbuild import resources
from envbuild.catalog.validation import validated
from envbuild.catalog.yaml_load import load_yaml, read_yaml
from envbuild.errors import EnvbuildError
from envbuild.model.common import Flavour, StrictModel, Text, WebUrl
from envbuild.model.finding import TorchVersion

DEFAULT_INDEX = "pypi"


class TorchRange(StrictModel):
    """The torch releases that an index holds, both ends included."""

    first: TorchVersion | None = Field(default=None, alias="from")
    last: TorchVersion | None = Field(default=None, alias="to")
    but: tuple[TorchVersion, ...] = Field(default=(), alias="except")

    def holds(self, version: str) -> bool:
        """Whether a release (without local part) is in the range."""
        asked = Version(version)
        if version in self.but:
            return False
        return not (self.first and asked < Version(self.first)) and not (self.last and asked > Version(self.last))


class IndexEntry(StrictModel):
    """One index. `url` is empty for the default index, whose address only the machine's configuration knows."""

    name: Annotated[Text, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
    kind: Literal["simple", "find-links"]
    url: WebUrl | Literal[""] = ""
    flavours: tuple[Flavour, ...] = ()
    torch: TorchRange | None = None
    source: Text
    verified: Text


@cache
def load_indexes() -> MappingProxyType[str, IndexEntry]:
    """Every named index. Raises EnvbuildError `manifest-*` when the shipped file is damaged."""
    path = resources.catalog() / "compat" / "indexes.json"
    document = read_yaml(path)
    entries = (validated(IndexEntry, {"name": name, **entry}, document) for name, entry in document.data.items())
    return MappingProxyType({entry.name: entry for entry in entries})


def index_addresses() -> dict[str, dict[str, str]]:
    """Every index that has an address, as requests name them: name to `url` and `kind` (`index`, `find-links`)."""
    kinds = {"simple": "index", "find-links": "find-links"}
    return {name: {"url": entry.url, "kind": kinds[entry.kind]} for name, entry in load_indexes().items() if entry.url}


def index_for_torch(version: str, flavour: str) -> IndexEntry:
    """The index that holds the wheels of one torch release in one flavour, other than the default index.

    `version` without local part. Raises EnvbuildError `index-unknown`, exit 2.
    """
    for entry in load_indexes().values():
        if entry.torch is not None and flavour in entry.flavours and entry.torch.holds(version):
            return entry
    raise EnvbuildError(
        "index-unknown",
        f"no package index is known for torch {version}+{flavour}",
        why="compat/indexes.json has no entry for this release in this flavour",
        hint="choose another flavour of this release",
    )


@cache
def load_distributions() -> dict[str, Any]:
    """The tables, read once."""
    data: dict[str, Any] = load_yaml(resources.catalog() / "distributions.yaml")
    return data


def distributions(module: str) -> tuple[str, ...]:
    """Distributions that may bring a module, the likeliest first."""
    named = load_distributions()["modules"].get(module)
    same = str(canonicalize_name(module))
    listed = [str(canonicalize_name(named))] if named else [same]
    return tuple(
        dict.fromkeys([*listed, *load_distributions()["also"].get(module, ()), same, f"py{same}", f"python-{same}"])
    )
