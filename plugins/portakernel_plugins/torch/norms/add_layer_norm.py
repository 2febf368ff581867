"""``add_layer_norm`` by ``torch.add`` and PyTorch's fused norm of the sum, which is rounded in between."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from portakernel_plugins.torch.add import add
from portakernel_plugins.torch.norms import layer_norm
from portakernel_plugins.torch.norms import residual as shared


def add_layer_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    eps: float,
    out: tuple[Tensor, Tensor] | None = None,
    save: bool = False,
) -> tuple[Tensor, ...]:
    """``(y, summed)`` with ``summed = x + residual``: (..., N), weight and bias: (N,); mean, rstd: (M,) float32."""
    # out may be (x, residual): x is read before y is written
    summed = add(x, residual, out=None if out is None else out[1])
    y, *saved = layer_norm.layer_norm(summed, weight, bias, eps=eps, out=None if out is None else out[0], save=True)
    return (y, summed, *saved) if save else (y, summed)


def backward(
    grad_y: Tensor | None,
    grad_summed: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    summed: Tensor,
    mean: Tensor,
    rstd: Tensor,
    *,
    eps: float,
    needs: tuple[bool, bool, bool, bool],
) -> tuple[Tensor | None, ...]:
    """Gradients for ``x``, ``residual`` (..., N), ``weight``, ``bias`` (N,), as ``needs`` asks for; None is zero."""
    del bias
    return _gradients(layer_norm.backward, grad_y, grad_summed, weight, summed, mean, rstd, eps, needs)


def add_layer_norm_cpu(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    eps: float,
    out: tuple[Tensor, Tensor] | None = None,
    save: bool = False,
) -> tuple[Tensor, ...]:
    """The same on CPUs, where mean and rstd have the parameters' dtype: float32 ones make them what the op saves."""
    wide_bias = None if bias is None else bias.float()
    return add_layer_norm(x, residual, weight.float(), wide_bias, eps=eps, out=out, save=save)


def backward_cpu(
    grad_y: Tensor | None,
    grad_summed: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    summed: Tensor,
    mean: Tensor,
    rstd: Tensor,
    *,
    eps: float,
    needs: tuple[bool, bool, bool, bool],
) -> tuple[Tensor | None, ...]:
    """Gradients from what ``add_layer_norm_cpu`` saves."""
    del bias
    return _gradients(layer_norm.backward_cpu, grad_y, grad_summed, weight, summed, mean, rstd, eps, needs)


def _gradients(
    of_norm: Callable[..., tuple[Tensor | None, ...]],
    grad_y: Tensor | None,
    grad_summed: Tensor | None,
    weight: Tensor,
    summed: Tensor,
    mean: Tensor,
    rstd: Tensor,
    eps: float,
    needs: tuple[bool, bool, bool, bool],
) -> tuple[Tensor | None, ...]:
    if grad_y is None:
        return shared.past_norm(grad_summed, weight, needs)
    given = shared.before_norm(grad_y, grad_summed, summed, weight)
    grad, *grads = of_norm(*given, mean, rstd, eps=eps, needs=(needs[0] or needs[1], needs[2], needs[3]))
    grad_weight, grad_bias = (None if grad is None else grad.to(weight.dtype) for grad in grads)
    return (*shared.behind_norm(grad, grad_summed, summed, needs), grad_weight, grad_bias)
