"""The input of `--from`: a file, a folder, or a repository with its ref."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from envbuild.errors import EnvbuildError
from envbuild.init.statement import without_credentials
from envbuild.init.tree import Tree, of_commit, of_file, of_folder
from envbuild.lock.readers.git import git_reader

_ADDRESS = re.compile(r"(?:git\+)?(?:https?|ssh|git)://|git@[\w.-]+:")

_OTHER_ADDRESS = re.compile(r"[a-z][a-z+]*:/", re.IGNORECASE)
_LOCAL = (
    "clone it and give the folder, push it and give its https or ssh address, or give a local repository such an "
    "address: `git config --global url.FOLDER/.insteadOf https://HOST/OWNER/`"
)


def is_address(reference: str) -> bool:
    """Whether an input is a repository elsewhere."""
    return bool(_ADDRESS.match(reference))


@contextmanager
def opened(reference: str) -> Iterator[Tree]:
    """The tree of an input, while it is read.

    Raises EnvbuildError `init-source`, `file-unreadable` (exit 2), and what reading from git raises.
    """
    if is_address(reference):
        url, ref = split_ref(reference.removeprefix("git+"))
        with git_reader() as reader:
            yield of_commit(url, ref, reader)
        return
    path = Path(reference).expanduser()
    if _OTHER_ADDRESS.match(reference) and not path.exists():
        scheme = reference.partition(":")[0]
        raise EnvbuildError("init-source", f"{scheme} addresses are not taken, https and ssh are", hint=_LOCAL)
    if (path / "HEAD").is_file() and (path / "objects").is_dir():
        raise EnvbuildError("init-source", f"{path} is a bare repository, which is no folder of code", hint=_LOCAL)
    if path.is_dir():
        yield of_folder(path)
    elif path.exists():
        yield of_file(path)
    else:
        raise EnvbuildError(
            "init-source",
            f"there is no file or folder {without_credentials(reference)}",
            hint="name a page, a folder, or https://HOST/OWNER/NAME@REF",
        )


def split_ref(address: str) -> tuple[str, str]:
    """An address and the ref behind its last `@`, which is neither that of `git@HOST` nor of a user's name."""
    head, separator, ref = address.rpartition("@")
    if separator and "/" in head.partition("://")[2] + head.partition("@")[2].replace(":", "/") and "/" in head:
        if re.match(r"(?:https?|ssh|git)://[^/]*$", head):
            return address, ""
        return head, ref
    return address, ""
