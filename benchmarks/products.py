"""Portakernel's matrix products beside PyTorch's own operators and torch.compile, in one process.

    python benchmarks/products.py --device cuda:0 --output benchmarks/results

Every usable kernel of linear_act and scaled_mm takes part, what dispatch picks, and what a user writes without
portakernel. Each is first compared with float64 on some of its rows; then all take turns on one set of operands, on
accelerators each call from a cold cache. Sums are those of float32: use_fast_accum is off, on both sides.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import record
import torch
import typer
from product_cases import (
    AUTOTUNE,
    CASES,
    SMALL_CASES,
    Call,
    Case,
    Named,
    exact_rows,
    linear_act_peers,
    operands_of,
    scaled_mm_peers,
)
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text
from torch import Tensor

import portakernel
from portakernel import ops
from portakernel.claims.capability import ReasonCode
from portakernel.claims.request import Phase
from portakernel.runtime import dispatcher
from portakernel.words.target import Device
from portakernel_kit.bench.circumstances import clocks
from portakernel_kit.bench.contenders import Field, Filter, build_waiting, described_error, forward_field
from portakernel_kit.bench.results import Latency
from portakernel_kit.bench.stopwatch import Stopwatch, stopwatch
from portakernel_kit.bench.traffic import flops_per_us_in_tflop_per_s

Advance = Callable[[str], None]

OPS = ("linear_act", "scaled_mm")
TITLE = "Matrix products beside PyTorch's"
# Of a row of results, in the Euclidean norm: rounding to bfloat16 twice, or sums of parts in it, are a third of that.
MOST_ERROR = 1e-2
_CHECKED_ROWS, _WARMUP_ROUNDS = 256, 3
# Why a kernel is missing on this machine, not why it does not serve such a call.
_MISSING = frozenset(
    {
        ReasonCode.NOT_INSTALLED,
        ReasonCode.IMPORT_FAILED,
        ReasonCode.PROBE_FAILED,
        ReasonCode.NEEDS_BUILD,
        ReasonCode.DRIVER,
        ReasonCode.MISSING_LIBRARY,
        ReasonCode.MISSING_TOOLCHAIN,
        ReasonCode.CANNOT_RUN,
    }
)


@dataclass(slots=True)
class Way:
    """One way to compute a product: its time, or why there is none."""

    name: str
    ours: bool
    status: Literal["untimed", "timed", "wrong", "failed"] = "untimed"
    reason: str = ""
    error: float | None = None
    samples_us: list[float] = field(default_factory=list[float])
    lead_us: float = 0.0

    def fail(self, error: Exception) -> None:
        """It raised, and has no time."""
        self.status, self.reason = "failed", described_error(error)

    @property
    def median_us(self) -> float | None:
        """The median of its rounds."""
        return statistics.median(self.samples_us) if self.status == "timed" else None


@dataclass(slots=True)
class Result:
    """A case with all ways to compute it; ``picked`` is the kernel that dispatch picks."""

    case: Case
    picked: str | None = None
    ways: list[Way] = field(default_factory=list[Way])

    @property
    def best_peer_us(self) -> float | None:
        """The time of the fastest way that PyTorch offers."""
        times = (way.median_us for way in self.ways if not way.ours)
        return min((time for time in times if time is not None), default=None)

    def ratio(self, way: Way) -> float | None:
        """PyTorch's best time over that of a way of ours."""
        time, best = way.median_us, self.best_peer_us
        return best / time if way.ours and time is not None and best is not None else None

    def ordered(self) -> list[Way]:
        """Faster ones first, those without a time last."""
        return sorted(self.ways, key=lambda way: math.inf if way.median_us is None else way.median_us)

    def to_json(self) -> dict[str, Any]:
        """The case as JSON-ready data."""
        case = self.case
        sizes = {"m": case.m, "n": case.n, "k": case.k}
        found = {
            "op": case.op,
            **sizes,
            "variant": case.variant,
            "picked": self.picked,
            "pytorch_us": self.best_peer_us,
        }
        return {**found, "ways": [self._way_json(way) for way in self.ordered()]}

    def _way_json(self, way: Way) -> dict[str, Any]:
        time = way.median_us
        row: dict[str, Any] = {"way": way.name, "portakernel": way.ours, "status": way.status, "reason": way.reason}
        row["relative_error"] = way.error if way.error is None or math.isfinite(way.error) else str(way.error)
        if time is not None:
            row |= Latency.of([[sample] for sample in way.samples_us]).to_json()
            row["tflop_per_s"] = flops_per_us_in_tflop_per_s(self.case.flops, time)
            row["ratio"] = self.ratio(way)
        return row


def our_ways(case: Case, tensors: Sequence[Tensor], found: Field) -> Iterator[Named]:
    """Default dispatch, and each kernel by name."""
    call = partial(getattr(ops, case.op), *tensors, **case.row().values)
    if found.chosen is not None:
        yield f"default dispatch: {found.chosen}", call
    for contender in found.contenders:
        if contender.kernel.plugin != "inductor":  # torch.compile takes part itself
            yield contender.kernel.name, partial(call, kernel=contender.kernel.name)


def missing(found: Field, declined: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The kernels that would serve the case, were they installed or built, and why they are not."""
    for name, rejections in found.rejected.items():
        if name.startswith("inductor.") or not {rejection.code for rejection in rejections} <= _MISSING:
            continue
        yield name, declined.get(name) or "; ".join(f"{r.code}: {r.text}" for r in rejections)


def relative_error(y: Tensor, exact: Tensor, rows: Tensor) -> float:
    """The largest distance of a row from the exact one, over the length of that."""
    distance = torch.linalg.vector_norm(y[rows].double() - exact, dim=1)
    return float((distance / torch.linalg.vector_norm(exact, dim=1)).max())


def check(way: Way, call: Call, case: Case, exact: Tensor, rows: Tensor) -> None:
    """Calls it, and says what is wrong with the numbers."""
    # what returns its memory unwritten shall not find there the numbers of the one before
    torch.full((case.m, case.n), torch.nan, dtype=torch.bfloat16, device=exact.device)
    try:
        y = call()
        if (y.shape, y.dtype) != ((case.m, case.n), torch.bfloat16):
            way.status, way.reason = "wrong", f"returned {y.dtype} of shape {tuple(y.shape)}"
            return
        way.error = relative_error(y, exact, rows)
    except Exception as error:  # noqa: BLE001 - whose way raises is shown with its reason
        way.fail(error)
        return
    if not way.error <= MOST_ERROR:  # NaN is no less than anything
        way.status, way.reason = "wrong", f"a row is off by {way.error:.2g} of its length (at most {MOST_ERROR:g})"


def take_turns(ways: Sequence[tuple[Way, Call]], watch: Stopwatch, rounds: int, advance: Advance) -> None:
    """Times one call of each a round, in an order that turns back and forth."""
    for number in range(-_WARMUP_ROUNDS, rounds):
        advance(f"round {number + 1}" if number >= 0 else "warming up")
        for way, call in ways if number % 2 else reversed(ways):
            if way.status == "failed":
                continue
            try:
                batch = watch.time([call], way.lead_us)
            except Exception as error:  # noqa: BLE001 - whose way raises is shown with its reason
                way.fail(error)
                continue
            way.lead_us = batch.lead_us
            if number >= 0:
                way.status = "timed"
                way.samples_us += batch.latencies_us


@torch.no_grad()
def measure(
    result: Result, where: Device, device: torch.device, watch: Stopwatch, autotune: bool, rounds: int, advance: Advance
) -> None:
    """Fills ``result``, which holds what there is also where this is interrupted."""
    torch.compiler.reset()  # cases are compiled apart: their number is no reason to fall back
    case = result.case
    operands = operands_of(case, where, device)
    tensors = [tensor for tensor in operands.tensors if tensor is not None]
    advance("building")
    admitted = Filter(reference=False)
    with portakernel.policy(deny="inductor"):
        declined = build_waiting(dispatcher(), operands, Phase.INFERENCE, admitted)
    found = forward_field(dispatcher(), operands, admitted)
    result.picked = found.chosen
    peers = linear_act_peers if case.op == "linear_act" else scaled_mm_peers
    named = [(Way(name, ours=True), call) for name, call in our_ways(case, tensors, found)]
    named += [(Way(name, ours=False), call) for name, call in peers(case, tensors, autotune)]
    result.ways += [way for way, _ in named]
    result.ways += [Way(name, ours=True, status="failed", reason=text) for name, text in missing(found, declined)]
    rows = torch.randperm(case.m, generator=torch.Generator().manual_seed(0))[:_CHECKED_ROWS].to(device)
    exact = exact_rows(case, tensors, rows)
    for way, call in named:
        advance(f"checking {way.name}")
        check(way, call, case, exact, rows)
    take_turns([(way, call) for way, call in named if way.status == "untimed"], watch, rounds, advance)


def table_of(results: Sequence[Result], title: str | None = None) -> Table:
    """The results as people read them."""
    heads = ("product", "way", "µs", "TFLOP/s", "PyTorch ÷ ours", "relative error", "no time because")
    table = Table(*heads, title=title)
    for result in results:
        for way in result.ordered():
            time, ratio = way.median_us, result.ratio(way)
            rate = "" if time is None else f"{flops_per_us_in_tflop_per_s(result.case.flops, time):.3g}"
            figures = ("" if time is None else f"{time:.1f}", rate, "" if ratio is None else f"{ratio:.2f}")
            error = "" if way.error is None else f"{way.error:.1e}"
            reason = f"{way.status}: {way.reason}" if way.reason else "" if way.status == "timed" else "interrupted"
            # a message may hold brackets, which are no markup
            table.add_row(str(result.case), way.name, *figures, error, Text(reason))
    return table


def main(
    op: Annotated[list[str] | None, typer.Option(help="only this op, linear_act or scaled_mm; repeatable")] = None,
    autotune: Annotated[
        bool, typer.Option("--autotune/--no-autotune", help=f"{AUTOTUNE} too, which takes long")
    ] = True,
    device: Annotated[str, typer.Option(help="torch device to compute on")] = "cuda:0",
    rounds: Annotated[int, typer.Option(min=1, help="how often each takes its turn")] = 20,
    small: Annotated[bool, typer.Option("--small", help="tiny sizes, for a CPU")] = False,
    output: Annotated[Path | None, typer.Option(help="folder for the JSON and Markdown results")] = None,
) -> None:
    """Measures, prints a table of each product, and writes all of them where ``--output`` says, as they come."""
    if unknown := set(op or ()) - set(OPS):
        raise typer.BadParameter(f"{', '.join(sorted(unknown))}; known: {', '.join(OPS)}", param_hint="--op")
    where = dispatcher().registry.device(device)
    place = torch.device(where.torch_device or device)
    cases = [case for case in (SMALL_CASES if small else CASES) if not op or case.op in op]
    watch, results, interrupted = stopwatch(place), list[Result](), False
    note = "PyTorch ÷ ours: the time of PyTorch's fastest way over this one's; above 1 this one is faster."
    console = Console()
    if not console.is_terminal:
        console.width = 200

    def show() -> None:
        console.print(table_of(results[-1:]))
        if output is not None:
            run = {"cuda": torch.version.cuda, "clocks": clocks(where), "rounds": rounds, "interrupted": interrupted}
            data = {**run, "products": [result.to_json() for result in results]}
            text = note + (" Interrupted: not all that was asked for." if interrupted else "")
            # a run for each op leaves results of its own
            record.write(output, "_".join(["products", *(op or ())]), str(place), data, table_of(results, TITLE), text)

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("measuring", total=len(cases))
        try:
            for case in cases:
                results.append(Result(case))
                tell = partial(_tell, bar, task, case)
                measure(results[-1], where, place, watch, autotune, rounds, tell)
                show()
                bar.advance(task)
        except KeyboardInterrupt:
            interrupted = True
            show()
    console.print(note)
    if interrupted:
        raise typer.Exit(130)


def _tell(bar: Progress, task: TaskID, case: Case, text: str) -> None:
    bar.update(task, description=f"{case}: {text}")


if __name__ == "__main__":
    typer.run(main)
