"""``int4_mm`` as an ordinary linear layer of a weight that is decoded before, by PyTorch's own operators.

The decoded weight takes memory, N * K numbers of x's dtype, and twice as many of float32 on the way: for devices that
no kernel decodes for in registers.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from torch import Tensor

from portakernel.authoring import reference_module
from portakernel_plugins.torch.matrix.long_sums import product

_formula: Any = import_module(reference_module("int4_mm"))


def int4_mm(
    x: Tensor,
    weight: Tensor,
    scales: Tensor,
    zeros: Tensor | None = None,
    order: Tensor | None = None,
    *,
    bias: Tensor | None = None,
    layout: str,
    group: int,
    zero: str,
    out: Tensor | None = None,
) -> Tensor:
    """The contract's formula, of a weight rounded to x's dtype; x: (..., K)."""
    w, places = _decoded(x, weight, scales, zeros, order, layout, group, zero)
    taken = x if places is None else x.index_select(-1, places)
    leading, (N, K) = x.shape[:-1], w.shape
    rows = taken.reshape(leading.numel(), K)
    y = product(rows, w, bias).view(*leading, N)
    return y if out is None else out.copy_(y)


def backward(
    grad_y: Tensor,
    x: Tensor,
    weight: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    order: Tensor | None,
    *,
    layout: str,
    group: int,
    zero: str,
    needs: tuple[bool, ...],
) -> tuple[Tensor | None, ...]:
    """The gradient for ``x``, of a weight rounded to its dtype; the others have none."""
    if not needs[0]:
        return (None,) * 6
    w, places = _decoded(x, weight, scales, zeros, order, layout, group, zero)
    leading, (N, K) = x.shape[:-1], w.shape
    grad = product(grad_y.reshape(leading.numel(), N), w.t()).view(*leading, K)
    if places is not None:
        grad = grad.new_empty(grad.shape).index_copy_(-1, places, grad)
    return (grad, None, None, None, None, None)


def _decoded(
    x: Tensor,
    weight: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    order: Tensor | None,
    layout: str,
    group: int,
    zero: str,
) -> tuple[Tensor, Tensor | None]:
    """The weight ``(N, K)`` in x's dtype, and which of x's each of its columns is."""
    w, places = _formula.dequantised(
        weight, scales, zeros, order, columns=x.shape[-1], layout=layout, group=group, zero=zero
    )
    return w.t().to(x.dtype), places
