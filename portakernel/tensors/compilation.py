"""Compilations that calls cause: counted for ``warmup``, and refused while a stream is captured."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from contextlib import contextmanager

from portakernel.errors import CaptureError
from portakernel.host.locks import make_lock
from portakernel.tensors.capture import is_capturing


class Compilations:
    """The names of what calls in this process compiled, in order."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._timed: dict[tuple[str, str], tuple[int, float]] = {}
        self._lock = make_lock()

    def __len__(self) -> int:
        return len(self._names)

    def since(self, count: int) -> tuple[str, ...]:
        """The names after the first ``count``."""
        with self._lock:
            return tuple(self._names[count:])

    def announce(self, name: str) -> None:
        """Counts ``name``, which is about to be compiled because of a call.

        A plugin that compiles on calls says so here each time, before it does.

        Raises:
            CaptureError: a stream is being captured; nothing may be compiled now.
        """
        if is_capturing():
            raise CaptureError(f"{name} would have to be compiled for these arguments")
        with self._lock:
            self._names.append(name)

    @contextmanager
    def timed(self, compiler: str, function: str) -> Iterator[None]:
        """Inside, ``compiler`` compiles, or loads from its cache, a kernel's ``function`` for a call."""
        began = time.monotonic()
        try:
            yield
        finally:
            seconds = time.monotonic() - began
            with self._lock:
                count, total = self._timed.get((compiler, function), (0, 0.0))
                self._timed[compiler, function] = count + 1, total + seconds

    def times(self) -> dict[tuple[str, str], tuple[int, float]]:
        """How often functions were compiled, and for how many seconds in all, by compiler and function."""
        with self._lock:
            return dict(self._timed)


@functools.cache
def compilations() -> Compilations:
    """This process's compilations."""
    return Compilations()


@functools.cache
def announce_once(what: str, *details: object) -> None:
    """Announces what the first call with these arguments compiles; each later one finds it compiled, and is free.

    Raises:
        CaptureError: a stream is being captured; nothing may be compiled now.
    """
    compilations().announce(f"{what} for {', '.join(map(str, details))}" if details else what)
