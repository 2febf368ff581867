"""``int4_mm`` in Triton: weights of a packed layout, decoded in registers (``int4_kernels.py``)."""

from __future__ import annotations

from torch import Tensor

from portakernel.authoring.tensors import delivered
from portakernel.authoring.triton import cdiv, launch, processor
from portakernel_plugins.triton.launching.configurations import Configuration, configuration
from portakernel_plugins.triton.matrix.int4_decoded import order_of
from portakernel_plugins.triton.matrix.int4_few_rows import few_rows
from portakernel_plugins.triton.matrix.int4_kernels import product
from portakernel_plugins.triton.matrix.products import RoomForDescriptors, form_of
from portakernel_plugins.triton.matrix.splits import room_for_parts, split_count

_BLOCK = 128
# Fewer blocks of 128 columns are not worth a slice.
_FEWEST_BLOCKS = 2


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
        places, group_of = order_of(order)
        rows, results = x.reshape(M, K), y.view(M, N)
        rows = rows if places is None else rows.index_select(1, places)
        how = configuration("int4_mm.any_groups" if group == 0 else "int4_mm", x.device, M)
        _launch(
            rows, weight, scales, None if zero == "none" else zeros, group_of, bias, results, how, layout, group, zero
        )
    return delivered(y, out)


def _is_flat(out: Tensor) -> bool:
    """Whether its rows are those of a matrix."""
    return out.dim() < 3 or out.is_contiguous()


def slice_count(rows: int, across: int, blocks: int, how: Configuration) -> int:
    """How many slices of K a program has side by side, of at most ``ROWS`` rows of the weight in all.

    As many as leave room for ``rows`` columns each, while their programs still run at once: these tiles are narrower.
    """
    options, count = how.options, 1
    room = options["COLUMNS"] // min(options["COLUMNS"], 1 << (rows - 1).bit_length())
    while 2 * count <= min(room, blocks // _FEWEST_BLOCKS):
        if cdiv(across, options["ROWS"] // (2 * count)) > how.programs:
            break
        count *= 2
    return count


def _launch(
    x: Tensor,
    weight: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    group_of: Tensor | None,
    bias: Tensor | None,
    y: Tensor,
    how: Configuration,
    layout: str,
    group: int,
    zero: str,
) -> None:
    (M, K), N, groups = x.shape, weight.shape[1], len(scales)
    options = dict(how.options)
    blocks = cdiv(K, _BLOCK)
    arch = processor(x.device).arch
    meta = {
        "GROUP": group,
        "ZERO": zero,
        "MFMA": layout == "packed_mfma",
        "ASSEMBLY": arch.startswith("sm_"),
        "WIDEN": arch == "interpreter",
        "WARPS": how.warps if options.pop("FRAGMENTS", False) else 0,
        "STAGES": options.pop("num_stages"),
        "ASYNCHRONOUS": arch.startswith("sm_9"),
    }
    few = "COLUMNS" in options
    if few:
        meta["OVERLAP"] = meta["launch_pdl"] = options.pop("OVERLAP", False)
        slices, held, step = slice_count(M, N, blocks, how), options.pop("COLUMNS"), options["BLOCKS"]
        options["BLOCK_N"] = options.pop("ROWS") // slices
        options["BLOCK_M"] = max(held // slices, 1) if slices > 1 else held * options["PIECES"]
        options["SLICES"] = slices
        tiles = cdiv(M, options["BLOCK_M"]) * cdiv(N, options["BLOCK_N"])
        splits, share = split_count(tiles, max(1, cdiv(blocks, slices)), how)
        share = cdiv(share, step) * step
        splits = max(1, cdiv(blocks, slices * share))
        whole = splits * slices * share * _BLOCK == K
        sizes: tuple[int, ...] = (M, N, K, groups, splits, share)
    else:
        tiles = cdiv(M, options["BLOCK_M"]) * cdiv(N, options["BLOCK_N"])
        splits, share = split_count(tiles, blocks, how)
        meta["DESCRIBED"] = options.pop("DESCRIPTORS", False) and form_of(x, True) == "inner"
        whole = K % _BLOCK == 0
        sizes = (M, N, K, groups, max(1, cdiv(K, max(groups, 1))), splits, share)
    meta |= {"SPLIT": splits > 1, "WHOLE_TILES": N % options["BLOCK_N"] == 0, "WHOLE_BLOCKS": whole}
    parts, counted = room_for_parts(splits, tiles, options["BLOCK_M"] * options["BLOCK_N"], x.device)
    ordered = () if few else (group_of,)
    tensors = x, weight, scales, zeros, *ordered, bias, y, parts, counted
    strides = *x.stride(), *y.stride(), 0 if bias is None else bias.stride(0)
    with RoomForDescriptors(x.device):
        launch(few_rows if few else product, (tiles, splits), *tensors, *sizes, *strides, **meta, **options)
