"""What locked contents take on a disk."""

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated, Self

from pydantic import Field

from envbuild.model.common import StrictModel

BLOCK = 4096


class Unpacked(StrictModel):
    """What contents take on a disk: bytes in blocks of 4 KiB, one for each folder included, and files with folders."""

    bytes: Annotated[int, Field(ge=0)]
    inodes: Annotated[int, Field(ge=0)]

    @classmethod
    def of(cls, sizes: Mapping[str, int]) -> Self:
        """What files take, by relative path to size in bytes."""
        folders = {folder for path in sizes for folder in PurePosixPath(path).parents[:-1]}
        blocks = sum(-(-size // BLOCK) for size in sizes.values()) + len(folders)
        return cls(bytes=blocks * BLOCK, inodes=len(sizes) + len(folders))
