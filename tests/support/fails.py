"""Waiting for a coded error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from envbuild.errors import EnvbuildError
from envbuild.node.build.patch import PatchError
from envbuild.node.protocol import NodeError

Error = EnvbuildError | NodeError | PatchError


@contextmanager
def fails(
    code: str, exit_code: int | None = None, *, match: str | None = None
) -> Iterator[pytest.ExceptionInfo[Error]]:
    """The block ends with an error of that code, and of that exit code where one is given."""
    with pytest.raises((EnvbuildError, NodeError, PatchError), match=match) as caught:
        yield caught
    error = caught.value
    told = f"{error.what}: {error.why}"
    assert error.code == code, told
    assert exit_code is None or getattr(error, "exit_code", None) == exit_code, told
