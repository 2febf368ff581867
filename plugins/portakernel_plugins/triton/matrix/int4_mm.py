"""``int4_mm`` in Triton: weights of a packed layout, decoded in registers (``int4_kernels.py``)."""

from __future__ import annotations

import torch
from torch import Tensor

from portakernel.authoring.tensors import delivered
from portakernel.authoring.triton import cdiv, launch, processor
from portakernel_plugins.triton.attention.counters import counters
from portakernel_plugins.triton.launching.configurations import Configuration, configuration
from portakernel_plugins.triton.matrix.int4_kernels import product

_BLOCK = 128
# Fewer blocks of 128 columns are not worth a part, and more parts take longer to add up than they save.
_FEWEST_BLOCKS, _MOST_PARTS = 2, 32


def int4_mm(
    x: Tensor,
    weight: Tensor,
    scales: Tensor,
    zeros: Tensor | None = None,
    order: Tensor | None = None,
    *,
    bias: Tensor | None = None,
    layout: str,
    group: int,
    zero: str,
    out: Tensor | None = None,
) -> Tensor:
    """The contract's formula; ``x: (..., K)`` of any strides, ``weight: (ceil(K/128), N, 16)``."""
    N, K = weight.shape[1], x.shape[-1]
    shape = (*x.shape[:-1], N)
    y = x.new_empty(shape) if out is None or not _is_flat(out) else out
    if y.numel():
        M = y.numel() // N
        rows, results = x.reshape(M, K), y.view(M, N)
        how = configuration("int4_mm", x.device, M)
        _launch(rows, weight, scales, None if zero == "none" else zeros, order, bias, results, how, layout, group, zero)
    return delivered(y, out)


def _is_flat(out: Tensor) -> bool:
    """Whether its rows are those of a matrix."""
    return out.dim() < 3 or out.is_contiguous()


def split_count(tiles: int, blocks: int, how: Configuration) -> tuple[int, int]:
    """How many programs share the ``blocks`` of each of ``tiles`` tiles, and how many blocks each has at most."""
    wanted = min(max(1, how.programs // tiles), max(1, blocks // _FEWEST_BLOCKS), _MOST_PARTS)
    share = max(1, cdiv(blocks, wanted))
    return max(1, cdiv(blocks, share)), share


def _launch(
    x: Tensor,
    weight: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    order: Tensor | None,
    bias: Tensor | None,
    y: Tensor,
    how: Configuration,
    layout: str,
    group: int,
    zero: str,
) -> None:
    (M, K), N, groups = x.shape, weight.shape[1], len(scales)
    options = dict(how.options)
    block_m, block_n = options["BLOCK_M"], options["BLOCK_N"]
    tiles = cdiv(M, block_m) * cdiv(N, block_n)
    splits, share = split_count(tiles, cdiv(K, _BLOCK), how)
    parts = counted = None
    if splits > 1:
        parts = torch.empty((splits, tiles, block_m, block_n), dtype=torch.float32, device=x.device)
        counted = counters(x.device, tiles)
    interpreted = processor(x.device).arch == "interpreter"
    launch(
        product,
        (tiles, splits),
        x,
        weight,
        scales,
        zeros,
        order,
        bias,
        y,
        parts,
        counted,
        M,
        N,
        K,
        groups,
        max(1, cdiv(K, max(groups, 1))),
        splits,
        share,
        *x.stride(),
        *y.stride(),
        0 if bias is None else bias.stride(0),
        GROUP=group,
        ZERO=zero,
        SPLIT=splits > 1,
        WHOLE_TILES=N % block_n == 0,
        WHOLE_BLOCKS=K % _BLOCK == 0,
        MFMA=layout == "packed_mfma",
        ASSEMBLY=processor(x.device).arch.startswith("sm_"),
        WIDEN=interpreted,
        STAGES=options.pop("num_stages"),
        **options,
    )
