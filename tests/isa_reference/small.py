"""Floats of 8, 6 and 4 bits, and their scales, by the values of their codes: exact fractions, rounded once."""

from __future__ import annotations

import functools
from bisect import bisect_right
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from isa_reference import floats
from isa_reference.evaluate import Value
from isa_reference.floats import BF16, F16, F32, Format

if TYPE_CHECKING:
    from isa_reference.evaluate import Evaluator
    from isa_reference.functions import Function


@dataclass(frozen=True, slots=True)
class Small:
    """``special``: what codes mean that are no numbers: ``nan`` (all ones), ``ieee``, ``fnuz`` (the code of -0), or none."""

    bits: int
    mantissa: int
    bias: int
    special: str

    @property
    def top(self) -> int:
        return 1 << (self.bits - 1)


FORMATS = {
    "fp8": Small(8, 3, 7, "nan"), "bf8": Small(8, 2, 15, "ieee"), "fp8 fnuz": Small(8, 3, 8, "fnuz"),
    "bf8 fnuz": Small(8, 2, 16, "fnuz"), "fp6": Small(6, 3, 1, ""), "bf6": Small(6, 2, 3, ""), "fp4": Small(4, 1, 1, ""),
}  # fmt: skip
_NOT_A_NUMBER = 255  # the scale that is no power of two


@functools.cache
def _values(form: Small) -> tuple[Fraction, ...]:
    """The finite values of the codes without a sign, in their order."""
    made = []
    for code in range(form.top):
        exponent, fraction = code >> form.mantissa, code & ((1 << form.mantissa) - 1)
        last = exponent == (form.top - 1) >> form.mantissa
        if last and (form.special == "ieee" or (form.special == "nan" and fraction == (1 << form.mantissa) - 1)):
            break
        whole = fraction + (1 << form.mantissa if exponent else 0)
        made.append(whole * Fraction(2) ** (max(exponent, 1) - form.bias - form.mantissa))
    return tuple(made)


def decoded(form: Small, code: int) -> Fraction | float:
    """The value of a code; an infinity or a NaN as a float, and so is -0."""
    sign, rest = code & form.top, code & (form.top - 1)
    if form.special == "fnuz" and sign and not rest:
        return float("nan")
    values = _values(form)
    if rest >= len(values):
        infinite = form.special == "ieee" and rest == len(values)
        return float("-inf" if sign else "inf") if infinite else float("nan")
    if sign and not rest:
        return -0.0
    return -values[rest] if sign else values[rest]


def encoded(form: Small, bits: int, source: Format, scale: Fraction, random: int | None, *, limit: bool) -> int:
    """The code nearest to a float divided by ``scale``; with ``random`` the next one by the chance of its distance."""
    sign = form.top if bits & source.sign else 0
    values, ones = _values(form), form.top - 1
    beyond = {"": len(values) - 1, "ieee": len(values), "nan": ones}
    if floats.is_nan(bits, source):
        return form.top if form.special == "fnuz" else sign | (ones if form.special else len(values) - 1)
    if floats.is_infinite(bits, source):
        return form.top if form.special == "fnuz" else sign | beyond[form.special]
    _, magnitude, exponent = floats.exact(bits, source)
    value = magnitude * Fraction(2) ** exponent / scale
    at = bisect_right(values, value) - 1
    following = values[at + 1] if at + 1 < len(values) else 2 * values[at] - values[at - 1]
    if at + 1 == len(values) and value >= following:
        at += 1
    else:
        rest = (value - values[at]) / (following - values[at])
        if random is None:
            at += rest > Fraction(1, 2) or (rest == Fraction(1, 2) and at & 1)
        else:
            at += rest + Fraction(random, 1 << 32) >= 1
    if at >= len(values):
        if limit or not form.special:
            return sign | (len(values) - 1)
        return form.top if form.special == "fnuz" else sign | beyond[form.special]
    return at if form.special == "fnuz" and not at else sign | at


def float_of(value: Fraction | float, form: Format, mode: int = floats.NEAREST) -> int:
    """The bits of a value in a larger format, rounded once."""
    if isinstance(value, float):
        return floats.from_python(value, form)
    return floats.rounded(_exact(value), form, mode)


def _exact(value: Fraction) -> floats.Exact:
    """Of a fraction whose denominator is a power of two."""
    return int(value < 0), abs(value.numerator), 1 - value.denominator.bit_length()


def _named(e: Evaluator, name: str) -> Small:
    return FORMATS[f"{name} fnuz" if e.fnuz and name in ("fp8", "bf8") else name]


def _times(scale: Value) -> Fraction | None:
    exponent = scale.value & 255
    return None if exponent == _NOT_A_NUMBER else Fraction(2) ** (exponent - 127)


def _widened(name: str, to: Format) -> Function:
    def run(e: Evaluator, code: Value, *scales: Value) -> Value:
        value = decoded(_named(e, name), code.bits)
        by = _times(scales[0]) if scales else Fraction(1)
        if by is None:
            value = float("nan")
        elif isinstance(value, Fraction):
            value *= by
        kind = "g" if to is BF16 else "f"
        return Value(kind, to.width, float_of(value, to))

    return run


def _narrowed(name: str) -> Function:
    def run(e: Evaluator, given: Value, *rest: Value) -> Value:
        form = _named(e, name)
        random = rest[0].bits if len(rest) == 2 else None
        scale = _times(rest[-1]) if rest else Fraction(1)
        bits = given.bits | given.form.nan if scale is None else given.bits
        return Value("b", form.bits, encoded(form, bits, given.form, scale or Fraction(1), random, limit=e.limits))

    return run


def _random(name: str) -> Function:
    def run(e: Evaluator, given: Value, random: Value) -> Value:
        form = _named(e, name)
        return Value("b", form.bits, encoded(form, given.bits, given.form, Fraction(1), random.bits, limit=e.limits))

    return run


def _half_at_random(to: Format) -> Function:
    """A float32 to a format of 16 bits: as to the small ones, whose larger sister it is."""
    form = Small(16, to.mantissa, to.bias, "ieee")

    def run(e: Evaluator, given: Value, random: Value) -> Value:
        limit = e.limits and to is F16
        return Value("b", 16, encoded(form, given.bits, given.form, Fraction(1), random.bits, limit=limit))

    return run


def exact_sum(terms: list[Fraction | float], form: Format) -> int:
    """The sum of all terms, rounded once; infinities and NaNs as addition one by one gives them."""
    special = [one for one in terms if isinstance(one, float)]
    if any(one != one for one in special) or {float("inf"), float("-inf")} <= set(special):
        return form.nan
    infinite = [one for one in special if one]
    if infinite:
        return floats.from_python(infinite[0], form)
    total = sum((one for one in terms if isinstance(one, Fraction)), Fraction(0))
    if total == 0:
        return form.sign if len(special) == len(terms) else 0
    return floats.rounded(_exact(total), form)


def product(a: Fraction | float, b: Fraction | float) -> Fraction | float:
    """Of two values, of which floats are an infinity, a NaN or -0."""
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return a * b if a and b else -0.0 if a < 0 or b < 0 else Fraction(0)
    return float(a) * float(b) if (made := float(a) * float(b)) != 0 or str(made) == "-0.0" else Fraction(0)


def number(bits: int, form: Format) -> Fraction | float:
    """A float's value: a fraction where it is finite and not -0."""
    if floats.is_nan(bits, form) or floats.is_infinite(bits, form) or bits == form.sign:
        return floats.to_python(bits, form)
    sign, magnitude, exponent = floats.exact(bits, form)
    return (-1 if sign else 1) * magnitude * Fraction(2) ** exponent


_WIDE = {"f32": F32, "f16": F16, "bf16": BF16}
FUNCTIONS: dict[str, Function] = {
    **{f"{name}_to_{wide}{scaled}": _widened(name, form)
       for name in ("fp8", "bf8", "fp6", "bf6", "fp4") for wide, form in _WIDE.items() for scaled in ("", "_scale")},
    **{f"{wide}_to_{name}{scaled}": _narrowed(name)
       for name in ("fp8", "bf8", "fp6", "bf6", "fp4") for wide in _WIDE for scaled in ("", "_scale", "_sr_scale")},
    **{f"f32_to_{name}_random": _random(name) for name in ("fp8", "bf8")},
    "f32_to_f16_random": _half_at_random(F16), "f32_to_bf16_random": _half_at_random(BF16),
}  # fmt: skip
