"""``mla_decode`` in Triton: a block of latent vectors is loaded once, and is keys and values of all heads.

A row of a tile is a head of a query. Tiles of few rows wait for memory, and one holds all heads; of more rows each tile
goes through the keys for itself, which the second one finds in the L2 cache. Kernels: ``mla_kernels.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from portakernel.authoring.triton import cdiv, launch
from portakernel_plugins.triton.attention.forward import Window
from portakernel_plugins.triton.attention.mla_kernels import decode, merge
from portakernel_plugins.triton.attention.pages import Pages
from portakernel_plugins.triton.attention.parts import noted_lists, places
from portakernel_plugins.triton.attention.results import Results, Written
from portakernel_plugins.triton.attention.row_blocks import sources
from portakernel_plugins.triton.attention.scores import scoring
from portakernel_plugins.triton.attention.tiles import shapes
from portakernel_plugins.triton.launching.configurations import configuration

# Rows of a call's longest sequence for which tiles are the smallest that matrix units take.
FEW_ROWS = 16
# From here on the row of all blocks is counted in 64 bits.
MOST_BLOCKS = 1 << 30
# Lanes of a part that a merging program has, fewer where it reads many parts at once, and how many at most.
_LANES, _FEWEST_LANES, _MOST_PARTS = 128, 32, 256


def mla_decode(
    q_latent: Tensor,
    q_rope: Tensor,
    latent_cache: Tensor,
    rope_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    query_start_loc: Tensor,
    *,
    latent_scale: Tensor | None = None,
    sinks: Tensor | None = None,
    scale: float,
    causal: bool,
    window: Window,
    max_seqlen_q: int | None,
    max_seqlen_k: int | None,
    return_lse: bool,
    out: Results | None = None,
) -> Results:
    """The contract's formula; queries (S, H, C) and (S, H, R), caches (NP, P, C) and (NP, P, R) of any strides."""
    (S, H, C), B = q_latent.shape, len(seq_lens)
    pages = Pages.of(
        rope_cache.unsqueeze(2), latent_cache.unsqueeze(2), block_table, seq_lens, None, None, "none", max_seqlen_k
    )
    longest = longest_of(S, max_seqlen_q)
    how = scoring(q_rope.unsqueeze(0), pages.keys, causal, scale, window, 0.0, (longest, pages.longest))
    written = Written.of(q_latent, (S, H, C), (H, S), out, return_lse, save=False)
    if not (S and B and H):
        return written.results()
    starts, y = query_start_loc.contiguous(), written.y

    rows = longest * H
    kernel = "mla_decode_few_rows" if rows <= FEW_ROWS else "mla_decode"
    size = q_latent.element_size()  # where that is 2, what float8 becomes takes registers
    tiling = configuration(kernel, q_latent.device, C, size if size > 2 else latent_cache.element_size())
    options = dict(tiling.options)
    block_m = options["BLOCK_M"] = min(options["BLOCK_M"], max(16, 1 << (rows - 1).bit_length()))
    lists, programs = most_lists(S, H, B, longest, block_m), tiling.programs
    shared: Mapping[str, Any] = {
        "HEADS": H,
        "SEQUENCES": max(16, 1 << (B - 1).bit_length()),
        "WIDE": lists * cdiv(pages.longest + 1, options["BLOCK_N"]) >= MOST_BLOCKS,
        "LEFT": how.flags["LEFT"],
        "E": C,
        **{name: options.pop(name) for name in ("BLOCK_M", "BLOCK_N", "LEAST")},
    }
    parts = (*places(q_latent, programs, block_m, C), noted_lists(q_latent, programs))
    turned_round = how.is_folded and how.last_factor < 0.0
    flags, sizes = pages.flags, shapes(q_rope.unsqueeze(0), pages.values)
    read = _blocks(pages, shared["BLOCK_N"], sizes, options.pop("DESCRIBED", False))
    launch(
        decode,
        (programs, 1),
        q_latent,
        q_rope,
        pages.keys,
        pages.values,
        *read,
        sinks,
        y,
        written.lse,
        *parts,
        starts,
        pages.table,
        pages.lengths,
        latent_scale,
        pages.table.stride(0),
        B,
        S,
        how.left,
        how.right,
        -how.scale if turned_round else how.scale,
        how.coarse,
        *q_latent.stride(),
        *q_rope.stride(),
        *_strides(pages.keys),
        *_strides(pages.values),
        *y.stride(),
        0 if sinks is None else sinks.stride(0),
        RIGHT=how.flags["RIGHT"],
        FOLDED=how.is_folded,
        NEGATED=turned_round,
        **{name: flags[name] for name in ("PAGE", "FORMAT", "CAST")},
        DESCRIBED=read[0] is not None,
        **{**sizes, **shared},
        **options,
    )
    launch_merge(written, parts, lists, block_m, H)
    return written.results()


def longest_of(S: int, most: int | None) -> int:
    """How many queries a sequence may have, of ``S`` in all: one at least, though none may be any sequence's."""
    return S if most is None else min(S, max(most, 1))


def most_lists(S: int, H: int, B: int, longest: int, rows: int) -> int:
    """How many lists ``B`` sequences have at most: of ``S`` queries in all, ``longest`` the most of one."""
    return min(S * H // rows + (B if H % rows else 0), cdiv(longest * H, rows) * B)


def launch_merge(written: Written, parts: tuple[Tensor, ...], lists: int, block_m: int, heads: int) -> None:
    """Adds up the parts that programs have left of ``lists`` at most, with tiles of ``block_m`` rows.

    Of few lists each has many parts, and only some programs have noted one.
    """
    y, (S, _, C), programs = written.y, written.y.shape, len(parts[2])
    merging = configuration("mla_decode_merge", y.device, C)
    most = min(_MOST_PARTS, 1 << cdiv(programs, lists).bit_length())
    lanes = max(_FEWEST_LANES, min(_LANES, merging.elements // most))
    each, across = max(1, min(block_m, merging.elements // (lanes * most))), cdiv(C, lanes)
    few = lists < programs
    launch(
        merge,
        (min(lists, programs), block_m // each * across),
        *parts,
        y,
        written.lse,
        S,
        programs,
        *y.stride(),
        HEADS=heads,
        E=C,
        BLOCK_M=block_m,
        PARTS=most,
        ROWS=each,
        LANES=lanes,
        ACROSS=across,
        SHARES=1 << (programs - 1).bit_length() if few else 0,
        **merging.options,
    )


def _blocks(pages: Pages, rows: int, sizes: Mapping[str, Any], wanted: bool) -> tuple[Any, Any]:
    """What describes blocks of ``rows`` of both caches to TMA, each within a page; None where it cannot copy them."""
    if not wanted or pages.format or pages.keys.shape[1] % rows or sizes["REST_D"] or sizes["REST_E"]:
        return None, None
    rope, _, latent, _ = sources(pages.keys, pages.values, rows, sizes, wanted=True)
    return (None, None) if rope is pages.keys else (rope, latent)


def _strides(cache: Tensor) -> tuple[int, int, int]:
    """Of pages, rows and lanes: there is one head."""
    page, row, _, lane = cache.stride()
    return page, row, lane
