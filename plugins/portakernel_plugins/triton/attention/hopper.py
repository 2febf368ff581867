"""``attention`` for Hopper: what the kernel in ``hopper_kernel.py`` is launched with."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from portakernel.authoring.triton import cdiv, launch, processor
from portakernel_plugins.triton.attention.backward import backward as gradients
from portakernel_plugins.triton.attention.forward import Window
from portakernel_plugins.triton.attention.hopper_kernel import CONSUMERS, ROWS, forward
from portakernel_plugins.triton.attention.results import Results, Written
from portakernel_plugins.triton.attention.row_blocks import copied_strides, described
from portakernel_plugins.triton.attention.scores import scoring
from portakernel_plugins.triton.launching.configurations import configuration

# Keys and values that stay in the cache while the tiles of their heads are computed: half of it.
_CACHED_BYTES = 24 << 20


def attention_hopper(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    sinks: Tensor | None = None,
    causal: bool,
    scale: float | None,
    window: Window,
    return_lse: bool,
    out: Results | None = None,
    save: bool = False,
) -> Results:
    """The contract's formula; with ``save`` the log-sum-exp ``(B, H, S)`` too.

    ``q``: (B, S, H, D), ``k`` and ``v``: (B, T, G, D), of one dtype; strides that the copy engine cannot follow are
    copied first.
    """
    B, S, H, D = q.shape
    written = Written.of(q, (B, S, H, D), (B, H, S), out, return_lse, save)
    if B and S:
        _launch(q, k, v, sinks, written, causal, scale, window)
    return written.results()


def backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    *,
    causal: bool,
    scale: float | None,
    window: Window,
    return_lse: bool,
    needs: tuple[bool, ...],
) -> tuple[Tensor | None, ...]:
    """The gradients for ``q``, ``k``, ``v`` and ``sinks``: by the kernels of ``triton.attention``."""
    *of_rows, of_sinks = needs
    found = gradients(
        grad_out,
        q,
        k,
        v,
        None,
        None,
        sinks,
        out,
        logsumexp,
        causal=causal,
        scale=scale,
        window=window,
        softcap=0.0,
        return_lse=return_lse,
        needs=(*of_rows, False, False, of_sinks),
    )
    return (*found[:3], found[5])


def _launch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor | None,
    written: Written,
    causal: bool,
    scale: float | None,
    window: Window,
) -> None:
    (B, S, H, D), (_, T, G, _) = q.shape, k.shape
    y, lse, logsumexp = written.y, written.lse, written.logsumexp
    if T == 0:
        _nothing_seen(sinks, y, (lse, logsumexp))
        return
    how = scoring(q, k, causal, scale, window, 0.0)
    factor = how.scale
    if factor <= 0.0:  # weights are made with a scale above 0
        q, factor = (-q, -factor) if factor < 0.0 else (torch.zeros_like(q), 1.0)
    entry = "attention.hopper" if how.right < 0 else "attention.hopper_causal"
    options = configuration(entry, q.device, D, q.element_size()).options
    rows = ROWS.value * CONSUMERS.value
    tiles = cdiv(S, rows)
    section = max(_CACHED_BYTES // (2 * T * D * q.element_size()), 1) * (H // G)
    target = y if copied_strides(y) is not None else torch.empty_like(y, memory_format=torch.contiguous_format)
    programs = B * H * tiles
    if options["PERSISTENT"]:
        programs = min(programs, processor(q.device).multiprocessors)
    launch(
        forward,
        (programs, 1),
        _described(q, ROWS.value),
        _described(k, options["BLOCK"]),
        _described(v, options["BLOCK"]),
        _described(target, ROWS.value),
        sinks,
        lse,
        logsumexp,
        S,
        T,
        H,
        H // G,
        tiles,
        min(section, B * H),
        B * H,
        how.left,
        how.right,
        factor,
        how.coarse,
        0 if sinks is None else sinks.stride(0),
        LEFT=how.left >= 0,
        RIGHT=how.right >= 0,
        **options,
    )
    if target is not y:
        y.copy_(target)


def _nothing_seen(sinks: Tensor | None, y: Tensor, sums: tuple[Tensor | None, ...]) -> None:
    """Results over no keys."""
    y.zero_()
    for found in sums:
        if found is not None:
            found.fill_(float("-inf")) if sinks is None else found.copy_(sinks[None, :, None])


@cache
def _layout(rows: int, width: int, dtype: torch.dtype) -> gl.NVMMASharedLayout:
    """How the copy engine lays a block of so many rows: one object, for it takes 7 µs to make."""
    of = gl.bfloat16 if dtype is torch.bfloat16 else gl.float16
    return gl.NVMMASharedLayout.get_default_for([1, 1, rows, width], of)


def _described(x: Tensor, rows: int) -> TensorDescriptor:
    """What the copy engine is told of ``x`` (B, S, H, D): blocks of ``rows`` along S, of one head."""
    strides = copied_strides(x)
    if strides is None:
        # contiguous() leaves what lies so at an odd address where it is
        x = x.clone(memory_format=torch.contiguous_format)
        strides = copied_strides(x) or list(x.stride())
    B, S, H, D = x.shape
    batch, row, head, _ = strides
    made: TensorDescriptor = described(TensorDescriptor, x, [B, H, S, D], [batch, head, row, 1], [1, 1, rows, D])
    made.layout = _layout(rows, D, x.dtype)
    return made
