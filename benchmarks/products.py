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
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text
from torch import Tensor
from torch.nn import functional as F
from torch.nn.functional import ScalingType

import portakernel
from portakernel import ops
from portakernel.arguments import Arguments
from portakernel.bench.circumstances import clocks
from portakernel.bench.contenders import Field, Filter, build_waiting, described_error, forward_field
from portakernel.bench.grids import Row
from portakernel.bench.operands import Operands, draw
from portakernel.bench.question import questions
from portakernel.bench.results import Latency
from portakernel.bench.stopwatch import Stopwatch, stopwatch
from portakernel.bench.traffic import flops_per_us_in_tflop_per_s
from portakernel.capability import ReasonCode
from portakernel.cli.check import find_device
from portakernel.contracts import contract
from portakernel.references import scaled_mm as scaled_mm_reference
from portakernel.request import Phase
from portakernel.runtime import dispatcher
from portakernel.target import Device

Call = Callable[[], Any]
Advance = Callable[[str], None]
Named = tuple[str, Call]

OPS = ("linear_act", "scaled_mm")
TITLE = "Matrix products beside PyTorch's"
AUTOTUNE = "max-autotune-no-cudagraphs"
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
_ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "none": lambda z: z,
    "gelu": F.gelu,
    "gelu_tanh": lambda z: F.gelu(z, approximate="tanh"),
    "silu": F.silu,
}
_FORMATS = {"row": ("row", "row"), "tensor": ("tensor", "tensor"), "blocks": ("block_1x128", "block_128x128")}


@dataclass(frozen=True, slots=True)
class Case:
    """One product; ``variant`` is linear_act's activation, or what shares a scale in scaled_mm."""

    op: str
    m: int
    n: int
    k: int
    variant: str

    def __str__(self) -> str:
        return f"{self.op} {self.m}×{self.n}×{self.k} {self.variant}"

    @property
    def flops(self) -> int:
        """A multiplication and an addition for each term."""
        return 2 * self.m * self.n * self.k

    def row(self) -> Row:
        """The case as portakernel's benchmarks describe one."""
        if self.op == "linear_act":
            shapes: dict[str, tuple[int, ...]] = {"x": (self.m, self.k), "weight": (self.n, self.k), "bias": (self.n,)}
            return Row(str(self), shapes, {"activation": self.variant})
        values = dict(zip(("format_a", "format_b"), _FORMATS[self.variant], strict=True))
        return Row(str(self), {"a": (self.m, self.k), "b": (self.n, self.k)}, values)


CASES = (
    Case("linear_act", 8192, 14336, 4096, "gelu_tanh"),
    Case("linear_act", 4096, 8192, 8192, "silu"),
    Case("linear_act", 8192, 4096, 14336, "none"),
    Case("linear_act", 8192, 8192, 1024, "gelu"),
    Case("linear_act", 64, 14336, 4096, "gelu"),
    Case("linear_act", 1, 14336, 4096, "none"),
    *(
        Case("scaled_mm", *sizes, variant)
        for variant in ("row", "tensor")
        for sizes in ((4096, 4096, 4096), (8192, 8192, 8192), (8192, 14336, 4096))
    ),
    Case("scaled_mm", 64, 14336, 4096, "row"),
    Case("scaled_mm", 4096, 4096, 4096, "blocks"),
    Case("scaled_mm", 8192, 8192, 8192, "blocks"),
)
SMALL_CASES = (
    Case("linear_act", 32, 48, 64, "gelu"),
    Case("linear_act", 1, 48, 64, "none"),
    Case("scaled_mm", 32, 48, 64, "row"),
    Case("scaled_mm", 32, 48, 64, "tensor"),
    Case("scaled_mm", 32, 256, 512, "blocks"),
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


def operands_of(case: Case, where: Device, device: torch.device) -> Operands:
    """The arguments on which every way computes."""
    (question,) = questions(case.op, [case.row()], ["bfloat16"], where.target)
    found = draw(question, Arguments(contract(case.op), dispatcher().registry), device, seed=0)
    if case.op == "linear_act":
        # sums near 1, where one activation is told from another
        found.tensors[1].mul_(case.k**-0.5)  # type: ignore[union-attr]  # a weight is never left out
    elif case.variant == "blocks":
        # cuBLAS takes a's scales in columns; lying so, nobody has to move them
        a, b, scale_a, *others = found.tensors
        found.tensors = (a, b, scale_a.t().contiguous().t(), *others)  # type: ignore[union-attr]  # nor are scales
    return found


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


def linear_act_peers(case: Case, tensors: Sequence[Tensor], autotune: bool) -> Iterator[Named]:
    """What PyTorch offers for a linear layer and its activation."""
    activation = _ACTIVATIONS[case.variant]

    def layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return activation(F.linear(x, weight, bias))

    yield "F.linear" if case.variant == "none" else f"F.linear, {case.variant}", partial(layer, *tensors)
    x, weight, bias = tensors
    # its gelu is that of the library underneath: exact on CPUs, by tanh elsewhere
    if case.variant == ("gelu" if x.device.type == "cpu" else "gelu_tanh"):
        yield "torch._addmm_activation", partial(torch._addmm_activation, bias, x, weight.t(), use_gelu=True)
    yield from compiled(layer, tensors, autotune)


def scaled_mm_peers(case: Case, tensors: Sequence[Tensor], autotune: bool) -> Iterator[Named]:
    """What PyTorch offers for a product of float8."""

    def product(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> Tensor:
        return torch._scaled_mm(a, b.t(), scale_a, scale_b.t(), out_dtype=torch.bfloat16, use_fast_accum=False)

    yield "torch._scaled_mm", partial(product, *tensors)
    if case.variant == "blocks":  # which the newer operator is told of, and the older one infers from the shapes
        a, b, scale_a, scale_b = tensors
        recipes = ScalingType.BlockWise1x128, ScalingType.BlockWise128x128
        scaled = scale_a, recipes[0], scale_b.t(), recipes[1]
        yield "F.scaled_mm", partial(F.scaled_mm, a, b.t(), *scaled, output_dtype=torch.bfloat16)
    yield from compiled(product, tensors, autotune)


def compiled(function: Callable[..., Tensor], tensors: Sequence[Tensor], autotune: bool) -> Iterator[Named]:
    """``function`` by torch.compile, which compiles it when first called."""
    for mode in (None, *([AUTOTUNE] if autotune else [])):
        called = torch.compile(function, fullgraph=True, dynamic=False, mode=mode)
        yield "torch.compile" if mode is None else f"torch.compile, {mode}", partial(called, *tensors)


def exact_rows(case: Case, tensors: Sequence[Tensor], rows: Tensor) -> Tensor:
    """Some rows of the product in float64."""
    if case.op == "linear_act":
        x, weight, bias = (tensor.double() for tensor in (tensors[0][rows], *tensors[1:]))
        return _ACTIVATIONS[case.variant](F.linear(x, weight, bias))
    a, b, scale_a, scale_b = tensors
    # bytes: not every device picks rows of float8
    some = a.view(torch.uint8)[rows].view(a.dtype)
    scales = scale_a[rows] if scale_a.dim() else scale_a
    return scaled_mm_reference.truth(some, b, scales, scale_b, **case.row().values)[0]


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
    with portakernel.policy(deny="inductor"):
        declined = build_waiting(dispatcher(), operands, [Phase.INFERENCE])
    found = forward_field(dispatcher(), operands, Filter(reference=False))
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
    where = find_device(dispatcher().registry, device)
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
