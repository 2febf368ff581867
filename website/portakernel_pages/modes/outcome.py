"""What became of an op in a mode: it works, or it refuses and says why. Anything else is a failure of the op."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from portakernel.errors import PortakernelError


@dataclass(frozen=True, slots=True)
class Works:
    """The op gave the right numbers."""

    def __str__(self) -> str:
        return "works"


@dataclass(frozen=True, slots=True)
class Refuses:
    """The op raised an error that says what it does not do; ``error`` is the class's name."""

    error: str
    message: str

    def __str__(self) -> str:
        return f"refuses with `{self.error}`: {self.message}"


@dataclass(frozen=True, slots=True)
class NothingToDo:
    """The mode is about gradients, or sizes that differ, and the op has none."""

    def __str__(self) -> str:
        return "–"


Outcome = Works | Refuses | NothingToDo


class ModeError(PortakernelError, AssertionError):
    """An op that neither works in a mode nor refuses clearly: wrong numbers, a graph break, a needless compilation."""


def observe(run: Callable[[], None]) -> Outcome:
    """The outcome of ``run``, which raises ``ModeError`` where something is wrong.

    An error of portakernel is a refusal, also where a compiler has wrapped it in its own. Any other one propagates: a
    crash that no message of ours explains.
    """
    try:
        run()
    except Exception as error:
        told = _own(error)
        if told is None or isinstance(told, ModeError):
            raise
        return Refuses(type(told).__name__, str(told).splitlines()[0])
    return Works()


def _own(error: BaseException | None) -> PortakernelError | None:
    """The error of portakernel that ``error`` is, or was raised from; torch's compiler keeps it as an attribute."""
    while error is not None and not isinstance(error, PortakernelError):
        error = getattr(error, "inner_exception", None) or error.__cause__
    return error


def require(problems: list[str]) -> None:
    """Nothing, when there are no problems.

    Raises:
        ModeError: there are; it names them all.
    """
    if problems:
        raise ModeError("; ".join(problems))
