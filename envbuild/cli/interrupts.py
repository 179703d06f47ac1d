"""Ctrl-C, remembered: Python loses an interrupt that arrives where nothing can be raised (a finalizer, a callback)."""

from __future__ import annotations

import signal
import threading
from types import FrameType

_seen = threading.Event()


def watch() -> None:
    """Remember SIGINT from now on, besides raising KeyboardInterrupt as ever; main thread only, harmless elsewhere."""
    _seen.clear()
    ours = threading.current_thread() is threading.main_thread()
    # A caller that ignores SIGINT (nohup, a shell's background job) keeps it ignored.
    if ours and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _remember)


def seen() -> bool:
    """Whether one has come."""
    return _seen.is_set()


def _remember(number: int, frame: FrameType | None) -> None:
    _seen.set()
    signal.default_int_handler(number, frame)
