"""Small reads that a probe makes everywhere: a file that is missing or unreadable is an absent fact."""

import errno
import json
import os
import re
import stat

from envbuild.node.protocol import Json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO

# Reading more than this of a /proc, /sys or JSON file would mean that it is not what it should be.
READ_LIMIT = 16 * 1024 * 1024


def opened(path: "str | os.PathLike[str]", follow: bool = True) -> "IO[bytes]":
    """A regular file, to be read; `follow`: also through a link. Raises OSError, for a FIFO or device as well.

    Opening a FIFO would wait for its writer for ever.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    except ValueError as error:  # NUL in its name
        raise OSError(errno.EINVAL, str(error), str(path)) from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(handle, "rb")


def read(path: str, limit: int = READ_LIMIT) -> str:
    """Text of a file, empty when it cannot be read."""
    try:
        with opened(path) as handle:
            return handle.read(limit).decode("utf-8", "replace")
    except OSError:
        return ""


def names(path: str) -> "list[str]":
    """Sorted names in a folder, empty when it cannot be listed."""
    try:
        return sorted(os.listdir(path))
    except (OSError, ValueError):
        return []


def json_lines(text: str) -> "list[Json]":
    """The JSON objects that stand on lines of their own; other lines are passed over.

    What no JSON has, NaN and the infinities of Python's, are texts: no answer could hold them as numbers.
    """
    rows = []
    for line in text.splitlines():
        try:
            row = json.loads(line, parse_constant=str)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def integer(text: "str | None") -> "int | None":
    """A whole number of at most 15 ASCII digits: `isdigit` says yes to digits and lengths that `int` refuses."""
    return int(text) if text is not None and re.match(r"[0-9]{1,15}\Z", text) else None


def first(pattern: "re.Pattern[str] | str", text: str) -> "str | None":
    """What the first group of a pattern finds in a text; None where it finds nothing."""
    match = re.search(pattern, text)
    return match.group(1) if match else None


def number(text: str) -> "float | None":
    """What a program printed as a number; None where it has none to say."""
    try:
        return float(text)
    except ValueError:
        return None


def which(name: str, folders: "list[str]") -> "str | None":
    """The first executable file `name` in `folders`."""
    for folder in folders:
        path = os.path.join(folder, name)
        if os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    return None


def search_path() -> "list[str]":
    """PATH's absolute folders, each once; then the usual ones, which a non-login shell may not have."""
    folders = os.environ.get("PATH", "").split(":") + ["/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"]
    by_place = {}  # type: dict[str, str]
    for folder in folders:
        if folder.startswith("/") and os.path.isdir(folder):
            by_place.setdefault(os.path.realpath(folder), folder)
    return list(by_place.values())
