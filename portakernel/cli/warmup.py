"""``portakernel warmup``: builds what has to be compiled before calls, and fills the compilers' caches on disk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from portakernel.cli.check import find_device
from portakernel.cli.explain import read_names, read_parameters, read_shapes
from portakernel.cli.options import DTypes, Formats, Json, Op, Shapes, Values
from portakernel.contracts import contract
from portakernel.errors import ArgumentValueError
from portakernel.question import ask
from portakernel.sizes import parse_size

if TYPE_CHECKING:
    from torch import Tensor

    from portakernel.registry import Registry
    from portakernel.request import Request
    from portakernel.target import Device


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
    training: Annotated[bool, typer.Option("--training", help="Build forward for training, and backward.")] = False,
    kernel: Annotated[
        str | None, typer.Option("--kernel", metavar="NAME", help="Only this kernel, or this plugin's.")
    ] = None,
    json: Json = False,
) -> None:
    r"""Build the kernels that calls like this one need, and fill the compilers' caches on disk.

    A build serves the process that made it. In a new one, portakernel.warmup with the same arguments finds the cache
    and is quick: run this where an image is made. Optional tensors are passed where --shape names them.

    Exits with 0 when something was built, 1 when nothing was, 2 when the call does not fit the op.

    For example:

        portakernel warmup rms_norm --dtype bfloat16 --shape x=4096x8192
        portakernel warmup layer_norm --dtype x=float16 --dtype weight=float32 --shape x=64x1024 --shape bias=1024 \
            --training
    """
    import time

    from portakernel.api import warmup
    from portakernel.cli.output import page, print_json
    from portakernel.runtime import dispatcher

    where = _place(dispatcher().registry, device)
    request = ask(
        contract(op),
        where.target,
        dtypes=read_names("--dtype", dtype or ()),
        shapes=read_shapes(shape or ()),
        formats=read_names("--format", format or ()),
        values=read_parameters(op, parameters or ()),
    )
    tensors = example(request, read_shapes(shape or ()) or {}, where.torch_device or "cpu", training=training)
    positional = [tensors.get(tensor.name) for tensor in contract(op).tensors if not tensor.keyword]
    named = {
        tensor.name: tensors[tensor.name]
        for tensor in contract(op).tensors
        if tensor.keyword and tensor.name in tensors
    }
    start = time.perf_counter()
    built = warmup(op, *positional, kernel=kernel, **named, **request.values)
    seconds = round(time.perf_counter() - start, 3)
    if json:
        print_json({"op": op, "device": where.torch_device, "built": list(built), "seconds": seconds})
    else:
        what = ", ".join(built) or "nothing was"
        page().line(f"{what} built for {request} ({where.torch_device}) in {seconds:.1f} s")
    raise typer.Exit(0 if built else 1)


def example(
    request: Request, shapes: Mapping[str, tuple[int, ...]], device: str, *, training: bool
) -> dict[str, Tensor]:
    """Tensors like those of the call that ``request`` describes, by name: zeros, of which every index is in range.

    Raises:
        ArgumentValueError: an argument's shape or dtype neither is given nor follows from the others'.
    """
    import torch

    made = contract(request.op).at(request.values)
    leading: tuple[int, ...] | None = None
    for tensor in made.tensors:
        if tensor.leading is not None and tensor.name in shapes:
            leading = shapes[tensor.name][: len(shapes[tensor.name]) - len(tensor.fixed)]
    found: dict[str, Tensor] = {}
    for tensor in made.tensors:
        if tensor.optional and tensor.name not in shapes and tensor.name not in request.dtypes:
            continue
        sizes = [parse_size(text) for text in tensor.fixed]
        known = all(size.name is None or size.name in request.dims for size in sizes)
        if not known or (tensor.leading is not None and leading is None):
            raise ArgumentValueError(f"{request.op}: give the shape of {tensor.name}: --shape {tensor.name}=AxB")
        if tensor.name not in request.dtypes:
            raise ArgumentValueError(f"{request.op}: give the dtype of {tensor.name}: --dtype {tensor.name}=DTYPE")
        shape = [size.of(request.dims[size.name] if size.name is not None else 0) for size in sizes]
        shape = [*(leading or ()), *shape] if tensor.leading is not None else shape
        dtype: torch.dtype = getattr(torch, request.dtypes[tensor.name])
        # not every narrow dtype can be filled on every device; bytes can
        narrow = dtype.itemsize == 1 and dtype.is_floating_point
        zeros = torch.zeros(shape, dtype=torch.uint8 if narrow else dtype, device=device)
        zeros = zeros.view(dtype) if narrow else zeros
        found[tensor.name] = zeros.requires_grad_() if training and dtype.is_floating_point and not narrow else zeros
    return found


def _place(registry: Registry, name: str | None) -> Device:
    """The device that is meant; an accelerator goes before the CPU."""
    if name is not None:
        return find_device(registry, name)
    usable = [device for device in registry.devices if device.torch_device is not None and not device.attached]
    usable.sort(key=lambda device: device.torch_device == "cpu")
    if not usable:
        raise ArgumentValueError("no backend found a device on this machine to build for")
    return usable[0]
