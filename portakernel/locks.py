"""Locks that a forked child can take: the thread that held one in the parent does not exist there."""

from __future__ import annotations

import os
import threading
import weakref

_locks: weakref.WeakSet[threading.RLock] = weakref.WeakSet()


def make_lock() -> threading.RLock:
    """A re-entrant lock that is free in a forked child, whoever held it when the parent forked.

    What the lock guards are dictionaries, each changed by single operations that a fork cannot split.
    """
    lock = threading.RLock()
    _locks.add(lock)
    return lock


def _free() -> None:
    for lock in _locks:
        lock._at_fork_reinit()  # type: ignore[attr-defined]  # what the standard library does to its own locks


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free)
