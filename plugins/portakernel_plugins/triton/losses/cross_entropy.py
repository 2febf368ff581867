"""``cross_entropy`` and its gradient in Triton.

With ``t`` a row's target, ``s`` the label smoothing and ``q = (1 - s) * [class is t] + s / V``:

    lse         = log(sum(exp(x)))                         per row
    loss        = lse - (1 - s) * x[t] - s * mean(x)       0 where t is ignored
    grad_logits = g * (exp(x - lse) - q)                   g: gradient of loss; 0 where t is ignored

Everything is computed in float32 and rounded once, when it is stored. Forward reads each row once, in tiles: every
thread keeps a maximum of the elements that it has read, and a sum scaled to it, and only at a row's end do threads talk
to each other. Backward is one pass without sums.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from portakernel.authoring.tensors import contiguous_like, is_aligned, with_row_stride
from portakernel.authoring.triton import cdiv, grid_of, launch, processor, program_index
from portakernel_plugins.triton.exponentials import LOG2_E
from portakernel_plugins.triton.launching.configurations import Configuration, configuration

# The widest access of a thread, in bytes.
_ACCESS = 16


@dataclass(frozen=True, slots=True)
class _Tile:
    """What a program takes at once: ``rows`` of ``steps`` times ``packs``, of as many elements as one access reads."""

    rows: int
    steps: int
    packs: int


def _tile(how: Configuration, device: torch.device, pack: int) -> _Tile:
    """A tile of ``how.elements``. Whole rows where they are short; else a row's next packs, one a thread and step."""
    threads = how.warps * processor(device).warp_size
    packs = cdiv(how.columns, pack)
    if packs <= threads:
        return _Tile(how.rows, 1, packs)
    return _Tile(1, max(1, min(how.elements, how.columns) // (threads * pack)), threads)


@triton.jit(do_not_specialize=["rows", "row_packs", "stride_packs", "ignore_index"])
def _forward(
    logits: tl.tensor,
    target: tl.tensor,
    loss: tl.tensor,
    lse: tl.tensor,  # None: not wanted
    saved: tl.tensor,  # lse once more. None: not wanted
    rows: tl.tensor,
    row_packs: tl.tensor,
    stride_packs: tl.tensor,
    target_stride: tl.tensor,
    ignore_index: tl.tensor,
    smoothing: tl.tensor,
    SMOOTH: tl.constexpr,
    ROWS: tl.constexpr,
    STEPS: tl.constexpr,
    PACKS: tl.constexpr,
    PACK: tl.constexpr,  # elements that a thread reads at once: rows and what lies between them are multiples of it
) -> None:
    smoothing = tl.cast(smoothing, tl.float32)  # Inductor passes numbers in float64
    row = program_index() * ROWS + tl.arange(0, ROWS)
    in_rows = row < rows
    start = logits + row * stride_packs * PACK
    columns = row_packs * PACK

    t = tl.load(target + row * target_stride, mask=in_rows, other=0).to(tl.int64)
    ignored = t == ignore_index
    chosen = tl.load(start + t, mask=in_rows & (t >= 0) & (t < columns), other=float("nan")).to(tl.float32)

    # Of (STEPS, ROWS, PACKS, PACK), steps and the elements of a pack are within a thread. Columns are one dimension
    # until they are loaded, because Triton deals those that are not contiguous out to threads in either order.
    BLOCK: tl.constexpr = PACKS * PACK
    step_column = (tl.arange(0, STEPS)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :])[:, None, :]
    top = tl.full((ROWS, PACKS), float("-inf"), tl.float32)
    total = tl.full((ROWS, PACKS), 0.0, tl.float32)
    plain = tl.full((ROWS, PACKS), 0.0, tl.float32)
    for first in range(0, columns, STEPS * BLOCK):
        column = first + step_column
        inside = in_rows[None, :, None] & (column < columns)
        x = tl.load(start[None, :, None] + column, mask=inside, other=float("-inf")).to(tl.float32)
        x = tl.reshape(x, (STEPS, ROWS, PACKS, PACK))
        higher = tl.maximum(top, tl.max(tl.max(x, axis=3), axis=0))
        # Where there was nothing but -inf until now, 0 stands for the maximum: -inf less -inf were NaN.
        base = tl.where(higher == float("-inf"), 0.0, higher)
        powers = tl.exp2((x - base[None, :, :, None]) * LOG2_E)
        total = total * tl.exp2((top - base) * LOG2_E) + tl.sum(tl.sum(powers, axis=3), axis=0)
        top = higher
        if SMOOTH:
            read = tl.reshape(tl.broadcast_to(inside, (STEPS, ROWS, BLOCK)), (STEPS, ROWS, PACKS, PACK))
            plain += tl.sum(tl.sum(tl.where(read, x, 0.0), axis=3), axis=0)

    highest = tl.max(top, axis=1)
    base = tl.where(highest == float("-inf"), 0.0, highest)[:, None]
    rest = tl.log(tl.sum(total * tl.exp2((top - base) * LOG2_E), axis=1))
    # lse - x, without subtracting two large numbers
    row_loss = rest - (chosen - highest)
    if SMOOTH:
        mean = tl.sum(plain, axis=1) / columns
        row_loss = (1.0 - smoothing) * row_loss + smoothing * (rest - (mean - highest))
    tl.store(loss + row, tl.where(ignored, 0.0, row_loss), mask=in_rows)
    if lse is not None:
        tl.store(lse + row, highest + rest, mask=in_rows)
    if saved is not None:
        tl.store(saved + row, highest + rest, mask=in_rows)


def _in_packs(logits: Tensor) -> tuple[Tensor, int, int]:
    """``logits``, the stride of its rows, and the elements that a thread reads at once: of one access, or one.

    V alone decides, so that how a row's sum is grouped does not depend on where it lies, or among how many others:
    rows that could be read in packs and do not begin at one are copied.
    """
    pack = _ACCESS // logits.element_size()
    logits, stride = with_row_stride(logits)
    if logits.shape[-1] % pack:
        return logits, stride, 1
    if stride % pack or not is_aligned(logits, _ACCESS):
        return logits.clone(memory_format=torch.contiguous_format), logits.shape[-1], pack
    return logits, stride, pack


def _row_values(like: Tensor, out: Tensor | None) -> Tensor:
    """Memory for a float32 number per row: ``out`` where that is contiguous."""
    if out is not None and out.is_contiguous():
        return out
    return torch.empty(like.shape, dtype=torch.float32, device=like.device)


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    *,
    ignore_index: int,
    label_smoothing: float = 0.0,
    overwrite_logits: bool = False,
    return_lse: bool = False,
    out: Tensor | tuple[Tensor, ...] | None = None,
    save: bool = False,
) -> Tensor | tuple[Tensor, ...]:
    """The loss of each row, ``lse`` with ``return_lse``, and ``lse (M,)`` once more with ``save``.

    ``logits``: ``(..., V)``, any strides, read where they lie if rows are contiguous, at one stride (0 too); float32,
    float16 or bfloat16. ``target``: ``(...)``, any strides; int64 or int32. Results: ``(...)`` float32; ``out``: any
    strides, a tuple of both with ``return_lse``.
    """
    del overwrite_logits  # permits backward to
    given = out if isinstance(out, tuple) else (out, None)
    loss = _row_values(target, given[0])
    lse = _row_values(target, given[1]) if return_lse else None
    v, rows = logits.shape[-1], target.numel()
    saved = torch.empty(rows, dtype=torch.float32, device=logits.device) if save else None
    if rows:
        logits, stride, pack = _in_packs(logits)
        targets = target if target.dim() == 1 else target.reshape(-1)
        how = configuration("cross_entropy.forward", logits.device, v)
        tile = _tile(how, logits.device, pack)
        launch(
            _forward,
            grid_of(cdiv(rows, tile.rows)),
            logits,
            targets,
            loss,
            lse,
            saved,
            rows,
            v // pack,
            stride // pack,
            targets.stride(0),
            ignore_index,
            float(label_smoothing),
            SMOOTH=label_smoothing != 0,
            ROWS=tile.rows,
            STEPS=tile.steps,
            PACKS=tile.packs,
            PACK=pack,
            parameter="V",
            **how.options,
        )
    if given[0] is not None and loss is not given[0]:
        loss = given[0].copy_(loss)
    if lse is not None and given[1] is not None and lse is not given[1]:
        lse = given[1].copy_(lse)
    results = (loss,) if lse is None else (loss, lse)
    if saved is not None:
        return (*results, saved)
    return loss if lse is None else results


@triton.jit
def _gradient(x, column, t, ignored, scale, lse, hot, cold):
    """``scale * (exp(x - lse) - q)``, of a tile whose rows the other arguments but ``column`` belong to."""
    p = tl.exp2((x - lse) * LOG2_E)
    # written, not multiplied by zero: an ignored row may hold NaN
    return tl.where(ignored, 0.0, scale * (p - tl.where(column == t, hot, cold)))


# Rows are read and written in aligned packs of PACK elements. Where rows begin anywhere, what is left of one before its
# first pack (its ``head``) and behind its last are its edges, which its first program takes one by one.
@triton.jit(do_not_specialize=["rows", "columns", "blocks", "ignore_index"])
def _backward(
    grad_loss: tl.tensor,
    logits: tl.tensor,
    target: tl.tensor,
    lse: tl.tensor,
    grad: tl.tensor,  # may be ``logits``
    rows: tl.tensor,
    columns: tl.tensor,
    blocks: tl.tensor,  # programs that share a row
    grad_loss_stride: tl.tensor,
    logits_stride: tl.tensor,
    target_stride: tl.tensor,
    ignore_index: tl.tensor,
    hot: tl.tensor,  # q of the target
    cold: tl.tensor,  # q of other classes
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PACK: tl.constexpr,
    EDGES: tl.constexpr,
) -> None:
    hot, cold = tl.cast(hot, tl.float32), tl.cast(cold, tl.float32)  # Inductor passes numbers in float64
    program = program_index()
    block = (program % blocks).to(tl.int32)
    row = program // blocks * ROWS + tl.arange(0, ROWS)
    in_rows = row < rows
    t = tl.load(target + row * target_stride, mask=in_rows, other=0).to(tl.int64)
    ignored = t == ignore_index
    read = in_rows & (t != ignore_index)  # an ignored row need not be
    # 32 bits hold a class; a target that is none must not become one.
    t = tl.where((t >= 0) & (t < columns), t, -1).to(tl.int32)[:, None]
    ignored = ignored[:, None]
    scale = tl.load(grad_loss + row * grad_loss_stride, mask=in_rows, other=0.0)[:, None]
    row_lse = tl.load(lse + row, mask=in_rows, other=0.0)[:, None]

    # A row of ``grad`` is as far from its first pack as one of ``logits``: its head is as long.
    first = (row * logits_stride + (PACK - 1)) // PACK * PACK
    grad_first = (row * columns + (PACK - 1)) // PACK * PACK
    head = (first - row * logits_stride).to(tl.int32)
    whole = tl.maximum(columns - head, 0) // PACK * PACK

    offset = (block * BLOCK_N + tl.arange(0, BLOCK_N))[None, :]
    inside = offset < whole[:, None]
    x = tl.load(logits + first[:, None] + offset, mask=read[:, None] & inside, other=0.0).to(tl.float32)
    block_grad = _gradient(x, head[:, None] + offset, t, ignored, scale, row_lse, hot, cold)
    into = grad + grad_first[:, None] + offset
    tl.store(into, block_grad.to(grad.dtype.element_ty), mask=in_rows[:, None] & inside)

    if EDGES:  # noqa: SIM102  # known when this is compiled, which the program's number is not
        if block == 0:
            edge = tl.arange(0, 2 * PACK)[None, :]
            head_end = tl.minimum(head, columns)[:, None]
            column = tl.where(edge < PACK, edge, head_end + whole[:, None] + (edge - PACK))
            in_edge = tl.where(edge < PACK, edge < head_end, column < columns)
            source = logits + row[:, None] * logits_stride + column
            x_edge = tl.load(source, mask=read[:, None] & in_edge, other=0.0).to(tl.float32)
            edge_grad = _gradient(x_edge, column, t, ignored, scale, row_lse, hot, cold).to(grad.dtype.element_ty)
            tl.store(grad + row[:, None] * columns + column, edge_grad, mask=in_rows[:, None] & in_edge)


def backward(
    grad_loss: Tensor,
    logits: Tensor,
    target: Tensor,
    lse: Tensor,
    *,
    ignore_index: int,
    label_smoothing: float = 0.0,
    overwrite_logits: bool = False,
    return_lse: bool = False,
    needs: tuple[bool, bool] = (True, False),
) -> tuple[Tensor | None, None]:
    """The gradient for ``logits``: contiguous, in its memory where that may be written over and is contiguous too.

    Arguments as in forward; ``lse``: ``(M,)`` float32, from forward; ``grad_loss``: ``(...)`` float32, any strides.
    """
    del return_lse  # lse has no gradient
    if not needs[0]:
        return None, None
    over = overwrite_logits and logits.is_contiguous()
    grad = logits if over else contiguous_like(logits)
    v, rows = logits.shape[-1], target.numel()
    if rows:
        logits, stride = with_row_stride(logits)
        targets = target if target.dim() == 1 else target.reshape(-1)
        scales = grad_loss if grad_loss.dim() == 1 else grad_loss.reshape(-1)
        pack = _ACCESS // logits.element_size()
        # in ``logits`` and ``grad`` alike, or packs of one would be aligned and of the other not
        if (stride - v) % pack or not (is_aligned(logits, _ACCESS) and is_aligned(grad, _ACCESS)):
            pack = 1
        how = configuration("cross_entropy.backward", logits.device, v)
        block = min(how.columns, how.elements)
        blocks = cdiv(v, block)
        # a row's edges are taken as if they were full, which of rows of a few columns is more than the rows themselves
        together = min(how.rows, how.elements // (2 * pack)) if v % pack else how.rows
        launch(
            _backward,
            grid_of(cdiv(rows, together) * blocks),
            scales,
            logits,
            targets,
            lse,
            grad,
            rows,
            v,
            blocks,
            scales.stride(0),
            stride,
            targets.stride(0),
            ignore_index,
            1.0 - label_smoothing + label_smoothing / v,
            label_smoothing / v,
            ROWS=together,
            BLOCK_N=block,
            PACK=pack,
            EDGES=v % pack != 0,
            parameter="V",
            **how.options,
        )
    return grad, None
