"""``rotary_embedding`` by Conch's kernel, which turns queries and keys where they lie: copies, or ``out``."""
# pyright: reportMissingImports=false
# Conch is an optional requirement.

from __future__ import annotations

import math

import torch
from conch.kernels.embedding.rotary_embedding import rotary_embedding_launcher
from torch import Tensor

from portakernel.authoring.tensors import delivered, room


def rotary_embedding(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None = None,
    *,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Halves of q (*S, H, D) and k (*S, G, D) turned; cos, sin: (L, C), 2C <= D; positions: (*S,) or absent.

    ``out`` may be ``(q, k)``. The tables are joined into the one that the kernel reads, of float32, for each call.
    """
    to_q, to_k = (None, None) if out is None else out
    turned_q, turned_k = room(q, to_q).copy_(q), room(k, to_k).copy_(k)
    leading = q.shape[:-2]
    tokens, length = math.prod(leading), leading[-1] if leading else 1
    if positions is None:
        cos, sin = cos[:length], sin[:length]
        positions = torch.arange(length, device=q.device).expand(leading or (1,))
    rotary_embedding_launcher(
        positions.reshape(-1),
        turned_q.view(tokens, q.shape[-2] * q.shape[-1]),
        turned_k.view(tokens, k.shape[-2] * k.shape[-1]),
        q.shape[-1],
        torch.cat((cos, sin), -1).float(),
    )
    return delivered(turned_q, to_q), delivered(turned_k, to_k)
