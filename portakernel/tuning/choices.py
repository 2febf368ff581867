"""Choices of kernels that somebody has measured, or written into a plan, for calls of given kinds and sizes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from portakernel.tuning.key import Kind
from portakernel.words.symbols import is_symbol


@dataclass(frozen=True, slots=True)
class Choice:
    """The kernel for calls of one kind whose dimensions lie within bounds, both ends included.

    A dimension without bounds may have any size. ``where`` is how reasons name the choice (``plan.yaml:12``), ``why``
    what speaks for it, such as the ratio of times that was measured. Where the kernel has to be built before calls,
    ``ready`` is the one to take until it is: the fastest of those that need not be.
    """

    kernel: str
    kind: Kind
    bounds: Mapping[str, tuple[int, int]]
    where: str
    why: str = ""
    ready: str = ""

    @property
    def kernels(self) -> tuple[str, ...]:
        """The kernel, and who stands in for it until it is built."""
        return (self.kernel, self.ready) if self.ready else (self.kernel,)

    def covers(self, dims: Mapping[str, int]) -> bool:
        """Whether a call of these sizes lies within the bounds; not one whose size is not known.

        Sizes that a trace leaves open come last: to compare one guards the graph.
        """
        bounds = sorted(self.bounds.items(), key=lambda one: is_symbol(dims.get(one[0])))
        return all(name in dims and low <= dims[name] <= high for name, (low, high) in bounds)


class Choices:
    """The choices for one op on one kind of device, first come first served."""

    def __init__(self, choices: Iterable[Choice] = ()) -> None:
        self.all = tuple(choices)
        self._of_kind: dict[str, list[Choice]] = {}
        for choice in self.all:
            self._of_kind.setdefault(choice.kind.text, []).append(choice)
        cuts: dict[str, set[int]] = {}
        for choice in self.all:
            for name, (low, high) in choice.bounds.items():
                cuts.setdefault(name, set()).update((low, high + 1))
        # By dimension, in order, where some choice begins or has ended: between two of them choices are the same.
        self.cuts: Mapping[str, tuple[int, ...]] = {name: tuple(sorted(found)) for name, found in cuts.items()}
        # The parameters whose values choices tell apart.
        self.features = frozenset(name for choice in self.all for name in choice.kind.features)

    def __bool__(self) -> bool:
        return bool(self.all)

    def of_kind(self, kind: Kind) -> Sequence[Choice]:
        """The choices for calls of this kind, whatever their sizes."""
        return self._of_kind.get(kind.text, ())

    def find(self, kind: Kind, dims: Mapping[str, int], among: Collection[str] | None = None) -> Choice | None:
        """The choice for a call, of one of these kernels where some are named; None where nothing covers it."""
        asked = (choice for choice in self.of_kind(kind) if among is None or choice.kernel in among)
        return next((choice for choice in asked if choice.covers(dims)), None)

    @property
    def kinds(self) -> tuple[Sequence[Choice], ...]:
        """The choices for calls of each kind."""
        return tuple(self._of_kind.values())
