"""``attention`` for Hopper: what the kernel in ``hopper_kernel.py`` is launched with."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from portakernel.authoring.triton import launch, processor
from portakernel_plugins.triton.attention.backward import backward as gradients
from portakernel_plugins.triton.attention.forward import Window
from portakernel_plugins.triton.attention.hopper_kernel import CONSUMERS, ROWS, forward
from portakernel_plugins.triton.attention.hopper_tiles import FAR
from portakernel_plugins.triton.attention.results import Results, Written
from portakernel_plugins.triton.attention.row_blocks import copied_strides, described
from portakernel_plugins.triton.attention.scores import Scoring, scoring
from portakernel_plugins.triton.attention.sequences import Sequences, ends_of, tile_count
from portakernel_plugins.triton.launching.configurations import configuration

# Keys and values that stay in the cache while the tiles of their heads are computed: half of it.
_CACHED_BYTES = 24 << 20


def attention_hopper(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    causal: bool,
    scale: float | None,
    window: Window,
    softcap: float,
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
        launch_hopper(q, k, v, alibi_slopes, sinks, written, scoring(q, k, causal, scale, window, softcap))
    return written.results()


def backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alibi_slopes: Tensor | None,
    sinks: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    *,
    causal: bool,
    scale: float | None,
    window: Window,
    softcap: float,
    return_lse: bool,
    needs: tuple[bool, ...],
) -> tuple[Tensor | None, ...]:
    """The gradients for ``q``, ``k``, ``v`` and ``sinks``: by the kernels of ``triton.attention``."""
    *of_rows, of_slopes, of_sinks = needs
    found = gradients(
        grad_out,
        q,
        k,
        v,
        alibi_slopes,
        None,
        sinks,
        out,
        logsumexp,
        causal=causal,
        scale=scale,
        window=window,
        softcap=softcap,
        return_lse=return_lse,
        needs=(*of_rows, of_slopes, False, of_sinks),
    )
    return (*found[:4], found[5])


def launch_hopper(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    slopes: Tensor | None,
    sinks: Tensor | None,
    written: Written,
    how: Scoring,
    sequences: Sequences | None = None,
) -> None:
    """``sequences`` are those of a batch of one, as which ``q``, ``k`` and ``v`` come."""
    y, lse, logsumexp = written.y, written.lse, written.logsumexp
    y = y if sequences is None else y.unsqueeze(0)
    (B, S, H, D), (_, T, G, _) = q.shape, k.shape
    if T == 0:
        _nothing_seen(sinks, y, (lse, logsumexp))
        return
    folded = how.is_folded and slopes is None
    scale = how.scale
    if folded and how.last_factor < 0.0:
        q, scale = -q, -scale
    entry = "attention.hopper" if how.right < 0 else "attention.hopper_causal"
    options = configuration(entry, q.device, D, q.element_size()).options
    tiles = tile_count(S, 1, ROWS.value * CONSUMERS.value, sequences)
    keys = T if sequences is None else max(sequences.longest[1], 1)
    section = max(_CACHED_BYTES // (2 * keys * D * q.element_size()), 1) * (H // G)
    programs = min(B * H * tiles, processor(q.device).multiprocessors)
    taken = torch.zeros(1, dtype=torch.int32, device=q.device) if programs < B * H * tiles else None
    target = described_rows(y, ROWS.value, sequences, torch.empty_like)
    launch(
        forward,
        (programs, 1),
        described_rows(q, ROWS.value, sequences),
        described_rows(k, options["BLOCK"], sequences),
        described_rows(v, options["BLOCK"], sequences),
        target,
        slopes,
        sinks,
        lse,
        logsumexp,
        *ends_of(sequences),
        taken,
        S,
        T,
        H,
        H // G,
        tiles,
        min(section, B * H),
        B * H,
        how.left,
        how.right,
        scale,
        how.coarse,
        how.cap,
        0 if slopes is None else slopes.stride(0),
        0 if sinks is None else sinks.stride(0),
        BOUNDED=how.is_bounded and slopes is None,
        FOLDED=folded,
        **how.flags,
        **options,
    )
    if target.base is not y:
        y.copy_(target.base)


def _nothing_seen(sinks: Tensor | None, y: Tensor, sums: tuple[Tensor | None, ...]) -> None:
    """Results over no keys."""
    y.zero_()
    for found in sums:
        if found is not None:
            found.fill_(float("-inf")) if sinks is None else found.copy_(sinks[:, None])


@cache
def _layout(heads: int, rows: int, width: int, dtype: torch.dtype) -> gl.NVMMASharedLayout:
    """How the copy engine lays a block of so many rows: one object, for it takes 7 µs to make."""
    of = gl.bfloat16 if dtype is torch.bfloat16 else gl.float16
    return gl.NVMMASharedLayout.get_default_for([1, 1, heads, rows, width], of)


def described_rows(
    x: Tensor, rows: int, sequences: Sequences | None, instead: Callable[..., Tensor] = torch.clone, heads: int = 1
) -> TensorDescriptor:
    """What the copy engine is told of ``x`` (B, S, H, D), as ``hopper_tiles.py`` says: blocks of ``rows`` of ``heads``.

    Where it cannot follow the strides of ``x``: of what ``instead`` makes of it.
    """
    strides = copied_strides(x)
    if strides is None:
        # contiguous() leaves what lies so at an odd address where it is
        x = instead(x, memory_format=torch.contiguous_format)
        strides = list(x.stride())
    B, S, H, D = x.shape
    batch, row, head, _ = strides
    shape, strides = [1, B, H, S, D], [row, batch, head, row, 1]
    if sequences is not None:
        far = FAR.value
        shape, strides = [far + 1, S + 1, H, far, D], [(1 << 64) // far - row, row, head, row, 1]
    made: TensorDescriptor = described(TensorDescriptor, x, shape, strides, [1, 1, heads, rows, D])
    made.layout = _layout(heads, rows, D, x.dtype)
    return made
