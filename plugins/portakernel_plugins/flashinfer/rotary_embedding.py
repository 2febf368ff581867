"""``rotary_embedding`` by FlashInfer's CUDA kernel, compiled without -use_fast_math.

With it, numbers that are subnormal in float32, as bfloat16 has them, would count as zero.
"""
# pyright: reportMissingImports=false
# FlashInfer is an optional requirement.

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from flashinfer.jit import env
from flashinfer.jit.core import gen_jit_spec
from torch import Tensor

from portakernel.authoring import CannotRun
from portakernel.authoring.tensors import announce_once, delivered, room
from portakernel_plugins.flashinfer.probe import compiler

_WIDE = 16  # bytes that are read at once


def rotary_embedding(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None = None,
    *,
    interleaved: bool,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Turns q (*S, H, D) and k (*S, G, D); cos, sin: (L, C), 2C <= D; positions: (*S,) or absent.

    ``out`` may be ``(q, k)``. The tables are joined into the one that the kernel reads, of float32, for each call.
    """
    to_q, to_k = (None, None) if out is None else out
    turned_q, turned_k = room(q, to_q, _WIDE), room(k, to_k, _WIDE)
    leading = q.shape[:-2]
    if positions is None:
        length = leading[-1] if leading else 1
        cos, sin = cos[:length], sin[:length]
        positions = torch.arange(length, device=q.device).expand(leading or (1,))
    if positions.numel():
        # one row more than is used: of interleaved pairs the kernel reads a little beyond the last row
        table = cos.new_empty((cos.shape[0] + 1, 2 * cos.shape[1]), dtype=torch.float32)
        torch.cat((cos, sin), -1, out=table[:-1])
        tokens = positions.reshape(-1).contiguous()
        _kernel()(_heads(q), _heads(k), _by_token(turned_q), _by_token(turned_k), table, tokens, interleaved)
    return delivered(turned_q, to_q), delivered(turned_k, to_k)


@functools.cache
def _kernel() -> Callable[..., Any]:
    if (missing := compiler()) is not None:
        raise CannotRun(missing)
    announce_once("FlashInfer's rotary_embedding")
    sources = [env.FLASHINFER_CSRC_DIR / name for name in ("rope.cu", "flashinfer_rope_binding.cu")]
    module = gen_jit_spec("portakernel_rope", sources, use_fast_math=False).build_and_load()
    found: Callable[..., Any] = module.apply_rope_pos_ids_cos_sin_cache
    return found


def _by_token(x: Tensor) -> Tensor:
    """``x`` (*S, heads, D) as (S, heads, D)."""
    return x.reshape(-1, *x.shape[-2:])


def _heads(x: Tensor) -> Tensor:
    """The same, copied where heads do not begin at multiples of 16 bytes."""
    heads = _by_token(x)
    step = 16 // x.element_size()
    steps = (stride % step for stride in heads.stride()[:-1])
    fits = heads.stride(-1) == 1 and heads.data_ptr() % 16 == 0 and not any(steps)
    return heads if fits else heads.clone(memory_format=torch.contiguous_format)
