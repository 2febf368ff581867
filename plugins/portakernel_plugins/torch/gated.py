"""``silu_and_mul`` and ``gelu_and_mul`` on CPUs: PyTorch's activation and a product, in float32 until the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor

from portakernel_plugins.torch.norms.row_blocks import BLOCK_ELEMENTS, row_blocks

_aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class _Gate:
    """An activation: ``value(gate)``, and ``slope(grad, gate, grad_input=)``, the gradient times its slope."""

    value: Callable[..., Tensor]
    slope: Callable[..., object]


# Where a gate has no gaps, as that of a single row, PyTorch takes oneDNN's gelu, less exact than its own (2.13).
# Twice over it has some: a single row is computed as many are.


def _gelu(gate: Tensor) -> Tensor:
    if gate.is_contiguous():
        return torch.nn.functional.gelu(gate.expand(2, *gate.shape))[0]
    return torch.nn.functional.gelu(gate)


def _gelu_slope(grad: Tensor, gate: Tensor, *, grad_input: Tensor) -> None:
    if gate.is_contiguous():
        twice = (2, *gate.shape)
        grad_input.copy_(_aten.gelu_backward.default(grad.expand(twice), gate.expand(twice))[0])
    else:
        _aten.gelu_backward.grad_input(grad, gate, grad_input=grad_input)


_SILU = _Gate(torch.nn.functional.silu, _aten.silu_backward.grad_input)
_GELU: Mapping[str, _Gate] = MappingProxyType(
    {
        "none": _Gate(_gelu, _gelu_slope),
        "tanh": _Gate(
            partial(torch.nn.functional.gelu, approximate="tanh"),
            partial(_aten.gelu_backward.grad_input, approximate="tanh"),
        ),
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
    width = x.shape[-1] // 2
    if x.numel() <= 2 * BLOCK_ELEMENTS:
        product = _product(gate, x)
        return product.to(x.dtype) if out is None else out.copy_(product)
    y = x.new_empty((*x.shape[:-1], width)) if out is None else out
    for rows in row_blocks(x.shape[:-1], width):
        y[rows].copy_(_product(gate, x[rows]))
    return y


def _product(gate: _Gate, x: Tensor) -> Tensor:
    """In float32, contiguous, in memory of its own."""
    before, up = _halves(x)
    return gate.value(before).mul_(up)


def _backward(gate: _Gate, grad_y: Tensor, x: Tensor) -> Tensor:
    grad_x = x.new_empty(x.shape)
    if grad_y.numel() <= BLOCK_ELEMENTS:
        _slopes(gate, grad_y, x, grad_x)
    else:
        for rows in row_blocks(x.shape[:-1], grad_y.shape[-1]):
            _slopes(gate, grad_y[rows], x[rows], grad_x[rows])
    return grad_x


def _slopes(gate: _Gate, grad: Tensor, x: Tensor, grad_x: Tensor) -> None:
    """``grad * up * gate'(before)`` and ``grad * gate(before)``, side by side."""
    (before, up), (grad_before, grad_up), grad = _halves(x), grad_x.chunk(2, -1), grad.float()
    torch.mul(gate.value(before), grad, out=grad_up)
    gate.slope(grad * up, before, grad_input=grad_before)


def _halves(x: Tensor) -> tuple[Tensor, ...]:
    """In float32, row behind row: a thread then gives a row the same bits whatever its strides and neighbours were."""
    return x.contiguous().float().chunk(2, -1)
