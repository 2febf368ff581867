"""``linear_cross_entropy`` in Triton; its gradients are in ``linear_cross_entropy_backward.py``.

With ``z = x @ weight.T``, ``t`` a row's target and ``s`` the label smoothing:

    lse  = log(sum(exp(z)))                            per row
    loss = lse - (1 - s) * z[t] - s * mean(z)          0 where t is ignored

z is formed tile by tile (``products.py``), and of each tile's row one number is kept, the logarithm of its sum of
exponentials: a thousandth of z. A second kernel adds those of a row up.
"""
# pyright: reportGeneralTypeIssues=false
# Python's types do not see that Triton iterates over its ranges.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from portakernel.authoring.tensors import delivered
from portakernel.authoring.triton import cdiv, launch
from portakernel_plugins.triton.exponentials import exponential, finite_or_zero
from portakernel_plugins.triton.launching.configurations import Configuration, configuration
from portakernel_plugins.triton.matrix.products import launch_tiles, operand, tile_corner, tile_product


def tiles_for(step: str, like: Tensor, columns: int) -> Configuration:
    """How a step of the op is launched: one entry for each, and one for all where operands are float32."""
    entry = "float32" if like.dtype is torch.float32 else step
    return configuration(f"linear_cross_entropy.{entry}", like.device, columns)


@triton.jit(do_not_specialize=["rows", "steps"])
def _forward(
    x: tl.tensor,
    weight: tl.tensor,
    target: tl.tensor,
    shares: tl.tensor,  # (tiles across, M) float32: log(sum(exp(z))) of a tile's classes
    sums: tl.tensor,  # the same of sum(z). None: not wanted
    chosen: tl.tensor,  # (M,) float32: z of the target, where it is a class
    target_stride: tl.tensor,
    rows: tl.tensor,
    classes: tl.tensor,
    width: tl.tensor,
    steps: tl.tensor,
    x_outer: tl.tensor,
    x_inner: tl.tensor,
    weight_outer: tl.tensor,
    weight_inner: tl.tensor,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    FLATTEN: tl.constexpr,
    FORM_A: tl.constexpr,
    FORM_B: tl.constexpr,
    EVEN: tl.constexpr,
    WIDEN: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    a = operand(x, rows, width, x_outer, x_inner, BLOCK_M, BLOCK_K, FORM_A)
    b = operand(weight, classes, width, weight_outer, weight_inner, BLOCK_N, BLOCK_K, FORM_B)
    tiles = tl.cdiv(rows, BLOCK_M) * tl.cdiv(classes, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=FLATTEN):
        first_row, first_class = tile_corner(tile, rows, classes, BLOCK_M, BLOCK_N, GROUP)
        z = tl.full((BLOCK_M, BLOCK_N), 0.0, tl.float32)
        z = tile_product(
            z, a, b, first_row, first_class, steps, BLOCK_K, FORM_A, FORM_B, EVEN, WIDEN, PRECISION
        )  # fmt: skip
        row = (first_row + tl.arange(0, BLOCK_M)).to(tl.int64)
        in_rows = row < rows
        lane = tl.arange(0, BLOCK_N)
        share = (first_class // BLOCK_N).to(tl.int64) * rows + row

        t = tl.load(target + row * target_stride, mask=in_rows, other=-1).to(tl.int64)
        here = (t >= first_class) & (t < first_class + BLOCK_N) & (t < classes)
        if tl.max(here.to(tl.int32), axis=0) > 0:  # in most tiles no row's target is
            hot = lane[None, :] == (t - first_class).to(tl.int32)[:, None]
            tl.store(chosen + row, tl.sum(tl.where(hot, z, 0.0), axis=1), mask=here)
        if first_class + BLOCK_N > classes:
            inside = (first_class + lane < classes)[None, :]
            if sums is not None:
                tl.store(sums + share, tl.sum(tl.where(inside, z, 0.0), axis=1), mask=in_rows)
            z = tl.where(inside, z, float("-inf"))
        elif sums is not None:
            tl.store(sums + share, tl.sum(z, axis=1), mask=in_rows)
        base = finite_or_zero(tl.max(z, axis=1))
        total = tl.sum(exponential(z - base[:, None]), axis=1)
        tl.store(shares + share, base + tl.log(total), mask=in_rows)


@triton.jit(do_not_specialize=["rows", "classes", "parts", "ignore_index"])
def _losses(
    shares: tl.tensor,
    sums: tl.tensor,
    chosen: tl.tensor,
    target: tl.tensor,
    loss: tl.tensor,
    lse: tl.tensor,  # None: not wanted
    target_stride: tl.tensor,
    rows: tl.tensor,
    classes: tl.tensor,
    parts: tl.tensor,
    ignore_index: tl.tensor,
    smoothing: tl.tensor,
    ROWS: tl.constexpr,
    PARTS: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    in_rows = row < rows
    t = tl.load(target + row * target_stride, mask=in_rows, other=0).to(tl.int64)
    target_z = tl.load(chosen + row, mask=in_rows & (t >= 0) & (t < classes), other=float("nan"))

    top = tl.full((PARTS, ROWS), float("-inf"), tl.float32)
    total = tl.full((PARTS, ROWS), 0.0, tl.float32)
    plain = tl.full((PARTS, ROWS), 0.0, tl.float32)
    for first in range(0, parts, PARTS):
        part = (first + tl.arange(0, PARTS)).to(tl.int64)[:, None]
        inside = (part < parts) & in_rows[None, :]
        share = tl.load(shares + part * rows + row[None, :], mask=inside, other=float("-inf"))
        higher = tl.maximum(top, share)
        base = finite_or_zero(higher)
        total = total * exponential(top - base) + exponential(share - base)
        top = higher
        if sums is not None:
            plain += tl.load(sums + part * rows + row[None, :], mask=inside, other=0.0)

    highest = tl.max(top, axis=0)
    rest = tl.log(tl.sum(total * exponential(top - finite_or_zero(highest)[None, :]), axis=0))
    # lse - z, without subtracting two large numbers
    row_loss = rest - (target_z - highest)
    if sums is not None:
        mean = tl.sum(plain, axis=0) / classes
        row_loss = (1.0 - smoothing) * row_loss + smoothing * (rest - (mean - highest))
    tl.store(loss + row, tl.where(t == ignore_index, 0.0, row_loss), mask=in_rows)
    if lse is not None:
        tl.store(lse + row, highest + rest, mask=in_rows)


def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    ignore_index: int,
    label_smoothing: float = 0.0,
    out: Tensor | None = None,
    save: bool = False,
) -> Tensor | tuple[Tensor, ...]:
    """The loss of each row, float32, and with ``save`` its ``lse (M,)``.

    ``x``: ``(..., K)``, ``weight``: ``(V, K)``, of one dtype: float32, float16 or bfloat16; ``target``: ``(...)``,
    int64 or int32; all with any strides. ``out``: ``(...)``, any strides.
    """
    rows, classes = target.numel(), weight.shape[0]
    loss = out if out is not None and out.is_contiguous() else x.new_empty(target.shape, dtype=torch.float32)
    lse = x.new_empty(rows, dtype=torch.float32) if save else None
    if rows:
        how = tiles_for("forward", x, x.shape[-1])
        parts = cdiv(classes, how.options["BLOCK_N"])
        shares = x.new_empty(parts, rows, dtype=torch.float32)
        sums = torch.empty_like(shares) if label_smoothing != 0 else None
        chosen = x.new_empty(rows, dtype=torch.float32)
        targets = target.reshape(rows)
        matrix = x.reshape(rows, x.shape[-1])
        launch_tiles(_forward, how, matrix, weight, targets, shares, sums, chosen, targets.stride(0))
        how = configuration("linear_cross_entropy.losses", x.device, parts)
        launch(
            _losses,
            (cdiv(rows, how.options["ROWS"]), 1),
            shares,
            sums,
            chosen,
            targets,
            loss,
            lse,
            targets.stride(0),
            rows,
            classes,
            parts,
            ignore_index,
            float(label_smoothing),
            **how.options,
        )
    found = delivered(loss, out)
    return found if lse is None else (found, lse)
