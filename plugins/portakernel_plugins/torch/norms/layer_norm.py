"""``layer_norm`` by PyTorch's fused operators, which compute in float32 and round once."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from portakernel_plugins.torch.formula_gradients import Formula, attached
from portakernel_plugins.torch.operators import operator

_forward = operator("native_layer_norm")
_backward = operator("native_layer_norm_backward")


def layer_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    eps: float,
    out: Tensor | None = None,
    save: bool = False,
) -> Tensor | tuple[Tensor, Tensor, Tensor]:
    """``(x - mean) * rstd * weight + bias``; x: (..., N), weight and bias: (N,) of one dtype; mean, rstd: (M,)."""
    y, mean, rstd = _forward(x, weight.shape, weight, bias, eps)
    y = y if out is None else out.copy_(y)
    return (y, mean.reshape(-1), rstd.reshape(-1)) if save else y


def recorded(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, eps: float, out: Tensor | None = None) -> Tensor:
    """The same as an operator whose gradient PyTorch records itself.

    Its third derivatives are wrong by tenths (torch 2.13): its second ones take mean and rstd for constants.
    """
    y = torch.layer_norm(x, weight.shape, weight, bias, eps)
    y = attached(
        y, (x, weight, bias), Formula(partial(_formula, eps), ("_saved_input", "_saved_weight", "_saved_bias"))
    )
    return y.contiguous() if out is None else out.copy_(y)


def _formula(eps: float, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    wide = x.float()
    deviation = wide - wide.mean(-1, keepdim=True)
    y = deviation * torch.rsqrt(deviation.square().mean(-1, keepdim=True) + eps) * weight.float()
    return (y if bias is None else y + bias.float()).to(x.dtype)


def backward(
    grad_y: Tensor,
    x: Tensor,
    weight: Tensor,
    mean: Tensor,
    rstd: Tensor,
    *,
    eps: float,
    needs: tuple[bool, bool, bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients for ``x`` (..., N), ``weight`` and ``bias`` (N,), those that ``needs`` asks for."""
    del eps  # it is in rstd
    per_row = (*x.shape[:-1], 1)
    # of bias the operator reads the form alone, which is weight's
    bias = weight if needs[2] else None
    # of more than 65,536 short rows CUDA's operator gives bias' gradient the size of weight's, asked for or not
    asked = (needs[0], needs[1] or (needs[2] and x.is_cuda), needs[2])
    grads = _backward(grad_y, x, weight.shape, mean.reshape(per_row), rstd.reshape(per_row), weight, bias, asked)
    return grads[0], grads[1] if needs[1] else None, grads[2]


def layer_norm_cpu(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    eps: float,
    out: Tensor | None = None,
    save: bool = False,
) -> Tensor | tuple[Tensor, Tensor, Tensor]:
    """The same on CPUs, where mean and rstd have the parameters' dtype: float32 ones make them what the op saves."""
    return layer_norm(x, weight.float(), None if bias is None else bias.float(), eps=eps, out=out, save=save)


def backward_cpu(
    grad_y: Tensor,
    x: Tensor,
    weight: Tensor,
    mean: Tensor,
    rstd: Tensor,
    *,
    eps: float,
    needs: tuple[bool, bool, bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients from what ``layer_norm_cpu`` saves, in float32: 16-bit ones would be summed over the rows in 16 bit."""
    grad_x, *shared = backward(grad_y.float(), x.float(), weight.float(), mean, rstd, eps=eps, needs=needs)
    grad_weight, grad_bias = (None if grad is None else grad.to(weight.dtype) for grad in shared)
    return None if grad_x is None else grad_x.to(x.dtype), grad_weight, grad_bias
