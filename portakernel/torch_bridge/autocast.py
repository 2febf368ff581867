"""Autocast of an op's arguments, as its contract says."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from portakernel.calling.arguments import Tensors
from portakernel.contract import Contract

# float64 stays what it is, as in torch
_CAST_BY_AUTOCAST = (torch.float32, torch.float16, torch.bfloat16)


def autocast(contract: Contract, tensors: Tensors, values: Sequence[Any]) -> tuple[Tensor | None, ...]:
    """Under autocast: arguments of different float dtypes, cast to the widest of them, or all to autocast's dtype.

    ``values`` are those of all parameters, which may decide about the dtypes that arguments share.
    """
    if contract.autocast == "promote":
        given = [tensor for tensor in tensors if tensor is not None]
        if not all(tensor.is_floating_point() for tensor in given):
            return tuple(tensors)
        dtype = functools.reduce(torch.promote_types, (tensor.dtype for tensor in given))
        return tuple(None if tensor is None else tensor.to(dtype) for tensor in tensors)
    first = contract.tensors[0]
    dtype = torch.get_autocast_dtype(next(tensor.device.type for tensor in tensors if tensor is not None))
    made = contract.at(dict(zip((parameter.name for parameter in contract.parameters), values, strict=True)))
    alike = [argument.name == first.name or argument.dtypes == (first.name,) for argument in made.tensors]
    return tuple(
        tensor.to(dtype) if tensor is not None and cast and tensor.dtype in _CAST_BY_AUTOCAST else tensor
        for tensor, cast in zip(tensors, alike, strict=True)
    )


def outside_autocast(arguments: Sequence[Any]) -> AbstractContextManager[Any]:
    """Autocast has had its turn with the op itself; of what it is made of nothing is cast."""
    device = next(argument.device.type for argument in arguments if isinstance(argument, Tensor))
    # of some devices (meta) it knows nothing
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return nullcontext()
    return torch.autocast(device, enabled=False)
