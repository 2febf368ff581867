"""``grouped_mm`` and its gradient: a linear layer for one expert's rows after the other.

With ``g`` the gradient of an expert's rows of y, the gradients are ``g @ b[e]`` for its rows of a, ``g.T @ a`` for its
matrix and the sum of g's rows for its bias: zeros for an expert without rows. Reading offsets waits for the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor

from portakernel.errors import ArgumentValueError, DerivativeError
from portakernel.references import scaled_mm
from portakernel.tensors.index_values import check_indices, sequence_ends

Format = Literal["none", "row", "block"]
# How a and b are quantised.
_FORMATS = {
    "row": {"format_a": "row", "format_b": "row"},
    "block": {"format_a": "block_1x128", "format_b": "block_128x128"},
}


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype is torch.float64 else tensor.float()


def check_scales(format: Format, scale_a: Tensor | None, scale_b: Tensor | None) -> None:
    """Nothing, when there are scales where the format has them.

    Raises:
        ArgumentValueError: one is missing, or there is one too many.
    """
    for name, scale in (("scale_a", scale_a), ("scale_b", scale_b)):
        if (scale is None) != (format == "none"):
            needed = "it must be given" if scale is None else "it must be left out"
            found = "None" if scale is None else "a tensor"
            raise ArgumentValueError(f"grouped_mm: {name} is {found} with format={format!r}; {needed}")


def _pieces(offsets: Tensor, a: Tensor, gather: Tensor | None) -> Iterator[tuple[int, slice]]:
    """Each expert that has rows, and which."""
    rows, size = (a.shape[0], "M") if gather is None else (gather.shape[0], "R")
    ends = sequence_ends("grouped_mm", "offsets", offsets, rows, size)
    return ((e, slice(*piece)) for e, piece in enumerate(pairwise(ends)) if piece[0] < piece[1])


def _gathered(x: Tensor, gather: Tensor | None) -> Tensor:
    """The rows of ``x`` that ``gather`` names; all where there is none."""
    if gather is None:
        return x
    if x.dtype.itemsize == 1:  # which no operator gathers
        return x.view(torch.uint8)[gather.long()].view(x.dtype)
    return x.index_select(0, gather.long())


def forward(
    a: Tensor,
    b: Tensor,
    offsets: Tensor,
    *,
    bias: Tensor | None = None,
    scale_a: Tensor | None = None,
    scale_b: Tensor | None = None,
    gather: Tensor | None = None,
    format: Format = "none",
    out: Tensor | None = None,
) -> Tensor:
    """``y: (M, N)``, rounded once; rows of no expert are zeros, and left as they are in ``out``.

    Raises:
        ArgumentValueError: scales are not given as ``format`` says, or offsets fall or end beyond the rows.
        IndexOutOfRangeError: gather names a row that there is not (on the CPU).
    """
    check_scales(format, scale_a, scale_b)
    if gather is not None and gather.device.type == "cpu":
        check_indices("grouped_mm", "gather", gather, a.shape[0], "M")
    pieces = _pieces(offsets, a, gather)
    a, scale_a = _gathered(a, gather), None if scale_a is None else _gathered(scale_a, gather)
    dtype = a.dtype if format == "none" else torch.bfloat16
    y = a.new_zeros((a.shape[0], b.shape[1]), dtype=dtype) if out is None else out
    for e, rows in pieces:
        of_bias = None if bias is None else bias[e]
        if scale_a is not None and scale_b is not None:
            more: Any = {"bias": of_bias, "out_dtype": "bfloat16", **_FORMATS[format]}
            y[rows] = scaled_mm.forward(a[rows], b[e], scale_a[rows], scale_b[e], **more)
            continue
        product = _wide(a[rows]) @ _wide(b[e]).T
        y[rows] = (product if of_bias is None else product + of_bias.to(product.dtype)).to(dtype)
    return y


def backward(
    grad_y: Tensor,
    a: Tensor,
    b: Tensor,
    offsets: Tensor,
    bias: Tensor | None,
    gather: Tensor | None,
    *,
    format: Format = "none",
    needs: tuple[bool, ...] = (True, True, False, True, False, False, False),
) -> tuple[Tensor | None, ...]:
    """Gradients for ``a``, ``b`` and ``bias`` from that of ``y``, summed in float32 and rounded once.

    Raises:
        DerivativeError: those of float8 a or b are asked for.
    """
    if format != "none" and (needs[0] or needs[1]):
        raise DerivativeError(f"grouped_mm: format is {format!r}; gradients of a and b are those of format='none'")
    pieces, shape = _pieces(offsets, a, gather), a.shape
    a = _gathered(a, gather)
    grad_a = _wide(a[:0]).new_zeros(a.shape) if needs[0] else None
    grad_b = b.new_zeros(b.shape) if needs[1] else None
    grad_bias = bias.new_zeros(bias.shape) if needs[3] and bias is not None else None
    for e, rows in pieces:
        g = _wide(grad_y[rows])
        if grad_a is not None:
            grad_a[rows] = g @ _wide(b[e])
        if grad_b is not None:
            grad_b[e] = (g.T @ _wide(a[rows])).to(b.dtype)
        if grad_bias is not None:
            grad_bias[e] = g.sum(0).to(grad_bias.dtype)
    if grad_a is not None:
        if gather is not None:
            grad_a = grad_a.new_zeros(shape).index_add(0, gather.long(), grad_a)
        grad_a = grad_a.to(a.dtype)
    return grad_a, grad_b, None, grad_bias, None, None, None


def plain(
    a: Tensor,
    b: Tensor,
    offsets: Tensor,
    *,
    bias: Tensor | None = None,
    scale_a: Tensor | None = None,
    scale_b: Tensor | None = None,
    gather: Tensor | None = None,
    format: Format = "none",
) -> Tensor:
    """A linear layer for each expert in the inputs' own dtype; of float8 as far off as ``scaled_mm``'s."""
    pieces = _pieces(offsets, a, gather)
    a, scale_a = _gathered(a, gather), None if scale_a is None else _gathered(scale_a, gather)
    parts, last = list[Tensor](), 0
    for e, rows in pieces:
        of_bias = None if bias is None else bias[e]
        if scale_a is not None and scale_b is not None:
            more: Any = {"bias": of_bias, "out_dtype": "bfloat16", **_FORMATS[format]}
            parts.append(scaled_mm.plain(a[rows], b[e], scale_a[rows], scale_b[e], **more))
        else:
            product = torch.nn.functional.linear(a[rows].contiguous(), b[e])
            parts.append(product if of_bias is None else (product + of_bias).to(a.dtype))
        last = rows.stop
    dtype = a.dtype if format == "none" else torch.bfloat16
    nothing = a.new_zeros((a.shape[0] - last, b.shape[1]), dtype=dtype)
    if format == "none":  # what no expert has has gradients too
        nothing = nothing + 0 * (a[:0].sum() + b[:0].sum() + (0 if bias is None else bias[:0].sum()))
    return torch.cat([*parts, nothing])


def truth(
    a: Tensor,
    b: Tensor,
    offsets: Tensor,
    *,
    bias: Tensor | None = None,
    scale_a: Tensor | None = None,
    scale_b: Tensor | None = None,
    gather: Tensor | None = None,
    format: Format = "none",
) -> tuple[Tensor]:
    """``y`` in float64."""
    check_scales(format, scale_a, scale_b)
    pieces = _pieces(offsets, a, gather)
    a, scale_a = _gathered(a, gather), None if scale_a is None else _gathered(scale_a, gather)
    y = torch.zeros((a.shape[0], b.shape[1]), dtype=torch.float64, device=a.device)
    for e, rows in pieces:
        of_bias = None if bias is None else bias[e].double()
        if scale_a is not None and scale_b is not None:
            more: Any = {"bias": of_bias, **_FORMATS[format]}
            (y[rows],) = scaled_mm.truth(a[rows], b[e], scale_a[rows], scale_b[e], **more)
            continue
        product = a[rows].double() @ b[e].double().T
        y[rows] = product if of_bias is None else product + of_bias
    return (y,)


def unspecified(a: Tensor, b: Tensor, offsets: Tensor, *, gather: Tensor | None = None, **_: Any) -> dict[str, Tensor]:
    """The rows that no expert has."""
    count = a.shape[0] if gather is None else gather.shape[0]
    rows = torch.arange(count, device=a.device).unsqueeze(1)
    return {"y": (rows >= offsets[-1]).expand(count, b.shape[1])}
