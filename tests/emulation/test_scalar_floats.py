"""The scalar float ALU of gfx1201 against numpy: float16 in low halves, MODE's rounding, NaN and signed zeros."""

import numpy as np
import pytest
from single_instruction import needs_clang, run_single

pytest.importorskip("tinygrad")
pytestmark = needs_clang

ARCH = "gfx1201"
UP, DOWN, TO_ZERO = 0b01, 0b10, 0b11
KEPT = 0xF0  # subnormals


def half(value: float) -> int:
    return int(np.float16(value).view(np.uint16))


def single(value: float) -> int:
    return int(np.float32(value).view(np.uint32))


PAIRS = [(1.0, 2.0), (0.1, -0.3), (60000.0, 50000.0), (6e-8, 6e-8), (-2.5, 2.5), (3e-5, 1e-3), (1e-4, 1e-4)]


@pytest.mark.parametrize(("name", "compute"), [("add", np.add), ("sub", np.subtract), ("mul", np.multiply)])
@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_float16_arithmetic_is_rounded_once_and_leaves_the_high_half(name, compute, a, b):
    with np.errstate(over="ignore", under="ignore"):
        expected = compute(np.float16(a), np.float16(b))
    ran = run_single(ARCH, f"s_{name}_f16 s4, s0, s1", sgprs={0: 0xABCD0000 | half(a), 1: half(b), 4: 0x12345678})
    assert ran.sgpr(4) == 0x12340000 | half(expected)
    assert ran.finding_kinds == frozenset()


def test_an_inline_constant_is_a_float16_of_float16_operations():
    assert run_single(ARCH, "s_add_f16 s4, s0, 2.0", sgprs={0: half(1.5), 4: 0}).sgpr(4) == half(3.5)
    assert run_single(ARCH, "s_mul_f16 s4, s0, 0.15915494", sgprs={0: half(2.0), 4: 0}).sgpr(4) == half(0.3184)


@pytest.mark.parametrize("value", [0.1, -65519.0, 65520.0, 6e-8, 2e-8, 1e-40, np.inf, -0.0])
def test_float32_becomes_float16(value):
    with np.errstate(over="ignore", under="ignore"):
        expected = half(value)
    assert run_single(ARCH, "s_cvt_f16_f32 s4, s0", sgprs={0: single(value), 4: 0}).sgpr(4) == expected


@pytest.mark.parametrize(("mode", "bits"), [(UP, 0x2E67), (DOWN, 0x2E66), (TO_ZERO, 0x2E66)])
def test_mode_says_how_a_float16_is_rounded(mode, bits):
    ran = run_single(ARCH, "s_cvt_f16_f32 s4, s0", sgprs={0: single(0.1), 4: 0}, mode=KEPT | mode << 2)
    assert ran.sgpr(4) == bits


def test_two_float32_become_float16_towards_zero_whatever_mode_says():
    ran = run_single(
        ARCH, "s_cvt_pk_rtz_f16_f32 s4, s0, s1", sgprs={0: single(0.1), 1: single(-0.1)}, mode=KEPT | UP << 2
    )
    assert ran.sgpr(4) == 0xAE660000 | 0x2E66


def test_each_half_of_a_register_becomes_a_float32():
    given = {0: half(-1.5) << 16 | half(0.25)}
    assert run_single(ARCH, "s_cvt_f32_f16 s4, s0", sgprs=given).sgpr(4) == single(0.25)
    assert run_single(ARCH, "s_cvt_hi_f32_f16 s4, s0", sgprs=given).sgpr(4) == single(-1.5)


def test_a_product_and_a_sum_are_rounded_once():
    a, b, c = np.float16(1.001), np.float16(1.001), np.float16(-1.002)
    ran = run_single(ARCH, "s_fmac_f16 s4, s0, s1", sgprs={0: half(a), 1: half(b), 4: half(c)})
    exact = np.float64(a) * np.float64(b) + np.float64(c)
    assert ran.sgpr(4) & 0xFFFF == half(exact) != half(np.float16(a * b) + c)


@pytest.mark.parametrize("form", ["f16", "f32"])
@pytest.mark.parametrize(
    ("name", "a", "b", "expected"),
    [
        ("min_num", 0.0, -0.0, -0.0),
        ("max_num", -0.0, 0.0, 0.0),
        ("min_num", np.nan, 1.0, 1.0),
        ("max_num", 1.0, np.nan, 1.0),
        ("minimum", np.nan, 1.0, np.nan),
        ("maximum", 1.0, np.nan, np.nan),
        ("minimum", 2.0, -1.0, -1.0),
        ("maximum", 2.0, -1.0, 2.0),
    ],
)
def test_least_and_greatest_know_signed_zeros_and_nan(form, name, a, b, expected):
    bits = half if form == "f16" else single
    ran = run_single(ARCH, f"s_{name}_{form} s4, s0, s1", sgprs={0: bits(a), 1: bits(b), 4: 0})
    assert ran.sgpr(4) == bits(expected)


@pytest.mark.parametrize("form", ["f16", "f32"])
@pytest.mark.parametrize(("a", "b"), [(1.0, 2.0), (2.0, 2.0), (3.0, -1.0), (np.nan, 1.0)])
def test_comparisons_set_scc(form, a, b):
    bits = half if form == "f16" else single
    says = {
        "lt": a < b,
        "eq": a == b,
        "ge": a >= b,
        "lg": a < b or a > b,
        "nge": not a >= b,
        "u": bool(np.isnan(a) or np.isnan(b)),
    }
    for name, expected in says.items():
        ran = run_single(ARCH, f"s_cmp_{name}_{form} s0, s1", sgprs={0: bits(a), 1: bits(b)})
        assert ran.scc == expected, name


@pytest.mark.parametrize(
    ("name", "compute"),
    [("exp", np.exp2), ("log", np.log2), ("rcp", np.reciprocal), ("rsq", lambda a: 1 / np.sqrt(a)), ("sqrt", np.sqrt)],
)
def test_units_take_modifiers_and_clear_the_high_half(name, compute):
    value = np.float16(1.75)
    ran = run_single(ARCH, f"v_s_{name}_f16 s4, |s0| mul:2", sgprs={0: 0xABCD0000 | half(-value), 4: 0x12345678})
    expected = np.float16(np.float16(compute(np.float64(value))) * np.float16(2))
    assert ran.sgpr(4) == half(expected)


@pytest.mark.parametrize(
    ("mode", "bits"), [(0, 0x3F800000), (UP, 0x3F800001), (DOWN, 0x3F800000), (TO_ZERO, 0x3F800000)]
)
def test_mode_says_how_a_float32_is_rounded(mode, bits):
    ran = run_single(ARCH, "s_add_f32 s4, s0, s1", sgprs={0: single(1.0), 1: single(1e-10)}, mode=KEPT | mode)
    assert ran.sgpr(4) == bits


def test_subnormals_are_zero_where_mode_says_so():
    tiny = {0: single(-1e-40), 1: single(0.0), 4: 0}
    assert run_single(ARCH, "s_add_f32 s4, s0, s1", sgprs=tiny, mode=0).sgpr(4) in (0, 1 << 31)
    assert run_single(ARCH, "s_add_f32 s4, s0, s1", sgprs=tiny).sgpr(4) == single(-1e-40)
    small = {0: half(6e-8), 4: 0}
    assert run_single(ARCH, "s_add_f16 s4, s0, s0", sgprs=small, mode=0).sgpr(4) == 0
    assert run_single(ARCH, "s_add_f16 s4, s0, s0", sgprs=small).sgpr(4) == half(1.2e-7)
