"""``portakernel warmup``: builds and compiles ahead what a call needs, and fills the compilers' caches on disk."""

from __future__ import annotations

from typing import Annotated

import typer

from portakernel.cli.check import find_device
from portakernel.cli.explain import read_names, read_parameters, read_shapes
from portakernel.cli.options import DTypes, Formats, Json, Op, Shapes, Values


def command(
    op: Op,
    dtype: DTypes = None,
    shape: Shapes = None,
    format: Formats = None,
    parameters: Values = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device", metavar="DEVICE", help="Where, such as cuda:0 [default: this machine's first device]."
        ),
    ] = None,
    training: Annotated[bool, typer.Option("--training", help="Warm up forward for training, and backward.")] = False,
    kernel: Annotated[
        str | None, typer.Option("--kernel", metavar="NAME", help="Only this kernel, or this plugin's.")
    ] = None,
    json: Json = False,
) -> None:
    r"""Build and compile what calls like this one need, run them, and fill the compilers' caches on disk.

    It serves the process that made it. In a new one, portakernel.warmup with the same arguments finds the caches and
    is quick: run this where an image is made. Optional tensors are passed where --shape names them.

    Exits with 0 when something was built or compiled, 1 when nothing was, 2 when the call does not fit the op.

    For example:

        portakernel warmup rms_norm --dtype bfloat16 --shape x=4096x8192
        portakernel warmup layer_norm --dtype x=float16 --dtype weight=float32 --shape x=64x1024 --shape bias=1024 \
            --training
    """
    from portakernel.api import warmup
    from portakernel.cli.output import page, print_json
    from portakernel.contracts import contract
    from portakernel.runtime import dispatcher
    from portakernel.warmth import Call

    contract(op)
    where = find_device(dispatcher().registry, device).torch_device if device is not None else None
    found = warmup(
        [
            Call(
                op,
                read_names("--dtype", dtype or ()) or {},
                read_shapes(shape or ()) or {},
                read_names("--format", format or ()) or None,
                where,
                training,
                kernel,
                read_parameters(op, parameters or ()),
            )
        ]
    )
    if json:
        device_of_call = next((call.request.device for call in found.calls), None)
        print_json({"op": op, "device": device_of_call and device_of_call.torch_device, **found.to_json()})
    else:
        page().line(str(found))
    raise typer.Exit(0 if found.built or found.compiled else 1)
