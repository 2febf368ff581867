"""What a launch costs the host: the time from Python to an enqueued kernel, call by call."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from portakernel.calling.arguments import Arguments
from portakernel.contracts import contract
from portakernel.deciding.dispatcher import Dispatcher
from portakernel_kit.bench.contenders import Contender, Filter, described_error, forward_field
from portakernel_kit.bench.operands import Operands, draw
from portakernel_kit.bench.question import Question
from portakernel_kit.bench.results import Latency
from portakernel_kit.bench.stopwatch import Stopwatch

# So few that the device's queue is never full, whatever a call launches; the host waits for it after each burst.
_CALLS = 20
_FEWEST_BURSTS, _MOST_BURSTS, _WARMUP_CALLS = 5, 1000, 10


@dataclass(slots=True)
class HostTime:
    """The host's time for a call of one kernel; ``bursts`` are in microseconds for each call."""

    kernel: str
    chosen: bool
    reason: str = ""
    bursts: list[float] = field(default_factory=list[float])

    def to_json(self) -> dict[str, Any]:
        """As JSON-ready data; stable."""
        found = Latency.of([[burst] for burst in self.bursts]) if self.bursts else None
        return {
            "kernel": self.kernel,
            "chosen": self.chosen,
            "reason": self.reason,
            "host_us": found.median_us if found else None,
            "p20_us": found.p20_us if found else None,
            "p80_us": found.p80_us if found else None,
            "calls": _CALLS * len(self.bursts),
        }


@dataclass(frozen=True, slots=True)
class LaunchCell:
    """One small request with the host's time for each kernel."""

    op: str
    case: str
    dtypes: Mapping[str, str]
    kernels: tuple[HostTime, ...]

    def to_json(self) -> dict[str, Any]:
        """As JSON-ready data; stable."""
        kernels = [kernel.to_json() for kernel in self.kernels]
        kernels.sort(key=lambda row: (row["host_us"] is None, row["host_us"]))
        return {"op": self.op, "case": self.case, "dtypes": dict(self.dtypes), "kernels": kernels}


def time_launches(
    dispatcher: Dispatcher,
    question: Question,
    device: torch.device,
    watch: Stopwatch,
    admitted: Filter,
    *,
    seconds: float,
    seed: int,
) -> LaunchCell:
    """The host's time for a call of each kernel that can serve the request, in bursts that alternate."""
    operands = draw(question, Arguments(contract(question.op), dispatcher.registry), device, seed)
    competing = forward_field(dispatcher, operands, admitted)
    rows = {c.kernel.name: HostTime(c.kernel.name, c.kernel.name == competing.chosen) for c in competing.contenders}
    running: list[Contender] = []
    for contender in competing.contenders:
        row = rows[contender.kernel.name]
        row.reason = contender.failure or _burst(contender, operands, watch, _WARMUP_CALLS)[1]
        if not row.reason:
            running.append(contender)
    order, deadline = random.Random(0), time.perf_counter() + seconds
    for number in range(_MOST_BURSTS):
        if number >= _FEWEST_BURSTS and time.perf_counter() > deadline:
            break
        order.shuffle(running)
        for contender in running:
            host_us, failure = _burst(contender, operands, watch, _CALLS)
            row = rows[contender.kernel.name]
            row.reason = row.reason or failure
            if not failure:
                row.bursts.append(host_us)
    return LaunchCell(question.op, question.row.name, question.dtypes, tuple(rows.values()))


def _burst(contender: Contender, operands: Operands, watch: Stopwatch, calls: int) -> tuple[float, str]:
    """Microseconds for each of ``calls`` calls, from an idle device; why there are none."""
    launch = contender.launch
    if launch is None:
        return 0.0, contender.failure
    try:
        watch.synchronise()
        with torch.no_grad():
            begun = time.perf_counter_ns()
            for _ in range(calls):
                launch(operands)
            host_us = (time.perf_counter_ns() - begun) / calls / 1e3
        watch.synchronise()
    except Exception as error:  # noqa: BLE001 - the plugin border: a kernel that raises is shown with its reason
        return 0.0, described_error(error)
    return host_us, ""
