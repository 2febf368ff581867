"""``portakernel warmup``: builds and compiles ahead what calls need, and fills the compilers' caches on disk."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from portakernel.cli.explain.command import read_names, read_parameters, read_shapes
from portakernel.cli.interrupting import interrupted_once
from portakernel.cli.options import DTypes, FirstDevice, Formats, Json, Shapes, Values, Workers

if TYPE_CHECKING:
    from portakernel.warming.outcome import Call, Warmup


def command(
    op: Annotated[
        str | None, typer.Argument(metavar="[OP]", help="The op, as `portakernel list` names it; or --calls.")
    ] = None,
    dtype: DTypes = None,
    shape: Shapes = None,
    format: Formats = None,
    parameters: Values = None,
    calls: Annotated[
        Path | None, typer.Option("--calls", metavar="FILE", help="A YAML file that lists calls, in place of one.")
    ] = None,
    device: FirstDevice = None,
    training: Annotated[bool, typer.Option("--training", help="Warm up forward for training, and backward.")] = False,
    kernel: Annotated[
        str | None, typer.Option("--kernel", metavar="NAME", help="Only this kernel, or this plugin's.")
    ] = None,
    workers: Workers = None,
    json: Json = False,
) -> None:
    r"""Build and compile what calls like these need, run them, and fill the compilers' caches on disk.

    What several calls have to compile is compiled side by side before the first of them. It serves the process that
    made it. In a new one, portakernel.warmup with the same arguments finds the caches and is quick: run this where an
    image is made. Optional tensors are passed where --shape names them.

    Exits with 0 when something was built or compiled, 1 when nothing was or a call of --calls failed, 2 when the one
    call does not fit its op, 130 when interrupted by Ctrl-C or SIGTERM: what was compiled until then stays in the
    caches, and is shown.

    For example:

        portakernel warmup rms_norm --dtype bfloat16 --shape x=4096x8192
        portakernel warmup layer_norm --dtype x=float16 --dtype weight=float32 \
            --shape x=64x1024 --shape bias=1024 --training
        portakernel warmup --calls service.yaml --device cuda:0 --workers 8
    """
    from portakernel.cli.calls_file import load_calls
    from portakernel.cli.output import page, print_json
    from portakernel.errors import ArgumentValueError
    from portakernel.warming.outcome import Call

    if calls is not None:
        if op or dtype or shape or format or parameters or training or kernel:
            text = "lists whole calls: beside it --device, --workers and --json are accepted, and no other"
            raise ArgumentValueError(f"warmup: {calls} {text}")
        given = load_calls(calls)
    elif op is None:
        raise ArgumentValueError("warmup: give an op, or with --calls a file that lists calls")
    else:
        values = read_parameters(op, parameters or ())
        dtypes, formats = (read_names("--dtype", dtype or ()), read_names("--format", format or ()))
        given = [Call(op, dtypes or {}, read_shapes(shape or ()) or {}, formats, None, training, kernel, values)]
    with interrupted_once() as close:
        found = _warm_up(given, device, workers, alone=calls is None)
        close()
        if json:
            device_of_call = next((call.request.device for call in found.calls), None)
            print_json({"op": op, "device": device_of_call and device_of_call.torch_device, **found.to_json()})
        else:
            page().line(str(found))
    if found.interrupted:
        raise typer.Exit(130)
    raise typer.Exit(0 if (found.built or found.ahead or found.compiled) and not found.failed else 1)


def _warm_up(calls: Sequence[Call], device: str | None, workers: int | None, *, alone: bool) -> Warmup:
    """What came of the calls, ``device`` being that of those that name none; with a progress bar."""
    from portakernel.cli.progress import progress
    from portakernel.deciding.explaining import first_device
    from portakernel.errors import WarmupError
    from portakernel.runtime import dispatcher
    from portakernel.tensors.compilation import compilations
    from portakernel.warming.building import Progress
    from portakernel.warming.rehearsal import interrupted, rehearse_described

    registry = dispatcher().registry
    where = registry.device(device) if device else None

    def device_of(call: Call) -> str:
        found = registry.device(call.device) if call.device else where or first_device(registry)
        return found.torch_device or "cpu"

    start, compiled_before = time.perf_counter(), len(compilations())
    with progress("warming up", len(calls)) as tell:
        shown = Progress(lambda text: tell(description=text), lambda done, total: tell(completed=done, total=total))
        try:
            return rehearse_described(calls, device_of, shown, workers, alone=alone)
        except WarmupError as error:
            return error.warmup
        except KeyboardInterrupt:
            return interrupted(shown, compiled_before, time.perf_counter() - start)
