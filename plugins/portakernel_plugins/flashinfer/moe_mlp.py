"""``moe_mlp`` by FlashInfer's ``cutlass_fused_moe``, whose first matrices are up and then gate.

Halves in another order are copied at the first call with a weight, and the copy is kept beside it (``Derived``): as
much memory again as ``w_in`` has. One that is interleaved is unravelled alike.
"""
# pyright: reportMissingImports=false
# FlashInfer is an optional requirement.

from __future__ import annotations

import torch
from flashinfer.fused_moe import cutlass_fused_moe
from torch import Tensor

from portakernel.authoring import CannotRun, ReasonCode, Rejection
from portakernel.authoring.tensors import Derived, announce_once, delivered, dense, room

_WIDE = 16  # bytes that are read at once
_MOST = 2**31 - 1  # rows, which FlashInfer numbers in 32 bits
_UP_FIRST: Derived[Tensor] = Derived("up and gate in FlashInfer's order")


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
    """``y``: (T, H); w_in: (E, 2I, H), w_out: (E, H, I), weights, experts: (T, K); experts below 0 are left out.

    Raises:
        CannotRun: w_in's halves were not copied yet, and a graph is being captured; or it was made in inference mode;
            or there are more assignments than 32 bits number.
    """
    del activation  # it is silu: nothing else is claimed
    if experts.numel() > _MOST:
        text = f"needs T * K <= {_MOST}, since FlashInfer numbers rows in 32 bits; this is {experts.numel()}"
        raise CannotRun(Rejection(ReasonCode.LIMIT, f"{text}: call it with fewer tokens at a time", "T"))

    def up_first() -> Tensor:
        gate, up = (w_in[:, 0::2], w_in[:, 1::2]) if halves == "interleaved" else w_in.chunk(2, 1)
        return torch.cat((up, gate), 1)

    first = _UP_FIRST.of((w_in,), halves, up_first)
    y = room(x, out, _WIDE)
    announce_once("FlashInfer's experts", x.dtype, x.device)
    cutlass_fused_moe(
        dense(x, _WIDE),
        dense(experts.int(), _WIDE),
        dense(weights.float(), _WIDE),
        first,
        dense(w_out, _WIDE),
        x.dtype,
        [],
        output=y,
        use_fused_finalize=False,  # the other adds results up in any order
    )
    return delivered(y, out)
