"""What a call costs before its kernel begins: portakernel's and others' dispatch over one empty kernel, in one run.

    python benchmarks/dispatch_overhead.py --device cpu --output benchmarks/results

Every way of calling launches the same Python function, which does nothing, or for Liger and comfy-kitchen's own ops
their own kernel. Rounds alternate between all ways; a figure is the median over rounds of the time for a call less that
of a direct call of the same kernel in the same round. Peers take part where they are installed.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent))  # the plugin with the empty kernel stands beside this script
import record
from empty_kernel.kernels import rms_norm as empty

from portakernel.calling.bound_kernel import bind_kernel
from portakernel.calling.caller import OpCaller
from portakernel.calling.fast.shape_numbers import MAX_SHAPES
from portakernel.calling.public import public_function
from portakernel.claims.request import Phase
from portakernel.config import Config
from portakernel.contracts import contract
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.deciding.policies import make_layer
from portakernel.registry.plugin_manager import Package, PluginManager, find_folder, installed_packages
from portakernel.registry.registry import Registry
from portakernel.tensors.units import units_of
from portakernel.torch_bridge.registration import Bridge
from portakernel.tuning.choices import Choice, Choices
from portakernel.tuning.key import Kind

Call = Callable[[], Any]
DTYPE = torch.bfloat16
ROWS, COLUMNS = 16, 4096
MISSES = 500
# Entries of a plan: half are of the kind of the calls that are timed, no two of whose ranges of rows touch.
PLANNED = 1000


@dataclass(slots=True)
class Way:
    """One way to call a kernel; ``direct`` calls the same kernel without any dispatch."""

    name: str
    call: Call
    direct: Call
    budget_us: float | None = None
    samples: list[float] = field(default_factory=list[float])
    direct_samples: list[float] = field(default_factory=list[float])

    def result(self) -> dict[str, Any]:
        """Medians in microseconds."""
        overhead = [a - b for a, b in zip(self.samples, self.direct_samples, strict=True)]
        found = {
            "way": self.name,
            "call_us": statistics.median(self.samples),
            "direct_us": statistics.median(self.direct_samples),
            "overhead_us": statistics.median(overhead),
            "overhead_best_us": min(self.samples) - min(self.direct_samples),
            "ratio": statistics.median(a / b for a, b in zip(self.samples, self.direct_samples, strict=True)),
        }
        if self.budget_us is not None:
            found["budget_us"] = self.budget_us
        return found


def our_caller(namespace: str = "portakernel_benchmark") -> OpCaller:
    """The op with every installed plugin's kernels and the empty one before them, in a dispatcher of its own."""
    package = Package("empty_kernel", "empty_kernel", "portakernel", "1", find_folder("empty_kernel"), first_party=True)
    manager = PluginManager([*installed_packages(), package])
    dispatcher = Dispatcher(Registry(manager), Config())
    return Bridge(OpCaller(contract("rms_norm"), dispatcher, namespace)).caller


class Thousand:
    """A plan of the empty kernel: ranges of rows, as many for calls that these are not."""

    name, locked = "plan.yaml", False

    def __init__(self, caller: OpCaller, x: torch.Tensor, weight: torch.Tensor) -> None:
        request = caller.explain((x, weight), (1e-6, 0.0), Phase.INFERENCE).request
        units = units_of(request.device) if request.device is not None else None
        self._place = str(request.target), units or 0
        kind = Kind.of(request, caller.dispatcher.registry.for_op("rms_norm"))
        bounds = [{"M": (rows, rows + 2), "N": (COLUMNS, COLUMNS)} for rows in range(1, 2 * PLANNED + 1, 4)]
        kinds = (kind, replace(kind, phase="training"))
        self._choices = Choices(
            Choice("empty_kernel.rms_norm", one, each, "plan.yaml:7") for one in kinds for each in bounds
        )

    def places(self) -> tuple[tuple[str, int], ...]:
        """This device alone."""
        return (self._place,)

    def choices(self, op: str, place: tuple[str, int]) -> Choices:
        """All of them."""
        return self._choices if (op, place) == ("rms_norm", self._place) else Choices()


def planned(x: torch.Tensor, weight: torch.Tensor, direct: Call) -> Iterator[Way]:
    """Portakernel's ways with a plan of a thousand entries for the op."""
    caller = our_caller("portakernel_benchmark_planned")
    caller.dispatcher.routes.set(Thousand(caller, x, weight), None)
    caller.reroute()
    rms_norm = public_function(caller)
    with_plan = f"a plan of {PLANNED} entries"
    yield Way(f"portakernel.ops, {with_plan}", lambda: rms_norm(x, weight), direct, 2.0)
    several = x.new_empty(2 * MAX_SHAPES, COLUMNS)
    lengths = itertools.cycle([several[:rows] for rows in range(1, 2 * MAX_SHAPES + 1)])

    def direct_changing() -> Any:
        return empty(next(lengths), weight, eps=1e-6)

    way = f"portakernel.ops, {with_plan}, sizes new with every call"
    yield Way(way, lambda: rms_norm(next(lengths), weight), direct_changing)


def ours(caller: OpCaller, x: torch.Tensor, weight: torch.Tensor, direct: Call) -> Iterator[Way]:
    """Portakernel's own ways."""
    rms_norm = public_function(caller)
    bound = bind_kernel(caller, (x, weight), (1e-6, 0.0), None)
    if bound.kernel != "empty_kernel.rms_norm":
        raise SystemExit(f"{bound.kernel} was chosen, not the empty kernel")
    yield Way("portakernel.bind(...)", lambda: bound(x, weight), direct, 0.5)
    yield Way("portakernel.ops", lambda: rms_norm(x, weight), direct, 2.0)
    # more sizes than are remembered: none is met again
    several = x.new_empty(2 * MAX_SHAPES, COLUMNS)
    lengths = itertools.cycle([several[:rows] for rows in range(1, 2 * MAX_SHAPES + 1)])

    def direct_changing() -> Any:
        return empty(next(lengths), weight, eps=1e-6)

    yield Way("portakernel.ops, sizes new with every call", lambda: rms_norm(next(lengths), weight), direct_changing)
    out = torch.empty_like(x)

    def direct_into() -> Any:
        return empty(x, weight, eps=1e-6, out=out)

    yield Way("portakernel.bind(...), out=", lambda: bound(x, weight, out=out), direct_into)
    yield Way("portakernel.ops, out=", lambda: rms_norm(x, weight, out=out), direct_into)
    yield Way("portakernel.ops, kernel=", lambda: rms_norm(x, weight, kernel="empty_kernel"), direct)
    layers, layer = caller.dispatcher.context_layers, make_layer("context", deny="reference")

    def in_policy_block() -> Any:
        token = layers.set((layer,))
        try:
            return rms_norm(x, weight)
        finally:
            layers.reset(token)

    yield Way("portakernel.ops, entering a policy block each time", in_policy_block, direct)
    op = caller.torch_op()
    yield Way("torch.ops.portakernel (traced graphs, subclasses)", lambda: op(x, weight, 1e-6, 0.0, ""), direct)


def torch_ways(x: torch.Tensor, weight: torch.Tensor, direct: Call) -> Iterator[Way]:
    """PyTorch's own two ways to register an operator."""

    @torch.library.custom_op("portakernel_benchmark_custom::rms_norm", mutates_args=())
    def custom(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return empty(x, weight, eps=eps)

    yield Way("torch.library.custom_op", lambda: custom(x, weight, 1e-6), direct)
    library = torch.library.Library("portakernel_benchmark_library", "FRAGMENT")
    library.define("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor")
    library.impl("rms_norm", lambda x, weight, eps: empty(x, weight, eps=eps), "CompositeExplicitAutograd")
    op = torch.ops.portakernel_benchmark_library.rms_norm.default
    # the registration lasts as long as the library
    yield Way("torch.library.Library.impl", lambda _library=library: op(x, weight, 1e-6), direct)


def comfy_kitchen(x: torch.Tensor, weight: torch.Tensor, direct: Call) -> Iterator[Way]:
    """comfy-kitchen: its registry over the empty kernel, and one of its own ops over its own eager kernel."""
    import comfy_kitchen
    from comfy_kitchen.backends import eager
    from comfy_kitchen.constraints import FunctionConstraints, ParamConstraint
    from comfy_kitchen.registry import BackendRegistry

    class Module:
        rms_norm = staticmethod(empty)

    registry = BackendRegistry()
    tensors = {name: ParamConstraint(dtypes=frozenset({torch.float32, DTYPE})) for name in ("x", "weight")}
    limits = FunctionConstraints(params=tensors, default_devices=frozenset({"cpu", "cuda"}))
    registry.register("eager", Module, {"rms_norm": limits})

    def through_registry() -> Any:
        arguments = {"x": x, "weight": weight, "eps": 1e-6}
        return registry.get_implementation("rms_norm", kwargs=arguments)(**arguments)

    yield Way("comfy-kitchen's registry", through_registry, direct)
    small, scale = x[:1, :64].contiguous(), torch.ones((), device=x.device)
    comfy_kitchen.registry.set_priority(["eager"])
    yield Way(
        "comfy-kitchen's quantize_per_tensor_fp8",
        lambda: comfy_kitchen.quantize_per_tensor_fp8(small, scale),
        lambda: eager.quantize_per_tensor_fp8(small, scale),
    )


def plum(x: torch.Tensor, weight: torch.Tensor, direct: Call) -> Iterator[Way]:
    """plum-dispatch: multiple dispatch on the arguments' types alone."""
    from plum import Dispatcher as PlumDispatcher

    dispatch = PlumDispatcher()

    def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return empty(x, weight, eps=1e-6)

    function = dispatch(rms_norm)
    yield Way("plum-dispatch (types alone)", lambda: function(x, weight), direct)


def liger(x: torch.Tensor, weight: torch.Tensor, _direct: Call) -> Iterator[Way]:
    """Liger: which implementation is fixed at import; a call goes through its autograd function to its kernel."""
    from liger_kernel.ops import LigerRMSNormFunction, rms_norm_forward

    if x.device.type == "cpu":
        raise ImportError("its kernels are Triton's, which need a GPU")

    def own() -> Any:
        return LigerRMSNormFunction.apply(x, weight, 1e-6, 0.0, "llama", False, None)

    def its_kernel() -> Any:
        return rms_norm_forward(x, weight, 1e-6, 0.0, "llama", None)

    yield Way("Liger's LigerRMSNormFunction", own, its_kernel)


def installed_peers(x: torch.Tensor, weight: torch.Tensor, direct: Call) -> Iterator[Way]:
    """Every peer that is installed."""
    for peer in (comfy_kitchen, plum, liger):
        try:
            yield from peer(x, weight, direct)
        except ImportError as error:
            print(f"{peer.__name__} does not take part: {error}", file=sys.stderr)


def per_call_us(call: Call, calls: int) -> float:
    """Microseconds per call."""
    begun = time.perf_counter_ns()
    for _ in range(calls):
        call()
    return (time.perf_counter_ns() - begun) / calls / 1e3


def misses(caller: OpCaller, x: torch.Tensor, weight: torch.Tensor, count: int) -> dict[str, float]:
    """A call that finds an empty key table: it makes the request, asks every kernel, decides and launches."""
    rms_norm = public_function(caller)
    times = []
    for _ in range(count):
        caller.table.clear()
        begun = time.perf_counter_ns()
        rms_norm(x, weight)
        times.append((time.perf_counter_ns() - begun) / 1e3)
    cuts = statistics.quantiles(times, n=100)
    return {"median_us": statistics.median(times), "p99_us": cuts[98], "max_us": max(times)}


def main(
    device: Annotated[str, typer.Option(help="torch device of the arguments")] = "cpu",
    rounds: Annotated[int, typer.Option(help="how often each way takes its turn")] = 200,
    calls: Annotated[int, typer.Option(help="calls in a turn")] = 500,
    output: Annotated[Path | None, typer.Option(help="folder for the JSON and Markdown results")] = None,
) -> None:
    """Measures, prints a table, and writes it where ``--output`` says."""
    x = torch.randn(ROWS, COLUMNS, device=device, dtype=DTYPE)
    weight = torch.ones(COLUMNS, device=device, dtype=DTYPE)
    caller = our_caller()

    def direct() -> Any:
        return empty(x, weight, eps=1e-6, out=None)

    with torch.no_grad():
        ways = [
            *ours(caller, x, weight, direct),
            *planned(x, weight, direct),
            *torch_ways(x, weight, direct),
            *installed_peers(x, weight, direct),
        ]
        for way in ways:
            per_call_us(way.call, calls)
        for _ in track(range(rounds), "measuring", console=Console(stderr=True), transient=True):
            for way in ways:
                way.direct_samples.append(per_call_us(way.direct, calls))
                way.samples.append(per_call_us(way.call, calls))
            if device != "cpu":
                torch.cuda.synchronize()
        missed = misses(caller, x, weight, MISSES)
    results = {"ways": [way.result() for way in ways], "miss": missed}
    table = Table(
        "way", "call µs", "direct µs", "overhead µs", "ratio", "budget µs", title="Dispatch overhead, two tensors"
    )
    for row in results["ways"]:
        budget = f"{row['budget_us']:.1f}" if "budget_us" in row else ""
        figures = (f"{row[name]:.2f}" for name in ("call_us", "direct_us", "overhead_us", "ratio"))
        table.add_row(row["way"], *figures, budget)
    Console().print(table)
    note = f"A miss: median {missed['median_us']:.0f} µs, p99 {missed['p99_us']:.0f} µs of {MISSES}."
    print(note)
    if output is not None:
        record.write(output, "dispatch_overhead", device, results, table, note)


if __name__ == "__main__":
    typer.run(main)
