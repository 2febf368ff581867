"""``grouped_mm`` by PyTorch's grouped products: CUTLASS on Hopper and Blackwell, on CPUs a loop over the pieces.

Their matrices are (E, K, N), of which ``b`` transposed is a view, and their offsets leave the 0 out.
"""

from __future__ import annotations

import torch
from torch import Tensor

from portakernel.authoring.tensors import check_indices, sequence_ends
from portakernel_plugins.torch.attention.layout import aligned
from portakernel_plugins.torch.matrix.scale_layout import row_major
from portakernel_plugins.torch.operators import operator

_product, _scaled_product = operator("_grouped_mm"), operator("_scaled_grouped_mm")


def grouped_mm(
    a: Tensor, b: Tensor, offsets: Tensor, *, gather: Tensor | None = None, out: Tensor | None = None
) -> Tensor:
    """``a[offsets[e]:offsets[e + 1]] @ b[e].T`` for each expert; a: (M, K), b: (E, N, K), offsets: (E+1,).

    With ``gather``, (R,), rows of ``a`` are copied before.
    """
    _check_on_host(offsets, gather, len(a))
    rows = _picked(a, gather)
    y = product(rows, b, ends_of(offsets)) if len(rows) else a.new_empty((0, b.shape[1]))
    return y if out is None else out.copy_(y)


def backward(
    grad_y: Tensor, a: Tensor, b: Tensor, offsets: Tensor, gather: Tensor | None = None, *, needs: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """Gradients for ``a`` and ``b``; zeros for rows of no expert, and for experts without rows."""
    ends, rows = ends_of(offsets), _picked(a, gather)
    dtype, matrices = a.dtype, b
    if dtype is torch.bfloat16 and a.device.type == "cpu":  # sums over rows would reach into the next expert's
        grad_y, rows, matrices = grad_y.float(), rows.float(), b.float()
    grad_y = row_major(grad_y)
    grad_a = grad_b = None
    if needs[0]:
        # the operator leaves rows of no expert as memory had them
        behind = torch.arange(len(rows), device=a.device) >= ends[-1]
        found = _product(grad_y, aligned(matrices), offs=ends) if len(rows) else torch.empty_like(rows)
        found = found.masked_fill_(behind.unsqueeze(1), 0)
        grad_a = (found if gather is None else _added_up(found, gather, len(a))).to(dtype)
    if needs[1]:
        # nor does it promise anything of a sum of nothing
        empty = (ends.diff(prepend=ends.new_zeros(1)) == 0).view(-1, 1, 1)
        found = _product(grad_y.t(), row_major(rows), offs=ends) if len(rows) else torch.zeros_like(matrices)
        grad_b = found.masked_fill_(empty, 0).to(dtype)
    return grad_a, grad_b, *(None,) * 5


def grouped_mm_rows(
    a: Tensor,
    b: Tensor,
    offsets: Tensor,
    *,
    scale_a: Tensor | None,
    scale_b: Tensor | None,
    gather: Tensor | None = None,
    format: str,
    out: Tensor | None = None,
) -> Tensor:
    """The same of float8 rows with a scale each, scale_a: (M, 1), scale_b: (E, N, 1), in bfloat16."""
    assert scale_a is not None, f"format={format!r} has scales"
    assert scale_b is not None
    rows, of_rows = _picked(a, gather), scale_a.reshape(-1)
    of_rows = (of_rows if gather is None else of_rows.index_select(0, gather)).contiguous()
    if not len(rows):
        y = a.new_empty((0, b.shape[1]), dtype=torch.bfloat16)
    else:
        right, of_columns = aligned(b).transpose(1, 2), scale_b.squeeze(-1).contiguous()
        more = {"offs": ends_of(offsets), "out_dtype": torch.bfloat16, "use_fast_accum": False}
        y = _scaled_product(row_major(rows), right, of_rows, of_columns, **more)
    return y if out is None else out.copy_(y)


def product(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    """The pieces of ``rows`` (M, K) that end at ``ends`` (E,), each times its ``matrices`` (E, N, K) transposed."""
    y: Tensor = _product(row_major(rows), aligned(matrices).transpose(1, 2), offs=ends)
    return y


def ends_of(offsets: Tensor) -> Tensor:
    """Where each expert's rows end, as the operators take it."""
    return offsets[1:].int().contiguous()


def _picked(a: Tensor, gather: Tensor | None) -> Tensor:
    if gather is None:
        return a
    if a.dtype.itemsize == 1:  # which torch gathers as bytes alone
        return a.view(torch.uint8).index_select(0, gather).view(a.dtype)
    return a.index_select(0, gather)


def _check_on_host(offsets: Tensor, gather: Tensor | None, rows: int) -> None:
    """Looks at values where that costs nothing beside the products."""
    if offsets.device.type != "cpu":
        return
    if gather is not None:
        check_indices("grouped_mm", "gather", gather, rows, "M")
    count, size = (rows, "M") if gather is None else (len(gather), "R")
    sequence_ends("grouped_mm", "offsets", offsets, count, size)


def _added_up(grad: Tensor, gather: Tensor, rows: int) -> Tensor:
    """The sums of those of ``grad``'s rows that are one row of ``a``: in float32, in an order that does not change."""
    total = torch.zeros((rows, grad.shape[1]), dtype=torch.float32, device=grad.device)
    if grad.device.type == "cpu":
        return total.index_add_(0, gather.long(), grad.float())
    return total.index_put_((gather.long(),), grad.float(), accumulate=True)  # sorts, and adds without atomics
