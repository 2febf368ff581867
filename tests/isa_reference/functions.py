"""The functions that pseudocode calls, as the ISA documents describe them in words."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from isa_reference import floats, small
from isa_reference.evaluate import Value, signed, unsigned
from isa_reference.floats import BF16, F16, F32, F64, Format

if TYPE_CHECKING:
    from isa_reference.evaluate import Evaluator

Function = Callable[..., Value]


def _like(value: Value, bits: int) -> Value:
    return Value(value.kind, value.width, bits)


def _float_to_integer(kind: str, width: int) -> Function:
    low, high = (0, (1 << width) - 1) if kind == "u" else (-(1 << (width - 1)), (1 << (width - 1)) - 1)
    return lambda e, v: Value(kind, width, floats.to_integer(v.bits, v.form, low, high))


def _integer_to_float(form: Format) -> Function:
    return lambda e, v: Value(
        "f", form.width, e.modes.given(floats.from_integer(v.value, form, e.rounding(form)), form)
    )


def _float_to_float(form: Format) -> Function:
    def run(e: Evaluator, v: Value) -> Value:
        bits = floats.convert(v.bits, v.form, form, e.rounding(form))
        return Value("g" if form is BF16 else "f", form.width, e.modes.given(bits, form))

    return run


def _whole(mode: int) -> Function:
    return lambda e, v: _like(v, floats.to_whole(v.bits, v.form, mode))


def _exponent(e: Evaluator, v: Value) -> Value:
    return Value("i", 32, v.bits >> v.form.mantissa & ((1 << v.form.exponent) - 1))


def _mantissa(e: Evaluator, v: Value) -> Value:
    """In [0.5, 1), with the sign; frexp's."""
    if v.bits & ~v.form.sign == 0:
        return v
    sign, m, _ = floats.exact(v.bits, v.form)
    return _like(v, floats.rounded((sign, m, -m.bit_length()), v.form))


# From any number of any format so many powers of two lead to zero or infinity.
_FAR = 1 << 13


def _ldexp(e: Evaluator, v: Value, by: Value) -> Value:
    if floats.is_nan(v.bits, v.form) or floats.is_infinite(v.bits, v.form) or v.bits & ~v.form.sign == 0:
        return v
    sign, m, at = floats.exact(v.bits, v.form)
    by_value = max(-_FAR, min(_FAR, signed(by.bits, by.width)))
    return _like(v, e.modes.given(floats.rounded((sign, m, at + by_value), v.form, e.rounding(v.form)), v.form))


def _fma(e: Evaluator, a: Value, b: Value, c: Value) -> Value:
    return _like(a, e.modes.given(floats.fma(a.bits, b.bits, c.bits, a.form, e.rounding(a.form)), a.form))


def _by_python(compute: Callable[[float], float]) -> Function:
    """A transcendental: computed in double precision and rounded; its result is compared in units."""

    def run(e: Evaluator, v: Value) -> Value:
        try:
            made = compute(floats.to_python(v.bits, v.form))
        except (ValueError, OverflowError):
            made = math.nan
        return _like(v, e.modes.given(floats.from_python(made, v.form), v.form))

    return run


def _log2(x: float) -> float:
    return -math.inf if x == 0 else math.log2(x)


def _inverse_root(x: float) -> float:
    return math.copysign(math.inf, x) if x == 0 else 0.0 if math.isinf(x) and x > 0 else 1 / math.sqrt(x)


def _pow(e: Evaluator, base: Value, power: Value) -> Value:
    x = floats.to_python(power.bits, power.form)
    made = math.inf if x > 1100 else 0.0 if x < -1200 else math.nan if math.isnan(x) else 2.0**x
    assert floats.to_python(base.bits, base.form) == 2.0
    return _like(power, e.modes.given(floats.from_python(made, power.form), power.form))


def _turns(compute: Callable[[float], float]) -> Function:
    """Of an angle in turns; beyond 256 turns the documents give no result."""

    def run(e: Evaluator, v: Value) -> Value:
        x = floats.to_python(v.bits, v.form)
        made = math.nan if math.isinf(x) or math.isnan(x) else compute(math.fmod(x, 1.0) * 2 * math.pi)
        if x == 0 and made == 0:
            made = x
        return _like(v, e.modes.given(floats.from_python(made, v.form), v.form))

    return run


def _fma_scaled(e: Evaluator, a: Value, b: Value, c: Value) -> Value:
    """The sum times 2**64 or 2**-64 (2**128 of float64), as the third source's exponent says, rounded once."""
    form = a.form
    plain = floats.fma(a.bits, b.bits, c.bits, form, e.rounding(form))
    sources = (a.bits, b.bits, c.bits)
    if any(floats.is_nan(bits, form) or floats.is_infinite(bits, form) for bits in sources):
        return _like(a, plain)
    product = floats.multiply_exact(floats.exact(a.bits, form), floats.exact(b.bits, form))
    sign, m, at = floats.add_exact(product, floats.exact(c.bits, form), down=e.rounding(form) == floats.DOWN)
    by = 64 if form is F32 else 128
    large = c.bits >> form.mantissa & ((1 << form.exponent) - 1) > form.bias
    by = by if large else -by
    if form is F64 and m.bit_length() + at > form.bias + 1:  # the sum overflows before it is scaled
        return _like(a, floats.multiply(plain, floats.rounded((0, 1, by), form), form, e.rounding(form)))
    made = floats.rounded((sign, m, at + by), form, e.rounding(form))
    return _like(a, e.modes.given(made, form))


def _normal_exponent(e: Evaluator, v: Value) -> Value:
    """frexp's: of a subnormal that of its first one."""
    if v.bits & ~v.form.sign == 0:
        return Value("i", 32, 0)
    _, m, at = floats.exact(v.bits, v.form)
    return Value("i", 32, at + m.bit_length())


def _sum_of_products(e: Evaluator, first: Value, *pairs: Value) -> Value:
    """The first and the products of each two that follow: their exact sum, rounded once, to nearest even."""
    parts = [
        small.number(v.bits, v.form) if v.is_float else small.decoded(small.FORMATS[v.kind], v.bits) for v in pairs
    ]
    terms = [small.product(a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    made = small.exact_sum([small.number(first.bits, first.form), *terms], first.form)
    return _like(first, e.modes.given(made, first.form))


def _median(e: Evaluator, *values: Value) -> Value:
    """Of three numbers the one in the middle; -0 lies below +0."""
    return sorted(values, key=lambda v: floats.order(v.bits, v.form) * 2 - (v.bits == v.form.sign))[1]


def _offset_of_4_bits(e: Evaluator, v: Value) -> Value:
    return Value("f", 32, floats.from_python(signed(v.bits & 15, 4) / 16, F32))


def _sqrt(e: Evaluator, v: Value) -> Value:
    return _like(v, floats.square_root(v.bits, v.form, e.rounding(v.form)))


def _fract(e: Evaluator, v: Value) -> Value:
    floor = floats.to_whole(v.bits, v.form, floats.DOWN)
    if floats.is_nan(floor, v.form) or floats.is_infinite(floor, v.form):
        return _like(v, v.form.nan)
    return _like(v, floats.add(v.bits, floor ^ v.form.sign, v.form, e.rounding(v.form)))


def _is_even(e: Evaluator, v: Value) -> Value:
    if floats.is_nan(v.bits, v.form) or floats.is_infinite(v.bits, v.form):
        return unsigned(0, 1)
    return unsigned(int(floats.to_integer(v.bits, v.form, -(1 << 1100), 1 << 1100) % 2 == 0), 1)


def _first_one(e: Evaluator, v: Value) -> Value:
    return Value("i", 32, (v.bits & -v.bits).bit_length() - 1 if v.bits else -1)


def _byte_permute(e: Evaluator, data: Value, selector: Value) -> Value:
    s, bits = selector.value & 0xFF, data.bits
    if s >= 13:
        byte = 0xFF
    elif s == 12:
        byte = 0
    elif s >= 8:  # the sign of bytes 1, 3, 5, 7
        byte = 0xFF if bits >> (((s - 8) * 2 + 1) * 8 + 7) & 1 else 0
    else:
        byte = bits >> s * 8 & 0xFF
    return unsigned(byte, 8)


def _sign_from_bit(e: Evaluator, v: Value, bits: Value) -> Value:
    width = bits.value
    return Value("i", v.width, signed(v.value & ((1 << width) - 1), width) if width else 0)


def _quiet(e: Evaluator, v: Value) -> Value:
    return _like(v, v.bits | 1 << (v.form.mantissa - 1))


def _zero_order(above: bool) -> Function:
    """Whether a < b (or a > b), where -0 lies below +0."""

    def run(e: Evaluator, a: Value, b: Value) -> Value:
        x, y = (floats.order(v.bits, v.form) * 2 - (v.bits == v.form.sign) for v in (a, b))
        nan = floats.is_nan(a.bits, a.form) or floats.is_nan(b.bits, b.form)
        return unsigned(int(not nan and (x > y if above else x < y)), 1)

    return run


FUNCTIONS: dict[str, Function] = {
    "isNAN": lambda e, v: unsigned(int(floats.is_nan(v.bits, v.form)), 1),
    "isSignalNAN": lambda e, v: unsigned(int(floats.is_signalling(v.bits, v.form)), 1),
    "isQuietNAN": lambda e, v: unsigned(
        int(floats.is_nan(v.bits, v.form) and not floats.is_signalling(v.bits, v.form)), 1
    ),
    "cvtToQuietNAN": _quiet,
    "sign": lambda e, v: unsigned(v.bits >> (v.width - 1) & 1, 1),
    "abs": lambda e, v: _like(v, v.bits & ~v.form.sign if v.is_float else abs(v.value)),
    "exponent": _exponent, "mantissa": _mantissa, "ldexp": _ldexp, "fma": _fma, "sqrt": _sqrt, "fract": _fract,
    "trunc": _whole(floats.ZERO), "floor": _whole(floats.DOWN), "ceil": _whole(floats.UP),
    "isEven": _is_even, "pow": _pow, "log2": _by_python(_log2), "sin": _by_python(math.sin),
    "cos": _by_python(math.cos),
    "is_tiny": lambda e, v: unsigned(int(floats.is_subnormal(v.bits, v.form) or v.bits & ~v.form.sign == 0), 1),
    "inverse_root": _by_python(_inverse_root), "sin_turns": _turns(math.sin), "cos_turns": _turns(math.cos),
    "fma_scaled": _fma_scaled, "round_even": _whole(floats.NEAREST), "normal_exponent": _normal_exponent,
    "offset_of_4_bits": _offset_of_4_bits, "sum_of_products": _sum_of_products, "median": _median,
    **{f"{kind}{width}_to_{kind}32": lambda e, v: Value(v.kind, 32, v.value) for kind in "iu" for width in (4, 8, 16)},
    "most_below_one": lambda e, v: _like(v, v.form.bias * (1 << v.form.mantissa) - 1),
    "signext": lambda e, v: Value("i", 64, signed(v.bits, v.width)),
    "signext_from_bit": _sign_from_bit,
    "count_ones": lambda e, v: Value("i", 32, v.bits.bit_count()),
    "reverse_bits": lambda e, v: _like(v, int(f"{v.bits:0{v.width}b}"[::-1], 2)),
    "s_ff1_i32_b32": _first_one, "s_ff1_i32_b64": _first_one,
    "BYTE_PERMUTE": _byte_permute,
    "MIN": lambda e, a, b: a if a.value < b.value else b,
    "LT_NEG_ZERO": _zero_order(above=False), "GT_NEG_ZERO": _zero_order(above=True),
    "f32_to_i32": _float_to_integer("i", 32), "f32_to_u32": _float_to_integer("u", 32),
    "f64_to_i32": _float_to_integer("i", 32), "f64_to_u32": _float_to_integer("u", 32),
    "f16_to_i16": _float_to_integer("i", 16), "f16_to_u16": _float_to_integer("u", 16),
    "f32_to_f16": _float_to_float(F16), "f16_to_f32": _float_to_float(F32), "f32_to_f64": _float_to_float(F64),
    "f64_to_f32": _float_to_float(F32), "f32_to_bf16": _float_to_float(BF16), "bf16_to_f32": _float_to_float(F32),
    "i32_to_f32": _integer_to_float(F32), "u32_to_f32": _integer_to_float(F32), "i32_to_f64": _integer_to_float(F64),
    "u32_to_f64": _integer_to_float(F64), "u16_to_f16": _integer_to_float(F16), "i16_to_f16": _integer_to_float(F16),
    "u32_to_u16": lambda e, v: unsigned(min(v.bits, 0xFFFF), 16),
    "i32_to_i16": lambda e, v: Value("i", 16, max(-0x8000, min(0x7FFF, v.value))),
}  # fmt: skip
