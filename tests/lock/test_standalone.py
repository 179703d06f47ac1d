"""A lock pins the standalone Python of the toolchain file that the user configured."""

from __future__ import annotations

from envbuild.lock.files import read_lock
from tests.e2e.world import MINOR, World


def test_the_interpreter_comes_from_the_configured_toolchain(world: World) -> None:
    toolchain = world.top / "toolchain.yaml"
    toolchain.write_text(
        "pythons:\n"
        f"  - {{name: my-build, version: {MINOR}.99, arch: x86_64, sha256: {'ab' * 32}, url: 'file:///srv/my.tar.gz',"
        " witness: our own build}\n"
    )
    world.env["ENVBUILD_TOOLCHAIN"] = str(toolchain)
    world.wheel()
    (variant,) = read_lock(world.lock(world.stack(interpreters=["standalone"]))).variants
    assert (variant.interpreter.kind, variant.interpreter.name) == ("standalone", "my-build")
    assert variant.interpreter.sha256 == "ab" * 32
