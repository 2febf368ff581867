"""``int4_mm`` of many rows: the weight is decoded once into x's dtype, then multiplied as any other; its gradient too.

A weight of a packed layout becomes ``(N, K)``, block by block; of the layouts of checkpoints each element is found by
itself, and the result lies as the words do, so that neighbours are written together.
"""
# pyright: reportGeneralTypeIssues=false, reportAssignmentType=false
# Python's types do not see that Triton iterates over its ranges.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from portakernel.authoring.tensors import delivered
from portakernel.authoring.triton import cdiv, launch, processor
from portakernel_plugins.triton.launching.configurations import configuration
from portakernel_plugins.triton.matrix.int4_words import factors_of, pairs_in_order, raised_by, raised_weights, weights

_BLOCK = tl.constexpr(128)
_PACKED = ("packed_mma", "packed_mfma")


@triton.jit
def _groups_of(k, order, K, size, GROUP: tl.constexpr, PACKED: tl.constexpr):
    """The group of each column ``k`` in memory's order."""
    if order is not None and (not PACKED or GROUP == 0):
        return tl.load(order + (K if PACKED else 0) + k, mask=k < K, other=0)
    if GROUP == -1:
        return k * 0
    if GROUP == 0:
        return k // size
    return k // GROUP


@triton.jit
def _packed(
    w,  # (N, K), dense
    weight,  # (ceil(K/128), N, 16) int32
    scales,  # (groups, N)
    zeros,  # (groups, N) uint8. None: 8
    order,
    N,
    K,
    size,
    groups,
    GROUP: tl.constexpr,
    ZERO: tl.constexpr,
    MFMA: tl.constexpr,
    ASSEMBLY: tl.constexpr,
    WIDEN: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> None:
    DTYPE: tl.constexpr = w.dtype.element_ty
    PARTS: tl.constexpr = 128 // GROUP if GROUP > 0 else 1
    blocks = tl.cdiv(K, _BLOCK)
    block = tl.program_id(0) % blocks
    row = tl.arange(0, BLOCK_N)
    n = tl.program_id(0) // blocks * BLOCK_N + row
    at = (tl.cast(block, tl.int64) * N + n[:, None]) * 16 + tl.arange(0, 16)[None, :]
    words = pairs_in_order(tl.load(weight + at, mask=(n < N)[:, None], other=0), BLOCK_N, MFMA)
    k = block * _BLOCK + tl.arange(0, 128)
    inside = (n < N)[:, None] & (k < K)[None, :]
    if GROUP != 0:
        factors = ()
        for part in tl.static_range(PARTS):
            group = block * PARTS + part if GROUP > 0 else 0
            factors = factors + factors_of(scales, zeros, group, row * 0, n, N, groups, False, ZERO, DTYPE, WIDEN)
        value = weights(words, factors, BLOCK_N, PARTS, True, DTYPE, ASSEMBLY, WIDEN)
    else:
        q = raised_weights(words, BLOCK_N, DTYPE, ASSEMBLY, WIDEN).to(tl.float32)
        group = _groups_of(k, order, K, size, GROUP, True).to(tl.int64)
        from_group = group[None, :] * N + n[:, None]
        scale = tl.load(scales + from_group, mask=inside, other=0.0).to(tl.float32)
        if zeros is None:
            z = raised_by(DTYPE) + 8.0
        else:
            more: tl.constexpr = raised_by(DTYPE) + (1.0 if ZERO == "stored_plus_one" else 0.0)
            z = tl.load(zeros + from_group, mask=inside, other=0).to(tl.float32) + more
        value = (q - z) * scale
    tl.store(w + n.to(tl.int64)[:, None] * K + k[None, :], value.to(DTYPE), mask=inside)


@triton.jit
def _of_checkpoint(
    w,  # (K, N), or for ct (N, K), by strides
    weight,
    scales,
    zeros,
    order,
    N,
    K,
    size,
    w_k,
    w_n,
    word_k,  # strides of words, scales and words of zeros, along columns or groups, and along N
    word_n,
    scale_g,
    scale_n,
    zero_g,
    zero_n,
    GROUP: tl.constexpr,
    ZERO: tl.constexpr,
    LAYOUT: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> None:
    k = tl.program_id(0) * BLOCK_K + tl.arange(0, BLOCK_K)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = (n < N)[None, :] & (k < K)[:, None]
    group = _groups_of(k, order, K, size, GROUP, False).to(tl.int64)[:, None]
    wide_k, wide_n = k.to(tl.int64)[:, None], n.to(tl.int64)[None, :]
    # 0, 4, 1, 5, 2, 6, 3, 7 of the eight columns of a word
    in_word = n % 8
    if LAYOUT == "awq":
        in_word = in_word // 2 + in_word % 2 * 4
        words = tl.load(weight + wide_k * word_k + wide_n // 8 * word_n, mask=inside, other=0)
        q = words >> (in_word * 4)[None, :]
    else:
        words = tl.load(weight + wide_k // 8 * word_k + wide_n * word_n, mask=inside, other=0)
        q = words >> (k % 8 * 4)[:, None]
    q = (q & 15).to(tl.float32)
    scale = tl.load(scales + group * scale_g + wide_n * scale_n, mask=inside, other=0.0).to(tl.float32)
    z = 8.0
    if zeros is not None:
        more: tl.constexpr = 1.0 if ZERO == "stored_plus_one" else 0.0
        words = tl.load(zeros + group * zero_g + wide_n // 8 * zero_n, mask=inside, other=0)
        z = (words >> (in_word * 4)[None, :] & 15).to(tl.float32) + more
    tl.store(w + wide_k * w_k + wide_n * w_n, ((q - z) * scale).to(w.dtype.element_ty), mask=inside)


def order_of(order: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Of a packed layout's ``order``: which column of x each is, and their groups where these are of any size."""
    if order is None or order.dim() == 1:
        return order, None
    return order[0], order[1]


def decoded(
    weight: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    order: Tensor | None,
    *,
    columns: int,
    dtype: torch.dtype,
    layout: str,
    group: int,
    zero: str,
) -> tuple[Tensor, Tensor | None]:
    """The weight ``(N, K)`` in ``dtype``, a view, in memory's order of columns; and which of x's each is, if any."""
    packed, turned = layout in _PACKED, layout == "ct"
    of_groups = scales.t() if turned else scales
    groups, N = of_groups.shape
    zeros = None if zero == "none" else zeros
    size = max(1, cdiv(columns, max(groups, 1)))
    how = configuration("int4_mm.decoded", weight.device, columns)
    options = dict(how.options)
    if packed:
        w = torch.empty((N, columns), dtype=dtype, device=weight.device)
        if w.numel():
            arch = processor(weight.device).arch
            block_k = options.pop("BLOCK_K")
            launch(
                _packed,
                (cdiv(columns, block_k) * cdiv(N, options["BLOCK_N"]), 1),
                w,
                weight,
                scales,
                zeros,
                order,
                N,
                columns,
                size,
                groups,
                GROUP=group,
                ZERO=zero,
                MFMA=layout == "packed_mfma",
                ASSEMBLY=arch.startswith("sm_"),
                WIDEN=arch == "interpreter",
                **options,
            )
        return w, order_of(order)[0]
    shape = (N, columns) if turned else (columns, N)
    w = torch.empty(shape, dtype=dtype, device=weight.device)
    w = w if turned else w.t()
    if w.numel():
        words = weight.t() if turned else weight
        words_of_zeros = None if zeros is None else zeros.t() if turned else zeros
        launch(
            _of_checkpoint,
            (cdiv(columns, options["BLOCK_K"]), cdiv(N, options["BLOCK_N"])),
            w,
            weight,
            scales,
            zeros,
            order,
            N,
            columns,
            size,
            w.stride(1),
            w.stride(0),
            *words.stride(),
            *of_groups.stride(),
            *((0, 0) if words_of_zeros is None else words_of_zeros.stride()),
            GROUP=group,
            ZERO=zero,
            LAYOUT=layout,
            **options,
        )
    return w, None


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
    """The contract's formula, of a weight rounded to x's dtype."""
    w, places = decoded(
        weight, scales, zeros, order, columns=x.shape[-1], dtype=x.dtype, layout=layout, group=group, zero=zero
    )
    taken = x if places is None else x.index_select(-1, places)
    return delivered(torch.nn.functional.linear(taken, w, bias), out)


def backward(
    grad_y: Tensor,
    x: Tensor,
    weight: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    order: Tensor | None,
    *,
    layout: str,
    group: int,
    zero: str,
    needs: tuple[bool, ...],
) -> tuple[Tensor | None, ...]:
    """The gradient for ``x``, of a weight rounded to its dtype; the others have none."""
    if not needs[0]:
        return (None,) * 6
    w, places = decoded(
        weight, scales, zeros, order, columns=x.shape[-1], dtype=x.dtype, layout=layout, group=group, zero=zero
    )
    grad = grad_y @ w
    if places is not None:
        grad = torch.empty_like(grad).index_copy_(-1, places.long(), grad)
    return (grad.contiguous(), None, None, None, None, None)
