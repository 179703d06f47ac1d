"""Waiting for a coded error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from envbuild.errors import EnvbuildError
from envbuild.node import protocol
from envbuild.node.build.patch import PatchError
from envbuild.node.protocol import NodeError

_NODE = Path(protocol.__file__).parent
Error = EnvbuildError | NodeError | PatchError


@contextmanager
def fails(
    code: str, exit_code: int | None = None, *, match: str | None = None
) -> Iterator[pytest.ExceptionInfo[Error]]:
    """The block ends with an error of that code, and of that exit code where one is given.

    What the node program raises is an error of its own: it has no `EnvbuildError`, and others have none of its.
    """
    with pytest.raises((EnvbuildError, NodeError, PatchError), match=match) as caught:
        yield caught
    error = caught.value
    told = f"{error.what}: {error.why}"
    assert error.code == code, told
    raised = Path(caught.traceback[-1].path)
    assert isinstance(error, EnvbuildError) != raised.is_relative_to(_NODE), f"{type(error).__name__} of {raised.name}"
    assert exit_code is None or getattr(error, "exit_code", None) == exit_code, told
