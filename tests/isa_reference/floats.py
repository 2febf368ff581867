"""Binary floating point in whole numbers: exact values, rounded once, in any of the formats that instructions use.

A finite value is ``(sign, magnitude, exponent)``: ``(-1)**sign * magnitude * 2**exponent``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

NEAREST, UP, DOWN, ZERO = range(4)  # as MODE numbers them


@dataclass(frozen=True, slots=True)
class Format:
    """Bits of a format's exponent and mantissa."""

    name: str
    exponent: int
    mantissa: int

    @property
    def width(self) -> int:
        return 1 + self.exponent + self.mantissa

    @property
    def bias(self) -> int:
        return (1 << (self.exponent - 1)) - 1

    @property
    def infinity(self) -> int:
        return ((1 << self.exponent) - 1) << self.mantissa

    @property
    def nan(self) -> int:
        return self.infinity | 1 << (self.mantissa - 1)

    @property
    def sign(self) -> int:
        return 1 << (self.exponent + self.mantissa)


F16, BF16, F32, F64 = Format("f16", 5, 10), Format("bf16", 8, 7), Format("f32", 8, 23), Format("f64", 11, 52)
FORMATS = {"f16": F16, "bf16": BF16, "f32": F32, "f64": F64}
# Wide enough that no value that instructions compute overflows or loses a bit in it: for sums before their rounding.
Exact = tuple[int, int, int]


def is_nan(bits: int, form: Format) -> bool:
    return bits & ~form.sign > form.infinity


def is_infinite(bits: int, form: Format) -> bool:
    return bits & ~form.sign == form.infinity


def is_signalling(bits: int, form: Format) -> bool:
    return is_nan(bits, form) and not bits >> (form.mantissa - 1) & 1


def is_subnormal(bits: int, form: Format) -> bool:
    return bits & form.infinity == 0 and bits & ~form.sign != 0


def exact(bits: int, form: Format) -> Exact:
    """A finite value."""
    sign, biased = bits >> (form.width - 1) & 1, bits >> form.mantissa & ((1 << form.exponent) - 1)
    magnitude = bits & ((1 << form.mantissa) - 1)
    if biased:
        return sign, magnitude | 1 << form.mantissa, biased - form.bias - form.mantissa
    return sign, magnitude, 1 - form.bias - form.mantissa


def rounded(value: Exact, form: Format, mode: int = NEAREST, *, sticky: bool = False) -> int:
    """The value's bits; ``sticky``: it is a little larger in magnitude than ``value`` says."""
    sign, magnitude, exponent = value
    high = sign << (form.width - 1)
    if magnitude == 0:
        return high | (1 if sticky and mode == (DOWN if sign else UP) else 0)
    low = 1 - form.bias - form.mantissa  # the exponent of the last bit of subnormals
    last = max(low, exponent + magnitude.bit_length() - 1 - form.mantissa)
    if sticky:  # room for what is below
        magnitude, exponent = magnitude << 2 | 1, exponent - 2
    shift = last - exponent
    if shift <= 0:
        kept, rest, half = magnitude << -shift, 0, 1
    else:
        kept, rest, half = magnitude >> shift, magnitude & ((1 << shift) - 1), 1 << (shift - 1)
    if mode == NEAREST:
        kept += rest > half or (rest == half and kept & 1)
    elif mode != ZERO:
        kept += bool(rest) and (mode == UP) != bool(sign)
    if kept >> (form.mantissa + 1):
        kept, last = kept >> 1, last + 1
    biased = last - low + 1 if kept >> form.mantissa else 0
    if biased >= (1 << form.exponent) - 1:
        to_infinity = mode == NEAREST or (mode != ZERO and (mode == UP) != bool(sign))
        return high | (form.infinity if to_infinity else form.infinity - 1)
    return high | biased << form.mantissa | kept & ((1 << form.mantissa) - 1)


def add_exact(a: Exact, b: Exact, *, down: bool = False) -> Exact:
    """The sum; a zero of unlike signs is positive but where rounding goes ``down``."""
    low = min(a[2], b[2])
    total = sum((-m if s else m) << (e - low) for s, m, e in (a, b))
    if total == 0:
        return (a[0] if a[0] == b[0] else int(down)), 0, low
    return int(total < 0), abs(total), low


def multiply_exact(a: Exact, b: Exact) -> Exact:
    return a[0] ^ b[0], a[1] * b[1], a[2] + b[2]


def add(a: int, b: int, form: Format, mode: int) -> int:
    if is_nan(a, form) or is_nan(b, form):
        return form.nan
    if is_infinite(a, form) or is_infinite(b, form):
        if is_infinite(a, form) and is_infinite(b, form) and a != b:
            return form.nan
        return a if is_infinite(a, form) else b
    return rounded(add_exact(exact(a, form), exact(b, form), down=mode == DOWN), form, mode)


def multiply(a: int, b: int, form: Format, mode: int) -> int:
    if is_nan(a, form) or is_nan(b, form):
        return form.nan
    sign = (a ^ b) & form.sign
    if is_infinite(a, form) or is_infinite(b, form):
        return form.nan if a & ~form.sign == 0 or b & ~form.sign == 0 else sign | form.infinity
    return rounded(multiply_exact(exact(a, form), exact(b, form)), form, mode)


def fma(a: int, b: int, c: int, form: Format, mode: int) -> int:
    if is_nan(a, form) or is_nan(b, form) or is_nan(c, form):
        return form.nan
    if is_infinite(a, form) or is_infinite(b, form):
        product = multiply(a, b, form, mode)
        return product if is_nan(product, form) or not is_infinite(c, form) or product == c else form.nan
    if is_infinite(c, form):
        return c
    product = multiply_exact(exact(a, form), exact(b, form))
    return rounded(add_exact(product, exact(c, form), down=mode == DOWN), form, mode)


def divide(a: int, b: int, form: Format, mode: int) -> int:
    if is_nan(a, form) or is_nan(b, form):
        return form.nan
    sign, zero_a, zero_b = (a ^ b) & form.sign, a & ~form.sign == 0, b & ~form.sign == 0
    if is_infinite(a, form) or zero_b:
        return form.nan if is_infinite(b, form) or (zero_a and zero_b) else sign | form.infinity
    if is_infinite(b, form) or zero_a:
        return sign
    (_, m, e), (_, n, f) = exact(a, form), exact(b, form)
    quotient, rest = divmod(m << 160, n)
    return rounded((int(sign > 0), quotient, e - f - 160), form, mode, sticky=rest > 0)


def square_root(a: int, form: Format, mode: int) -> int:
    if is_nan(a, form) or (a & form.sign and a != form.sign):
        return form.nan
    if is_infinite(a, form) or a & ~form.sign == 0:
        return a
    _, m, e = exact(a, form)
    m, e = m << 200 + (e & 1), e - 200 - (e & 1)
    root = isqrt(m)
    return rounded((0, root, e // 2), form, mode, sticky=root * root != m)


def convert(bits: int, source: Format, to: Format, mode: int) -> int:
    sign = bits >> (source.width - 1) << (to.width - 1)
    if is_nan(bits, source):
        return sign | to.nan
    if is_infinite(bits, source):
        return sign | to.infinity
    return rounded(exact(bits, source), to, mode)


def from_integer(value: int, to: Format, mode: int) -> int:
    return rounded((int(value < 0), abs(value), 0), to, mode)


def to_integer(bits: int, form: Format, low: int, high: int) -> int:
    """Towards zero, held inside of a range; a NaN is zero."""
    if is_nan(bits, form):
        return 0
    if is_infinite(bits, form):
        return low if bits & form.sign else high
    sign, m, e = exact(bits, form)
    whole = m << e if e >= 0 else m >> -e
    return max(low, min(high, -whole if sign else whole))


def to_whole(bits: int, form: Format, mode: int) -> int:
    """A whole number in the same format: ``mode`` says which of the two neighbours."""
    if is_nan(bits, form):
        return form.nan
    if is_infinite(bits, form):
        return bits
    sign, m, e = exact(bits, form)
    if e >= 0:
        return bits
    kept, rest, half = m >> -e, m & ((1 << -e) - 1), 1 << (-e - 1)
    if mode == NEAREST:
        kept += rest > half or (rest == half and kept & 1)
    elif mode != ZERO:
        kept += bool(rest) and (mode == UP) != bool(sign)
    return rounded((sign, kept, 0), form)


def less(a: int, b: int, form: Format) -> bool:
    """Whether a < b; false with a NaN."""
    return not is_nan(a, form) and not is_nan(b, form) and order(a, form) < order(b, form)


def equal(a: int, b: int, form: Format) -> bool:
    return not is_nan(a, form) and not is_nan(b, form) and order(a, form) == order(b, form)


def order(bits: int, form: Format) -> int:
    """A whole number in the order of the values; both zeros are 0. The difference of two is one in units."""
    magnitude = bits & ~form.sign
    return -magnitude if bits & form.sign else magnitude


def to_python(bits: int, form: Format) -> float:
    """The value as a Python float; formats up to float64 lose nothing."""
    import struct

    return float(struct.unpack("<d", struct.pack("<Q", convert(bits, form, F64, NEAREST)))[0])


def from_python(value: float, form: Format, mode: int = NEAREST) -> int:
    import struct

    return convert(struct.unpack("<Q", struct.pack("<d", value))[0], F64, form, mode)
