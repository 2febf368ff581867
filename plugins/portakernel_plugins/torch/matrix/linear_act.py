"""``linear_act`` by PyTorch's matrix product with an activation in its epilogue, where the library has one."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from portakernel_plugins.torch.attention.layout import aligned, is_aligned
from portakernel_plugins.torch.matrix.long_sums import ALWAYS_WHOLE, is_cut_short, product
from portakernel_plugins.torch.matrix.neighbouring_rows import apart
from portakernel_plugins.torch.matrix.odd_rows import is_slow
from portakernel_plugins.torch.operators import operator

_aten = torch.ops.aten
_fused, _into = operator("_addmm_activation"), _aten._addmm_activation.out


def linear_act(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str,
    out: Tensor | None = None,
    save: bool = False,
) -> Tensor | tuple[Tensor, ...]:
    """``activation(x @ weight.T + bias)``; x: (..., K), weight: (N, K), bias: (N,).

    The operator's gelu is the one by tanh on GPUs, as in the epilogues of cuBLAS, and the exact one on CPUs. It keeps
    the preactivation to itself: a gelu that has to save it comes after the product. Its relu loses NaN where vector
    loads could not read 16-bit rows.
    """
    N, K = weight.shape
    rows = x if x.dim() == 2 else x.reshape(-1, K)
    if (save and activation != "relu") or is_cut_short(rows, weight):
        z = product(rows, weight, bias).view(*x.shape[:-1], N)
        y = z.relu() if activation == "relu" else functional.gelu(z, approximate=_approximation(activation))
        if save:
            return (y,) if activation == "relu" else (y, z)
        return y if out is None else out.copy_(y)
    bias = weight.new_zeros(N) if bias is None else bias
    rows, weight = apart(rows, weight)
    vectors = activation == "relu" and x.dtype is not torch.float32 and x.device.type == "cuda"
    if vectors:
        rows, weight, bias = aligned(rows), aligned(weight), aligned(bias)
    if out is not None and out.is_contiguous() and not (vectors and not is_aligned(out)):
        y = out
        _into(bias, rows, weight.t(), use_gelu=activation != "relu", out=y.view(-1, N))
    else:
        y = _fused(bias, rows, weight.t(), use_gelu=activation != "relu")
        y = y if x.dim() == 2 else y.view(*x.shape[:-1], N)
    if save:
        return (y,)
    return y if out is None or out is y else out.copy_(y)


def backward(
    grad_y: Tensor,
    x: Tensor,
    weight: Tensor,
    y: Tensor,
    preactivation: Tensor | None = None,
    *,
    activation: str,
    needs: tuple[bool, bool, bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients for ``x``, ``weight`` and ``bias``; that of the preactivation is rounded to their dtype."""
    if activation == "relu":
        grad = _aten.threshold_backward(grad_y, y, 0)
    elif preactivation is None:
        grad = grad_y
    elif activation == "silu":
        grad = _aten.silu_backward.default(grad_y, preactivation)
    else:
        grad = _aten.gelu_backward.default(grad_y, preactivation, approximate=_approximation(activation))
    rows = grad.reshape(-1, weight.shape[0])
    grad_x = grad_weight = grad_bias = None
    if needs[0]:
        grad_x = product(rows, weight.t()).reshape(x.shape)
    if needs[1]:
        grad_weight = product(rows.t(), x.reshape(-1, x.shape[-1]).t())
    if needs[2]:
        grad_bias = rows.sum(0, dtype=torch.float32).to(x.dtype)
    return grad_x, grad_weight, grad_bias


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``x @ weight.T + bias``, rounded once; PyTorch rounds the product too where rows are not evenly spaced."""
    if x.dim() == 2:
        return product(x, weight, bias)
    if x.dim() == 3 and x.shape[2] <= ALWAYS_WHOLE and x.is_contiguous() and not is_slow(x, weight):
        return functional.linear(*apart(x, weight), bias)
    rows = x.unsqueeze(0) if x.dim() == 1 else x.flatten(0, -2)
    return product(rows, weight, bias).view(*x.shape[:-1], weight.shape[0])


def _approximation(activation: str) -> str:
    return "tanh" if activation == "gelu_tanh" else "none"
