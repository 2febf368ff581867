"""The process's callers, for those who look at its placements from below where they are made."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from portakernel.calling.caller import OpCaller


class _Known:
    def __init__(self) -> None:
        self.callers: tuple[OpCaller, ...] = ()


_known = _Known()


def know(callers: Iterable[OpCaller]) -> None:
    """Has these known as the process's callers."""
    _known.callers = tuple(callers)


def known_callers() -> tuple[OpCaller, ...]:
    """The process's callers so far."""
    return _known.callers
