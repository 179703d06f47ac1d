"""Waiting for a coded error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from envbuild.errors import EnvbuildError
from envbuild.node.protocol import NodeError

Error = EnvbuildError | NodeError
Caught = pytest.ExceptionInfo[Error]


@contextmanager
def fails(code: str, exit_code: int | None = None, *, match: str | None = None) -> Iterator[Caught]:
    """The block ends with an error of that code, and of that exit code where one is given."""
    with pytest.raises((EnvbuildError, NodeError), match=match) as caught:
        yield caught
    error = caught.value
    wanted = (code, error.exit_code if exit_code is None else exit_code)
    assert (error.code, error.exit_code) == wanted, f"{error.what}: {error.why}"
