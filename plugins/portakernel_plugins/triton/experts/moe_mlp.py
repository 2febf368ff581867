"""``moe_mlp`` in Triton: a sort, two grouped products, and a sum.

    order, offsets, inverse = moe_sort(experts)
    h = activation(gate) * up          gate, up: halves of x[order // K] @ w_in[e].T + bias_in[e], gated in registers
    results = h @ w_out[e].T + bias_out[e]      both a row for each assignment, in the order of experts
    y[t] = sum over j of weights[t, j] * results[inverse[t, j]]

Of float8, h is quantised as x is, in a launch of its own; beside weights of four bits it stays as it is. Each token's
results are added in the order of its experts, by whoever has the token: nothing is added atomically, and equal calls
give equal bits. What is launched depends on sizes alone: a captured graph takes other routing.
"""
# pyright: reportGeneralTypeIssues=false
# Python's types do not see that Triton iterates over its ranges.

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from portakernel.authoring import ArgumentValueError
from portakernel.authoring.tensors import delivered
from portakernel.authoring.triton import cdiv, grid_of, launch, program_index
from portakernel_plugins.triton.experts.moe_sort import moe_sort
from portakernel_plugins.triton.launching.configurations import configuration
from portakernel_plugins.triton.matrix.grouped_mm import multiply
from portakernel_plugins.triton.quantize.quantize_fp8 import quantize_fp8

# How gated rows are quantised.
_GRANULARITIES = {"row": "row", "block": "block_1x128"}
# As many of a token's results are read at once.
_READ = 8


@triton.jit(do_not_specialize=["programs"])
def _sums_of_tokens(
    results,  # (R, N), contiguous
    inverse,  # (M, K), contiguous: which results are a token's, -1 for none
    weights,  # (M, K). None: all are 1
    y,  # (M, N)
    columns,
    choices,
    programs,
    weights_row,
    weights_choice,
    READ: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    index = program_index()
    if index >= programs:
        return
    across = tl.cdiv(columns, BLOCK)
    token = (index // across).to(tl.int64)
    column = (index - token * across).to(tl.int32) * BLOCK + tl.arange(0, BLOCK)
    is_column = column < columns
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, choices, READ):
        for j in tl.static_range(READ):
            choice = first + j
            row = tl.load(inverse + token * choices + choice, mask=choice < choices, other=-1).to(tl.int64)
            part = tl.load(results + row * columns + column, mask=is_column & (row >= 0), other=0.0).to(tl.float32)
            if weights is not None:
                at = weights + token * weights_row + choice * weights_choice
                part *= tl.load(at, mask=row >= 0, other=0.0).to(tl.float32)
            total += part
    tl.store(y + token * columns + column, total.to(y.dtype.element_ty), mask=is_column)


def sums_of_tokens(results: Tensor, inverse: Tensor, weights: Tensor | None, y: Tensor) -> None:
    """Writes the sums of each token's ``results``, times its weights, into ``y: (T, N)``, contiguous."""
    (tokens, choices), columns = inverse.shape, y.shape[1]
    how = configuration("moe_mlp.sums", y.device, columns)
    block = min(how.columns, how.elements)
    programs = tokens * cdiv(columns, block)
    if not programs:
        return
    read = min(_READ, 1 << max(choices - 1, 0).bit_length())
    strides = (0, 0) if weights is None else weights.stride()
    launch(
        _sums_of_tokens,
        grid_of(programs),
        results,
        inverse,
        weights,
        y,
        columns,
        choices,
        programs,
        *strides,
        READ=read,
        BLOCK=block,
        **how.options,
    )


def check_scales(format: str, **scales: Tensor | None) -> None:
    """Nothing, when there are scales where the format has them: of mxfp4 those of the weights alone.

    Raises:
        ArgumentValueError: one is missing, or there is one too many.
    """
    for name, scale in scales.items():
        without = format not in _GRANULARITIES if name == "scale_x" else format == "none"
        if (scale is None) != without:
            needed = "it must be given" if scale is None else "it must be left out"
            found = "None" if scale is None else "a tensor"
            raise ArgumentValueError(f"moe_mlp: {name} is {found} with format={format!r}; {needed}")


def moe_mlp(
    x: Tensor,
    w_in: Tensor,
    w_out: Tensor,
    weights: Tensor,
    experts: Tensor,
    *,
    scale_x: Tensor | None = None,
    scale_in: Tensor | None = None,
    scale_out: Tensor | None = None,
    bias_in: Tensor | None = None,
    bias_out: Tensor | None = None,
    activation: str,
    halves: str = "concat",
    format: str = "none",
    out: Tensor | None = None,
) -> Tensor:
    """``y: (T, H)``, of x's dtype, or bfloat16 where that is float8.

    ``x``: ``(T, H)``, ``w_in``: ``(E, 2I, H)``, ``w_out``: ``(E, H, I)``; float32, float16 or bfloat16, or float8 with
    scales, or ``w_in``: ``(E, 2I, H/2)`` and ``w_out``: ``(E, H, I/2)`` of float4_e2m1fn_x2 with scales, beside any
    ``x`` but float8. ``weights``: ``(T, K)``, ``bias_in``: ``(E, 2I)`` and ``bias_out``: ``(E, H)``, float32, float16
    or bfloat16; ``experts``: ``(T, K)``, int32 or int64. All of any strides, ``out`` too.

    Raises:
        ArgumentValueError: scales are not given as ``format`` says.
        CannotRun: there are more assignments than ``moe_sort`` numbers.
    """
    scales = {"scale_x": scale_x, "scale_in": scale_in, "scale_out": scale_out}
    how: dict[str, Any] = {"activation": activation, "halves": halves, "format": format}
    how |= {"bias_in": bias_in, "bias_out": bias_out}
    return mixture(multiply, x, w_in, w_out, weights, experts, out, scales, **how)


def mixture(
    multiplied: Callable[..., None],
    x: Tensor,
    w_in: Tensor,
    w_out: Tensor,
    weights: Tensor,
    experts: Tensor,
    out: Tensor | None,
    scales: Mapping[str, Tensor | None],
    *,
    activation: str,
    halves: str,
    format: str,
    bias_in: Tensor | None = None,
    bias_out: Tensor | None = None,
) -> Tensor:
    """``moe_mlp``, ``multiplied`` as ``grouped_mm.multiply`` does.

    Raises:
        ArgumentValueError: scales are not given as ``format`` says.
        CannotRun: there are more assignments than ``moe_sort`` numbers.
    """
    check_scales(format, **scales)
    # of packed weights the last size is another
    (tokens, hidden), count, width = x.shape, w_in.shape[0], w_in.shape[1] // 2
    quantised = format in _GRANULARITIES
    dtype = torch.bfloat16 if quantised else x.dtype
    assignments = experts.numel()
    # first, since it refuses what is too much
    order, offsets, inverse = moe_sort(experts, num_experts=count, capacity=assignments)
    whole = out if out is not None and out.is_contiguous() else None
    y = x.new_empty((tokens, hidden), dtype=dtype) if whole is None else whole
    h = x.new_empty((assignments, width), dtype=dtype)
    how: dict[str, Any] = {
        "gather": order,
        "shared": experts.shape[1],
        "gate": activation,
        "halves": halves,
        "format": format,
    }
    scale_x, scale_in, scale_out = (scales[name] for name in ("scale_x", "scale_in", "scale_out"))
    multiplied("gated", x, w_in, offsets, h, bias=bias_in, scale_a=scale_x, scale_b=scale_in, **how)
    scale_h = None
    if quantised:
        told = str(x.dtype).removeprefix("torch.")
        h, scale_h = quantize_fp8(h, granularity=_GRANULARITIES[format], dtype=told)
    results = x.new_empty((assignments, hidden), dtype=dtype)
    given: dict[str, Any] = {"bias": bias_out, "scale_a": scale_h, "scale_b": scale_out, "format": format}
    multiplied("forward", h, w_out, offsets, results, **given)
    sums_of_tokens(results, inverse, weights, y)
    return delivered(y, out)
