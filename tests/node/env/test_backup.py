"""A repair that does not end well leaves the stamped environment in use, whatever step failed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from envbuild.node import lease
from envbuild.node.env import backup, stamp
from envbuild.node.protocol import NodeError
from envbuild.node.smoke import smoke
from tests.node.env_support import Node, make_variant, make_wheel, node
from tests.node.packs.test_pack import Packed
from tests.support.patience import PATIENCE, until

__all__ = ["node"]


class Repaired:
    """An environment in use whose second build fails later on: its module cannot be imported while `bad` is there."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.bad = node.top / "bad"
        code = f"import os\nif os.path.exists({str(self.bad)!r}):\n    raise OSError('a broken driver')\n"
        wheel = make_wheel(node.wheels, files={"alpha/__init__.py": code.encode()})
        self.variant = make_variant([wheel], imports=["alpha"])
        self.environment = node.build(self.variant)
        self.before = stamp.read(str(self.environment))
        node.run = "run-2"

    def smoke(self) -> dict[str, Any]:
        args = {"environment": str(self.environment), "variant": self.variant, "items": [{"name": "sound"}]}
        return smoke.run(self.node.request("smoke", **args))[1]

    def settle(self) -> bool:
        changed, told = backup.run(self.node.request("settle", environment=str(self.environment)))
        assert told == {"environment": str(self.environment), "put_back": changed}
        return changed

    def check(self) -> None:
        """The first one is in use, nothing else is there, and nobody holds the prefix."""
        assert stamp.read(str(self.environment)) == self.before
        assert (self.node.prefix / "current" / "demo").resolve() == self.environment
        assert self.node.verify(deep=True)["ok"]
        assert os.listdir(self.node.prefix / "envs") == [self.environment.name]
        assert lease.read(str(self.node.prefix)) is None


@pytest.fixture
def repaired(node: Node) -> Repaired:
    return Repaired(node)


def test_d38_a_smoke_test_that_fails_after_a_repair_puts_the_stamped_environment_back(repaired: Repaired) -> None:
    assert repaired.node.install(repaired.variant, repair=True)[0]
    repaired.bad.touch()
    assert not repaired.smoke()["ok"]
    repaired.bad.unlink()
    repaired.check()


def test_d38_a_smoke_test_that_cannot_begin_puts_the_stamped_environment_back(repaired: Repaired) -> None:
    repaired.node.install(repaired.variant, repair=True)
    (repaired.environment / "bin" / "python").unlink()
    with pytest.raises(NodeError, match="no environment"):
        repaired.smoke()
    repaired.check()


def test_d38_an_unpack_that_fails_at_its_end_puts_the_stamped_environment_back(node: Node) -> None:
    packed = Packed(node)
    file = Path(packed.told["file"])
    bound = subprocess.run(["mount", "--bind", file, file], capture_output=True, text=True)
    if bound.returncode:
        pytest.skip(f"a mount is needed, for a file that cannot be removed: {bound.stderr}")
    node.run = "run-2"
    try:
        with pytest.raises(OSError, match="busy"):
            packed.unpack(repair=True, remove=True)
    finally:
        subprocess.run(["umount", file], check=True)
    assert stamp.read(str(packed.environment)) == packed.stamp
    assert node.verify(deep=True)["ok"]
    assert os.listdir(node.prefix / "envs") == [packed.environment.name]
    assert lease.read(str(node.prefix)) is None


def test_d38_a_run_whose_next_step_never_comes_is_settled(repaired: Repaired) -> None:
    repaired.node.install(repaired.variant, repair=True)
    assert stamp.read(str(repaired.environment)) is None
    assert repaired.settle()
    repaired.check()
    assert not repaired.settle()
    repaired.check()


def test_d38_a_step_that_is_still_at_work_is_ended_before_its_run_is_settled(repaired: Repaired) -> None:
    # Steps are processes of their own: a lease that this one had taken would have it ended as the earlier step.
    hangs = (
        "import sys, time\nfrom envbuild.node import __main__; from envbuild.node.smoke import smoke\n"
        "smoke.run_programs = lambda *_, **__: time.sleep(600)\nsys.exit(__main__.main())\n"
    )
    environment = str(repaired.environment)
    install = repaired.node.install_request(repaired.variant, repair=True)
    step("install", install, "import sys\nfrom envbuild.node import __main__\nsys.exit(__main__.main())").wait(PATIENCE)
    args = {"environment": environment, "variant": repaired.variant, "items": [{"name": "sound"}]}
    test = step("smoke", repaired.node.request("smoke", **args), hangs)
    until(lambda: (lease.read(str(repaired.node.prefix)) or {}).get("pid") == test.pid)
    repaired.settle()
    assert test.wait(PATIENCE) == 130
    repaired.check()


def step(verb: str, request: dict[str, Any], code: str) -> subprocess.Popen[bytes]:
    """The node program with a request, as a process of its own."""
    process = subprocess.Popen([sys.executable, "-c", code, verb], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert process.stdin is not None
    process.stdin.write(json.dumps(request).encode())
    process.stdin.close()
    return process


def test_d38_a_run_that_lost_the_prefix_settles_nothing(repaired: Repaired) -> None:
    repaired.node.install(repaired.variant, repair=True)
    os.unlink(lease.of_prefix(str(repaired.node.prefix)))
    other = lease.acquire(str(repaired.node.prefix), "the-other", None, 0)
    with pytest.raises(NodeError) as caught:
        repaired.settle()
    assert caught.value.code == "lease-lost"
    assert other.held()
    assert stamp.read(str(repaired.environment)) is None, "it is the other's now"
