"""``grouped_mm`` and ``moe_mlp`` by QuACK's products of ragged rows, which gather rows and gate results themselves."""
# pyright: reportMissingImports=false
# QuACK is an optional requirement.

from __future__ import annotations

import torch
from quack.gemm_interface import gemm, gemm_gated
from torch import Tensor

from portakernel.authoring import CannotRun, ReasonCode, Rejection
from portakernel.authoring.tensors import announce_once, delivered, dense, is_aligned, room

_WIDE = 16  # bytes that are read at once
_MOST = 2**31 - 1  # rows, which QuACK numbers in 32 bits


def grouped_mm(
    a: Tensor, b: Tensor, offsets: Tensor, *, gather: Tensor | None = None, out: Tensor | None = None
) -> Tensor:
    """``a[offsets[e]:offsets[e + 1]] @ b[e].T`` for each expert, of ``a[gather]`` where that is given; b: (E, N, K)."""
    rows = len(a) if gather is None else len(gather)
    y = a.new_empty((rows, b.shape[1])) if out is None else room(out, out, _WIDE)
    if y.numel():
        announce_once("QuACK's grouped product", a.dtype, b.shape, gather is not None)
        gemm(dense(a, _WIDE), _matrices(b), out=y, tuned=False, **_pieces(offsets, gather))
    return delivered(y, out)


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
    """``y``: (T, H): QuACK's gated product of rows that it gathers, its plain one, and PyTorch's sort and sum around.

    w_in: (E, 2I, H), whose halves QuACK takes in turn: it reads ones that lie one behind the other as if they did.

    Raises:
        CannotRun: there are more assignments than 32 bits number.
    """
    del activation  # it is silu: nothing else is claimed
    (T, K), E = experts.shape, len(w_in)
    if T * K > _MOST:
        text = f"needs T * K <= {_MOST}, since QuACK numbers rows in 32 bits; this is {T * K}"
        raise CannotRun(Rejection(ReasonCode.LIMIT, f"{text}: call it with fewer tokens at a time", "T"))
    here = experts >= 0
    # those of other devices come last, behind the last piece
    keys, order = experts.masked_fill(~here, E).flatten().sort(stable=True)
    begins = torch.arange(E + 1, device=x.device, dtype=keys.dtype)
    offsets = torch.searchsorted(keys, begins).int()
    announce_once("QuACK's gated product", x.dtype, w_in.shape, halves)
    _, gated = gemm_gated(
        dense(x, _WIDE),
        _matrices(w_in),
        activation="swiglu",
        store_preact=False,
        tuned=False,
        concat_layout=("B",) if halves == "concat" else None,
        **_pieces(offsets, order // K),
    )
    results = gemm(gated, _matrices(w_out), tuned=False, **_pieces(offsets, None))
    back = torch.empty_like(order).scatter_(0, order, torch.arange(T * K, device=x.device))
    wide = results.index_select(0, back).view(T, K, -1).float() * weights.float().unsqueeze(-1)
    # rows of no expert are as memory had them: zeros would not do for a factor
    y = wide.masked_fill_(~here.unsqueeze(-1), 0).sum(1).to(x.dtype)
    return y if out is None else out.copy_(y)


def _matrices(b: Tensor) -> Tensor:
    """``b`` (E, N, K) as (E, K, N), a view where its rows can be read as they lie."""
    step = _WIDE // b.element_size()
    readable = b.stride(2) == 1 and is_aligned(b, _WIDE) and all(s % step == 0 and s for s in b.stride()[:2])
    return (b if readable else dense(b, _WIDE)).transpose(1, 2)


def _pieces(offsets: Tensor, gather: Tensor | None) -> dict[str, Tensor | None]:
    return {
        "cu_seqlens_m": offsets.int().contiguous(),
        "A_idx": None if gather is None else gather.int().contiguous(),
    }
