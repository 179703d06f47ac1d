"""Leaves tests of packages out of an image: what no import needs, and what RECORD names nevertheless.

Only files that a RECORD names go; their list is in the stamp, so that everything else is still compared with it.
"""

import os
import re

from envbuild.node.conda import meta
from envbuild.node.packages import installed
from envbuild.node.protocol import Json, log, plural

_TESTS = ("test", "tests")
# `test` or `tests` as a word of the name: `test_jit`, `my-tests.so`, but not `contest`, `latest.so`, `pytest`.
_PROGRAM = re.compile(r"(^|[_-])tests?([_.-]|$)")


def is_test(path: str) -> bool:
    """Whether a path of site-packages is below a folder `test` or `tests` of a package, or a test program in a `bin`.

    The same as `find` in a plain Dockerfile (`container/plain.py`).
    """
    folders, name = path.split("/")[1:-1], os.path.basename(path)
    if ".dist-info/" in path:
        return False
    return any(folder in _TESTS for folder in folders) or (folders[-1:] == ["bin"] and bool(_PROGRAM.search(name)))


def leave_out(environment: str) -> Json:
    """Remove the tests of every wheel; `files`, `bytes` and `paths` (in the environment) of what went."""
    from envbuild.node import merkle

    others, size = meta.distributions(environment), 0
    gone: list[str] = []
    for folder in installed.dist_infos(environment):
        if installed.normal_name(os.path.basename(folder).split("-")[0]) in others:
            continue
        site = os.path.dirname(folder) + "/"
        for path, _digest, _size in merkle.read_record(environment, folder + "/RECORD"):
            full = os.path.join(environment, path)
            if path.startswith(site) and is_test(path[len(site) :]) and os.path.lexists(full):
                size += os.lstat(full).st_size
                os.unlink(full)
                gone.append(path)
    for folder in sorted({os.path.dirname(path) for path in gone}, reverse=True):
        try:
            os.removedirs(os.path.join(environment, folder))
        except OSError:
            continue  # something else is in it
    log("slim: %s of tests left out, %.1f MB" % (plural(len(gone), "file"), size / 1e6))
    return {"files": len(gone), "bytes": size, "paths": sorted(gone)}
