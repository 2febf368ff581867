"""``softmax`` by QuACK's kernels."""
# pyright: reportMissingImports=false
# QuACK is an optional requirement.

from __future__ import annotations

from quack.softmax import _softmax_backward, _softmax_fwd
from torch import Tensor

from portakernel.authoring.tensors import announce_once, delivered, dense, room, rows

_WIDE = 16  # bytes that are read at once


def softmax(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``softmax(x, -1)``; x: (..., N)."""
    y = room(x, out, _WIDE)
    announce_once("QuACK's softmax", x.dtype, x.shape[-1])
    _softmax_fwd(rows(dense(x, _WIDE)), rows(y))
    return delivered(y, out)


def backward(grad_y: Tensor, y: Tensor, *, needs: tuple[bool]) -> tuple[Tensor | None]:
    """The gradient for ``x`` (..., N) from that of ``y`` and from ``y`` itself."""
    if not needs[0]:
        return (None,)
    grad_x = room(y)
    announce_once("QuACK's softmax's gradient", y.dtype, y.shape[-1])
    _softmax_backward(rows(dense(grad_y, _WIDE)), rows(dense(y, _WIDE)), rows(grad_x))
    return (grad_x,)
