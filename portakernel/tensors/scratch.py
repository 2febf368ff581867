"""Tensors to try a call on: like given ones, or as a request describes them; never anybody's data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from portakernel.claims.call_layout import CallLayout
from portakernel.claims.request import Request
from portakernel.contract.sizes import parse_size
from portakernel.contracts import contract
from portakernel.errors import ArgumentValueError
from portakernel.tensors.layout import MAX_ALIGNMENT, has_plain_memory, overlaps_itself

# Not every narrow dtype can be copied on every device; integers of its size can.
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def like(tensor: Tensor) -> Tensor:
    """A copy that lies in memory as ``tensor`` does: its sizes, strides and alignment, its values, its gradient's need.

    Of a tensor that is no plain memory (a subclass, a lazy conjugate), a plain clone.
    """
    held = tensor.detach()
    if not has_plain_memory(held):
        return held.clone().requires_grad_(tensor.requires_grad)
    source = extent(held)
    shift = held.data_ptr() % MAX_ALIGNMENT // held.element_size()
    memory = torch.empty(shift + source.numel(), dtype=held.dtype, device=held.device)
    _as_bytes(memory[shift:]).copy_(_as_bytes(source))
    return memory.as_strided(held.shape, held.stride(), shift).requires_grad_(tensor.requires_grad)


def laid(tensors: Mapping[str, Tensor], layout: CallLayout) -> dict[str, Tensor]:
    """The tensors, which are contiguous, in such a layout: copies where it is not theirs, what lies between is zero.

    Where several elements share memory (a stride is 0, or rows overlap), it holds some of theirs.
    """
    found = dict(tensors)
    for name, tensor in tensors.items():
        strides, alignment = layout.strides.get(name), layout.facts.get(f"{name}.alignment", MAX_ALIGNMENT)
        if strides is not None or alignment < MAX_ALIGNMENT:
            found[name] = _laid(tensor, tensor.stride() if strides is None else strides, alignment)
    return found


def _laid(tensor: Tensor, strides: Sequence[int], alignment: int) -> Tensor:
    held, itemsize = tensor.detach(), tensor.element_size()
    if held.numel() == 0:
        return tensor
    reach = 1 + sum((size - 1) * stride for size, stride in zip(held.shape, strides, strict=True))
    # a whole step of the greatest alignment more, so that an address of the asked one, and of none above it, is there
    room = torch.zeros((reach * itemsize + 2 * MAX_ALIGNMENT,), dtype=torch.uint8, device=held.device)
    shift = -room.data_ptr() % MAX_ALIGNMENT + (max(alignment, itemsize) % MAX_ALIGNMENT)
    memory = room[shift : shift + reach * itemsize].view(held.dtype)
    made = memory.as_strided(held.shape, strides)
    integers = _INTEGERS[itemsize]
    if overlaps_itself(made):
        places = torch.arange(reach, device=held.device) % held.numel()
        memory.view(integers).copy_(held.view(integers).reshape(-1)[places])
    else:
        made.view(integers).copy_(held.view(integers))
    return made.requires_grad_(tensor.requires_grad)


def extent(tensor: Tensor) -> Tensor:
    """The memory from a tensor's first element to its last as one row, which two tensors of one layout have alike."""
    if tensor.numel() == 0:
        return tensor.new_empty(0)
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((last + 1,), (1,), tensor.storage_offset())


def refill(tensor: Tensor, other: Tensor) -> None:
    """Puts the values of ``other``, which has the same layout, into ``tensor``."""
    _as_bytes(extent(tensor)).copy_(_as_bytes(extent(other)))


def _as_bytes(row: Tensor) -> Tensor:
    # not every narrow dtype can be copied on every device; bytes can
    return row.view(torch.uint8) if row.element_size() == 1 and row.dtype is not torch.bool else row


def described(
    request: Request, shapes: Mapping[str, Sequence[int]], device: torch.device | str, *, training: bool
) -> dict[str, Tensor]:
    """Tensors like those of the call that ``request`` describes, by name: zeros, of which every index is in range.

    Raises:
        ArgumentValueError: an argument's shape or dtype neither is given nor follows from the others'.
    """
    made = contract(request.op).at(request.values)
    leading: tuple[int, ...] | None = None
    for tensor in made.tensors:
        if tensor.leading is not None and tensor.name in shapes:
            leading = tuple(shapes[tensor.name])[: len(shapes[tensor.name]) - len(tensor.fixed)]
    tensors: dict[str, Tensor] = {}
    for tensor in made.tensors:
        name = tensor.name
        if tensor.optional and name not in shapes and name not in request.dtypes:
            continue
        sizes = [parse_size(text) for text in tensor.fixed]
        known = all(size.name is None or size.name in request.dims for size in sizes)
        if not known or (tensor.leading is not None and leading is None):
            some = "ABCD"[: max(len(tensor.fixed) + (tensor.leading is not None), 1)]
            words, spelt = ", ".join(some) + "," * (len(some) == 1), "x".join(some)
            text = f'{request.op}: give the shape of {name}: shape={{"{name}": ({words})}}, or --shape {name}={spelt}'
            raise ArgumentValueError(text)
        if name not in request.dtypes:
            text = f'{request.op}: give the dtype of {name}: dtype={{"{name}": DTYPE}}, or --dtype {name}=DTYPE'
            raise ArgumentValueError(text)
        shape = [size.of(request.dims[size.name] if size.name is not None else 0) for size in sizes]
        shape = [*(leading or ()), *shape] if tensor.leading is not None else shape
        dtype: torch.dtype = getattr(torch, request.dtypes[name])
        # not every narrow dtype can be filled on every device; bytes can
        narrow = dtype.itemsize == 1 and dtype.is_floating_point
        zeros = torch.zeros(shape, dtype=torch.uint8 if narrow else dtype, device=device)
        zeros = zeros.view(dtype) if narrow else zeros
        tensors[name] = zeros.requires_grad_() if training and dtype.is_floating_point and not narrow else zeros
    return tensors
