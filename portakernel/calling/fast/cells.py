"""Where a call's sizes lie among the bounds of what was planned or measured; part of what shapes decide of a key."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable

from portakernel.tuning.choices import Choices


class Cells:
    """Of an op's dimensions, numbers that are the same for sizes that the same choices cover.

    It stands in every key's source, so that choices may come later: without any it says None, once for each shape.
    """

    def __init__(self, dims: Iterable[str], choices: Iterable[Choices] = ()) -> None:
        self.dims = tuple(dims)
        self._cuts: tuple[tuple[int, tuple[int, ...]], ...] = ()
        self._forget: list[Callable[[], None]] = []
        self.renew(choices)

    def renew(self, choices: Iterable[Choices]) -> None:
        """Puts other choices in the place of those before; what shapes decided is asked anew."""
        cuts: dict[str, set[int]] = {}
        for one in choices:
            for name, found in one.cuts.items():
                cuts.setdefault(name, set()).update(found)
        self._cuts = tuple((place, tuple(sorted(cuts[name]))) for place, name in enumerate(self.dims) if name in cuts)
        for forget in self._forget:
            forget()

    def when_renewed(self, forget: Callable[[], None]) -> None:
        """Has ``forget`` called each time."""
        self._forget.append(forget)

    def __call__(self, *sizes: int) -> tuple[int, ...] | None:
        """The numbers for these sizes, of ``dims`` in order."""
        return tuple([bisect_right(cuts, sizes[place]) for place, cuts in self._cuts]) if self._cuts else None
