"""``moe_mlp`` for Hopper: as ``moe_mlp.py`` has it, with products by ``matrix/grouped_hopper.py``, and no biases."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from portakernel_plugins.triton.experts import moe_mlp_gradients
from portakernel_plugins.triton.experts.moe_mlp import mixture
from portakernel_plugins.triton.matrix.grouped_hopper import multiply


def moe_mlp_hopper(
    x: Tensor,
    w_in: Tensor,
    w_out: Tensor,
    weights: Tensor,
    experts: Tensor,
    *,
    scale_x: Tensor | None = None,
    scale_in: Tensor | None = None,
    scale_out: Tensor | None = None,
    activation: str,
    halves: str = "concat",
    format: str = "none",
    out: Tensor | None = None,
) -> Tensor:
    """``moe_mlp`` of float16, bfloat16 or float8 numbers.

    Raises:
        ArgumentValueError: scales are not given as ``format`` says.
        CannotRun: there are more assignments than ``moe_sort`` numbers.
    """
    scales = {"scale_x": scale_x, "scale_in": scale_in, "scale_out": scale_out}
    how: dict[str, Any] = {"activation": activation, "halves": halves, "format": format}
    return mixture(multiply, x, w_in, w_out, weights, experts, out, scales, **how)


def backward(
    grad_y: Tensor,
    x: Tensor,
    w_in: Tensor,
    w_out: Tensor,
    weights: Tensor,
    experts: Tensor,
    *,
    activation: str,
    halves: str = "concat",
    format: str = "none",
    needs: tuple[bool, ...] = (True, True, True, True, False),
) -> tuple[Tensor | None, ...]:
    """The gradients of ``moe_mlp_gradients.py``, of which there are none for biases.

    Raises:
        ArgumentValueError: ``format`` is another than "none".
    """
    how: dict[str, Any] = {"activation": activation, "halves": halves, "format": format, "needs": needs}
    return moe_mlp_gradients.backward(grad_y, x, w_in, w_out, weights, experts, **how)[:5]
