"""``silu_and_mul`` and ``gelu_and_mul`` on CPUs: PyTorch's activation and a product, in float32 until the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from portakernel_plugins.torch.row_blocks import BLOCK_ELEMENTS, row_blocks

_aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class _Gate:
    """An activation: ``value(gate, out=)``, and ``slope(grad, gate, grad_input=)``, the gradient times its slope."""

    value: Callable[..., Any]
    slope: Callable[..., Any]


_SILU = _Gate(_aten.silu.out, _aten.silu_backward.grad_input)
_GELU: Mapping[str, _Gate] = MappingProxyType(
    {
        form: _Gate(
            partial(_aten.gelu.out, approximate=form), partial(_aten.gelu_backward.grad_input, approximate=form)
        )
        for form in ("none", "tanh")
    }
)


def silu_and_mul(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``silu(x[..., :N]) * x[..., N:]``, rounded once; x: (..., 2N)."""
    return _forward(_SILU, x, out)


def silu_backward(grad_y: Tensor, x: Tensor, *, needs: tuple[bool]) -> tuple[Tensor | None]:
    """The gradient for ``x`` (..., 2N) from that of ``y`` (..., N)."""
    return (_backward(_SILU, grad_y, x) if needs[0] else None,)


def gelu_and_mul(x: Tensor, *, approximate: str, out: Tensor | None = None) -> Tensor:
    """``gelu(x[..., :N]) * x[..., N:]``, rounded once; x: (..., 2N)."""
    return _forward(_GELU[approximate], x, out)


def gelu_backward(grad_y: Tensor, x: Tensor, *, approximate: str, needs: tuple[bool]) -> tuple[Tensor | None]:
    """The gradient for ``x`` (..., 2N) from that of ``y`` (..., N)."""
    return (_backward(_GELU[approximate], grad_y, x) if needs[0] else None,)


def _forward(gate: _Gate, x: Tensor, out: Tensor | None) -> Tensor:
    y = x.new_empty((*x.shape[:-1], x.shape[-1] // 2)) if out is None else out
    if y.numel() <= BLOCK_ELEMENTS:
        _value(gate, x, y)
    else:
        for rows in row_blocks(x.shape[:-1], y.shape[-1]):
            _value(gate, x[rows], y[rows])
    return y


def _value(gate: _Gate, x: Tensor, y: Tensor) -> None:
    before, up = x.chunk(2, -1)
    # with steps between the elements of `out`, PyTorch's gelu leaves some of them as they are (2.13)
    if y.dtype is torch.float32 and y.stride(-1) == 1:
        gate.value(before, out=y)
        y.mul_(up)
    else:
        wide = before.to(torch.float32, copy=True)
        gate.value(wide, out=wide)
        y.copy_(wide.mul_(up))


def _backward(gate: _Gate, grad_y: Tensor, x: Tensor) -> Tensor:
    grad_x = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if grad_y.numel() <= BLOCK_ELEMENTS:
        _slopes(gate, grad_y, x, grad_x)
    else:
        for rows in row_blocks(x.shape[:-1], grad_y.shape[-1]):
            _slopes(gate, grad_y[rows], x[rows], grad_x[rows])
    return grad_x


def _slopes(gate: _Gate, grad: Tensor, x: Tensor, grad_x: Tensor) -> None:
    """``grad * up * gate'(before)`` and ``grad * gate(before)``, side by side."""
    (before, up), (grad_before, grad_up) = x.chunk(2, -1), grad_x.chunk(2, -1)
    if x.dtype is torch.float32:
        torch.mul(grad, up, out=grad_before)
        gate.slope(grad_before, before, grad_input=grad_before)
        gate.value(before, out=grad_up)
        grad_up.mul_(grad)
    else:
        grad, before = grad.float(), before.float()
        through = grad * up
        grad_before.copy_(gate.slope(through, before, grad_input=through))
        gate.value(before, out=before)
        grad_up.copy_(before.mul_(grad))
