"""What ``enable`` did and did not do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from portakernel.text.printable import brief


@dataclass(frozen=True, slots=True)
class Replaced:
    """Something of a client that an op serves from now on."""

    op: str
    what: str


@dataclass(frozen=True, slots=True)
class Left:
    """Something of a client that stays as it is, and why."""

    op: str
    what: str
    reason: str

    def __repr__(self) -> str:
        return brief(f"<Left {self.op} not in {self.what}: {self.reason}>")


class Outcome:
    """What is replaced, and what is left as it is; each as often as it was found."""

    __slots__ = ("left", "replaced")

    def __init__(self, replaced: tuple[Replaced, ...] = (), left: tuple[Left, ...] = ()) -> None:
        self.replaced = replaced
        self.left = left

    def __add__(self, other: Outcome | Replaced | Left) -> Outcome:
        if isinstance(other, Replaced):
            return Outcome((*self.replaced, other), self.left)
        if isinstance(other, Left):
            return Outcome(self.replaced, (*self.left, other))
        return Outcome(self.replaced + other.replaced, self.left + other.left)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self.replaced)} replaced, {len(self.left)} left as they are>"

    def __str__(self) -> str:
        lines = [f"{found.op:<17} {found.what}{_times(count)}" for found, count in Counter(self.replaced).items()]
        lines += [
            f"{found.op:<17} not in {found.what}{_times(count)}: {found.reason}"
            for found, count in Counter(self.left).items()
        ]
        return "\n".join(lines)


class Enabled(Outcome):
    """What ``enable`` did; as a context manager it calls ``undo``: none, if there was something to take back before."""

    __slots__ = ("_undo",)

    def __init__(self, outcome: Outcome, undo: Callable[[], None] | None) -> None:
        super().__init__(outcome.replaced, outcome.left)
        self._undo = undo

    def __enter__(self) -> Enabled:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._undo is not None:
            self._undo()


def _times(count: int) -> str:
    return "" if count == 1 else f" ({count} times)"
