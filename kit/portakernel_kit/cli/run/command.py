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
    from portakernel_kit.bench.question import Question
    from portakernel_kit.cli.run.ran import Ran
    from portakernel_kit.conformance.venue import Venue

_MOST_FINDINGS = 20
_LOOK_S = 0.2
# Arguments and results in float64 beside their own, and what the reference has in between.
_MEMORY_FACTOR = 16
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
    the results are within the op's tolerance and nothing was found, 1 when not, 130 when interrupted.

    For example:

        portakernel run rms_norm --emulate amd:gfx942 --shape x=8x1000
        portakernel run softmax --emulate amd:gfx1100 --kernel hip.softmax --dtype float32 --shape x=4x777 --seed 1
        portakernel run add --emulate amd:gfx942 --input x=x.npy --input y=y.npy --json
    """
    from portakernel.cli.explain.command import read_parameters, read_shapes
    from portakernel.cli.output import page, print_json
    from portakernel.runtime import contract_of, dispatcher
    from portakernel_kit.cli.run.files import read_inputs
    from portakernel_kit.cli.run.ran import run_call
    from portakernel_kit.conformance.runner import fresh_seed

    if emulate is None:
        raise ArgumentValueError("run: give the hardware that is emulated, as in --emulate amd:gfx942")
    now = dispatcher()
    values = read_parameters(op, parameters or ())
    tensors = read_inputs(contract_of(op), given or ())
    seed = fresh_seed() if seed is None else seed
    operands = _drawn(now, op, emulate, read_shapes(shape or ()) or {}, dtype or (), values, tensors, seed)
    chosen, venue = _chosen(now, op, emulate, operands, kernel)
    try:
        ran = _interruptibly(lambda: run_call(now, chosen, venue, operands))
    except KeyboardInterrupt:
        if json:
            print_json({"seed": seed, "kernel": chosen.name, "target": emulate, "interrupted": True})
        else:
            page().heading(f"Interrupted in the call of {chosen.name}, emulated on {emulate}, seed {seed}")
        raise
    if json:
        print_json({"seed": seed, **ran.to_json(), "interrupted": False})
    else:
        _print(page(), ran, seed)
    raise typer.Exit(0 if ran.is_right else 1)


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

    floats = (dtype_name(tensor.dtype) for tensor in given.values() if tensor.dtype.is_floating_point)
    asked = dtype_sets(dtypes) or [next(floats, "bfloat16")]
    if len(asked) > 1:
        raise ArgumentValueError("run: one call has one --dtype for all its arguments, or one for each, as x=float16")
    told = {name: tuple(tensor.shape) for name, tensor in given.items()}
    for name in shapes.keys() & told.keys():
        if shapes[name] != told[name]:
            raise ArgumentValueError(
                f"run: {name} is {_size(shapes[name])} by --shape and {_size(told[name])} by --input: leave out one"
            )
    types = {name: dtype_name(tensor.dtype) for name, tensor in given.items()}
    row = GridRow("run", {**shapes, **told}, dict(values), dtypes=types)
    arguments = Arguments(contract(op), now.registry)
    question = questions(op, [row], asked, now.registry.target(target))[0]
    _check_memory(question)
    drawn = draw(question, arguments, torch.device("cpu"), seed)
    tensors = tuple(given.get(name, tensor) for name, tensor in zip(arguments.names, drawn.tensors, strict=True))
    arguments.check(tensors, drawn.values)
    return Operands(drawn.contract, arguments, tensors, drawn.values)


def _size(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "a scalar"


def _check_memory(question: Question) -> None:
    """Refuses what this machine has no memory for, the reference's float64 included."""
    from portakernel_kit.bench.traffic import FaultyOp

    try:
        needed = _MEMORY_FACTOR * question.cost.bytes
    except FaultyOp:
        return  # what it moves depends on numbers that are not drawn yet
    has = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > has:
        raise ArgumentValueError(
            f"run: with the reference in float64 this call takes about {needed / 1e9:.0f} GB; this machine has "
            f"{has / 1e9:.1f}. Give a smaller --shape: an emulated call of 4096x4096 takes seconds to minutes"
        )


def _chosen(now: Dispatcher, op: str, target: str, operands: Operands, name: str | None) -> tuple[Kernel, Venue]:
    """The kernel that is asked for, or the first in dispatch's order for the target that can be emulated, and where.

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
                return one, venue
            reasons.append(f"{one.name}: {'; '.join(refused)}")
        elif not isinstance(venue, Venue):
            reasons.append(f"{one.name}: {venue.reason}")
    told = "\n  ".join(reasons) or "no kernel of that name serves it"
    raise ArgumentValueError(f"run: no kernel can be emulated for this call on {where.target}:\n  {told}")


def _refused(now: Dispatcher, kernel: Kernel, venue: Any, request: Any) -> Any:
    from portakernel_kit.conformance.venue import refusals

    return refusals(now, kernel, venue, request)


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


def _print(out: Page, ran: Ran, seed: int) -> None:
    from portakernel_kit.cli.run.count import NO_TIME, print_count

    out.heading(f"{ran.kernel}, emulated on {ran.target}, seed {seed}")
    for launched in ran.launches:
        out.line(launched, "faint", indent=2)
    for line in ran.stopped.splitlines():
        out.line(line, "bad", indent=2)
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
    for problem in ran.problems:
        out.line(f"wrong: {problem}", "bad", indent=2)
    if rows and not ran.problems:
        out.line("within the op's tolerance", "good", indent=2)
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
