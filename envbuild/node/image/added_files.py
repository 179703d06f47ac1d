"""What the last stage of an image build added to an environment, as a folder that is copied over the packages.

<added>/envs/<name>/        files and folders that are new or changed
<added>/current/<stack>     the link
"""

import os
import shutil
import stat

from envbuild.node.protocol import NodeError, log, plural

TYPE_CHECKING = False
if TYPE_CHECKING:
    Seen = dict[str, tuple[int, ...]]


def look(environment: str) -> "Seen":
    """Relative path -> what shows a change of a file, link or folder without reading it."""
    found: Seen = {}
    pending = [""] if os.path.isdir(environment) else []
    while pending:
        top = pending.pop()
        with os.scandir(os.path.join(environment, top)) as items:
            for item in items:
                path, told = top + item.name, item.stat(follow_symlinks=False)
                kind = stat.S_IFMT(told.st_mode)
                if kind == stat.S_IFDIR:
                    pending.append(path + "/")
                # Times and the size of a folder say only that something in it changed.
                rest = (told.st_size, told.st_mtime_ns, told.st_ctime_ns) if kind != stat.S_IFDIR else ()
                found[path] = (told.st_mode,) + rest
    return found


def set_apart(prefix: str, environment: str, before: "Seen", added: str) -> None:
    """Make the folder `added` from `environment` as it is now and as it was `before`.

    Raises NodeError `image-layer` (exit 4) where something was removed or changed its kind, which a COPY cannot say.
    """
    after = look(environment)
    new = sorted(path for path in after if before.get(path) != after[path])
    kinds = {path: stat.S_IFMT(told[0]) for path, told in after.items()}
    lost = sorted(path for path, told in before.items() if kinds.get(path) != stat.S_IFMT(told[0]))
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
