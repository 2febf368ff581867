"""``int4_mm`` by PyTorch's ``aten._weight_int4pack_mm``, tinygemm, and by its namesake for CPUs.

Both read a weight in a layout of their own, and ``(q - 8) * scale + zero``. A weight is packed for them at the first
call with it, and the packed one is kept beside it (``Derived``): as much memory again.
"""

from __future__ import annotations

import torch
from torch import Tensor

from portakernel.authoring import CannotRun, ReasonCode, Rejection
from portakernel.authoring.tensors import Derived, dense, int4_parts
from portakernel_plugins.torch.operators import operator

_product, _pack = operator("_weight_int4pack_mm"), operator("_convert_weight_to_int4pack")
_cpu_product, _cpu_pack = operator("_weight_int4pack_mm_for_cpu"), operator("_convert_weight_to_int4pack_for_cpu")
_WIDE = 16  # bytes that are read at once
_PACKED: Derived[tuple[Tensor, Tensor]] = Derived("tinygemm's packed weight")


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
    """``x @ w.T``; x: (..., K), scales of its dtype, K of whole groups.

    Raises:
        CannotRun: the weight is not packed yet, and a graph is being captured; it was made in inference mode; or
            scales with zeros are not finite.
    """

    def packed() -> tuple[Tensor, Tensor]:
        return _packed(weight, scales, zeros, columns=x.shape[-1], layout=layout, zero=zero)

    words, scales_and_zeros = _PACKED.of((weight, scales, zeros), (layout, group, zero), packed)
    product = _cpu_product if x.device.type == "cpu" else _product
    y = product(dense(x.reshape(-1, x.shape[-1]), _WIDE), words, group, scales_and_zeros)
    y = y.view(*x.shape[:-1], y.shape[-1])
    return y if out is None else out.copy_(y)


def _packed(
    weight: Tensor, scales: Tensor, zeros: Tensor | None, *, columns: int, layout: str, zero: str
) -> tuple[Tensor, Tensor]:
    """The words, and (groups, N, 2) of a scale and what is added."""
    q, of_groups, subtracted = int4_parts(weight, scales, zeros, columns=columns, layout=layout, zero=zero)
    added = torch.zeros_like(of_groups)
    if subtracted is not None:
        added = ((8 - subtracted.float()) * of_groups.float()).to(of_groups.dtype)
        if not added.isfinite().all():  # an infinity minus another one would be NaN
            text = "adds 8 - zero times the scale, which has to be finite in the scales' dtype"
            raise CannotRun(Rejection(ReasonCode.CANNOT_RUN, text, "scales"))
    both = torch.stack([of_groups, added], -1)
    if weight.device.type == "cpu":
        return _cpu_pack(q.int(), 1), both
    # the first of two in the upper half of a byte; as many of the tiles of 16 columns together as there are, up to 8
    pairs = q[:, 0::2] << 4 | q[:, 1::2]
    return _pack(pairs.contiguous(), 8 if columns % 128 == 0 else 4 if columns % 64 == 0 else 2), both
