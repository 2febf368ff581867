"""``mla_decode`` for Hopper: what the kernel in ``hopper_mla_kernel.py`` is launched with."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from portakernel.authoring.triton import cdiv, launch
from portakernel_plugins.triton.attention import mla_decode as any_device
from portakernel_plugins.triton.attention.forward import Window
from portakernel_plugins.triton.attention.hopper import described_rows
from portakernel_plugins.triton.attention.hopper_mla_kernel import BLOCK, ROWS, decode
from portakernel_plugins.triton.attention.pages import Pages
from portakernel_plugins.triton.attention.parts import noted_lists, places
from portakernel_plugins.triton.attention.results import Results, Written
from portakernel_plugins.triton.attention.row_blocks import copied_strides
from portakernel_plugins.triton.attention.scores import scoring
from portakernel_plugins.triton.launching.configurations import configuration


def mla_decode(
    q_latent: Tensor,
    q_rope: Tensor,
    latent_cache: Tensor,
    rope_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    query_start_loc: Tensor,
    *,
    sinks: Tensor | None = None,
    scale: float,
    causal: bool,
    window: Window,
    max_seqlen_q: int | None,
    max_seqlen_k: int | None,
    return_lse: bool,
    out: Results | None = None,
) -> Results:
    """The contract's formula for 16, 32, 64 or 128 heads, and pages of multiples of 64.

    ``triton.mla_decode`` computes calls with few rows a sequence, for which its tiles are the faster ones, and reads
    caches whose strides the copy engine cannot follow: a copy takes longer.
    """
    (S, H, C), B = q_latent.shape, len(seq_lens)

    def by_any_device() -> Results:
        return any_device.mla_decode(
            q_latent,
            q_rope,
            latent_cache,
            rope_cache,
            block_table,
            seq_lens,
            query_start_loc,
            sinks=sinks,
            scale=scale,
            causal=causal,
            window=window,
            max_seqlen_q=max_seqlen_q,
            max_seqlen_k=max_seqlen_k,
            return_lse=return_lse,
            out=out,
        )

    longest = any_device.longest_of(S, max_seqlen_q)
    if longest * H <= any_device.FEW_ROWS:
        return by_any_device()
    pages = Pages.of(
        rope_cache.unsqueeze(2), latent_cache.unsqueeze(2), block_table, seq_lens, None, None, "none", max_seqlen_k
    )
    how = scoring(q_rope.unsqueeze(0), pages.keys, causal, scale, window, 0.0, (longest, pages.longest))
    rows, columns = ROWS.value, BLOCK.value
    lists, negative = any_device.most_lists(S, H, B, longest, rows), how.is_folded and how.last_factor < 0.0
    most = lists * cdiv(pages.longest + 1, columns)
    copied = all(copied_strides(cache) is not None for cache in (pages.keys, pages.values))
    if not (S and B and copied) or negative or most >= any_device.MOST_BLOCKS:
        return by_any_device()
    written = Written.of(q_latent, (S, H, C), (H, S), out, return_lse, save=False)
    starts, tiling = query_start_loc.contiguous(), configuration("mla_decode_hopper", q_latent.device, C)
    parts = (*places(q_latent, tiling.programs, rows, C), noted_lists(q_latent, tiling.programs))
    launch(
        decode,
        (tiling.programs, 1),
        *(_queries(x, min(H, rows), max(1, rows // H)) for x in (q_latent, q_rope)),
        described_rows(pages.values, columns, None),
        described_rows(pages.keys, columns, None),
        sinks,
        written.y,
        *written.y.stride(),
        written.lse,
        *parts,
        starts,
        pages.table,
        pages.lengths,
        pages.table.stride(0),
        B,
        S,
        how.left,
        how.right,
        how.scale,
        how.coarse,
        0 if sinks is None else sinks.stride(0),
        RIGHT=how.flags["RIGHT"],
        FOLDED=how.is_folded,
        PAGE=pages.flags["PAGE"],
        HEADS=H,
        SEQUENCES=max(16, 1 << (B - 1).bit_length()),
        LEFT=how.flags["LEFT"],
        **tiling.options,
    )
    any_device.launch_merge(written, parts, lists, rows, H)
    return written.results()


def _queries(x: Tensor, heads: int, queries: int) -> Any:
    """What the copy engine is told of ``x`` (S, H, D): blocks of so many heads of so many queries."""
    return described_rows(x.transpose(0, 1).unsqueeze(0), heads, None, heads=queries)
