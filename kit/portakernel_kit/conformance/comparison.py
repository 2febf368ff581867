"""Distance from the truth, element by element, in units in the last place (ulp) of the result's dtype.

The truth is given in float64. One ulp at ``v`` is the distance between neighbouring numbers of the dtype there; at and
below the smallest normal number it is that of the subnormal numbers. Beyond the largest finite number it stays what it
is there, and an infinity counts as the number that would come next: so that a result may round to infinity where the
truth almost does, within the tolerance and no further.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from portakernel.words.dtypes import parse_dtype


def numbers(tensor: Tensor) -> Tensor:
    """The numbers that a tensor holds, in float64; two 4-bit ones from each byte, along the last dimension."""
    if tensor.dtype.itemsize > 1 or not tensor.dtype.is_floating_point:
        return tensor.to(torch.float64)
    from portakernel.references.scale_formats import numbers as decoded

    found: Tensor = decoded(tensor)
    return found


def _largest(dtype: torch.dtype) -> float:
    """The largest finite number of a dtype; torch does not tell it of all."""
    if not dtype.is_floating_point:
        return float(torch.iinfo(dtype).max)
    known = {"torch.float4_e2m1fn_x2": 6.0, "torch.float8_e8m0fnu": 2.0**127}
    return known.get(str(dtype)) or torch.finfo(dtype).max


# Sequential and blocked sums of a few hundred float32 terms lie this far apart, and nothing of it is lost precision;
# what is exact in the plain formula (the softmax over one key) costs an exponential and a logarithm in others.
_FLOAT32_FACTOR, _FLOAT32_ROUNDINGS = 8.0, 16.0
# The length of a vector of so many errors is seldom twice what it is on average: of 4 it is in one row of a thousand.
_FEW = 16
# So many rows, and one in any case, may be as far off as the plain formula's worst one.
_RARE = 1e-2


@dataclass(frozen=True, slots=True)
class Match:
    """Every element is within the tolerance, of which the worst one, or the worst row, takes the part ``used``."""

    used: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class Mismatch:
    """At least one element is too far off; ``index``, ``got``, ``want`` and ``ulp`` are of the worst one.

    ``tolerance_ulp`` is NaN where rows were compared with the plain formula. ``ulp`` is infinite where one of the two
    is NaN, or where the truth is an infinity that was not given; and of integers, which have to be equal.
    """

    index: tuple[int, ...]
    got: float
    want: float
    ulp: float
    tolerance_ulp: float
    wrong: int
    elements: int

    @property
    def used(self) -> float | None:
        """How many times the tolerance the worst element is off; None where that has no number."""
        known = math.isfinite(self.ulp) and self.tolerance_ulp > 0
        return self.ulp / self.tolerance_ulp if known else None

    def __str__(self) -> str:
        far = f"{self.ulp:.4g} ulp off" if math.isfinite(self.ulp) else "not within any distance"
        if math.isnan(self.tolerance_ulp):
            return (
                f"{self.wrong} of {self.elements} elements are in rows further off than twice the plain formula's"
                f" distance; the worst, at {list(self.index)}: got {self.got!r}, want {self.want!r}, {far}"
            )
        return (
            f"{self.wrong} of {self.elements} elements differ; the worst, at {list(self.index)}: got {self.got!r},"
            f" want {self.want!r}, {far}, {self.tolerance_ulp:g} ulp allowed"
        )


Comparison = Match | Mismatch


def ulp_at(value: Tensor, dtype: torch.dtype, *, beyond: bool = False) -> Tensor:
    """One unit in the last place of ``dtype`` at each magnitude in ``value`` (float64).

    With ``beyond`` it goes on to grow where the dtype has no numbers any more: of terms that cancel.
    """
    kind = parse_dtype(str(dtype))
    largest = math.frexp(_largest(dtype))[1] - 1
    _, exponent = torch.frexp(value)
    # frexp calls the exponent of 0 zero, and that of infinity and NaN whatever it likes
    exponent = torch.where(value == 0, kind.min_exponent, exponent - 1)
    exponent = torch.where(value.isfinite(), exponent, largest).clamp(kind.min_exponent, None if beyond else largest)
    return torch.ldexp(torch.ones_like(value), exponent - kind.mantissa_bits)


def distance_ulp(got: Tensor, want: Tensor, magnitude: Tensor | None = None, *, slack: Tensor | None = None) -> Tensor:
    """How far each element of ``got`` is from ``want`` (float64), in ulp of ``got``'s dtype.

    Measured at ``want`` or, where given, at ``magnitude``: the sum of the absolute terms that ``want`` is the sum of.
    ``slack`` is no distance.
    NaN is at no distance from NaN, whatever its bits; zeros of either sign are equal.
    """
    _, top = math.frexp(_largest(got.dtype))
    beyond = math.ldexp(1.0, top)
    found = numbers(got)
    given = torch.where(found.isinf(), torch.full_like(found, beyond).copysign(found), found)
    scale = want.abs()
    if magnitude is not None:  # which, being rounded itself, may be a little less than what it bounds
        scale = torch.where(magnitude.isfinite() & want.isfinite(), magnitude.maximum(scale), scale)
    distance = (given - want).abs() if slack is None else ((given - want).abs() - slack).clamp(min=0.0)
    distance = distance / ulp_at(scale, got.dtype, beyond=magnitude is not None)
    # an infinity is right for every truth beyond the largest number, however far
    same_side = found.isinf() & (found.sign() == want.sign()) & (want.abs() >= beyond)
    distance = torch.where(same_side, 0.0, distance)
    hopeless = (found.isnan() != want.isnan()) | (want.isinf() & ~same_side)
    distance = torch.where(hopeless, math.inf, distance)
    return torch.where(found.isnan() & want.isnan(), 0.0, distance)


def with_lost(slack: Tensor | None, lost: Tensor) -> Tensor:
    """``slack``, where there is any, and what is ``lost`` beside it."""
    return lost if slack is None else slack + lost


def compare(
    got: Tensor,
    want: Tensor,
    tolerance_ulp: float,
    magnitude: Tensor | None = None,
    *,
    slack: Tensor | None = None,
    signed_zeros: bool = False,
) -> Comparison:
    """Whether every element of ``got`` is within ``tolerance_ulp`` of ``want``; all on the CPU, of one shape.

    ``magnitude`` and ``slack`` as in ``distance_ulp``. With ``signed_zeros`` a zero of the other sign is wrong.
    """
    if got.numel() == 0:
        return Match()
    distance = distance_ulp(got, want, magnitude, slack=slack)
    if signed_zeros:
        found = numbers(got)
        distance[(found == 0) & (want == 0) & (found.signbit() != want.signbit())] = math.inf
    worst = int(distance.argmax())
    far = float(distance.reshape(-1)[worst])
    if far <= tolerance_ulp:
        return Match(far / tolerance_ulp if tolerance_ulp else 0.0)
    index = _place(worst, want)
    return Mismatch(
        index,
        float(numbers(got)[index]),
        float(want[index]),
        far,
        tolerance_ulp,
        int((distance > tolerance_ulp).sum()),
        got.numel(),
    )


def compare_integers(got: Tensor, want: Tensor) -> Comparison:
    """Whether every element of ``got`` is that of ``want``; all on the CPU, of one shape."""
    differ = got.long() != want.long()
    wrong = int(differ.sum())
    if not wrong:
        return Match()
    index = tuple(int(place) for place in differ.nonzero()[0])
    return Mismatch(index, int(got[index]), int(want[index]), math.inf, 0.0, wrong, got.numel())


def compare_rows(
    got: Tensor,
    want: Tensor,
    plain: Tensor,
    *,
    cancelling: float | Tensor | None = None,
    slack: Tensor | None = None,
) -> Comparison:
    """Whether each row of ``got`` is about as far from ``want`` as ``plain`` is; all on the CPU, of one shape.

    Distances are Euclidean, over the last dimension. Allowed is twice the plain formula's, of the row or of rows on
    average, whichever is larger, and one rounding of each element: so that a row which the plain formula hits by chance
    bounds nothing to zero. One row of a hundred, which chance may hit as hard, is allowed twice that of the plain
    formula's worst. Of rows of a few elements, where chance decides, the worst stands for the average, and those that
    are small because their terms cancel are allowed one rounding of the largest. In float32, where the plain
    formula differs by its order of summation alone, eight times and sixteen roundings. A gradient, for which
    ``cancelling`` is given, is measured with the plain formula's worst row: where it cancels to nothing, as for a query
    that sees one key, the plain formula may hit the zero, and an equally good one the rounding of what cancels, which
    has that norm, or each row its own. ``slack`` is what each element may be off beside all this.
    NaN and infinities have to be where the truth has them; where it is finite, an infinity counts as the number that
    would come next, or as the truth where that lies beyond.
    """
    if got.numel() == 0:
        return Match()
    found, rows = numbers(got), want.reshape(-1, want.shape[-1] if want.dim() else 1)
    shape = rows.shape
    found, plain = found.reshape(shape), plain.reshape(shape)
    known = rows.isfinite()
    unit = ulp_at(torch.where(known, rows, 0.0), got.dtype)
    beyond = math.ldexp(1.0, math.frexp(_largest(got.dtype))[1])

    def distance(of: Tensor) -> Tensor:
        nearest = torch.where(of > 0, rows.clamp(min=beyond), rows.clamp(max=-beyond))
        apart = torch.where(known, torch.where(of.isinf(), nearest, of) - rows, 0.0)
        # a plain formula that gives NaN bounds nothing
        norms: Tensor = torch.linalg.vector_norm(torch.where(apart.isnan(), math.inf, apart), dim=-1)
        return norms

    typical = distance(plain)
    finite = typical[typical.isfinite()]
    worst = finite.max() if finite.numel() else typical.new_zeros(())
    average = worst
    if finite.numel() and cancelling is None and shape[1] >= _FEW:
        average = finite.square().mean().sqrt()
    single = got.dtype is torch.float32
    factor, roundings = (_FLOAT32_FACTOR, _FLOAT32_ROUNDINGS) if single else (2.0, 1.0)
    rounding = roundings * torch.linalg.vector_norm(torch.where(known, unit, 0.0), dim=-1)
    lost = torch.zeros_like(rows) if slack is None else slack.expand(want.shape).reshape(shape)
    rounding = rounding + torch.linalg.vector_norm(torch.where(known, lost, 0.0), dim=-1)
    allowed = factor * typical.maximum(average) + rounding
    if cancelling is None and shape[1] < _FEW:
        norms = torch.linalg.vector_norm(torch.where(known, rows, 0.0), dim=-1)
        cancelling = (factor if single else 1.0) * torch.finfo(got.dtype).eps * float(norms.max())
    if cancelling is not None:
        allowed = allowed + cancelling
    off = distance(found)
    far = off > allowed
    if int(far.sum()) <= max(1.0, _RARE * shape[0]):
        far = off > allowed.maximum(factor * worst + rounding)
    wrong = far | ((found != rows) & ~known & ~(found.isnan() & rows.isnan())).any(-1)
    if not bool(wrong.any()):
        return Match(float((off / allowed).nan_to_num(0.0, 0.0).max()))
    row = int(torch.where(wrong, (off / allowed).nan_to_num(math.inf, math.inf), -1.0).argmax())
    # of the worst row the worst element is shown
    column = int(torch.where(known[row] & found[row].isfinite(), (found[row] - rows[row]).abs(), math.inf).argmax())
    index = _place(row * shape[1] + column, want)
    ulp = float(((found[row, column] - rows[row, column]).abs() / unit[row, column]).nan_to_num(math.inf))
    count = int(wrong.sum()) * shape[1]
    return Mismatch(index, float(found[row, column]), float(rows[row, column]), ulp, float("nan"), count, got.numel())


def _place(flat: int, of: Tensor) -> tuple[int, ...]:
    return tuple(int(place) for place in torch.unravel_index(torch.tensor(flat), of.shape)) if of.dim() else ()
