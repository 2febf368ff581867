"""What metrics read now. A forked child reads its own calls alone: its parent, whose they are, reports the others."""

from __future__ import annotations

import functools
import os

from portakernel.metrics.definitions import METRICS, Metric, Values


class _Inherited:
    """What counters stood at when this process was forked, by metric; nothing where it was not."""

    def __init__(self) -> None:
        self.values: dict[str, Values] = {}
        self._at_fork: dict[str, Values] = {}

    def _before_fork(self) -> None:
        self._at_fork = {metric.name: metric.read() for metric in METRICS if metric.kind == "counter"}

    def _in_child(self) -> None:
        self.values = self._at_fork

    def watch(self) -> None:
        """Has the counters read at each fork from now on."""
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(before=self._before_fork, after_in_child=self._in_child)


@functools.cache
def _inherited() -> _Inherited:
    made = _Inherited()
    made.watch()
    return made


def prepare() -> None:
    """Has what this process counts told apart from what a child that it forks will count."""
    _inherited()


def values(metric: Metric) -> Values:
    """A metric's values now, of this process alone; none that nothing was counted of."""
    before = _inherited().values.get(metric.name, {})
    return {by: value - before.get(by, 0) for by, value in metric.read().items() if value != before.get(by, 0)}
