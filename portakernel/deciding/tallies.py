"""What the process decided, counted for operators: how many decisions by which source, and how long they took."""

from __future__ import annotations

from collections import Counter
from typing import Literal, NamedTuple

from portakernel.deciding.decision import Decision
from portakernel.host.locks import make_lock

# What named the kernel of a decision: a policy, a plan, measurements, or nobody, so that priorities ranked it.
Source = Literal["policy", "plan", "measured", "priority"]


class Decided(NamedTuple):
    """What decisions are counted by."""

    op: str
    source: Source


def source_of(decision: Decision) -> Source:
    """What named the chosen kernel. Where what is named cannot serve, or nothing can, priorities decided."""
    wishes, chosen = decision.wishes, decision.chosen
    if wishes is None or chosen is None or chosen.name not in {*wishes.use, *wishes.prefer}:
        return "priority"
    return wishes.followed or "policy"


class Tallies:
    """Counts decisions on calls' way to a kernel, which only calls of an unknown kind take; both only ever grow."""

    def __init__(self) -> None:
        self._decisions: Counter[Decided] = Counter()
        self._seconds: dict[str, float] = {}
        self._lock = make_lock()

    def add(self, decision: Decision, seconds: float) -> None:
        """Counts a decision that took so long."""
        op = decision.request.op
        with self._lock:
            self._decisions[Decided(op, source_of(decision))] += 1
            self._seconds[op] = self._seconds.get(op, 0.0) + seconds

    def decisions(self) -> dict[Decided, int]:
        """The decisions so far."""
        with self._lock:
            return dict(self._decisions)

    def seconds(self) -> dict[str, float]:
        """The time that they took, by op."""
        with self._lock:
            return dict(self._seconds)
