"""``softmax`` by Liger's kernels, called below its autograd function."""
# pyright: reportMissingImports=false
# Liger is an optional requirement.

from __future__ import annotations

from liger_kernel.ops.softmax import _softmax_backward, _softmax_forward
from liger_kernel.ops.utils import calculate_settings
from torch import Tensor

from portakernel.authoring.tensors import delivered


def softmax(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``softmax(x, -1)``, computed in float32 and rounded once; x: (..., N)."""
    return delivered(_softmax_forward(x)[0], out)


def backward(grad_y: Tensor, y: Tensor, *, needs: tuple[bool]) -> tuple[Tensor | None]:
    """The gradient for ``x`` (..., N) from that of ``y`` and from ``y`` itself.

    Liger rounds ``grad_y * y`` to their dtype before it sums: that has to be float32.
    """
    if not needs[0]:
        return (None,)
    block, warps = calculate_settings(y.shape[-1])
    grad: Tensor = _softmax_backward(grad_y.float(), y.float(), block, warps, multi_block_launch=False)
    return (grad.to(y.dtype),)
