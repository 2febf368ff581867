"""Who counts the calls that are made: a record of the process, and blocks of ``portakernel.record``; mostly nobody.

A block's dispatch mode sees what goes through torch's dispatcher, the process's record what torch ops and public
functions tell it. Here each hears of what it cannot see itself. Nothing of this is asked on the way of a repeated call,
unless the process is recorded.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from portakernel.claims.request import Phase
from portakernel.contract import Contract


class Observer(Protocol):
    """Counts calls by kind."""

    def add(self, contract: Contract, tensors: Sequence[Any], values: Sequence[Any], *, phase: Phase) -> None:
        """Counts a call of an op by its tensors, in the contract's order, and its parameters' values; and its phase."""
        ...

    def add_traced(self, op: str) -> None:
        """Takes note that calls of the op were traced: a graph keeps them whole, or what they are made of."""
        ...


class PublicCall:
    """A call of a public function that is under way, and whether a torch op below it has told of it."""

    def __init__(self, op: str) -> None:
        self.op, self.is_counted = op, False


class _Here(threading.local):
    """A thread's blocks, and its public calls."""

    def __init__(self) -> None:
        self.blocks: tuple[Observer, ...] = ()
        self.calls: list[PublicCall] = []


class _Process:
    """The process's record; None where there is none."""

    def __init__(self) -> None:
        self.observer: Observer | None = None


_here, _process = _Here(), _Process()


def of_process() -> Observer | None:
    """Who counts all calls of the process."""
    return _process.observer


def count_all(observer: Observer) -> None:
    """Has an observer count all calls of the process from now on."""
    _process.observer = observer


@contextmanager
def counting_here(observer: Observer) -> Iterator[None]:
    """Has an observer hear, inside the block, of this thread's calls that no dispatch mode sees."""
    before = _here.blocks
    _here.blocks = (*before, observer)
    try:
        yield
    finally:
        _here.blocks = before


@contextmanager
def public_call(op: str) -> Iterator[PublicCall]:
    """A call of the public function of ``op``, for the process's record: what runs below tells of it, or nobody does.

    What reaches a torch op may be other than what was passed: cast by autocast, batched, or a rank's part.
    """
    call = PublicCall(op)
    _here.calls.append(call)
    try:
        yield call
    finally:
        _here.calls.pop()
        if call.is_counted and _here.calls and _here.calls[-1].op == op:  # it was made for that one, of arrays
            _here.calls[-1].is_counted = True


def tell_process(
    contract: Contract, tensors: Sequence[Any], values: Sequence[Any], *, phase: Phase = Phase.INFERENCE
) -> None:
    """Tells the process's record of a call that a torch op, or a bound handle, has served."""
    if (observer := _process.observer) is not None:
        if _here.calls and _here.calls[-1].op == contract.op:
            _here.calls[-1].is_counted = True
        observer.add(contract, tensors, values, phase=phase)


def tell_blocks(
    contract: Contract, tensors: Sequence[Any], values: Sequence[Any], *, phase: Phase = Phase.INFERENCE
) -> None:
    """Tells this thread's blocks of a call that their modes do not see."""
    for observer in _here.blocks:
        observer.add(contract, tensors, values, phase=phase)


def tell_traced(op: str) -> None:
    """Tells everybody of a call that is traced; one that the graph keeps whole is counted when it runs."""
    for observer in (*_here.blocks, *([_process.observer] if _process.observer is not None else [])):
        observer.add_traced(op)
