"""The count of what transformers' calls came to: served by an op, or refused, and why."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

import torch

from portakernel.text.printable import brief


@dataclass(frozen=True, slots=True)
class Row:
    """Calls of one op with one outcome: ``refused`` is why the model's own path served them, empty where the op did.

    ``traces`` counts how often torch.compile met one while tracing, again where it traces anew; how often graphs ran is
    not counted.
    """

    op: str
    refused: str
    calls: int
    traces: int

    def __repr__(self) -> str:
        return brief(f"<Row {' '.join(str(self).split())}>")

    def __str__(self) -> str:
        outcome = f"refused: {self.refused}" if self.refused else "served"
        return f"{self.op:<18}{self.calls:>8} calls {self.traces:>5} traces  {outcome}"


class Ledger:
    """Counters by op and outcome. ``setdefault`` and a counter's step are atomic: threads need no lock."""

    def __init__(self) -> None:
        self._counters: dict[tuple[str, str, bool], itertools.count[int]] = {}

    def count(self, op: str, refused: str, *, traced: bool) -> None:
        """One more."""
        key = (op, refused, traced)
        counter = self._counters.get(key)
        next(self._counters.setdefault(key, itertools.count()) if counter is None else counter)

    def rows(self) -> tuple[Row, ...]:
        """What was counted, most first."""
        counted = dict(self._counters)
        pairs = dict.fromkeys((op, refused) for op, refused, _ in counted)
        rows = [
            Row(op, refused, _reading(counted.get((op, refused, False))), _reading(counted.get((op, refused, True))))
            for op, refused in pairs
        ]
        return tuple(sorted(rows, key=lambda row: (-row.calls, -row.traces, row.op, row.refused)))


def _reading(counter: itertools.count[int] | None) -> int:
    # a counter can only be read by its repr without advancing it
    return 0 if counter is None else int(repr(counter)[len("count(") : -1])


@functools.cache
def ledger() -> Ledger:
    """The process's ledger."""
    return Ledger()


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator, unused-ignore]  # torch.compiler is untyped
def _record_trace(op: str, refused: str) -> bool:
    # Run while tracing, and not part of the graph: a counter inside would be guarded, and every call compiled anew.
    ledger().count(op, refused, traced=True)
    return True


def record(op: str, refused: str = "") -> None:
    """Counts a call that ``op`` serves, or that it leaves to the model's own path because of ``refused``."""
    if torch.compiler.is_compiling():
        _record_trace(op, refused)
    else:
        ledger().count(op, refused, traced=False)
