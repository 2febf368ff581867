"""Scores from products of queries and keys, and which keys a query sees: the same in forward and backward.

Scores are in units of log(2), because hardware has powers of two: whatever is added to them is multiplied by log2(e).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from portakernel_plugins.triton.exponentials import LOG2_E

# A scale nearer to 0 is 0: hardware may take it for that, and minus infinity times zero is NaN.
_SMALLEST_SCALE = 2.0**-126
_LARGEST = 3.0e38

# Below, a largest product and a largest score need not be the same one's.
_SMALLEST_FOLDED = 2.0**-125

# How exact a softcap's tangent is. Where numbers have 16 bits, weights are rounded to 2 ** -9 or 2 ** -12 of their
# size: up to this softcap an error of 2 ** -21 makes no more of a score, and so of a weight.
_EXACT, _NEAR = tl.constexpr(1), tl.constexpr(2)
_LARGEST_NEAR = 128.0

# From here on the tangent is 1.
_TANH_END: tl.constexpr = tl.constexpr(7.90531110763549805)


@triton.jit
def _tanh(x):
    """The hyperbolic tangent, 1 or -1 for all that is large: Eigen's for float32.

    Exact to five units in the last place, near 0 too, where ``1 - 2 / (exp(2 * x) + 1)`` cancels; and it takes no
    second exponential.
    """
    x = tl.minimum(tl.maximum(x, -_TANH_END), _TANH_END)
    square = x * x
    top = square * -2.76076847742355e-16 + 2.00018790482477e-13
    top = square * top - 8.60467152213735e-11
    top = square * top + 5.12229709037114e-08
    top = square * top + 1.48572235717979e-05
    top = square * top + 6.37261928875436e-04
    top = square * top + 4.89352455891786e-03
    bottom = square * 1.19825839466702e-06 + 1.18534705686654e-04
    bottom = square * bottom + 2.26843463243900e-03
    bottom = square * bottom + 4.89352518554385e-03
    return x * top / bottom


@triton.jit
def _near_tanh(x):
    """The same to 2 ** -21, and by less than half as many instructions: the reciprocal is a root's, squared."""
    root = tl.rsqrt(tl.exp2(x * (2.0 * LOG2_E)) + 1.0)
    return 1.0 - 2.0 * root * root


@triton.jit
def tangent(x, SOFTCAP: tl.constexpr):
    """The hyperbolic tangent, as exact as a call's softcap wants it."""
    return _near_tanh(x) if SOFTCAP == _NEAR else _tanh(x)


@triton.jit
def changed(z, behind, slope, bias, scale, cap, SOFTCAP: tl.constexpr):
    """Scores from products ``z``, all changes but the mask made; and the tangent that a softcap bounds them with.

    ``behind``: how far each key is behind the query; ``bias``: float32. What is not asked for is None.
    """
    scores = z * scale
    bounded = scores
    if SOFTCAP:
        bounded = tangent(scores, SOFTCAP)
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
    ``cap`` is that bound in the same units. ``left`` and ``right`` are -1 where they hide nothing; ``softcap`` says how
    exact its tangent is, 0 where there is none.
    """

    factor: float
    scale: float
    cap: float
    left: int
    right: int
    softcap: int

    @property
    def flags(self) -> dict[str, Any]:
        """What is compiled into a kernel."""
        return {"SOFTCAP": self.softcap, "LEFT": self.left >= 0, "RIGHT": self.right >= 0}

    @property
    def is_folded(self) -> bool:
        """Whether scores are products, or their tangents, times a factor, in the same or the opposite order."""
        return _SMALLEST_FOLDED <= abs(self.last_factor) <= 1.0 / _SMALLEST_FOLDED

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
    if softcap == 0.0:
        return Scoring(factor, factor * LOG2_E.value, 0.0, left, right, 0)
    inner = min(max(factor / softcap, -_LARGEST), _LARGEST)
    near = q.element_size() == 2 and softcap <= _LARGEST_NEAR
    exactness = (_NEAR if near else _EXACT).value
    return Scoring(factor, inner, min(softcap * LOG2_E.value, _LARGEST), left, right, exactness)
