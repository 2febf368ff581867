"""Distance from the truth, element by element, in units in the last place (ulp) of the result's dtype.

The truth is given in float64. One ulp at ``v`` is the distance between neighbouring numbers of the dtype there; at and
below the smallest normal number it is that of the subnormal numbers. Beyond the largest finite number it stays what it
is there, and an infinity counts as the number that would come next: so that a result may round to infinity where the
truth almost does, within the tolerance and no further.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from portakernel.dtypes import parse_dtype


@dataclass(frozen=True, slots=True)
class Match:
    """Every element is within the tolerance; ``worst_ulp`` is the largest distance."""

    worst_ulp: float


@dataclass(frozen=True, slots=True)
class Mismatch:
    """At least one element is too far off; ``index``, ``got``, ``want`` and ``ulp`` are of the worst one.

    ``ulp`` is infinite where one of the two is NaN, or where the truth is an infinity that was not given.
    """

    index: tuple[int, ...]
    got: float
    want: float
    ulp: float
    tolerance_ulp: float
    wrong: int
    elements: int

    def __str__(self) -> str:
        far = f"{self.ulp:.4g} ulp off" if math.isfinite(self.ulp) else "not within any distance"
        return (
            f"{self.wrong} of {self.elements} elements differ; the worst, at {list(self.index)}: got {self.got!r},"
            f" want {self.want!r}, {far}, {self.tolerance_ulp:g} ulp allowed"
        )


Comparison = Match | Mismatch


def ulp_at(value: Tensor, dtype: torch.dtype) -> Tensor:
    """One unit in the last place of ``dtype`` at each magnitude in ``value`` (float64)."""
    kind = parse_dtype(str(dtype))
    largest = math.frexp(torch.finfo(dtype).max)[1] - 1
    _, exponent = torch.frexp(value)
    # frexp calls the exponent of 0 zero, and that of infinity and NaN whatever it likes
    exponent = torch.where(value == 0, kind.min_exponent, exponent - 1)
    exponent = torch.where(value.isfinite(), exponent, largest).clamp(kind.min_exponent, largest)
    return torch.ldexp(torch.ones_like(value), exponent - kind.mantissa_bits)


def distance_ulp(got: Tensor, want: Tensor, magnitude: Tensor | None = None) -> Tensor:
    """How far each element of ``got`` is from ``want`` (float64), in ulp of ``got``'s dtype.

    Measured at ``want`` or, where given, at ``magnitude``: the sum of the absolute terms that ``want`` is the sum of.
    NaN is at no distance from NaN, whatever its bits; zeros of either sign are equal.
    """
    _, top = math.frexp(torch.finfo(got.dtype).max)
    beyond = math.ldexp(1.0, top)
    found = got.to(torch.float64)
    numbers = torch.where(found.isinf(), torch.full_like(found, beyond).copysign(found), found)
    scale = want.abs() if magnitude is None else torch.where(magnitude.isfinite(), magnitude, want.abs())
    distance = (numbers - want).abs() / ulp_at(scale, got.dtype)
    # an infinity is right for every truth beyond the largest number, however far
    same_side = found.isinf() & (found.sign() == want.sign()) & (want.abs() >= beyond)
    distance = torch.where(same_side, 0.0, distance)
    hopeless = (found.isnan() != want.isnan()) | (want.isinf() & ~same_side)
    distance = torch.where(hopeless, math.inf, distance)
    return torch.where(found.isnan() & want.isnan(), 0.0, distance)


def compare(got: Tensor, want: Tensor, tolerance_ulp: float, magnitude: Tensor | None = None) -> Comparison:
    """Whether every element of ``got`` is within ``tolerance_ulp`` of ``want``; all on the CPU, of one shape."""
    if got.numel() == 0:
        return Match(0.0)
    distance = distance_ulp(got, want, magnitude)
    worst = int(distance.argmax())
    far = float(distance.reshape(-1)[worst])
    if far <= tolerance_ulp:
        return Match(far)
    index = tuple(int(place) for place in torch.unravel_index(torch.tensor(worst), got.shape)) if got.dim() else ()
    return Mismatch(
        index,
        float(got[index]),
        float(want[index]),
        far,
        tolerance_ulp,
        int((distance > tolerance_ulp).sum()),
        got.numel(),
    )
