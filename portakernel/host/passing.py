"""Faults that pass: of the host or the process at this moment, not of what was looked at; never kept as truth."""

from __future__ import annotations

import errno
import os

# The process or the host has run out of something: nothing that was not read now says anything.
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
# A network's file system, a disk, a thread or process that could not be had.
_PASSING = _EXHAUSTED | {errno.ESTALE, errno.EIO, errno.EAGAIN, errno.ETIMEDOUT}
# What the loader of shared libraries says of it, as text alone.
_SENTENCES = tuple(os.strerror(code) for code in sorted(_EXHAUSTED))


def is_passing(error: BaseException) -> bool:
    """Whether ``error``, or what it came from, is of a kind that a second attempt may not meet."""
    return any(
        isinstance(one, MemoryError)
        or (isinstance(one, OSError) and one.errno in _PASSING)
        or (isinstance(one, (ImportError, OSError)) and any(sentence in str(one) for sentence in _SENTENCES))
        for one in _chain(error)
    )


def is_exhausted(error: BaseException) -> bool:
    """Whether ``error`` came of the process or the host having run out of something."""
    return any(isinstance(one, OSError) and one.errno in _EXHAUSTED for one in _chain(error))


def _chain(error: BaseException) -> list[BaseException]:
    chain: list[BaseException] = []
    one: BaseException | None = error
    while one is not None and one not in chain:
        chain.append(one)
        one = one.__cause__ or one.__context__
    return chain
