"""What the last stage of an image build added to an environment, as a folder that is copied over the packages.

<added>/envs/<name>/        files and folders that are new or changed
<added>/current/<stack>     the link
"""

import os
import shutil
import stat

from envbuild.node import merkle, paths
from envbuild.node.protocol import NodeError, log, plural

TYPE_CHECKING = False
if TYPE_CHECKING:
    Seen = dict[str, os.stat_result]

_OWN = paths.meta("", "")


def look(environment: str, below: str = "") -> "Seen":
    """Relative path -> `lstat` of every file, link and folder; with `below` (ends with a slash) of those in it."""
    found: Seen = {}
    pending = [below] if os.path.isdir(os.path.join(environment, below)) else []
    while pending:
        top = pending.pop()
        for item in merkle.listed(os.path.join(environment, top)):
            path, told = top + item.name, item.stat(follow_symlinks=False)
            if stat.S_ISDIR(told.st_mode):
                pending.append(path + "/")
            found[path] = told
    return found


def _differs(one: "os.stat_result", other: "os.stat_result") -> bool:
    """Whether it changed, as far as that shows without reading it."""
    if one.st_mode != other.st_mode:
        return True
    # Times and the size of a folder say only that something in it changed.
    same = (
        one.st_size == other.st_size and one.st_mtime_ns == other.st_mtime_ns and one.st_ctime_ns == other.st_ctime_ns
    )
    return not same and not stat.S_ISDIR(one.st_mode)


def files(seen: "Seen") -> "list[tuple[str, os.stat_result]]":
    """What `look` saw less the folders, as `merkle.scan` takes it."""
    return [(path, told) for path, told in seen.items() if not stat.S_ISDIR(told.st_mode)]


def stamped(environment: str, seen: "Seen") -> "Seen":
    """The walk `seen` before the stamp, with envbuild's own files read again: only they have changed since."""
    found = {path: told for path, told in seen.items() if not path.startswith(_OWN)}
    found.update(look(environment, _OWN))
    return found


def set_apart(prefix: str, environment: str, before: "Seen", after: "Seen", added: str) -> None:
    """Make the folder `added` from `environment` as it was `before` and as it is `after` the build.

    Raises NodeError `image-layer` (exit 4) where something was removed or changed its kind, which a COPY cannot say.
    """
    new = sorted(path for path, told in after.items() if path not in before or _differs(before[path], told))
    lost = sorted(
        path
        for path, told in before.items()
        if path not in after or stat.S_IFMT(after[path].st_mode) != stat.S_IFMT(told.st_mode)
    )
    if lost:
        raise NodeError(
            "image-layer",
            "a source removed %s of the packages" % lost[0],
            why="%s of a package are gone or of another kind" % plural(len(lost), "path"),
            hint="take the package that has them out of the stack",
        )
    for path in new:
        _link(environment, path, os.path.join(added, "envs", os.path.basename(environment)))
    shutil.copytree(os.path.join(prefix, "current"), os.path.join(added, "current"), symlinks=True)
    log("%s new or changed" % plural(len(new), "path"))


def _link(environment: str, path: str, to: str) -> None:
    """Give what is at `path` in `environment` the same place below `to`, with the folders above it."""
    source, target = os.path.join(environment, path), os.path.join(to, path)
    if not os.path.isdir(os.path.dirname(target)):
        _folders(environment, os.path.dirname(path), to)
    if os.path.islink(source):
        os.symlink(os.readlink(source), target)
    elif os.path.isdir(source):
        _folders(environment, path, to)
    else:
        os.link(source, target)


def _folders(environment: str, path: str, to: str) -> None:
    """Make `path` below `to`, every folder of it with the mode that it has in `environment`."""
    for part in [""] + [path[:at] for at, char in enumerate(path) if char == "/"] + ([path] if path else []):
        target = os.path.join(to, part) if part else to
        if not os.path.isdir(target):
            os.makedirs(target)
            shutil.copymode(os.path.join(environment, part), target)
