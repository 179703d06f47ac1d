"""Smoke program `gpus`: how many GPUs torch sees; where nothing has imported it, the driver, which is quick."""

import contextlib
import ctypes
import sys
from typing import Any, Dict

from .common import Channel


def _of_driver() -> int:
    """How many it shows here (CUDA_VISIBLE_DEVICES counts); 0 where there is none."""
    count = ctypes.c_int(0)
    with contextlib.suppress(OSError):
        driver = ctypes.CDLL("libcuda.so.1")
        driver.cuInit(0)
        driver.cuDeviceGetCount(ctypes.byref(count))
    return count.value


def main(_: Dict[str, Any], channel: Channel) -> None:
    """One fact."""
    torch = sys.modules.get("torch")  # there in a copy of the process that has imported it
    channel.facts({"gpus": torch.cuda.device_count() if torch else _of_driver()})
