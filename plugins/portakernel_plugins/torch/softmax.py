"""``softmax`` by PyTorch's own kernels, which accumulate in float32."""

from __future__ import annotations

import torch
from torch import Tensor

from portakernel_plugins.torch.operators import operator

_forward = operator("_softmax")
_forward_into = torch.ops.aten._softmax.out
_backward = operator("_softmax_backward_data")


def softmax(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``softmax(x, -1)``, rounded once; x: (..., N)."""
    if out is not None and out.is_contiguous():
        _forward_into(x, -1, False, out=out)
        return out
    y: Tensor = _forward(x, -1, False)
    # not every device's kernel writes where strides say
    return y.contiguous() if out is None else out.copy_(y)


def recorded(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """The same as an operator whose gradient PyTorch records itself, without a step in Python."""
    y = torch.softmax(x, -1)
    return y.contiguous() if out is None else out.copy_(y)


def backward(grad_y: Tensor, y: Tensor, *, needs: tuple[bool]) -> tuple[Tensor | None]:
    """The gradient for ``x`` (..., N) from that of ``y`` and from ``y`` itself.

    GPUs' operator rounds ``grad_y * y`` to their dtype before it sums: that has to be float32.
    """
    if not needs[0]:
        return (None,)
    return (_backward(grad_y.float(), y.float(), -1, torch.float32).to(y.dtype).contiguous(),)


def backward_cpu(grad_y: Tensor, y: Tensor, *, needs: tuple[bool]) -> tuple[Tensor | None]:
    """The same on CPUs, whose operator computes in float32 throughout."""
    return (_backward(grad_y, y, -1, y.dtype).contiguous() if needs[0] else None,)
