"""``embedding_bag`` by PyTorch's own kernels: bags summed in float32, gradients over sorted indices, no atomics."""

from __future__ import annotations

import torch
from torch import Tensor

from portakernel.authoring import ArgumentValueError, ReasonCode, Rejection
from portakernel.authoring.tensors import check_indices, check_offsets
from portakernel_plugins.torch.operators import operator

_forward = operator("_embedding_bag_forward_only")
_grad_weight = operator("_embedding_bag_dense_backward")
_MODES = {"sum": 0, "mean": 1}
_WARP = 64


def embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    per_sample_weights: Tensor | None = None,
    *,
    mode: str,
    out: Tensor | None = None,
) -> Tensor:
    """Sums or means of rows of ``weight`` (V, N); indices, per_sample_weights: (I,), offsets: (B,); (B, N)."""
    if per_sample_weights is not None:
        if mode != "sum":
            raise ArgumentValueError(f"embedding_bag: per_sample_weights need mode='sum'; this is {mode!r}")
        per_sample_weights = per_sample_weights.contiguous()
    indices, offsets = indices.contiguous(), offsets.contiguous()
    if offsets.device.type == "cpu":  # where offsets fall, PyTorch's kernel reads beyond the indices
        check_offsets("embedding_bag", offsets, indices.numel(), "I")
    try:
        y: Tensor = _forward(weight, indices, offsets, False, _MODES[mode], False, per_sample_weights)[0]
    except (RuntimeError, IndexError):
        if indices.device.type == "cpu":
            check_indices("embedding_bag", "indices", indices, weight.shape[0], "V")
        raise
    return y if out is None else out.copy_(y)


def embedding_bag_mps(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    per_sample_weights: Tensor | None = None,
    *,
    mode: str,
    out: Tensor | None = None,
) -> Tensor:
    """The same on Apple's GPUs, where a grid of no threads is an error."""
    if indices.numel():
        return embedding_bag(weight, indices, offsets, per_sample_weights, mode=mode, out=out)
    return weight.new_zeros(offsets.numel(), weight.shape[1]) if out is None else out.zero_()


def backward(
    grad_y: Tensor,
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    per_sample_weights: Tensor | None = None,
    *,
    mode: str,
    needs: tuple[bool, bool, bool, bool],
) -> tuple[Tensor | None, None, None, Tensor | None]:
    """Gradients for ``weight``, dense, and for ``per_sample_weights``."""
    grad_y, indices, offsets = grad_y.contiguous(), indices.contiguous(), offsets.contiguous()
    places = torch.arange(indices.numel(), device=indices.device, dtype=indices.dtype)
    # the bag of each index: the last one to begin at or before it
    bags = torch.searchsorted(offsets, places, right=True, out_int32=indices.dtype is torch.int32) - 1
    grad_weight = grad_samples = None
    if needs[0]:
        samples = None if per_sample_weights is None else per_sample_weights.contiguous()
        sizes, none = _sizes(indices, offsets), indices.new_empty(0)
        rows = weight.shape[0]
        grad_weight = _grad_weight(grad_y, indices, bags, sizes, none, rows, False, _MODES[mode], samples)
    if needs[3]:
        # torch's own operator has no bfloat16 on CUDA, and rounds more than once in float16 (torch 2.11, H200)
        products = grad_y.index_select(0, bags).float() * weight.index_select(0, indices).float()
        grad_samples = products.sum(-1).to(weight.dtype)
    return grad_weight, None, None, grad_samples


def _sizes(indices: Tensor, offsets: Tensor) -> Tensor:
    """``(B,)``: how many indices each bag has."""
    return torch.cat([offsets, offsets.new_full((1,), indices.numel())]).diff()


def reachable(B: int | None, I: int | None, N: int | None) -> Rejection | None:  # noqa: E741
    """Refuses gradients larger than the 32-bit arithmetic of the CUDA kernels behind ``backward``.

    They count threads, a warp's multiple of them for each index, and elements of the bags' gradients in ``int``.
    """
    if B is None or I is None or N is None:
        return None
    return _beyond(max(B * N, I * -(-N // _WARP) * _WARP), 31)


def reachable_mps(B: int | None, N: int | None, V: int | None) -> Rejection | None:
    """Refuses tables and results larger than the 32-bit offsets of the Metal kernel."""
    return None if B is None or N is None or V is None else _beyond(max(B, V) * N, 32)


def _beyond(elements: int, bits: int) -> Rejection | None:
    if elements < 1 << bits:
        return None
    return Rejection(ReasonCode.LIMIT, f"counts to 2**{bits}; this has {elements} elements to count")
