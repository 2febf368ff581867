"""The gradient of normalised rows: of what ``norm_forward`` computes, in Triton.

Of each row of ``s``, which is ``x`` or the saved sum, with its saved ``mean`` (0 where the norm does not centre) and
``rstd``, ``u = (s - mean) * rstd``, ``w = weight + weight_offset``, ``z = u * w + bias``, ``g`` and ``grad_summed`` the
gradients of ``y`` and of the sum, and ``h = g * activation'(z)``:

    grad_x      = rstd * (h * w - u * mean(h * w * u) - mean(h * w)) + grad_summed     the last mean: where centred
    grad_weight = sum over rows of h * u
    grad_bias   = sum over rows of h

Everything is computed in float32 and rounded once, when it is stored. While the configuration says so, programs stay,
take row after row, and keep their shares of the sums over rows in registers, in one block or several. Rows are kept
there too, with the next one on its way. Longer ones are read twice for ``grad_x``, and once more, by columns, for the
sums over rows.
"""
# pyright: reportPossiblyUnboundVariable=false, reportGeneralTypeIssues=false
# What branches of compile-time values bind, Triton sees bound. Tuples grow by concatenation, the one way it knows.
# ruff: noqa: RUF005
# mypy: disable-error-code="assignment, misc, unreachable, var-annotated"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from portakernel.authoring.tensors import contiguous_like, with_row_stride
from portakernel.authoring.triton import Held, cdiv, grid_of, launch, per_device, prepared
from portakernel_plugins.triton.gates.activations import value_and_slope
from portakernel_plugins.triton.launching.configurations import configuration
from portakernel_plugins.triton.launching.row_blocks import (
    held_shape,
    in_units,
    is_long,
    load_blocks,
    load_parameter,
    looped_shape,
    store_block,
    unit_of,
)
from portakernel_plugins.triton.norms.norm_backward_long import backward_long, row_shares
from portakernel_plugins.triton.norms.weight_gradients import summed_shares

# Steps that one program goes in about the time that a second launch, which adds up shares, takes.
_FEW = 4


@triton.jit
def _terms(s, g, w, b, moments, weight_offset, ACTIVATION: tl.constexpr):
    """``u``, ``h`` and ``w`` of a block of rows in float32; beyond their end ``h`` is 0."""
    u = s.to(tl.float32)
    h = g.to(tl.float32)
    w = w.to(tl.float32)
    if weight_offset is not None:
        w = w + weight_offset
    if len(moments) > 1:
        u = u - moments[1][:, None]
    u = u * moments[0][:, None]
    if ACTIVATION != "none":
        z = u * w[None, :]
        if b is not None:
            z += b.to(tl.float32)[None, :]
        _value, slope = value_and_slope(z, ACTIVATION)
        h = h * slope
    return u, h, w[None, :]


@triton.jit
def _held_parameters(
    weight, bias, lane, columns, weight_stride, bias_stride, BLOCK_N: tl.constexpr, BLOCKS: tl.constexpr,
    UNIT: tl.constexpr,
):  # fmt: skip
    """All blocks of the weight and of the bias, as narrow as they are; no blocks of a bias that is absent."""
    ws, bs = (), ()
    for i in tl.static_range(BLOCKS):
        ws = ws + (load_parameter(weight, weight_stride, i * BLOCK_N + lane, columns, UNIT),)
        if bias is not None:
            bs = bs + (load_parameter(bias, bias_stride, i * BLOCK_N + lane, columns, UNIT),)
    return ws, bs


@triton.jit
def _fetched(
    s, grad_y, grad_summed, mean, rstd, row, rows, lane, columns, s_stride, grad_y_stride, grad_summed_stride,
    BLOCK_N: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """All blocks of these rows of ``s``, ``grad_y`` and ``grad_summed``, and ``(rstd, mean)``; none of what is absent.

    Up to Triton 3.6, a tuple that a function returns cannot hold None.
    """
    ss = load_blocks(s, row, s_stride, rows, lane, columns, BLOCK_N, BLOCKS)
    gs = load_blocks(grad_y, row, grad_y_stride, rows, lane, columns, BLOCK_N, BLOCKS)
    moments, es = (tl.load(rstd + row, mask=row < rows, other=0.0),), ()
    if mean is not None:
        moments = moments + (tl.load(mean + row, mask=row < rows, other=0.0),)
    if grad_summed is not None:
        es = load_blocks(grad_summed, row, grad_summed_stride, rows, lane, columns, BLOCK_N, BLOCKS)
    return ss, gs, es, moments


@triton.jit
def _means(
    ss, gs, ws, bs, moments, weight_offset, columns, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCKS: tl.constexpr,
    ACTIVATION: tl.constexpr,
):  # fmt: skip
    """The means of ``h * w * u`` and of ``h * w`` over each row."""
    products = tl.full((BLOCK_M, BLOCK_N), 0.0, tl.float32)
    totals = tl.full((BLOCK_M, BLOCK_N), 0.0, tl.float32)
    for i in tl.static_range(BLOCKS):
        u, h, w = _terms(ss[i], gs[i], ws[i], _block_of(bs, i), moments, weight_offset, ACTIVATION)
        products += h * w * u
        totals += h * w
    return (tl.sum(products, axis=1) / columns)[:, None], (tl.sum(totals, axis=1) / columns)[:, None]


@triton.jit
def _block_of(blocks, i: tl.constexpr):
    """One of several blocks; None where there are none."""
    block = None
    if len(blocks) > 0:
        block = blocks[i]
    return block


@triton.jit
def _gradient(u, h, w, product, total, moments, e):
    """``grad_x`` of a block of rows."""
    inner = h * w - u * product
    if len(moments) > 1:
        inner -= total
    gradient = moments[0][:, None] * inner
    if e is not None:
        gradient += e.to(tl.float32)
    return gradient


@triton.jit
def _store_share(shares, share, program, column, columns):
    """Stores a program's sums over its rows, if they are wanted."""
    if shares is not None:
        sums = tl.sum(share, axis=0)
        tl.store(shares + program * columns + column, sums, mask=column < columns)


@triton.jit(do_not_specialize=["rows"])
def _backward(
    s: tl.tensor,
    grad_y: tl.tensor,
    grad_summed: tl.tensor,  # None: zero
    weight: tl.tensor,
    bias: tl.tensor,  # None: absent, or of no influence
    mean: tl.tensor,  # None: the norm does not centre
    rstd: tl.tensor,
    grad_x: tl.tensor,  # None: not wanted
    grad_residual: tl.tensor,  # None: not wanted
    weight_shares: tl.tensor,  # (programs, N) float32, each program's share of grad_weight. None: not wanted
    bias_shares: tl.tensor,  # the same of grad_bias
    rows: tl.tensor,
    columns: tl.tensor,
    s_stride: tl.tensor,
    grad_y_stride: tl.tensor,
    grad_summed_stride: tl.tensor,
    weight_stride: tl.tensor,
    bias_stride: tl.tensor,
    weight_offset: tl.tensor,  # None: nothing is added
    ACTIVATION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCKS: tl.constexpr,  # of BLOCK_N columns, in a row
    UNIT: tl.constexpr,  # divides the length of rows, and their strides
) -> None:
    columns, s_stride, grad_y_stride = in_units(columns, UNIT), in_units(s_stride, UNIT), in_units(grad_y_stride, UNIT)
    if grad_summed is not None:
        grad_summed_stride = in_units(grad_summed_stride, UNIT)
    if weight_offset is not None:  # Inductor passes numbers in float64
        weight_offset = tl.cast(weight_offset, tl.float32)
    program = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK_N)
    ws, bs = _held_parameters(weight, bias, lane, columns, weight_stride, bias_stride, BLOCK_N, BLOCKS, UNIT)
    weight_share, bias_share = (), ()
    for _ in tl.static_range(BLOCKS):
        weight_share = weight_share + (tl.full((BLOCK_M, BLOCK_N), 0.0, tl.float32),)
        bias_share = bias_share + (tl.full((BLOCK_M, BLOCK_N), 0.0, tl.float32),)

    # The next rows are read before these are computed, so that there is always something on its way.
    row = program * BLOCK_M + tl.arange(0, BLOCK_M)
    s_next, g_next, e_next, moments_next = _fetched(
        s, grad_y, grad_summed, mean, rstd, row, rows, lane, columns, s_stride, grad_y_stride, grad_summed_stride,
        BLOCK_N, BLOCKS,
    )  # fmt: skip
    step = tl.num_programs(0) * BLOCK_M
    for first in range(program * BLOCK_M, rows, step):
        ss, gs, es, moments = s_next, g_next, e_next, moments_next
        row = first + step + tl.arange(0, BLOCK_M)
        s_next, g_next, e_next, moments_next = _fetched(
            s, grad_y, grad_summed, mean, rstd, row, rows, lane, columns, s_stride, grad_y_stride, grad_summed_stride,
            BLOCK_N, BLOCKS,
        )  # fmt: skip

        row = first + tl.arange(0, BLOCK_M)
        if grad_x is not None:
            product, total = _means(
                ss, gs, ws, bs, moments, weight_offset, columns, BLOCK_M, BLOCK_N, BLOCKS, ACTIVATION
            )  # fmt: skip
        more_weight, more_bias = (), ()
        for i in tl.static_range(BLOCKS):
            u, h, w = _terms(ss[i], gs[i], ws[i], _block_of(bs, i), moments, weight_offset, ACTIVATION)
            if grad_x is not None:
                column = i * BLOCK_N + lane
                gradient = _gradient(u, h, w, product, total, moments, _block_of(es, i))
                store_block(grad_x, row, columns, rows, column, columns, gradient)
                if grad_residual is not None:
                    store_block(grad_residual, row, columns, rows, column, columns, gradient)
            more_weight = more_weight + (weight_share[i] + h * u,)
            more_bias = more_bias + (bias_share[i] + h,)
        weight_share, bias_share = more_weight, more_bias

    for i in tl.static_range(BLOCKS):
        _store_share(weight_shares, weight_share[i], program, i * BLOCK_N + lane, columns)
        _store_share(bias_shares, bias_share[i], program, i * BLOCK_N + lane, columns)


def backward(
    kernel: str,
    grad_y: Tensor,
    grad_summed: Tensor | None,
    s: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    mean: Tensor | None,
    rstd: Tensor,
    *,
    weight_offset: float | None = None,
    activation: str = "none",
    needs: tuple[bool, bool, bool, bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """The gradients for ``x``, ``residual``, ``weight`` and ``bias`` that ``needs`` asks for, as ``kernel`` says.

    ``s``, ``grad_y``, ``grad_summed``: ``(..., N)``, any strides, read where they lie if their rows are contiguous and
    at one stride. ``mean``, ``rstd``: ``(M,)`` float32, from forward; a norm without ``mean`` does not centre.
    """
    n = s.shape[-1]
    rows = s.numel() // n
    wanted = [contiguous_like(s) for need in needs[:2] if need]
    grad_x, grad_residual = (*wanted, None, None)[:2]  # they are equal: which is which does not matter below
    sums = needs[2] + needs[3]
    if not (wanted or sums):
        return None, None, None, None

    how = configuration(kernel, s.device, n, s.element_size())
    long = is_long(how)
    totals = list[Tensor]()
    if 0 < rows <= _FEW * how.rows and not long:  # one program's shares are the totals
        totals, sums = [torch.empty(n, dtype=weight.dtype, device=s.device) for _ in range(sums)], 0
    if long:
        block = configuration("weight_gradients.shares", s.device, n)
        across = cdiv(n, block.elements)
        programs = min(rows, cdiv(block.programs, across))
    else:
        programs = min(cdiv(rows, how.rows), how.programs)
    shares = [torch.empty(programs, n, dtype=torch.float32, device=s.device) for _ in range(sums)]
    if totals:
        programs, shares = 1, totals
    weight_shares = shares[0] if needs[2] else None
    bias_shares = shares[-1] if needs[3] else None

    if rows:
        s, s_stride = with_row_stride(s)
        grad_y, grad_y_stride = with_row_stride(grad_y)
        grad_summed_stride = None
        if grad_summed is not None:
            grad_summed, grad_summed_stride = with_row_stride(grad_summed)
        if activation == "none":
            bias = None
        inputs = (s, grad_y, grad_summed, weight, bias, mean, rstd)
        strides = (s_stride, grad_y_stride, grad_summed_stride, weight.stride(0))
        rest = (None if bias is None else bias.stride(0), weight_offset)
        held = _of_rows(kernel, s.device, n, s.element_size(), activation)
        if not long:
            outputs = (grad_x, grad_residual, weight_shares, bias_shares)
            held.launch((programs, 1), *inputs, *outputs, rows, n, *strides, *rest)
        elif grad_x is not None:
            held.launch(grid_of(rows), *inputs, grad_x, grad_residual, rows, n, *strides, *rest)
        if long and sums:
            meta = {"ACTIVATION": activation, "BLOCK_N": block.elements, "UNIT": unit_of(n), **block.options}
            given = (s, grad_y, weight, bias, mean, rstd, weight_shares, bias_shares, rows, n)
            given_strides = (s_stride, grad_y_stride, weight.stride(0))
            launch(row_shares, (across, programs), *given, *given_strides, *rest, parameter="N", **meta)

    totals = summed_shares(shares, weight.dtype) if sums else totals
    return (
        grad_x if needs[0] else None,
        (grad_residual if needs[0] else grad_x) if needs[1] else None,
        totals[0] if needs[2] else None,
        totals[-1] if needs[3] else None,
    )


@per_device
def _of_rows(kernel: str, device: torch.device, n: int, element_bytes: int, activation: str) -> Held:
    """What ``kernel`` launches for the rows themselves."""
    how, meta = configuration(kernel, device, n, element_bytes), {"ACTIVATION": activation, "UNIT": unit_of(n)}
    if is_long(how):
        return prepared(backward_long, {**meta, **looped_shape(how, n), **how.options}, "N")
    return prepared(_backward, {**meta, **held_shape(how, n), **how.options}, "N")
