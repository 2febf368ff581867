"""Autocast of an op's arguments, as its contract says."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from portakernel.calling.arguments import Tensors
from portakernel.contract import Contract

# float64 stays what it is, as in torch
_CAST_BY_AUTOCAST = (torch.float32, torch.float16, torch.bfloat16)


def autocast(contract: Contract, tensors: Tensors) -> tuple[Tensor | None, ...]:
    """Under autocast: arguments of different float dtypes, cast to the widest of them, or all to autocast's dtype."""
    if contract.autocast == "promote":
        given = [tensor for tensor in tensors if tensor is not None]
        if not all(tensor.is_floating_point() for tensor in given):
            return tuple(tensors)
        dtype = functools.reduce(torch.promote_types, (tensor.dtype for tensor in given))
        return tuple(None if tensor is None else tensor.to(dtype) for tensor in tensors)
    first = contract.tensors[0]
    dtype = torch.get_autocast_dtype(next(tensor.device.type for tensor in tensors if tensor is not None))
    alike = [argument is first or argument.dtypes == (first.name,) for argument in contract.tensors]
    return tuple(
        tensor.to(dtype) if tensor is not None and cast and tensor.dtype in _CAST_BY_AUTOCAST else tensor
        for tensor, cast in zip(tensors, alike, strict=True)
    )
