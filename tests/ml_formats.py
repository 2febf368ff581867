"""Small floats and integers of machine learning, by tables of their values: for the emulator's tests alone."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
BITS = {
    "f32": 32, "i32": 32, "f16": 16, "bf16": 16, "fp8": 8, "bf8": 8, "fp8_fnuz": 8, "bf8_fnuz": 8, "u8": 8, "u4": 4,
    "fp6": 6, "bf6": 6, "fp4": 4,
}  # fmt: skip
# Bits of the mantissa, bias; what the codes without a number mean.
_FORMATS = {
    "f16": (10, 15, "ieee"), "bf16": (7, 127, "ieee"), "fp8": (3, 7, "nan"), "bf8": (2, 15, "ieee"),
    "fp8_fnuz": (3, 8, "fnuz"), "bf8_fnuz": (2, 16, "fnuz"), "fp6": (3, 1, ""), "bf6": (2, 3, ""), "fp4": (1, 1, ""),
}  # fmt: skip


def decoded(kind: str, code: int) -> float:
    """The value of a code."""
    bits = BITS[kind]
    if kind == "f32":
        return float(np.array(code, dtype=np.uint32).view(np.float32))
    if kind == "i32":
        return float(np.array(code, dtype=np.uint32).view(np.int32))
    if kind not in _FORMATS:
        return float(code)
    mantissa, bias, special = _FORMATS[kind]
    sign = -1.0 if code >> bits - 1 else 1.0
    exponent, fraction = code >> mantissa & (1 << bits - 1 - mantissa) - 1, code & (1 << mantissa) - 1
    full = exponent == (1 << bits - 1 - mantissa) - 1
    if special == "fnuz" and code == 1 << bits - 1:
        return np.nan
    if special == "nan" and full and fraction == (1 << mantissa) - 1:
        return np.nan
    if special == "ieee" and full:
        return np.nan if fraction else sign * np.inf
    if exponent == 0:
        return sign * fraction * 2.0 ** (1 - bias - mantissa)
    return sign * (1 + fraction / (1 << mantissa)) * 2.0 ** (exponent - bias)


@functools.cache
def table(kind: str) -> Array:
    """The values of all codes."""
    return np.array([decoded(kind, code) for code in range(1 << BITS[kind])])


def encoded(kind: str, value: float) -> int:
    """The code that is nearest, of two the even one; of what is too large infinity, NaN or the largest."""
    if kind in ("f32", "i32"):
        made = (
            np.array(value, dtype=np.float32) if kind == "f32" else np.array(int(value) & 0xFFFFFFFF, dtype=np.uint32)
        )
        return int(made.view(np.uint32))
    values, special = _positive(kind), _FORMATS[kind][2]
    bits = BITS[kind]
    sign = (1 << bits - 1) if np.signbit(value) else 0
    nan = {"fnuz": 1 << bits - 1, "nan": sign | (1 << bits - 1) - 1, "ieee": sign | (1 << bits - 1) - 1}
    if np.isnan(value):
        return nan.get(special, sign | len(values) - 1)
    magnitude = abs(value)
    beyond = values[-1] + (values[-1] - values[-2]) / 2
    if magnitude > beyond or (magnitude == beyond and len(values) % 2 == 0):
        return {"": sign | len(values) - 1, "ieee": sign | len(values), "nan": nan["nan"], "fnuz": nan["fnuz"]}[special]
    above = min(int(np.searchsorted(values, magnitude)), len(values) - 1)
    below = max(above - 1, 0)
    up, down = values[above] - magnitude, magnitude - values[below]
    code = above if up < down or magnitude >= values[above] or (up == down and above % 2 == 0) else below
    return 0 if special == "fnuz" and code == 0 else sign | code


@functools.cache
def _positive(kind: str) -> Array:
    """The finite values without a sign, by code."""
    values = table(kind)[: 1 << BITS[kind] - 1]
    return values[np.isfinite(values)]


def drawn(kind: str, shape: tuple[int, ...], seed: int) -> tuple[Array, Array]:
    """Codes of finite values near 1, whose sums of products are exact, and those values."""
    draw = np.random.default_rng(seed)
    if kind in ("f16", "bf16"):
        values = draw.integers(-4, 5, shape) / 4
        return np.vectorize(lambda value: encoded(kind, value), otypes=[np.uint32])(values), values
    codes = draw.integers(0, 1 << BITS[kind], shape).astype(np.uint32)
    values = table(kind)
    if kind in ("fp8", "bf8"):  # of such with exponents near 0
        near = np.flatnonzero((np.abs(values) <= 4) & (np.abs(values) >= 0.25))
        codes = near[draw.integers(0, len(near), shape)].astype(np.uint32)
    return codes, values[codes]


def packed(lanes: Array, bits: int) -> list[Array]:
    """Codes by lane and item as registers: uint32 by lane, low bits first."""
    made: list[list[int]] = []
    for codes in lanes:
        whole = sum(int(code) << bits * at for at, code in enumerate(codes))
        made.append([whole >> 32 * at & 0xFFFFFFFF for at in range(-(-len(codes) * bits // 32))])
    return list(np.array(made, dtype=np.uint32).T)
