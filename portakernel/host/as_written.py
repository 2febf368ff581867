"""Leaves functions to Python that torch.compile would compile one by one.

While a compiled function runs what could not be compiled, Dynamo looks at every function that is entered: of one call
of ours it would compile a dozen, for nothing, and has failed at some. A trace that begins further up goes through all
of them as ever.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])
# What Dynamo looks for on functions that `torch.compiler.disable` has returned.
_OUTSIDE, _REASON = "_torchdynamo_disable", "_torchdynamo_disable_msg"


class _Marks:
    """Marks code for Dynamo, or keeps it until torch has been imported, which knows how to."""

    def __init__(self) -> None:
        self.waiting: list[CodeType] = []
        self.mark: Callable[[CodeType], None] = self.waiting.append


_marks = _Marks()


def mark_with(mark: Callable[[CodeType], None]) -> None:
    """From now on ``mark`` tells Dynamo to leave a code, and what it calls; at once so for what has waited for it."""
    _marks.mark = mark
    while _marks.waiting:
        mark(_marks.waiting.pop())


def run_as_written(code: CodeType) -> None:
    """Leaves the functions that ``code`` makes, and all that they call, to Python."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _marks.mark(constant)
            run_as_written(constant)


def as_written(function: Function) -> Function:
    """The same function, which with all that it calls is left to Python."""
    _marks.mark(function.__code__)
    return function


def outside_graphs(reason: str) -> Callable[[Function], Function]:
    """Makes a function one that no graph goes through: a trace breaks at its call, or says why it cannot go on."""

    def mark(function: Function) -> Function:
        setattr(function, _OUTSIDE, True)
        setattr(function, _REASON, reason)
        return function

    return mark
