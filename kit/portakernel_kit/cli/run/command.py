"""``portakernel run --emulate``: one call of a kernel on hardware that is not here: its numbers, and what was found."""

from __future__ import annotations

import atexit
import contextvars
import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from portakernel.cli.options import DTypes, Json, Op, Seed, Shapes, Values
from portakernel.errors import ArgumentValueError

if TYPE_CHECKING:
    from torch import Tensor

    from portakernel.cli.output import Page
    from portakernel.deciding.dispatcher import Dispatcher
    from portakernel.registry.kernel import Kernel
    from portakernel_kit.bench.operands import Operands
    from portakernel_kit.cli.run.call import Count
    from portakernel_kit.cli.run.results import Stated
    from portakernel_kit.conformance.emulator import Emulator

_MOST_FINDINGS = 20
_LOOK_S = 0.2
INTERRUPTED = 130  # as the command line ends then
_T = TypeVar("_T")


def command(
    op: Op,
    emulate: Annotated[
        str | None,
        typer.Option("--emulate", metavar="TARGET", help="The hardware that is emulated, such as amd:gfx942."),
    ] = None,
    kernel: Annotated[
        str | None,
        typer.Option("--kernel", metavar="NAME", help="This kernel [default: the first in dispatch's order that can]."),
    ] = None,
    dtype: DTypes = None,
    shape: Shapes = None,
    parameters: Values = None,
    given: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="ARG=FILE", help="An argument out of a .npy or .pt file; repeatable."),
    ] = None,
    seed: Seed = None,
    json: Json = False,
) -> None:
    """Run one call of a kernel in the emulator of AMD's instructions: results, their error, findings, and counts.

    What no --input gives is drawn. Counts are of executed instructions and bytes, and no time. Exits with 0 when
    nothing was found, 1 when something was, 130 when interrupted.

    For example:

        portakernel run rms_norm --emulate amd:gfx942 --shape x=8x1000
        portakernel run softmax --emulate amd:gfx1100 --kernel hip.softmax --dtype float32 --shape x=4x777 --seed 1
        portakernel run add --emulate amd:gfx942 --input x=x.npy --input y=y.npy --json
    """
    from portakernel.cli.explain.command import read_parameters, read_shapes
    from portakernel.cli.output import page, print_json
    from portakernel.runtime import contract_of, dispatcher
    from portakernel_kit.cli.run.files import read_inputs
    from portakernel_kit.conformance.runner import fresh_seed

    if emulate is None:
        raise ArgumentValueError("run: give the hardware that is emulated, as in --emulate amd:gfx942")
    now = dispatcher()
    values = read_parameters(op, parameters or ())
    tensors = read_inputs(contract_of(op), given or ())
    seed = fresh_seed() if seed is None else seed
    operands = _drawn(now, op, emulate, read_shapes(shape or ()) or {}, dtype or (), values, tensors, seed)
    chosen, emulator = _chosen(now, op, emulate, operands, kernel)
    ran = _interruptibly(lambda: _run(now, chosen, emulator, operands))
    if json:
        print_json({"seed": seed, **ran.to_json()})
    else:
        _print(page(), ran, seed)
    raise typer.Exit(1 if ran.findings or ran.stopped else 0)


def _drawn(
    now: Dispatcher, op: str, target: str, shapes: Mapping[str, tuple[int, ...]], dtypes: Any,
    values: Mapping[str, Any], given: Mapping[str, Tensor], seed: int,
) -> Operands:  # fmt: skip
    """The call's arguments: those of files, and others drawn to go with them."""
    import torch

    from portakernel.calling.arguments import Arguments, dtype_name
    from portakernel.contract import GridRow
    from portakernel.contracts import contract
    from portakernel_kit.bench.operands import Operands, draw
    from portakernel_kit.bench.question import questions
    from portakernel_kit.cli.bench.requests import dtype_sets

    asked = dtype_sets(dtypes) or ["bfloat16"]
    if len(asked) > 1:
        raise ArgumentValueError("run: one call has one --dtype for all its arguments, or one for each, as x=float16")
    told = {name: tuple(tensor.shape) for name, tensor in given.items()}
    types = {name: dtype_name(tensor.dtype) for name, tensor in given.items()}
    row = GridRow("run", {**shapes, **told}, dict(values), dtypes=types)
    arguments = Arguments(contract(op), now.registry)
    question = questions(op, [row], asked, now.registry.target(target))[0]
    drawn = draw(question, arguments, torch.device("cpu"), seed)
    tensors = tuple(given.get(name, tensor) for name, tensor in zip(arguments.names, drawn.tensors, strict=True))
    arguments.check(tensors, drawn.values)
    return Operands(drawn.contract, arguments, tensors, drawn.values)


def _chosen(now: Dispatcher, op: str, target: str, operands: Operands, name: str | None) -> tuple[Kernel, Emulator]:
    """The kernel that is asked for, or the first in dispatch's order for the target that can be emulated.

    Raises:
        EmulationError: the target is not emulated, or tinygrad is not installed.
        ArgumentValueError: none can, and why each cannot.
    """
    from dataclasses import replace

    from portakernel.claims.request import Phase
    from portakernel.deciding.kernel_argument import check_ships
    from portakernel.emulation.session import check_target
    from portakernel_kit.conformance.venue import Emulated, Venue, find_venue

    where = Emulated(now.registry.target(target))
    check_target(where.target)
    if name is not None:
        check_ships(now.registry, op, name)
    request = replace(operands.request(Phase.INFERENCE), target=where.target, device=None, attached=())
    reasons: list[str] = []
    for candidate in now.decide(request).candidates:
        one = candidate.kernel
        if name is not None and name not in (one.name, one.plugin):
            continue
        venue = find_venue(now, one, where)
        if isinstance(venue, Venue) and venue.emulator is not None:
            refused = [rejection.text for rejection in _refused(now, one, venue, request)]
            if not refused:
                return one, venue.emulator
            reasons.append(f"{one.name}: {'; '.join(refused)}")
        elif not isinstance(venue, Venue):
            reasons.append(f"{one.name}: {venue.reason}")
    told = "\n  ".join(reasons) or "no kernel of that name serves it"
    raise ArgumentValueError(f"run: no kernel can be emulated for this call on {where.target}:\n  {told}")


def _refused(now: Dispatcher, kernel: Kernel, venue: Any, request: Any) -> Any:
    from portakernel_kit.conformance.venue import refusals

    return refusals(now, kernel, venue, request)


class _Ran:
    """What one call came to."""

    def __init__(self, kernel: Kernel, target: str) -> None:
        self.kernel, self.target = kernel.name, target
        self.results: list[Stated] = []
        self.findings: list[str] = []
        self.launches: list[str] = []
        self.count: Count | None = None
        self.stopped = ""

    def to_json(self) -> dict[str, Any]:
        """The run as JSON-ready data; stable."""
        return {
            "kernel": self.kernel,
            "target": self.target,
            "launches": self.launches,
            "results": [result.to_json() for result in self.results],
            "findings": self.findings,
            "stopped": self.stopped,
            "count": self.count.to_json() if self.count is not None else None,
        }


def _run(now: Dispatcher, kernel: Kernel, emulator: Emulator, operands: Operands) -> _Ran:
    from portakernel.claims.request import Phase
    from portakernel.emulation import FindingsError
    from portakernel_kit.cli.run.call import Count, emulated_call
    from portakernel_kit.cli.run.results import stated, truth_of

    ran = _Ran(kernel, str(emulator.target))
    truth = truth_of(operands)  # before the call, which may write its arguments
    try:
        (call,) = emulated_call(now, kernel, emulator, operands, (Phase.INFERENCE,))
    except FindingsError as error:
        ran.findings = [f"{one.kernel}: {finding}" for one in error.launches for finding in one.run.findings]
        ran.launches = [_shape(one.kernel, one.grid, one.block) for one in error.launches]
        ran.stopped = str(error).partition("\n")[0]
        return ran
    ran.results = stated(call.results, truth)
    ran.findings = call.findings
    ran.launches = [_shape(one.kernel, one.grid, one.block) for one in call.launches]
    ran.count = Count.of(call.launches)
    return ran


def _shape(kernel: str, grid: tuple[int, ...], block: tuple[int, ...]) -> str:
    return f"{kernel}: {'x'.join(map(str, grid))} workgroups of {'x'.join(map(str, block))} work items"


def _interruptibly(run: Callable[[], _T]) -> _T:
    """What ``run`` returns; Ctrl-C ends the wait, which the engine's own code would not heed."""
    outcome: list[_T] = []
    raised: list[BaseException] = []

    def work() -> None:
        try:
            outcome.append(run())
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            raised.append(error)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(work,), daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_LOOK_S)
    except KeyboardInterrupt:
        atexit.register(_leave)
        raise
    if raised:
        raise raised[0]
    return outcome[0]


def _leave() -> None:
    """Ends the process as it exits, without the ways out of libraries, in one of which a thread is still at work."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(INTERRUPTED)


def _print(out: Page, ran: _Ran, seed: int) -> None:
    from portakernel_kit.cli.run.count import NO_TIME, print_count

    out.heading(f"{ran.kernel}, emulated on {ran.target}, seed {seed}")
    for launched in ran.launches:
        out.line(launched, "faint", indent=2)
    if ran.stopped:
        out.line(ran.stopped, "bad", indent=2)
    rows = [
        (
            one.name, one.dtype, "x".join(map(str, one.shape)) or "scalar", _number(one.least), _number(one.mean),
            _number(one.most), _number(one.largest_error), _number(one.relative_error),
            str(one.not_finite), str(one.disagreeing),
        )
        for one in ran.results
    ]  # fmt: skip
    if rows:
        headers = ("result", "dtype", "shape", "least", "mean", "most", "error", "relative", "not finite", "disagree")
        out.table(rows, headers, indent=2, right=tuple(range(3, 10)))
        out.line(
            "error: the largest distance from the reference in float64; relative: to its largest value",
            "faint",
            indent=2,
        )
    out.line(f"findings: {len(ran.findings) or 'none'}", "bad" if ran.findings else "good", indent=2)
    for finding in ran.findings[:_MOST_FINDINGS]:
        out.line(finding, "bad", indent=4)
    if len(ran.findings) > _MOST_FINDINGS:
        out.line(f"and {len(ran.findings) - _MOST_FINDINGS} more; --json has all", indent=4)
    if ran.count is not None:
        out.line(NO_TIME, "strong", indent=2)
        print_count(out, ran.count, indent=4)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
