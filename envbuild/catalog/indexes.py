"""The wheel indexes that locks name (`compat/indexes.yaml`)."""

from __future__ import annotations

from functools import cache
from types import MappingProxyType
from typing import Annotated, Literal

from packaging.version import Version
from pydantic import Field, model_validator

from envbuild import resources
from envbuild.catalog.validation import read_model
from envbuild.errors import EnvbuildError
from envbuild.model.common import Flavour, StrictModel, Text, WebUrl

DEFAULT_INDEX = "pypi"
TorchVersion = Annotated[str, Field(pattern=r"^[0-9]+\.[0-9]+\.[0-9]+$")]


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

    name: Annotated[Text, Field(pattern=r"^[a-z0-9][a-z0-9{}-]*$")]
    kind: Literal["simple", "find-links"]
    url: WebUrl | Literal[""] = ""
    flavours: tuple[Flavour, ...] = ()
    torch: TorchRange | None = None
    source: Text
    verified: Text

    @property
    def is_verified(self) -> bool:
        """False when the address was never asked."""
        return self.verified != "no"

    def expanded(self) -> tuple[IndexEntry, ...]:
        """The entries that a `{flavour}` template stands for; the entry itself when it is none."""
        if "{flavour}" not in self.name:
            return (self,)
        return tuple(
            self.model_copy(
                update={
                    "name": self.name.replace("{flavour}", flavour),
                    "url": self.url.replace("{flavour}", flavour),
                    "flavours": (flavour,),
                }
            )
            for flavour in self.flavours
        )


class _IndexFile(StrictModel):
    indexes: tuple[IndexEntry, ...]

    @model_validator(mode="after")
    def _names_are_unique(self) -> _IndexFile:
        names = [entry.name for template in self.indexes for entry in template.expanded()]
        if len(set(names)) != len(names):
            raise ValueError("two indexes have the same name")
        return self


@cache
def load_indexes() -> MappingProxyType[str, IndexEntry]:
    """Every named index, templates expanded. Raises EnvbuildError `manifest-*` when the shipped file is damaged."""
    read = read_model(_IndexFile, resources.catalog() / "compat" / "indexes.yaml")
    return MappingProxyType({entry.name: entry for template in read.indexes for entry in template.expanded()})


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
        f"no index is named for torch {version}+{flavour}",
        why="no entry of compat/indexes.yaml holds that release in that flavour",
        hint="ask for a flavour that this release has",
    )
