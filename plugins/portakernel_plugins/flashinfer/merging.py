"""``merge_attention`` and ``merge_attentions`` by FlashInfer's kernels, which take logarithms to base 2, as (S, H).

They multiply a part that saw no key by zero, which leaves NaN what was NaN: parts are copied, with zeros there. And
they get logarithms less the largest of a row, so that what is rounded is small: exponents are their differences.
"""
# pyright: reportMissingImports=false
# FlashInfer is an optional requirement.

from __future__ import annotations

import math
from typing import TypeAlias

import torch
from flashinfer.cascade import merge_state, merge_states
from torch import Tensor

from portakernel.authoring.tensors import announce_once, delivered

Results: TypeAlias = Tensor | tuple[Tensor, ...]

_LOG2E, _LN2 = math.log2(math.e), math.log(2.0)


def merge_attention(
    a: Tensor, lse_a: Tensor, b: Tensor, lse_b: Tensor, *, return_lse: bool = True, out: Results | None = None
) -> Results:
    """``out (S, H, E)``, ``lse (H, S)`` of two parts (S, H, E) in 16 bits with their lse (H, S)."""
    if not a.numel():
        return _nothing(a.shape, a, return_lse, out)
    top = _finite(torch.maximum(lse_a, lse_b))
    announce_once("FlashInfer's merge of attention", a.device)
    pairs = ((_seen(x, lse), _exponents(lse - top)) for x, lse in ((a, lse_a), (b, lse_b)))
    y, sums = merge_state(*(tensor for pair in pairs for tensor in pair))
    return _results(y, sums, top, return_lse, out)


def merge_attentions(outs: Tensor, lses: Tensor, *, return_lse: bool = True, out: Results | None = None) -> Results:
    """``out (S, H, E)``, ``lse (H, S)`` of parts (R, S, H, E) in 16 bits with ``lses`` (R, H, S)."""
    if not outs.numel():
        return _nothing(outs.shape[1:], outs, return_lse, out)
    top = _finite(lses.amax(0))
    announce_once("FlashInfer's merge of attention", outs.device)
    y, sums = merge_states(_seen(outs.transpose(0, 1), lses.transpose(0, 1)), _exponents(lses - top))
    return _results(y, sums, top, return_lse, out)


def _seen(parts: Tensor, lse: Tensor) -> Tensor:
    """A copy of ``parts`` (..., H, E) without gaps, zeros where ``lse`` says that there was no key.

    ``lse``: (H, S) of parts (S, H, E), and (H, R, S) of (S, R, H, E): the dimensions of parts from behind.
    """
    dead = lse.movedim(-1, 0) if lse.dim() == 2 else lse.permute(2, 0, 1)
    kept = parts.new_empty(parts.shape)
    return torch.where(dead.isneginf().unsqueeze(-1), parts.new_zeros(()), parts, out=kept)


def _exponents(lse: Tensor) -> Tensor:
    """Exponents of 2, queries first: (S, H) of (H, S), (S, R, H) of (R, H, S)."""
    return (lse * _LOG2E).movedim(-1, 0).contiguous()


def _finite(top: Tensor) -> Tensor:
    return top.masked_fill(top.isneginf(), 0.0)


def _results(y: Tensor, sums: Tensor, top: Tensor, return_lse: bool, out: Results | None) -> Results:
    to_y, to_lse = (*out, None)[:2] if isinstance(out, tuple) else (out, None)
    y = delivered(y, to_y)
    return (y, delivered((sums.t() * _LN2).add_(top).contiguous(), to_lse)) if return_lse else y


def _nothing(shape: torch.Size, like: Tensor, return_lse: bool, out: Results | None) -> Results:
    """What no part gives: zeros, and lse -inf."""
    S, H, _ = shape
    lse = like.new_full((H, S), -math.inf, dtype=torch.float32)
    return _results(like.new_zeros(shape), lse.t(), lse.new_zeros(()), return_lse, out)
