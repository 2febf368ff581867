"""``attention``'s gradients for Hopper: what the kernel in ``hopper_gradients_kernel.py`` is launched with.

Three launches: ``before`` makes of each query what the kernel takes, and clears the sums that it adds to; ``after``
rounds these. Both read and write as fast as memory can (2.9 TB/s on an H100), and take a tenth of the time at 4096
queries, the less the more there are.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from portakernel.authoring.triton import grid_of, launch, processor
from portakernel_plugins.triton.attention.hopper import described_rows
from portakernel_plugins.triton.attention.hopper_gradients_kernel import CONSUMERS, ROWS, gradients
from portakernel_plugins.triton.attention.hopper_gradients_rows import after, before
from portakernel_plugins.triton.attention.row_blocks import described
from portakernel_plugins.triton.attention.scores import Scoring, scoring
from portakernel_plugins.triton.attention.sequences import Sequences, ends_of, tile_count
from portakernel_plugins.triton.launching.configurations import configuration

# What programs that run together read and add to, of queries: half of the cache. With 40 MiB an H100 took 1.15 times as
# long for 4096 queries of 32 heads.
_CACHED_BYTES = 24 << 20
# A warpgroup's product, as it is added to memory.
_ADDED = [2 * ROWS.value, ROWS.value // 2]


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
    window: tuple[int, int],
    softcap: float,
    return_lse: bool,
    needs: tuple[bool, ...],
) -> tuple[Tensor | None, ...]:
    """The gradients for ``q``, ``k``, ``v`` and ``sinks`` that are asked for, each rounded once.

    Those for ``q`` are sums in no fixed order: equal calls may give other bits.

    ``grad_out`` and ``out``: (B, S, H, D), any strides; ``logsumexp``: (B, H, S) float32.
    """
    del return_lse
    how = scoring(q, k, causal, scale, window, softcap)
    given = alibi_slopes, sinks if needs[4] else None
    *of_rows, grad_sinks = launch_gradients(grad_out, q, k, v, *given, out, logsumexp, how, needs[:3])
    return (*of_rows, None, grad_sinks)


def launch_gradients(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alibi_slopes: Tensor | None,
    sinks: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    how: Scoring,
    needs: tuple[bool, ...],
    sequences: Sequences | None = None,
) -> tuple[Tensor | None, ...]:
    """The gradients for ``q``, ``k`` and ``v`` that are asked for, and for ``sinks``, None where theirs is not wanted.

    ``sequences`` are those of a batch of one, as which queries, keys and values come.
    """
    (B, S, H, D), (_, T, G, _) = q.shape, k.shape
    grad_q, grad_k, grad_v = (x.new_empty(x.shape) for x in (q, k, v))
    found = tuple(x if needed else None for x, needed in zip((grad_q, grad_k, grad_v), needs, strict=True))
    if not q.numel() or not k.numel():
        for gradient in (grad_q, grad_k, grad_v):
            gradient.zero_()
        return (*found, None if sinks is None else torch.zeros_like(sinks))
    if sequences is not None:  # nobody comes by keys that no query is with
        grad_k.zero_()
        grad_v.zero_()
    options = configuration("attention.hopper_gradients", q.device, D, q.element_size()).options
    row_options = configuration("attention.hopper_gradient_rows", q.device, D).options
    block = options["BLOCK"]
    blocks = tile_count(S, 1, block, sequences)
    terms = q.new_empty(2 * B * H, blocks * block, dtype=torch.float32)
    sums = q.new_empty(B * H * blocks * block * D // _ADDED[1], _ADDED[1], dtype=torch.float32)
    sunk = None if sinks is None else q.new_empty(B, H, S, dtype=torch.float32)
    ends = ends_of(sequences)
    launch(
        before,
        grid_of(B * H * blocks),
        out,
        grad_out,
        logsumexp.contiguous(),
        sinks,
        terms,
        sums,
        sunk,
        *ends,
        B,
        S,
        H,
        blocks,
        *out.stride(),
        *grad_out.stride(),
        0 if sinks is None else sinks.stride(0),
        BLOCK=block,
        D=D,
        **row_options,
    )
    grad_sinks = None if sunk is None or sinks is None else sunk.sum((0, 2)).to(sinks.dtype)
    if not any(needs):
        return (*found, grad_sinks)
    tiles = tile_count(T, 1, ROWS.value * CONSUMERS.value, sequences)
    queries = S if sequences is None else max(sequences.longest[0], 1)
    bytes_ = queries * D * (2 * q.element_size() + sums.element_size())
    launch(
        gradients,
        (B * G * tiles, 1),
        described_rows(q, block, sequences),
        described_rows(k, ROWS.value, sequences),
        described_rows(v, ROWS.value, sequences),
        described_rows(grad_out, block, sequences),
        _described_numbers(terms, [1, block]),
        _described_numbers(sums, _ADDED),
        described_rows(grad_k, ROWS.value, sequences),
        described_rows(grad_v, ROWS.value, sequences),
        alibi_slopes,
        *ends,
        S,
        T,
        G,
        H // G,
        tiles,
        _section(B * G, tiles, bytes_, processor(q.device).multiprocessors),
        B * G,
        blocks,
        how.left,
        how.right,
        how.scale,
        how.cap,
        how.factor,
        0 if alibi_slopes is None else alibi_slopes.stride(0),
        **how.flags,
        **options,
    )
    if needs[0]:
        launch(
            after,
            grid_of(B * H * blocks),
            sums,
            grad_q,
            *ends,
            B,
            S,
            H,
            blocks,
            how.factor,
            BLOCK=block,
            D=D,
            **row_options,
        )
    return (*found, grad_sinks)


@cache
def _section(heads: int, tiles: int, bytes_: int, multiprocessors: int) -> int:
    """Of so many key heads, how many take turns at their tiles, where queries of one take so many bytes.

    Tiles of a section come longest first. What is left for the last one is to keep all multiprocessors busy to the end:
    two of 32 heads left over cost an eighth of the time.
    """
    most = min(max(_CACHED_BYTES // bytes_, 1), heads)
    return max(range(1, most + 1), key=lambda size: (min(((heads - 1) % size + 1) * tiles, multiprocessors), size))


@cache
def _layout_of_numbers(rows: int, width: int) -> gl.NVMMASharedLayout:
    """How the copy engine lays a block of float32: one object, for it takes 7 µs to make."""
    return gl.NVMMASharedLayout.get_default_for([rows, width], gl.float32)


def _described_numbers(x: Tensor, block: list[int]) -> TensorDescriptor:
    """What the copy engine is told of ``x``, a contiguous matrix of float32."""
    made: TensorDescriptor = described(TensorDescriptor, x, list(x.shape), list(x.stride()), block)
    made.layout = _layout_of_numbers(*block)
    return made
