"""How a case's tensors lie in memory, and what was done to the memory around them.

Each tensor lies in a storage that is larger than it, filled with NaN around and between its elements: what is read
there by mistake spoils the result, and what is written there is seen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import get_args

import torch
from torch import Tensor

from portakernel.calling.arguments import dtype_name
from portakernel.contract import TensorArgument
from portakernel.contract.case import Layout

# Elements before and after each tensor; a multiple of any alignment that a kernel may ask for.
_GUARD = 64
# Elements between the rows of a sliced tensor, and before the first of them: a multiple of what vectors hold or, where
# the number of rows is odd, such that the first row alone begins at one.
_GAPS = (16, 8), (5, 0)

_RANK_NEEDED: Mapping[Layout, int] = {"sliced": 1, "transposed": 2, "expanded": 1, "stepped": 1, "split": 3}
# What is NaN where all bits but the sign are not; 4-bit floats have none.
_NAN_BYTES = {"float8_e4m3fnuz": 0x80, "float8_e5m2fnuz": 0x80, "float8_e8m0fnu": 0xFF}


def layouts_of(argument: TensorArgument, rank: int) -> tuple[Layout, ...]:
    """How an argument of so many dimensions can lie, other than contiguous.

    What is written, and where, has no element that is several at once; lists differ as do those that they go with.
    """
    others: tuple[Layout, ...] = get_args(Layout)
    single = (
        argument.mutated
        or argument.draw.kind in ("slots", "blocks", "groups")
        or bool(argument.draw.beside or argument.draw.turned)
    )
    excluded = ("contiguous", "expanded") if single else ("contiguous",)
    return tuple(layout for layout in others if layout not in excluded and rank >= _RANK_NEEDED.get(layout, 0))


def place_tensor(
    values: Tensor, shape: Sequence[int], layout: Layout, dtype: str, device: torch.device | str
) -> Tensor:
    """``values`` in ``dtype`` on ``device``, lying in memory as ``layout`` says, with NaN all around.

    Raises:
        ValueError: a tensor of this rank cannot lie like that.
    """
    shape = tuple(shape)
    if len(shape) < _RANK_NEEDED.get(layout, 0):
        needed = _RANK_NEEDED[layout]
        raise ValueError(f"layout {layout!r} needs a tensor of at least {needed} dimensions; this has shape {shape}")
    strides, offset = _strides(shape, layout)
    span = sum((max(size, 1) - 1) * stride for size, stride in zip(shape, strides, strict=True)) + 1
    torch_dtype: torch.dtype = getattr(torch, dtype)
    storage = _poisoned(_GUARD + offset + span + max(_GAPS)[0] + _GUARD, torch_dtype, device)
    tensor = storage.as_strided(shape, strides, _GUARD + offset)
    if tensor.numel():
        # written through the elements that differ: an expanded tensor's share memory
        stored = tuple(1 if stride == 0 else size for size, stride in zip(shape, strides, strict=True))
        # as bytes where there are no others: not every operator knows the 8-bit floats
        written = storage.view(torch.uint8) if _is_byte_float(torch_dtype) else storage
        values = values if values.dtype is torch.uint8 else values.to(torch_dtype)
        values = values.view(torch.uint8) if _is_byte_float(values.dtype) else values
        written.as_strided(stored, strides, _GUARD + offset).copy_(values)
    return tensor


def _is_byte_float(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point and dtype.itemsize == 1


def _poisoned(elements: int, dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """Memory full of NaN; of zeros for integers, which may be used as indices."""
    if _is_byte_float(dtype):
        byte = _NAN_BYTES.get(dtype_name(dtype), 0x7F)
        return torch.full((elements,), byte, dtype=torch.uint8, device=device).view(dtype)
    return torch.full((elements,), math.nan if dtype.is_floating_point else 0, dtype=dtype, device=device)


def _strides(shape: tuple[int, ...], layout: Layout) -> tuple[tuple[int, ...], int]:
    """Strides and the first element's place."""
    match layout:
        case "contiguous":
            return _row_major(shape), 0
        case "offset":
            return _row_major(shape), 1
        case "sliced":
            gap, before = _GAPS[math.prod(shape[:-1]) % 2]
            return _row_major((*shape[:-1], shape[-1] + gap)), before
        case "stepped":
            strides = _row_major((*shape[:-1], 2 * shape[-1]))
            return (*strides[:-1], 2), 0
        case "split":
            return _row_major((*shape[:-2], shape[-2] + 1, shape[-1])), 0
        case "transposed":
            strides = _row_major((*shape[:-2], shape[-1], shape[-2]))
            return (*strides[:-2], strides[-1], strides[-2]), 0
        case "expanded":
            return (0, *_row_major(shape[1:])), 0


def _row_major(shape: Sequence[int]) -> tuple[int, ...]:
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def footprint(tensor: Tensor) -> Tensor:
    """A copy of the bytes of the tensor's whole storage."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage()).clone()


def twin(tensor: Tensor) -> Tensor:
    """A tensor that lies in a copy of the storage as ``tensor`` lies in the storage."""
    storage = footprint(tensor).view(tensor.dtype)
    return storage.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def changed_around(tensor: Tensor, before: Tensor) -> bool:
    """Whether the storage holds anything new beside the elements of ``tensor`` itself."""
    expected = before.clone()
    if tensor.numel():
        same = torch.uint8 if _is_byte_float(tensor.dtype) else tensor.dtype
        typed = expected.view(same)
        # elements of an expanded tensor share memory
        sizes = [1 if stride == 0 else size for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
        place = sizes, tensor.stride(), tensor.storage_offset()
        typed.as_strided(*place).copy_(tensor.view(same).as_strided(*place))
    return not torch.equal(expected, footprint(tensor))


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are equal bit by bit: NaN equals NaN, and zeros of different sign differ.

    Which sign and payload a NaN has, LLVM promises nobody.
    """
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    # a copy even of what counts as contiguous: a dimension of one element may have any stride, which no view takes
    first, second = (x.clone(memory_format=torch.contiguous_format).reshape(-1) for x in (a, b))
    if a.dtype.is_floating_point and a.dtype.itemsize > 1:  # not every operator knows those of a byte and less
        first, second = (torch.where(x.isnan(), math.nan, x) for x in (first, second))
    return torch.equal(first.view(torch.uint8), second.view(torch.uint8))


def shares_memory(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors lie in one storage."""
    first = a.untyped_storage().data_ptr()
    return first != 0 and first == b.untyped_storage().data_ptr()
