"""``moe_mlp`` as PyTorch's operators in a row: a sort, two grouped products, the gate between them, a weighted sum.

What models are written as that take ``torch._grouped_mm`` for their experts: what a kernel for all of it has to beat.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor
from torch.nn import functional

from portakernel.authoring import CannotRun, ReasonCode, Rejection
from portakernel_plugins.torch.matrix.grouped_mm import product

# PyTorch's grouped product takes where pieces end as int32.
_MOST = 2**31 - 1
_ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "silu": functional.silu,
        "gelu": functional.gelu,
        "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    }
)


def moe_mlp(
    x: Tensor,
    w_in: Tensor,
    w_out: Tensor,
    weights: Tensor,
    experts: Tensor,
    *,
    activation: str,
    halves: str = "concat",
    out: Tensor | None = None,
) -> Tensor:
    """``y``: (T, H), each step rounded to x's dtype; w_in: (E, 2I, H), w_out: (E, H, I), weights, experts: (T, K).

    Raises:
        CannotRun: there are more assignments than 32 bits number.
    """
    (T, K), E = experts.shape, len(w_in)
    if T * K > _MOST:
        text = f"needs T * K <= {_MOST}, since PyTorch's grouped product numbers rows in 32 bits; this is {T * K}"
        raise CannotRun(Rejection(ReasonCode.LIMIT, f"{text}: call it with fewer tokens at a time", "T"))
    here = experts >= 0
    # those of other devices come last, behind the last piece
    keys, order = experts.masked_fill(~here, E).flatten().sort(stable=True)
    ends = torch.searchsorted(keys, torch.arange(E, device=x.device, dtype=keys.dtype), right=True).int()
    z = product(x.index_select(0, order // max(K, 1)), w_in, ends)
    gate, up = (z[:, 0::2], z[:, 1::2]) if halves == "interleaved" else z.chunk(2, -1)
    results = product(_ACTIVATIONS[activation](gate) * up, w_out, ends)
    back = torch.empty_like(order).scatter_(0, order, torch.arange(T * K, device=x.device))
    wide = results.index_select(0, back).view(T, K, -1).float() * weights.float().unsqueeze(-1)
    # rows of no expert are as memory had them: zeros would not do for a factor
    y = wide.masked_fill_(~here.unsqueeze(-1), 0).sum(1).to(x.dtype)
    return y if out is None else out.copy_(y)
