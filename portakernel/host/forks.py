"""What a fork must not split: work that holds locks which a child could never take.

Python locks each module while it is imported, and torch its registry of ops while one is defined. Where one thread is
about such work and another forks, the child has the lock and nobody who would release it. So a fork waits until the
work is done, within a bound: what does not return must not stop the process.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

# How long after its begin a piece of work can keep another thread's fork waiting.
LONGEST_S = 10.0


@dataclass(frozen=True, slots=True, eq=False)
class _Work:
    """A piece of work under way; compared by identity."""

    what: str
    began: float


class _Gate:
    """The work under way in this process, and what was under way in its parent when that forked."""

    def __init__(self, interrupted: tuple[str, ...] = ()) -> None:
        self.changed = threading.Condition(threading.Lock())
        self.work: set[_Work] = set()
        self.interrupted = frozenset(interrupted)

    def others(self) -> list[_Work]:
        """The work that the current thread is no part of."""
        return [work for work in self.work if work not in _OWN.get()]


# What the current thread, or the one that waits for it, is about.
_OWN: ContextVar[tuple[_Work, ...]] = ContextVar("_OWN", default=())
_gate = _Gate()


@contextmanager
def unsplit(what: str) -> Iterator[None]:
    """Inside, a fork by a thread that has no part in it waits for the end, or until ``LONGEST_S`` after the begin."""
    work, gate = _Work(what, time.monotonic()), _gate
    with gate.changed:
        gate.work.add(work)
    token = _OWN.set((*_OWN.get(), work))
    try:
        yield
    finally:
        _OWN.reset(token)
        with gate.changed:
            gate.work.discard(work)
            gate.changed.notify_all()


def was_interrupted(what: str) -> bool:
    """Whether another thread of the parent was about ``what`` when this process was forked."""
    return what in _gate.interrupted


def _wait() -> None:
    _gate.changed.acquire()
    while others := _gate.others():
        left = max(work.began for work in others) + LONGEST_S - time.monotonic()
        if left <= 0:
            break
        _gate.changed.wait(left)


def _go_on() -> None:
    _gate.changed.release()


def _begin_anew() -> None:
    global _gate  # noqa: PLW0603 - the condition cannot be freed otherwise: nobody may be left who waits for it
    _gate = _Gate((*_gate.interrupted, *(work.what for work in _gate.others())))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_wait, after_in_parent=_go_on, after_in_child=_begin_anew)
