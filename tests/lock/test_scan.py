"""What a pinned tree does that newer packages do not take: found by syntax, kept in the lock, told at once."""

from __future__ import annotations

import pytest

from envbuild.lock.create import create_lock, default_supply
from envbuild.lock.files import parse_lock
from envbuild.lock.readers.scan import uses
from envbuild.lock.record import render_lock
from envbuild.model.stack import Stack
from envbuild.resolve.profile import findings
from tests.lock.conftest import Repos
from tests.resolve.builders import compat, make_lock, package

OLD = "import numpy as np\n\nKIND = np.float\n"


@pytest.mark.parametrize(
    ("text", "trait"),
    [
        (OLD, "np-int"),
        ("import numpy\nX = numpy.bool\n", "np-bool"),
        ("import numpy as np\nX = np.float_\n", "np-float_"),
        ("from torch._six import inf\n", "torch-six"),
        ("import torch\nX = torch._six.inf\n", "torch-six"),
        ("from torch import _six\n", "torch-six"),
        ("import imp\n", "imp"),
        ("from distutils import util\n", "distutils"),
        ("import pkg_resources\n", "pkg-resources"),
        ("from pkg_resources import packaging\n", "pkg-resources-packaging"),
    ],
)
def test_d20_a_removed_name_is_found(text: str, trait: str) -> None:
    assert trait in uses({"a/b.py": text})


@pytest.mark.parametrize(
    "text",
    [
        "import numpy as np\nX = np.float32\n",
        "X = np.float\n",
        "class C:\n    float = 1\nX = C.float\n",
        "try:\n    from torch._six import inf\nexcept ImportError:\n    from math import inf\n",
        "# np.float and torch._six\nTEXT = 'import imp'\n",
        "print 'of another Python'\nimport imp\n",
    ],
)
def test_d20_what_only_looks_like_one_is_not(text: str) -> None:
    assert uses({"a/b.py": text}) == {}


def test_d20_setup_py_comes_first_and_the_place_has_a_line() -> None:
    assert uses({"a.py": OLD, "setup.py": OLD}) == {"np-int": "setup.py:3, a.py:3 at import"}
    assert uses({"setup.py": "from setuptools import setup\nsetup(use_2to3=True)\n"}) == {"use-2to3": "setup.py:2"}
    assert uses({"x_pb2.py": "D = _descriptor.FileDescriptor(name='x')\n"}) == {"old-protobuf": "x_pb2.py:1 at import"}


def test_d20_a_lock_keeps_what_its_sources_use(repos: Repos) -> None:
    repos.create("old")
    commit = repos.commit("old", "old.py", OLD)
    source = {"name": "old", "git": Repos.url("old"), "commit": commit, "install": "path"}
    stack = Stack.from_plain(
        {"name": "mine", "summary": "s", "profiles": {"exact": {"python": ["3.11"], "sources": [source]}}}
    )
    lock = create_lock(stack, "exact", default_supply())
    assert lock.variants[0].sources[0].uses == {"np-int": "old.py:3 at import"}
    assert parse_lock(render_lock(lock), "x") == lock
    said: list[str] = []
    assert create_lock(stack, "exact", default_supply(), previous=lock, say=said.append) == lock
    assert said == []


@pytest.mark.parametrize(("numpy", "told"), [("1.24.4", True), ("1.23.5", False)])
def test_d20_it_is_told_where_a_locked_version_removed_it(numpy: str, told: bool) -> None:
    source = {
        "name": "old",
        "git": "https://example.org/old",
        "commit": "1" * 40,
        "tree": "2" * 40,
        "uses": {"np-int": "pkg/old.py:3"},
    }
    lock = make_lock({"id": "v", "python": "3.11", "packages": [package("numpy", numpy)], "sources": [source]})
    found = findings(lock, compat())
    assert bool(found) is told
    assert all("old/pkg/old.py:3" in text and text.startswith("numpy-aliases") for text in found)
