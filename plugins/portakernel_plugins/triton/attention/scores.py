"""Scores from products of queries and keys, and which keys a query sees: the same in forward and backward.

Scores are in units of log(2), because hardware has powers of two: whatever is added to them is multiplied by log2(e).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from portakernel.authoring.triton import processor
from portakernel_plugins.triton.attention.bounded_scores import LARGEST_BOUND
from portakernel_plugins.triton.attention.tangents import EXACT, LARGEST_NEAR, NEAR, SWIFT, tangent
from portakernel_plugins.triton.exponentials import LOG2_E

# A scale nearer to 0 is 0: hardware may take it for that, and minus infinity times zero is NaN.
_SMALLEST_SCALE = 2.0**-126
_LARGEST = 3.0e38

# Of what tangents are taken of: its seventh power is a coefficient in bounded_scores.py.
_WIDEST_SCALE = 2.0**15
# Below, a largest product and a largest score need not be the same one's.
_SMALLEST_FOLDED = 2.0**-125


@triton.jit
def changed(z, behind, slope, bias, scale, cap, SOFTCAP: tl.constexpr, TOGETHER: tl.constexpr = 0):
    """Scores from products ``z``, all changes but the mask made; and the tangent that a softcap bounds them with.

    ``behind``: how far each key is behind the query; ``bias``: float32. What is not asked for is None.
    """
    scores = z * scale
    bounded = scores
    if SOFTCAP:
        bounded = tangent(scores, SOFTCAP, TOGETHER)
        scores = bounded * cap
    if slope is not None:
        scores = scores - slope * tl.abs(behind).to(tl.float32)
    if bias is not None:
        scores = scores + bias * LOG2_E
    return scores, bounded


@triton.jit
def weights_of(scores, shift):
    """The softmax's weights, with ``shift`` their normaliser; 1 at most, also where float32 is too coarse for both.

    Scores of -1e9, as masks have them, lie 128 apart from the next number: what is left of lse may be less than all.
    """
    return tl.exp2(tl.minimum(scores - shift, 0.0))


@triton.jit
def sees(inside, behind, left, right, LEFT: tl.constexpr, RIGHT: tl.constexpr):
    """Where ``inside`` holds and the key, so far behind its query, is in the window."""
    seen = inside
    if RIGHT:
        seen = seen & (behind >= -right)
    if LEFT:
        seen = seen & (behind <= left)
    return seen


@triton.jit
def load_bias(bias, rows, column, inside, column_stride):
    """The bias of a tile, float32: ``rows`` says where each query's begins; None where there is none."""
    found = None
    if bias is not None:
        at = bias + rows + column.to(tl.int64) * column_stride
        found = tl.load(at, mask=inside, other=None if inside is None else 0.0).to(tl.float32)
    return found


@dataclass(frozen=True, slots=True)
class Scoring:
    """How scores are made: what kernels take for a call's scale, softcap, causal flag and window.

    ``scale`` multiplies products, to a score in units of log(2) or, with ``softcap``, to what the tangent is taken of;
    ``cap`` is that bound in the same units. ``left`` and ``right`` are -1 where they hide nothing; ``softcap`` says of
    which kind its tangent is, 0 where there is none, ``has_room`` that numbers of the call's dtype may be far from 1.
    """

    factor: float
    scale: float
    cap: float
    left: int
    right: int
    softcap: int
    has_room: bool

    @property
    def flags(self) -> dict[str, Any]:
        """What is compiled into a kernel."""
        return {"SOFTCAP": self.softcap, "LEFT": self.left >= 0, "RIGHT": self.right >= 0}

    @property
    def is_bounded(self) -> bool:
        """Whether weights need no largest score (``bounded_scores.py``), where nothing is added to the scores."""
        return self.softcap > 0 and self.has_room and self.cap <= LARGEST_BOUND

    @property
    def is_folded(self) -> bool:
        """Whether scores are products, or their tangents, times a factor, in the same or the opposite order."""
        return not self.is_bounded and _SMALLEST_FOLDED <= abs(self.last_factor) <= 1.0 / _SMALLEST_FOLDED

    @property
    def last_factor(self) -> float:
        """What makes scores of products, or with softcap of their tangents."""
        return self.cap if self.softcap else self.scale

    @property
    def coarse(self) -> float:
        """The last factor's size or, above it, the next power of two."""
        fraction, exponent = math.frexp(abs(self.last_factor))
        return math.ldexp(1.0, exponent - (fraction == 0.5))

    def visible(self, queries: int, keys: int) -> int:
        """How many keys the window leaves to a tile of ``queries``."""
        return min(keys, queries + self.left + max(self.right, 0)) if self.left >= 0 else keys

    def seeing(self, keys: int, queries: int) -> int:
        """How many queries the window leaves to a block of ``keys``."""
        return min(queries, keys + self.left + self.right) if self.left >= 0 and self.right >= 0 else queries


def scoring(
    q: Tensor,
    k: Tensor,
    causal: bool,
    scale: float | None,
    window: tuple[int, int],
    softcap: float,
    longest: tuple[int, int] | None = None,
) -> Scoring:
    """For queries ``(B, S, H, D)`` and keys ``(B, T, G, D)``, or for sequences with so many of them at most."""
    S, T = (q.shape[1], k.shape[1]) if longest is None else longest
    factor = 1.0 / math.sqrt(q.shape[3]) if scale is None else float(scale)
    if abs(factor) < _SMALLEST_SCALE:
        factor = 0.0
    # the first query stands at T - S, the last one at T - 1
    left = window[0] if 0 <= window[0] < T - 1 else -1
    right = 0 if causal else window[1]
    right = right if 0 <= right < S - 1 else -1
    has_room = q.dtype is torch.bfloat16
    if softcap == 0.0:
        return Scoring(factor, factor * LOG2_E.value, 0.0, left, right, 0, has_room)
    inner = min(max(factor / softcap, -_LARGEST), _LARGEST)
    kind = EXACT
    if q.element_size() == 2 and softcap <= LARGEST_NEAR:
        is_swift = processor(q.device).arch.startswith("sm_") and 1.0 / _WIDEST_SCALE <= abs(inner) <= _WIDEST_SCALE
        kind = SWIFT if is_swift else NEAR
    return Scoring(factor, inner, min(softcap * LOG2_E.value, _LARGEST), left, right, kind.value, has_room)
