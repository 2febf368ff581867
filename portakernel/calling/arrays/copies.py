"""The copies that arrays cost on their way to a kernel and back: DLPack makes them without a word."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from portakernel.host.locks import make_lock


@dataclass(frozen=True, slots=True)
class ArrayCopies:
    """How often an op's argument or result was copied between a library's array and a tensor, and how many bytes."""

    op: str
    name: str
    library: str
    copies: int
    bytes: int


class CopyCounter:
    """Counts one op's copies, from any thread."""

    def __init__(self, op: str) -> None:
        self._op = op
        self._copies, self._bytes = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
        self._lock = make_lock()

    def add(self, name: str, library: str, size: int) -> None:
        """Counts a copy of ``size`` bytes of the argument or result ``name``."""
        with self._lock:
            self._copies[name, library] += 1
            self._bytes[name, library] += size

    def rows(self) -> list[ArrayCopies]:
        """The copies so far."""
        with self._lock:
            counted = list(self._copies.items())
            return [ArrayCopies(self._op, *key, number, self._bytes[key]) for key, number in counted]
