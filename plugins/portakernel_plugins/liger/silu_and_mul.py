"""``silu_and_mul`` by Liger's kernel for two halves in one tensor, which rounds silu before the product."""
# pyright: reportMissingImports=false
# Liger is an optional requirement.

from __future__ import annotations

from liger_kernel.ops.swiglu import swiglu_fused_gate_up_backward, swiglu_fused_gate_up_forward
from torch import Tensor

from portakernel.authoring.tensors import delivered


def silu_and_mul(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``silu(x[..., :N]) * x[..., N:]``; x: (..., 2N)."""
    _, y = swiglu_fused_gate_up_forward(x.contiguous())
    return delivered(y, out)


def backward(grad_y: Tensor, x: Tensor, *, needs: tuple[bool]) -> tuple[Tensor | None]:
    """The gradient for ``x`` (..., 2N)."""
    if not needs[0]:
        return (None,)
    return (swiglu_fused_gate_up_backward(x.contiguous(), grad_y.contiguous()).view(x.shape),)
