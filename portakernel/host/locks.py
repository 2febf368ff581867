"""Locks that a forked child can take: the thread that held one in the parent does not exist there."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from portakernel.errors import CalledBackError

_locks: weakref.WeakSet[threading.RLock] = weakref.WeakSet()


def make_lock() -> threading.RLock:
    """A re-entrant lock that is free in a forked child, whoever held it when the parent forked.

    What the lock guards are dictionaries, each changed by single operations that a fork cannot split.
    """
    lock = threading.RLock()
    _locks.add(lock)
    return lock


class KeyedLocks:
    """A lock for each key: while one answer is being found out, only those wait who ask for the same."""

    def __init__(self) -> None:
        self._guard = make_lock()
        self._locks: dict[Hashable, threading.RLock] = {}

    @contextmanager
    def holding(self, key: Hashable, what: str) -> Iterator[None]:
        """Holds the lock of ``key``; ``what`` says for a message what is being found out.

        Raises:
            CalledBackError: this thread, or one that waits for it, holds it already.
        """
        if (self, key) in _HELD.get():
            text = f"{what} has begun and waits for this very call; ask portakernel once it has returned"
            raise CalledBackError(text)
        with self._guard:
            lock = self._locks[key] if key in self._locks else self._locks.setdefault(key, make_lock())
        with lock:
            token = _HELD.set((*_HELD.get(), (self, key)))
            try:
                yield
            finally:
                _HELD.reset(token)


# The locks that are held here, by way of the context also where a thread of its own does the work.
_HELD: ContextVar[tuple[tuple[KeyedLocks, Hashable], ...]] = ContextVar("_HELD", default=())


def _free() -> None:
    for lock in _locks:
        lock._at_fork_reinit()  # type: ignore[attr-defined]  # what the standard library does to its own locks


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free)
