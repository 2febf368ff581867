"""``SwiGLU``: a gated feed-forward layer, its activation by the op ``silu_and_mul``."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from portakernel import ops
from portakernel.nn.products import may_write_into_one, written_into_one


class SwiGLU(nn.Module):
    """``down_proj(silu(gate_proj(x)) * up_proj(x))``, the middle by the op ``silu_and_mul``.

    torch has no such module; the names are those of Llama's MLP in transformers, whose weights therefore load:
    ``gate_proj.weight`` and ``up_proj.weight`` (hidden_features, in_features), ``down_proj.weight`` (out_features,
    hidden_features), and a bias for each with ``bias=True``. All three are ``torch.nn.Linear``. Where nothing is
    differentiated, in eager mode, the first two write into the halves of one tensor; otherwise their results are
    joined, which a compiled graph fuses.

    Args:
        in_features: the size of x's last dimension.
        hidden_features: of gate and up.
        out_features: of the result; None is ``in_features``.
        bias: whether the three linear layers have one.
        device, dtype: of the weights.

    Source: Shazeer 2020, GLU Variants Improve Transformer, arXiv 2002.05202.
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int | None = None,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.hidden_features = hidden_features
        self.out_features = in_features if out_features is None else out_features
        self.gate_proj = nn.Linear(in_features, hidden_features, bias, device, dtype)
        self.up_proj = nn.Linear(in_features, hidden_features, bias, device, dtype)
        self.down_proj = nn.Linear(hidden_features, self.out_features, bias, device, dtype)

    def reset_parameters(self) -> None:
        """Draws the weights anew, as ``torch.nn.Linear`` does."""
        for layer in (self.gate_proj, self.up_proj, self.down_proj):
            layer.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        """x: ``(*, in_features)``; the result: ``(*, out_features)``, of its dtype."""
        if not torch.compiler.is_compiling() and may_write_into_one(self.gate_proj, self.up_proj, x):
            pair = written_into_one(self.gate_proj.weight, self.up_proj.weight, x)
        else:
            pair = torch.cat([self.gate_proj(x), self.up_proj(x)], -1)
        out: Tensor = self.down_proj(ops.silu_and_mul(pair))
        return out

    def extra_repr(self) -> str:
        """The sizes; the linear layers stand below."""
        return f"{self.in_features}, hidden_features={self.hidden_features}, out_features={self.out_features}"
