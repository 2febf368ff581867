"""Distances in ulp are right where a dtype is irregular: powers of two, subnormal numbers, overflow, NaN."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from portakernel_kit.conformance.comparison import Match, Mismatch, compare, compare_rows, distance_ulp, ulp_at
from portakernel_kit.conformance.memory import same_bits

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
dtypes = pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=str)
MANTISSA_BITS = {F32: 23, F16: 10, BF16: 7}
MIN_EXPONENT = {F32: -126, F16: -14, BF16: -126}


def f64(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def ulp(value: float, dtype: torch.dtype) -> float:
    return ulp_at(f64(value), dtype).item()


@dtypes
def test_ulp_doubles_at_each_power_of_two_and_not_before(dtype):
    one = 2.0 ** -MANTISSA_BITS[dtype]
    assert ulp(1.0, dtype) == ulp(1.5, dtype) == ulp(-1.0, dtype) == one
    assert ulp(math.nextafter(1.0, 0.0), dtype) == one / 2
    assert ulp(2.0, dtype) == 2 * one


@dtypes
def test_ulp_of_zero_and_of_subnormal_numbers_is_the_smallest_number(dtype):
    smallest = 2.0 ** (MIN_EXPONENT[dtype] - MANTISSA_BITS[dtype])
    assert {ulp(value, dtype) for value in (0.0, -0.0, smallest, 3 * smallest, smallest / 8)} == {smallest}
    assert ulp(2.0 ** MIN_EXPONENT[dtype], dtype) == smallest
    assert ulp(2.0 ** (MIN_EXPONENT[dtype] + 1), dtype) == 2 * smallest


@dtypes
def test_ulp_beyond_the_largest_number_is_that_of_the_largest(dtype):
    largest = torch.finfo(dtype).max
    assert ulp(largest, dtype) == ulp(math.inf, dtype) == ulp(math.nan, dtype) == ulp(largest * 2.0**300, dtype)


@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_ulp_is_numpys_spacing_at_every_finite_number(kind):
    bits = np.random.default_rng(1).integers(0, 2 ** (8 * kind().itemsize - 1), 2000)
    values = np.abs(bits.astype(f"uint{8 * kind().itemsize}").view(kind))
    values = values[np.isfinite(values)]
    dtype = torch.from_numpy(values).dtype
    assert torch.equal(ulp_at(torch.from_numpy(values).double(), dtype), torch.from_numpy(np.spacing(values)).double())


@dtypes
def test_rounding_to_nearest_is_within_half_an_ulp_at_any_magnitude(dtype):
    source = torch.Generator().manual_seed(3)
    exponents = torch.randint(MIN_EXPONENT[dtype] - 9, 15, (4000,), generator=source)
    want = torch.ldexp(torch.randn(4000, dtype=torch.float64, generator=source), exponents)
    distance = distance_ulp(want.to(dtype), want)
    assert 0.49 < distance.max().item() <= 0.5


def test_distance_is_exact_in_rational_arithmetic():
    got, want = torch.tensor([1.0 + 2**-23, 3.14159274, 1e-40], dtype=F32), f64(1.0, math.pi, 1.00001e-40)
    units = [Fraction(2) ** -23, Fraction(2) ** -22, Fraction(2) ** -149]
    pairs = zip(got.tolist(), want.tolist(), units, strict=True)
    exact = [float(abs(Fraction(g) - Fraction(w)) / unit) for g, w, unit in pairs]
    assert distance_ulp(got, want).tolist() == exact
    assert exact[0] == 1.0


def test_tie_is_half_an_ulp_from_either_neighbour():
    tie = f64(1.0 + 2.0**-24)
    for neighbour in (1.0, 1.0 + 2.0**-23):
        assert distance_ulp(torch.tensor([neighbour], dtype=F32), tie).item() == 0.5


@dtypes
def test_infinity_is_right_where_the_truth_rounds_to_it_and_nowhere_else(dtype):
    largest = torch.finfo(dtype).max
    unit = ulp(largest, dtype)
    infinity, top = torch.tensor([math.inf], dtype=dtype), torch.tensor([largest], dtype=dtype)
    for want, rounded in ((largest + 0.51 * unit, infinity), (largest + 0.49 * unit, top), (largest * 64.0, infinity)):
        assert f64(want).to(dtype).item() == rounded.item()
        assert isinstance(compare(rounded, f64(want), 0.5), Match)
        other = top if rounded is infinity else infinity
        assert isinstance(compare(other, f64(want), 0.5), Mismatch)
    assert isinstance(compare(-infinity, f64(largest * 64.0), 8.0), Mismatch)
    assert isinstance(compare(top, f64(math.inf), 1e9), Mismatch)
    assert isinstance(compare(-infinity, f64(math.inf), 1e9), Mismatch)
    assert isinstance(compare(infinity, f64(largest / 2), 1e3), Mismatch) is (unit * 1e3 < largest / 2)


def test_infinity_may_be_early_within_the_tolerance_and_no_further():
    top = torch.finfo(F32).max
    unit = ulp(top, F32)
    assert isinstance(compare(torch.tensor([math.inf], dtype=F32), f64(top - 6 * unit), 8.0), Match)
    assert isinstance(compare(torch.tensor([math.inf], dtype=F32), f64(top - 8 * unit), 8.0), Mismatch)


def test_nan_matches_nan_whatever_its_bits_and_nothing_else():
    odd = torch.tensor([0x7FC12345, -1], dtype=torch.int32).view(F32)
    assert odd.isnan().all()
    assert isinstance(compare(odd, f64(math.nan, math.nan), 0.0), Match)
    assert isinstance(compare(odd, f64(math.nan, 1.0), 1e30), Mismatch)
    assert isinstance(compare(torch.zeros(1), f64(math.nan), 1e30), Mismatch)


def test_zeros_of_either_sign_are_equal():
    assert compare(torch.tensor([0.0, -0.0]), f64(-0.0, 0.0), 0.0) == Match()


def test_magnitude_of_the_terms_takes_the_place_of_a_cancelled_sum():
    got, want = torch.tensor([2.0**-20]), f64(0.0)
    assert distance_ulp(got, want, f64(1.0)).item() == 8.0
    assert isinstance(compare(got, want, 8.0, f64(1.0)), Match)
    assert isinstance(compare(got, want, 8.0), Mismatch)


def test_magnitude_that_is_no_number_does_not_widen_anything():
    got, want = torch.tensor([1.5, 1.5]), f64(1.0, 1.0)
    assert isinstance(compare(got, want, 8.0, f64(math.inf, math.nan)), Mismatch)


def test_mismatch_names_the_worst_element_and_counts_all():
    want = torch.arange(12, dtype=torch.float64).reshape(3, 4)
    got = want.to(F32)
    got[1, 2], got[2, 3] = 6.0 + 2.0**-19, 11.5
    outcome = compare(got, want, 0.5)
    assert outcome == Mismatch((2, 3), 11.5, 11.0, 2.0**19, 0.5, 2, 12)
    assert str(outcome) == (
        "2 of 12 elements differ; the worst, at [2, 3]: got 11.5, want 11.0, 5.243e+05 ulp off, 0.5 ulp allowed"
    )


def test_scalars_and_empty_tensors_are_compared_too():
    assert compare(torch.empty(0, 3), torch.empty(0, 3, dtype=torch.float64), 0.0) == Match()
    outcome = compare(torch.tensor(1.0), torch.tensor(2.0, dtype=torch.float64), 0.5)
    assert isinstance(outcome, Mismatch)
    assert (outcome.index, outcome.got, outcome.want) == ((), 1.0, 2.0)


# --- rows measured with the plain formula ----------------------------------------------------------------------------


def rows_of(columns, *, off):
    """Truth, a plain formula that hits all rows but one, and results ``off`` times as far from each row as that."""
    want = torch.ones(6, columns, dtype=torch.float64)
    plain = want.clone()
    plain[0, 0] += 2.0**-7
    got = want.clone()
    got[:, 0] += off * 2.0**-7
    return got.bfloat16(), want, plain


def test_rows_of_a_few_elements_are_measured_with_the_plain_formulas_worst():
    assert isinstance(compare_rows(*rows_of(4, off=2.0)), Match)
    assert isinstance(compare_rows(*rows_of(4, off=8.0)), Mismatch)
    assert isinstance(compare_rows(*rows_of(64, off=16.0)), Mismatch)


def test_one_row_of_a_hundred_is_measured_with_the_plain_formulas_worst():
    want = torch.ones(4000, 32, dtype=torch.float64)
    plain, got = want + 2.0**-12, want.clone()
    plain[0] += 2.0**-6
    for rows, outcome in ((40, Match), (41, Mismatch)):
        got[1 : 1 + rows] = 1.0 + 2.0**-6
        assert isinstance(compare_rows(got.half(), want, plain), outcome)
    got[1:42] = 1.0
    got[1] = 1.0 + 2.0**-4
    assert isinstance(compare_rows(got.half(), want, plain), Mismatch)


def test_what_float32_loses_before_it_is_rounded_is_no_distance():
    got, want = torch.tensor([1.0 + 2.0**-10], dtype=torch.float16), f64(1.0 + 0.45 * 2.0**-10)
    assert isinstance(compare(got, want, 0.51), Mismatch)
    assert isinstance(compare(got, want, 0.51, slack=f64(0.05 * 2.0**-10)), Match)
    assert isinstance(compare(got, want, 0.51, slack=f64(0.03 * 2.0**-10)), Mismatch)


def test_a_row_may_round_to_infinity_where_the_truth_nearly_does_or_lies_beyond():
    want = torch.full((20, 32), 60000.0, dtype=torch.float64)
    want[0, 0] = -65519.0
    want[1, 1] = 70000.0
    got = want.half()
    got[0, 0] = -math.inf
    assert bool(got[1, 1].isinf())
    assert isinstance(compare_rows(got, want, want), Match)
    got[0, 0], got[2, 2] = -65504.0, math.inf
    assert isinstance(compare_rows(got, want, want), Mismatch)
    got[2, 2], got[1, 1] = 60000.0, -math.inf
    assert isinstance(compare_rows(got, want, want), Mismatch)


def test_a_plain_formula_that_overflows_bounds_its_row_still():
    want = torch.full((20, 32), 60000.0, dtype=torch.float64)
    plain, got = want.clone(), want.clone()
    plain[3, 3], got[3, 4] = math.inf, -60000.0
    assert isinstance(compare_rows(got.half(), want, plain), Mismatch)


def test_a_short_row_that_cancels_is_measured_at_the_largest_and_a_long_one_is_not():
    for columns, outcome in ((2, Match), (32, Mismatch)):
        want = torch.zeros(2, columns, dtype=torch.float64)
        want[1] = 1.0
        got = want.clone()
        got[0] = 2.0**-11
        assert isinstance(compare_rows(got.half(), want, want), outcome)


def test_a_gradient_that_cancels_is_allowed_what_rounding_leaves_of_its_terms():
    want = torch.zeros(3, 32, dtype=torch.float64)
    got = torch.full((3, 32), 1e-6)
    assert isinstance(compare_rows(got, want, want, cancelling=1e-5), Match)
    assert isinstance(compare_rows(got, want, want, cancelling=1e-6), Mismatch)


def test_terms_that_cancel_beyond_the_largest_number_leave_any_result_open():
    got, want = torch.tensor([math.inf], dtype=torch.float16), f64(0.0)
    assert isinstance(compare(got, want, 0.51, f64(1e15)), Match)
    assert isinstance(compare(got, want, 0.51, f64(1e4)), Mismatch)


def test_a_magnitude_is_no_less_than_what_it_bounds():
    got, want = torch.tensor([1.0], dtype=torch.bfloat16), f64(1.0 + 2.0**-8)
    assert isinstance(compare(got, want, 0.51, f64(0.99)), Match)


def test_bits_of_one_element_are_compared_whatever_its_strides():
    one = torch.ones(4, dtype=torch.bfloat16)[1:2].as_strided((1, 1), (5, 2))
    assert same_bits(one, torch.ones(1, 1, dtype=torch.bfloat16))
    assert not same_bits(one, -one)


def test_a_zero_of_the_other_sign_is_wrong_where_signs_are_promised():
    got, want = torch.tensor([0.0, -0.0, -0.0]), torch.tensor([0.0, -0.0, 0.0], dtype=torch.float64)
    assert isinstance(compare(got, want, 1.0), Match)
    found = compare(got, want, 1.0, signed_zeros=True)
    assert isinstance(found, Mismatch)
    assert (found.index, found.wrong, str(found.got)) == ((2,), 1, "-0.0")
