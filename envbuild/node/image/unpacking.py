"""Where a runtime unpacks an image that it makes a file of: tens of gigabytes, by itself in /tmp and at home."""

import contextlib
import os
import tempfile
from collections.abc import Iterator

from envbuild.node import paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from envbuild.node.protocol import Json


@contextlib.contextmanager
def folder(args: "Json", prefix: str) -> "Iterator[tuple[str, dict[str, str | None]]]":
    """A folder in `tmp` of the target, else in `<prefix>/tmp`, removed in the end; and the variables that lead there.

    enroot unpacks there only where `tmp` says so: it needs what file systems of networks may not have (overlays,
    extended attributes), and keeps to TMPDIR. Raises NodeError `not-writable`, `disk-full` (exit 7, 75).
    """
    top = _new(args.get("tmp") or os.path.join(prefix, "tmp"))
    try:
        with paths.coded_errors(top):
            yield top, _variables(top, said=bool(args.get("tmp")))
    finally:
        paths.remove_tree(top)


def _new(top: str) -> str:
    """A folder of this run; what runs left that were killed is removed, for under the lease nobody else has one."""
    try:
        os.makedirs(top, exist_ok=True)
        for name in sorted(os.listdir(top)):
            if name.startswith("image-build-") and os.stat(os.path.join(top, name)).st_uid == os.geteuid():
                paths.remove_tree(os.path.join(top, name))
        return tempfile.mkdtemp(prefix="image-build-", dir=top)
    except OSError as error:
        raise paths.not_writable(error, top) from error


def _variables(top: str, said: bool) -> "dict[str, str | None]":
    extra: dict[str, str | None] = {}
    for name in ("TMPDIR", "CACHEDIR"):
        place = os.path.join(top, name.lower())
        os.mkdir(place)
        # An older Apptainer was called Singularity, and so were its variables.
        extra.update({"APPTAINER_" + name: place, "SINGULARITY_" + name: place})
    extra["ENROOT_CACHE_PATH"] = os.path.join(top, "cachedir")  # of no use to it again
    if said:
        extra.update(TMPDIR=os.path.join(top, "tmpdir"), ENROOT_TEMP_PATH=os.path.join(top, "tmpdir"))
    return extra
