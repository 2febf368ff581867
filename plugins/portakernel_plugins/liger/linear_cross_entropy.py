"""``linear_cross_entropy`` by Liger: products by PyTorch, block after block of rows, and Liger's cross-entropy.

It keeps no log-sum-exp. Its backward goes through the products again, so that nothing has to be saved.
"""
# pyright: reportMissingImports=false
# Liger is an optional requirement.

from __future__ import annotations

from liger_kernel.ops.fused_linear_cross_entropy import fused_linear_cross_entropy_forward
from torch import Tensor


def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    ignore_index: int,
    label_smoothing: float,
    out: Tensor | None = None,
    save: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Each row's loss; x: (*M, K), weight: (V, K), target: (*M,). What it saves, zeros (M,), nobody reads."""
    loss: Tensor = fused_linear_cross_entropy_forward(
        x.contiguous().view(-1, x.shape[-1]),
        weight.contiguous(),
        target.reshape(-1),
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction="none",
        compute_gradients=False,
    )[0]
    if save:
        return loss.view(target.shape), loss.new_zeros(loss.shape)
    return loss.view(target.shape) if out is None else out.copy_(loss.view(target.shape))


def backward(
    grad_loss: Tensor,
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    logsumexp: Tensor,
    *,
    ignore_index: int,
    label_smoothing: float,
    needs: tuple[bool, bool, bool],
) -> tuple[Tensor | None, Tensor | None, None]:
    """Gradients for ``x`` and ``weight``, those that ``needs`` asks for."""
    del logsumexp
    if not any(needs):
        return None, None, None
    *_, grad_x, grad_weight, _ = fused_linear_cross_entropy_forward(
        x.contiguous().view(-1, x.shape[-1]),
        weight.contiguous(),
        target.reshape(-1),
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction="none",
        token_grad_output=grad_loss.reshape(-1),
        compute_gradients=True,
        weight_requires_grad=needs[1],
    )
    return grad_x.view(x.shape) if needs[0] else None, grad_weight, None
