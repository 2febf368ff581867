"""The count of what a client's calls came to: served by an op, or left to the client's own code, and why."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal

from portakernel.text.printable import brief

Outcome = Literal["served", "left to the client", "bypassed"]


@dataclass(frozen=True, slots=True)
class Row:
    """Calls of one layer with one outcome.

    ``refused`` is why the client's own code served them, empty where the op did. ``bypassed``: the layer is enabled,
    and no call reached it; ``refused`` names the setting to change. ``traces`` counts how often torch.compile met a
    call while tracing, again where it traces anew; how often graphs ran is not counted. ``layer`` is the client's name
    of it, empty where each op serves one thing. ``note`` says what else there is to know, such as what it costs.
    """

    op: str
    refused: str
    calls: int
    traces: int
    layer: str = ""
    bypassed: bool = False
    note: str = ""

    @property
    def outcome(self) -> Outcome:
        """Who computed it."""
        if self.bypassed:
            return "bypassed"
        return "left to the client" if self.refused else "served"

    def __repr__(self) -> str:
        return brief(f"<Row {' '.join(str(self).split())}>")

    def __str__(self) -> str:
        name = f"{self.layer} ({self.op})" if self.layer else self.op
        reason = f": {self.refused}" if self.refused else ""
        note = f" ({self.note})" if self.note else ""
        return f"{name:<38}{self.calls:>8} calls {self.traces:>5} traces  {self.outcome}{reason}{note}"


class Ledger:
    """Counters by layer, op and outcome. ``setdefault`` and a counter's step are atomic: threads need no lock."""

    def __init__(self) -> None:
        self._counters: dict[tuple[str, str, str, bool], itertools.count[int]] = {}

    def count(self, op: str, refused: str, *, traced: bool, layer: str = "") -> None:
        """One more."""
        key = (layer, op, refused, traced)
        counter = self._counters.get(key)
        next(self._counters.setdefault(key, itertools.count()) if counter is None else counter)

    def rows(self) -> tuple[Row, ...]:
        """What was counted, most first."""
        counted = dict(self._counters)
        kinds = dict.fromkeys((layer, op, refused) for layer, op, refused, _ in counted)
        rows = [
            Row(
                op,
                refused,
                calls=_reading(counted.get((layer, op, refused, False))),
                traces=_reading(counted.get((layer, op, refused, True))),
                layer=layer,
            )
            for layer, op, refused in kinds
        ]
        return tuple(sorted(rows, key=lambda row: (-row.calls, -row.traces, row.layer, row.op, row.refused)))

    def has_met(self, layer: str) -> bool:
        """Whether any call of a layer was counted, whatever it came to."""
        return any(counted == layer for counted, *_ in list(self._counters))


def _reading(counter: itertools.count[int] | None) -> int:
    # a counter can only be read by its repr without advancing it
    return 0 if counter is None else int(repr(counter)[len("count(") : -1])
