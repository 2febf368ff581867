"""``int4_mm`` by QuACK's product of bfloat16 and weights that it decodes in registers.

Its weights and scales lie as tensor cores read them. A weight is packed for it at the first call with it, and the
packed one is kept beside it (``Derived``): as much memory again.
"""
# pyright: reportMissingImports=false
# QuACK is an optional requirement.

from __future__ import annotations

from quack.gemm_w4 import gemm_w4a16, prepare_w4_weight
from torch import Tensor

from portakernel.authoring import CannotRun, ReasonCode, Rejection
from portakernel.authoring.tensors import Derived, announce_once, dense, int4_parts

_WIDE = 16  # bytes that are read at once
_PACKED: Derived[tuple[Tensor, Tensor]] = Derived("QuACK's packed weight")
_OF_ZEROS, _OF_EIGHT = "int4awq", {128: "int4", 64: "int4_g64", 32: "int4_g32"}


def int4_mm(
    x: Tensor,
    weight: Tensor,
    scales: Tensor,
    zeros: Tensor | None = None,
    *,
    layout: str,
    group: int,
    zero: str,
    out: Tensor | None = None,
) -> Tensor:
    """``x @ w.T``; x: (..., K), bfloat16 as its scales; zeros with groups of 128 alone.

    Raises:
        CannotRun: zeros with other groups; the weight is not packed yet, and a graph is being captured; or it was made
            in inference mode.
    """
    has_zeros = zeros is not None and zero != "none"
    if has_zeros and group != 128:
        text = f"takes zeros of groups of 128 alone; this is {group}"
        raise CannotRun(Rejection(ReasonCode.CANNOT_RUN, text, "group"))
    form = _OF_ZEROS if has_zeros else _OF_EIGHT[group]

    def packed() -> tuple[Tensor, Tensor]:
        q, of_groups, subtracted = int4_parts(weight, scales, zeros, columns=x.shape[-1], layout=layout, zero=zero)
        # the first of two in the lower half of a byte
        pairs, of_rows = (q[:, 0::2] | q[:, 1::2] << 4).contiguous(), of_groups.t().contiguous()
        strips = of_rows if subtracted is None else (of_rows, subtracted.t().contiguous())
        made: tuple[Tensor, Tensor] = prepare_w4_weight(pairs, strips, form)
        return made

    words, strip = _PACKED.of((weight, scales, zeros if has_zeros else None), (layout, group, zero), packed)
    columns = scales.shape[0] if layout == "ct" else scales.shape[1]
    announce_once("QuACK's 4-bit product", form, columns, x.shape[-1], x.numel() // x.shape[-1])
    y = gemm_w4a16(dense(x.reshape(-1, x.shape[-1]), _WIDE), words, strip, wformat=form, n_out=columns)
    y = y.reshape(*x.shape[:-1], columns)
    return y.contiguous() if out is None else out.copy_(y)
