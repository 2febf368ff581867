"""Arming one placement: its next call goes another way, once, and every other call runs what it runs without."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from portakernel.calling.key_table import Placement
from portakernel.host.locks import make_lock

Run = Callable[..., Any]
# What becomes of the one call: it is given what the placement would have run, and the arguments.
Take = Callable[[Run, Sequence[Any]], Any]

# Held whenever a placement's run is replaced by what is made of it.
ARMING = make_lock()


class Armed:
    """What a placement runs instead, until it is called: the first call of any thread is taken, and disarms it."""

    __slots__ = ("_left", "_placement", "_take", "run")

    def __init__(self, placement: Placement, take: Take) -> None:
        self._placement, self._take, self.run = placement, take, placement.run
        self._left = [True]

    def __call__(self, *arguments: Any) -> Any:
        """The call's result, by whoever takes it, or where another thread's was taken as ever."""
        try:
            self._left.pop()
        except IndexError:
            return self.run(*arguments)
        self.disarm()
        return self._take(self.run, arguments)

    def disarm(self) -> None:
        """Has the placement run what it ran before."""
        with ARMING:
            if self._placement.run is self:
                self._placement.run = self.run


def arm(placement: Placement, take: Take) -> Armed:
    """Has the next call of a placement taken; one that is armed already is so by the last who asked."""
    with ARMING:
        placement.run = unarmed(placement)
        armed = Armed(placement, take)
        placement.run = armed
    return armed


def unarmed(placement: Placement) -> Run:
    """What a placement runs, armed or not, when no call is taken."""
    run = placement.run
    return run.run if isinstance(run, Armed) else run
