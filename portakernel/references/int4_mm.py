"""``int4_mm`` and its gradient as formulas: the weight is dequantised as a whole, then multiplied."""

from __future__ import annotations

import torch
from torch import Tensor

from portakernel.references.int4_weights import MIDDLE, Columns, nibbles, scales_of, stored_zeros


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype is torch.float64 else tensor.float()


def dequantised(
    weight: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    order: Tensor | None,
    *,
    columns: int,
    layout: str,
    group: int,
    zero: str,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor | None]:
    """``(q - z) * scales``: ``(columns, N)`` in ``dtype``, in memory's order of columns; and which of x's each is.

    Raises:
        ArgumentValueError: there are columns, and no groups.
    """
    of_groups = scales_of(scales, layout)
    found = Columns.of(order, layout, group, columns, of_groups)
    q = nibbles(weight, layout, columns).to(dtype)
    if zeros is None or zero == "none":
        shifted = q - MIDDLE
    else:
        stored = stored_zeros(zeros, layout).to(dtype) + (1 if zero == "stored_plus_one" else 0)
        shifted = q - stored.index_select(0, found.groups)
    return shifted * of_groups.to(dtype).index_select(0, found.groups), found.places


def forward(
    x: Tensor,
    weight: Tensor,
    scales: Tensor,
    zeros: Tensor | None = None,
    order: Tensor | None = None,
    *,
    bias: Tensor | None = None,
    layout: str = "gptq",
    group: int = 128,
    zero: str = "stored",
    out: Tensor | None = None,
) -> Tensor:
    """``y: (*M, N)``, from float32 and rounded once; ``x: (*M, K)``, ``bias: (N,)``, the others as ``layout`` says.

    Raises:
        ArgumentValueError: there are columns, and no groups.
    """
    y = _product(_wide(x), weight, scales, zeros, order, bias, layout, group, zero).to(x.dtype)
    return y.contiguous() if out is None else out.copy_(y)


def truth(
    x: Tensor,
    weight: Tensor,
    scales: Tensor,
    zeros: Tensor | None = None,
    order: Tensor | None = None,
    *,
    bias: Tensor | None = None,
    layout: str = "gptq",
    group: int = 128,
    zero: str = "stored",
) -> tuple[Tensor]:
    """``y`` in float64."""
    return (_product(x.double(), weight, scales, zeros, order, bias, layout, group, zero),)


def _product(
    x: Tensor,
    weight: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    order: Tensor | None,
    bias: Tensor | None,
    layout: str,
    group: int,
    zero: str,
) -> Tensor:
    w, places = dequantised(
        weight, scales, zeros, order, columns=x.shape[-1], layout=layout, group=group, zero=zero, dtype=x.dtype
    )
    y = (x if places is None else x.index_select(-1, places)) @ w
    return y if bias is None else y + bias.to(y.dtype)


def backward(
    grad_y: Tensor,
    x: Tensor,
    weight: Tensor,
    scales: Tensor,
    zeros: Tensor | None = None,
    order: Tensor | None = None,
    *,
    layout: str = "gptq",
    group: int = 128,
    zero: str = "stored",
    needs: tuple[bool, ...] = (True, False, False, False, False, False),
) -> tuple[Tensor | None, ...]:
    """The gradient for ``x``: ``grad_y @ w``, in float32 and rounded once; the others have none."""
    if not needs[0]:
        return (None,) * 6
    d = _wide(grad_y)
    w, places = dequantised(
        weight, scales, zeros, order, columns=x.shape[-1], layout=layout, group=group, zero=zero, dtype=d.dtype
    )
    grad = d @ w.t()
    if places is not None:
        grad = torch.zeros_like(grad).index_add_(-1, places, grad)
    return (grad.to(x.dtype).contiguous(), None, None, None, None, None)


def plain(
    x: Tensor,
    weight: Tensor,
    scales: Tensor,
    zeros: Tensor | None = None,
    order: Tensor | None = None,
    *,
    bias: Tensor | None = None,
    layout: str = "gptq",
    group: int = 128,
    zero: str = "stored",
) -> tuple[Tensor]:
    """The weight rounded to x's dtype, then a linear layer in that; x alone has a gradient."""
    w, places = dequantised(
        weight, scales.detach(), zeros, order, columns=x.shape[-1], layout=layout, group=group, zero=zero
    )
    bias = None if bias is None else bias.detach()
    taken = x if places is None else x.index_select(-1, places)
    return (torch.nn.functional.linear(taken.contiguous(), w.t().to(x.dtype).contiguous(), bias),)
