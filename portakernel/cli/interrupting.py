"""Commands that run for hours, and print what they have when they are interrupted."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def interrupted_once() -> Iterator[Callable[[], None]]:
    """Within, the first Ctrl-C or SIGTERM interrupts and others are not heeded: what took hours is printed whole.

    A signal to a process and to its group arrives twice; schedulers and ``timeout`` send SIGTERM. What is yielded ends
    the first one's chance too.
    """
    if threading.current_thread() is not threading.main_thread():  # which alone is told of it
        yield lambda: None
        return

    def close() -> None:
        for number in before:
            signal.signal(number, signal.SIG_IGN)

    def interrupt(*_: object) -> None:
        close()
        raise KeyboardInterrupt

    found = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # without what a library installed below Python, which could not be put back
    before = {number: handler for number, handler in found.items() if handler is not None}
    for number in before:
        signal.signal(number, interrupt)
    try:
        yield close
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
