"""What the calls of a layer have in common, and inputs that are drawn for a kind of them.

A kind is plain texts and numbers, which a trace takes for constants: of each floating-point tensor its dtype, device,
rank and last size, of each other tensor all but the size, and whatever is no tensor. The rest, such as the length of a
sequence, makes no new kind.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from portakernel.tensors.torch_internals import is_dense

Kind = tuple[Any, ...]

# So many rows of a call are tried, and drawn: enough for each magnitude to come a few times.
ROWS = 24
# Of drawn rows, in turn: what normalisation leaves of them depends on its epsilon.
MAGNITUDES = (1.0, 1e-3, 8.0)
# Squares of larger numbers are beyond float32 when they are summed, in the client's own code too.
_LARGEST = 2.0**55
# The dimensions between the first and the last.
_BETWEEN = 2
_TENSOR = "tensor"


def kind_of(argument: Any) -> Any:
    """What calls of one kind share of an argument."""
    if not isinstance(argument, Tensor):
        return argument
    last = int(argument.shape[-1]) if argument.is_floating_point() and argument.dim() > 1 else 0
    return (_TENSOR, str(argument.dtype), str(argument.device), argument.dim(), last)


def is_telling(argument: Any) -> bool:
    """Whether a trial of an argument's own numbers can tell anything: there are some, none too large to be squared."""
    if not isinstance(argument, Tensor) or not argument.is_floating_point():
        return True
    magnitudes = argument.detach().float().abs()
    return bool(magnitudes.numel()) and not bool((magnitudes.isfinite() & (magnitudes > _LARGEST)).any())


def is_tensor_kind(kind: Any) -> bool:
    """Whether a tensor has this kind."""
    return isinstance(kind, tuple) and kind[:1] == (_TENSOR,)


def drawn(kind: Kind, seed: int) -> Tensor:
    """A tensor of a kind: normal numbers, rows of several magnitudes in turn; whole numbers are below ``ROWS``."""
    _, dtype_name, device, rank, last = kind
    dtype: torch.dtype = getattr(torch, dtype_name.removeprefix("torch."))
    sizes = (ROWS, *(_BETWEEN,) * (rank - 1))[:rank]
    generator = torch.Generator().manual_seed(seed)
    if not dtype.is_floating_point:
        return torch.randint(0, ROWS, sizes, generator=generator).to(dtype).to(device)
    if last:
        sizes = (*sizes[:-1], last)
    numbers = torch.randn(sizes, generator=generator)
    if rank:
        scales = torch.tensor(MAGNITUDES).repeat(ROWS // len(MAGNITUDES))
        numbers *= scales.view(-1, *(1 for _ in sizes[1:]))
    return numbers.to(dtype).to(device)


def copied(arguments: tuple[Any, ...], *, exactly: bool = False) -> tuple[Any, ...]:
    """Arguments whose tensors are of their own; floating-point ones in float64 where ``exactly``."""
    return tuple(_copy(each, exactly=exactly) if isinstance(each, Tensor) else each for each in arguments)


def _copy(tensor: Tensor, *, exactly: bool) -> Tensor:
    if exactly and tensor.is_floating_point():
        return tensor.detach().to(torch.float64, copy=True)
    return tensor.detach().clone()


def holds_numbers(argument: Any) -> bool:
    """Whether an argument can be copied and compared: no tensor, or one with memory of its own."""
    if not isinstance(argument, Tensor):
        return True
    return type(argument) in (Tensor, Parameter) and argument.device.type != "meta" and is_dense(argument)
