"""``attention`` for Hopper: what the kernel in ``hopper_kernel.py`` is launched with."""

from __future__ import annotations

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from portakernel.authoring.tensors import delivered
from portakernel.authoring.triton import cdiv, launch, processor
from portakernel_plugins.triton.attention.backward import backward as gradients
from portakernel_plugins.triton.attention.forward import Results, Window
from portakernel_plugins.triton.attention.hopper_kernel import ROWS, forward
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
    given = out if isinstance(out, tuple) else (out,)
    y = q.new_empty(B, S, H, D) if given[0] is None else given[0]
    lse = q.new_empty(B, H, S, dtype=torch.float32) if return_lse else None
    logsumexp = q.new_empty(B, H, S, dtype=torch.float32) if save else None
    if B and S:
        _launch(q, k, v, sinks, y, lse, logsumexp, causal, scale, window)
    if logsumexp is not None:
        return (y, logsumexp) if lse is None else (y, lse, logsumexp)
    if lse is None:
        return y
    return (y, delivered(lse, given[1] if len(given) > 1 else None))


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
    y: Tensor,
    lse: Tensor | None,
    logsumexp: Tensor | None,
    causal: bool,
    scale: float | None,
    window: Window,
) -> None:
    (B, S, H, D), (_, T, G, _) = q.shape, k.shape
    if T == 0:
        _nothing_seen(sinks, y, (lse, logsumexp))
        return
    how = scoring(q, k, causal, scale, window, 0.0)
    factor = how.scale
    if factor <= 0.0:  # weights are made with a scale above 0
        q, factor = (-q, -factor) if factor < 0.0 else (torch.zeros_like(q), 1.0)
    entry = "attention.hopper" if how.right < 0 else "attention.hopper_causal"
    options = configuration(entry, q.device, D, q.element_size()).options
    rows = ROWS.value * options["CONSUMERS"]
    tiles = cdiv(S, rows)
    section = max(_CACHED_BYTES // (2 * T * D * q.element_size()), 1) * (H // G)
    target = y if _can_follow(y) else torch.empty_like(y, memory_format=torch.contiguous_format)
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


def _described(x: Tensor, rows: int) -> TensorDescriptor:
    """What the copy engine is told of ``x`` (B, S, H, D): blocks of ``rows`` along S, of one head."""
    if not _can_follow(x):
        x = x.contiguous()
    B, S, H, D = x.shape
    batch, row, head, _ = _strides(x)
    dtype = gl.bfloat16 if x.dtype is torch.bfloat16 else gl.float16
    block = [1, 1, rows, D]
    return TensorDescriptor(
        x, [B, H, S, D], [batch, head, row, 1], block, gl.NVMMASharedLayout.get_default_for(block, dtype)
    )


def _can_follow(x: Tensor) -> bool:
    """Whether the copy engine takes ``x``'s address and strides: multiples of 16 bytes, the last dimension dense."""
    *strides, last = _strides(x)
    return last == 1 and x.data_ptr() % 16 == 0 and all(stride > 0 and stride % 8 == 0 for stride in strides)


def _strides(x: Tensor) -> tuple[int, ...]:
    """Strides, those of dimensions of one element as if ``x`` were contiguous, for theirs say nothing."""
    dense = (x.shape[1] * x.shape[2] * x.shape[3], x.shape[2] * x.shape[3], x.shape[3], 1)
    return tuple(usual if size == 1 else stride for size, stride, usual in zip(x.shape, x.stride(), dense, strict=True))
