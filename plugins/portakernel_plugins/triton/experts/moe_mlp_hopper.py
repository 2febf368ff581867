"""``moe_mlp`` for Hopper: as ``moe_mlp.py`` has it, with products by ``matrix/grouped_hopper.py``."""

from __future__ import annotations

from typing import Any

from torch import Tensor

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
    """
    scales = {"scale_x": scale_x, "scale_in": scale_in, "scale_out": scale_out}
    how: dict[str, Any] = {"activation": activation, "halves": halves, "format": format}
    return mixture(multiply, x, w_in, w_out, weights, experts, out, scales, **how)
