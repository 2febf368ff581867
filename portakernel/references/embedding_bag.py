"""``embedding_bag`` and its gradients as formulas.

Bag ``b`` is ``indices[offsets[b]:offsets[b + 1]]``, the last one ends with ``indices``. A bag's gradient goes to each
row of ``weight`` that is in it. Sums run over consecutive rows, in the order in which they stand: the bags' as they
are, the gradient's after a stable sort by index. So they need no atomics, and have the same bits in every run.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from portakernel.errors import ArgumentValueError
from portakernel.tensors.index_values import check_indices, check_offsets

Mode = Literal["sum", "mean"]

# What one accumulator in float32 loses of a long bag, the conformance kit takes from here.
SUMS_IN_ORDER = True


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype is torch.float64 else tensor.float()


def _check(indices: Tensor, offsets: Tensor, per_sample_weights: Tensor | None, mode: Mode) -> None:
    if per_sample_weights is not None and mode != "sum":
        raise ArgumentValueError(
            f"embedding_bag: per_sample_weights need mode='sum'; this is {mode!r}. Divide them by the bags' sizes"
        )
    if offsets.device.type != "cpu":
        return  # elsewhere the answer would have to be waited for
    check_offsets("embedding_bag", offsets, indices.numel(), "I")


def _bounds(indices: Tensor, offsets: Tensor) -> Tensor:
    """``(B+1,)``: where each bag begins, and where the last one ends."""
    return torch.cat([offsets.long(), offsets.new_full((1,), indices.numel(), dtype=torch.int64)])


def _bags(indices: Tensor, offsets: Tensor) -> Tensor:
    """``(I,)``: the bag that each index is in, the last one to begin at or before it."""
    places = torch.arange(indices.numel(), device=indices.device)
    return torch.searchsorted(offsets.long().contiguous(), places, right=True) - 1


def _sums(rows: Tensor, bounds: Tensor) -> Tensor:
    """Sums over the consecutive pieces of ``rows: (I, N)`` between ``bounds``, zeros for empty ones."""
    return torch.segment_reduce(rows, "sum", offsets=bounds, axis=0, initial=0, unsafe=True)


def _sizes(bounds: Tensor, dtype: torch.dtype) -> Tensor:
    """``(B, 1)``: what a mean divides by; an empty bag's sum stays zero."""
    return bounds.diff().clamp(min=1).to(dtype).unsqueeze(-1)


def _sums_by_index(terms: Tensor, indices: Tensor, rows: int) -> Tensor:
    """``(V, N)``: the sums of the ``terms: (I, N)`` that share an index, zeros where there is none."""
    order = torch.argsort(indices.long(), stable=True)
    every = torch.arange(rows + 1, device=indices.device)
    return _sums(terms.index_select(0, order), torch.searchsorted(indices.long()[order], every))


def forward(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    per_sample_weights: Tensor | None = None,
    *,
    mode: Mode = "sum",
    out: Tensor | None = None,
) -> Tensor:
    """The sum or mean of each bag's rows of ``weight``, rounded once."""
    _check(indices, offsets, per_sample_weights, mode)
    try:
        rows, bounds = _wide(weight.index_select(0, indices.long())), _bounds(indices, offsets)
    except IndexError:  # from the CPU's alone
        check_indices("embedding_bag", "indices", indices, weight.shape[0], "V")
        raise
    if per_sample_weights is not None:
        rows = rows * _wide(per_sample_weights).unsqueeze(-1)
    y = _sums(rows, bounds)
    if mode == "mean":
        y = y / _sizes(bounds, y.dtype)
    return y.to(weight.dtype) if out is None else out.copy_(y)


def _spread(grad_y: Tensor, indices: Tensor, offsets: Tensor, mode: Mode) -> Tensor:
    """``(I, N)``: the gradient of the bag that each index is in."""
    if mode == "mean":
        grad_y = grad_y / _sizes(_bounds(indices, offsets), grad_y.dtype)
    return grad_y.index_select(0, _bags(indices, offsets))


def backward(
    grad_y: Tensor,
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    per_sample_weights: Tensor | None = None,
    *,
    mode: Mode = "sum",
    needs: tuple[bool, bool, bool, bool] = (True, False, False, True),
) -> tuple[Tensor | None, None, None, Tensor | None]:
    """Gradients for ``weight``, dense, and for ``per_sample_weights`` from that of ``y``."""
    g = _spread(_wide(grad_y), indices, offsets, mode)
    grad_weight = grad_samples = None
    if needs[0]:
        terms = g if per_sample_weights is None else g * _wide(per_sample_weights).unsqueeze(-1)
        grad_weight = _sums_by_index(terms, indices, weight.shape[0]).to(weight.dtype)
    if needs[3] and per_sample_weights is not None:
        products = g * _wide(weight.index_select(0, indices.long()))
        grad_samples = products.sum(-1).to(per_sample_weights.dtype)
    return grad_weight, None, None, grad_samples


def magnitudes(
    grad_y: Tensor,
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    per_sample_weights: Tensor | None = None,
    *,
    mode: Mode = "sum",
) -> tuple[Tensor, None, None, Tensor | None]:
    """The sums of absolute terms behind each gradient: the gradients of absolute values."""
    sizes = backward(
        grad_y.double().abs(),
        weight.double().abs(),
        indices,
        offsets,
        None if per_sample_weights is None else per_sample_weights.double().abs(),
        mode=mode,
    )
    assert sizes[0] is not None
    return sizes[0], None, None, sizes[3]


def output_magnitudes(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    per_sample_weights: Tensor | None = None,
    *,
    mode: Mode = "sum",
) -> tuple[Tensor]:
    """The sums of absolute terms behind each output: the bags of absolute values."""
    samples = None if per_sample_weights is None else per_sample_weights.double().abs()
    return (forward(weight.double().abs(), indices, offsets, samples, mode=mode),)
