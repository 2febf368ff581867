"""A policy for as long as a ``with`` block or a decorated function runs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TypeVar, cast

from portakernel.deciding.dispatcher import Dispatcher
from portakernel.deciding.policies import Layer, Policy
from portakernel.errors import PortakernelError
from portakernel.host.as_written import as_written, outside_graphs
from portakernel.text.printable import brief

F = TypeVar("F", bound=Callable[..., Any])

_outside_graphs = outside_graphs(
    "a graph's kernels are chosen before a policy block inside of it could hold; put it around the compiled function,"
    " or say kernel= or portakernel.set_policy"
)


class PolicyBlock:
    """What ``portakernel.policy`` returns: may be entered again, inside itself, and by several threads and tasks.

    ``make`` gives the dispatcher, and a layer whose names it knows. It is asked on first entry: a decorator alone shall
    not discover plugins. ``wishes`` says them in words.
    """

    def __init__(self, make: Callable[[], tuple[Dispatcher, Layer]], wishes: str) -> None:
        self._make = make
        self._wishes = wishes
        self._made: tuple[Dispatcher, Layer] | None = None

    def __repr__(self) -> str:
        return brief(f"<PolicyBlock: {self._wishes or 'no wishes'}>")

    @_outside_graphs
    @as_written
    def __enter__(self) -> Policy:
        dispatcher, layer = self._made = self._made or self._make()
        before = dispatcher.context_layers.get()
        _entered.set((*_entered.get(), (self, before)))
        dispatcher.context_layers.set((layer, *before))
        dispatcher.count_block(1)
        return dispatcher.policy()

    @_outside_graphs
    @as_written
    def __exit__(self, *error: object) -> None:
        entered = _entered.get()
        place = len(entered) - 1
        while place >= 0 and entered[place][0] is not self:
            place -= 1
        if place < 0 or self._made is None:
            raise PortakernelError("a policy block is left in another thread or task than it was entered in")
        self._made[0].context_layers.set(entered[place][1])
        self._made[0].count_block(-1)
        _entered.set(entered[:place] + entered[place + 1 :])

    def __call__(self, function: F) -> F:
        """``function`` with its calls in this block."""

        @_outside_graphs
        @functools.wraps(function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return cast("F", inside)


# The blocks that this thread or task is in, each with what held outside; a `contextvars.Token` serves only once.
_entered: ContextVar[tuple[tuple[PolicyBlock, tuple[Layer, ...]], ...]] = ContextVar("portakernel_blocks", default=())
