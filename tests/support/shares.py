"""The order of a run in several processes: what takes minutes comes first, else one test is waited for at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
# Modules whose tests take longest, about by seconds of CPU of the longest one. On a new machine the first one waits a
# minute for Debian's tree; those that begin beside it need none.
LONG = (
    "tests/fleet/test_together.py",
    "tests/slurm/test_bench.py",
    "tests/e2e/test_packaging.py",
    "tests/e2e/test_torch_smoke.py",
    "tests/slurm/test_together.py",
    "tests/fleet/test_containers.py",
    "tests/container/test_images.py",
    "tests/slurm/test_image_job.py",
    "tests/fleet/test_build_once.py",
    "tests/fleet/test_done_when.py",
    "tests/fleet/test_fab.py",
    "tests/fleet/test_overdue.py",
    "tests/fleet/test_spread.py",
    "tests/fleet/test_provision.py",
    "tests/fleet/test_faults_sessions.py",
)


def dealt(items: Sequence[T], module_of: Callable[[T], str], slow: Callable[[T], bool], processes: int) -> list[T]:
    """`items` so that each of `processes` equal parts, as xdist cuts them, begins with its share of the long modules.

    Its share of the other slow items follows. Modules stay together as far as the parts' lengths allow; without a long
    one, of items that are all slow or all fast nothing moves.
    """
    shares: list[list[T]] = [[] for _ in range(processes)]
    long: dict[str, list[T]] = {module: [] for module in LONG}
    rest: list[T] = []
    for item in items:
        long.get(module_of(item), rest).append(item)
    for module in LONG:
        min(shares, key=len).extend(long[module])
    for kind in (True, False):
        some = [item for item in rest if slow(item) is kind]
        left = sum(map(len, shares)) + len(some)
        for number, share in enumerate(shares):
            length = left // (processes - number)
            left -= length
            count = max(0, length - len(share))
            share += some[:count]
            del some[:count]
    return [item for share in shares for item in share]
