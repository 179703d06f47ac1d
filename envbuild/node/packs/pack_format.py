"""What a pack is, for those who write, send, unpack and publish one."""

import os

from envbuild.node import paths
from envbuild.node.protocol import Json, NodeError, has_fields

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO

MANIFEST = "pack.json"
VERSION = 1
# Ending by format, in the order in which they are tried where the request names none.
ENDINGS = {"tar.zst": "tar.zst", "squashfs": "sqfs", "tar.gz": "tar.gz", "tar": "tar"}
MANIFEST_LIMIT = 64 * 1024 * 1024


def known(folder: str, name: str) -> "Json | None":
    """The record beside a pack, None when there is none or its file is not there in the size that it had."""
    record = paths.read_json(os.path.join(folder, name + ".json"))
    if record is None or record.get("version") != VERSION or not has_fields(record, file=str):
        return None
    record["file"] = os.path.join(folder, os.path.basename(record["file"]))
    try:
        return record if os.path.getsize(record["file"]) == record.get("bytes") else None
    except OSError:
        return None


def stem(path: str) -> str:
    """The path of a pack without the ending of its format."""
    return next((path[: -len(end) - 1] for end in ENDINGS.values() if path.endswith("." + end)), path)


def check_link(name: str, target: str, top: str, folders: "list[str]", interpreter: str) -> None:
    """A link of a pack names the interpreter, or something in one of the packed folders.

    Raises NodeError `pack-leads-out` (exit 7).
    """
    if interpreter and target in (interpreter, os.path.realpath(interpreter)):
        return
    full = os.path.normpath(os.path.join(top, os.path.dirname(name), target))
    if not any((full + "/").startswith(os.path.join(top, folder) + "/") for folder in folders):
        raise leads_out(name, "it points at %s" % target[:200])


def leads_out(name: str, why: str) -> "NodeError":
    """The error of a path that no pack may have."""
    return NodeError(
        "pack-leads-out",
        "%s cannot be in a pack" % name[:200],
        why=why,
        hint="an environment that is packed holds files, folders and links to its own files",
    )


def open_pack(path: str) -> "BinaryIO":
    """A pack that can be read. Raises NodeError `pack-missing` (exit 2)."""
    try:
        return open(path, "rb")
    except OSError as error:
        hint = "the node that packs it writes it; provision again"
        raise NodeError("pack-missing", "cannot read %s" % path, why=str(error), hint=hint) from None
