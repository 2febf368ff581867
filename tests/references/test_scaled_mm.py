"""The reference of ``scaled_mm`` is the sum of the products of its elements and scales, each looked up by its place.

What the narrow dtypes hold is checked against their specifications in test_quantised.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from portakernel.references import dequantize, quantize_fp4, quantize_fp8, quantize_mxfp8, scaled_mm
from portakernel.references.scale_formats import numbers, swizzled

FORMATS = ("tensor", "row", "block_1x128", "block_128x128", "mxfp8", "mxfp4", "nvfp4")
FLOAT8 = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
# What float32 sums may be off by, of the sum of their terms' magnitudes: more than any order of them loses.
FLOAT32_SUMS = 2.0**-19
# Two factors, each rounded.
BFLOAT16_OPERANDS = 2.02 * 2.0**-8 + FLOAT32_SUMS
HALF_UNIT = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def place_of(layout: str, row: int, column: int) -> tuple[int, ...]:
    """Where the scale of an element is."""
    columns = {"block_1x128": 128, "block_128x128": 128, "mxfp8": 32, "mxfp4": 32, "nvfp4": 16}
    if layout == "tensor":
        return ()
    if layout == "row":
        return row, 0
    return row // 128 if layout == "block_128x128" else row, column // columns[layout]


def scales_shape(layout: str, rows: int, columns: int) -> tuple[int, ...]:
    if layout == "tensor":
        return ()
    if columns == 0:
        return (rows, 1) if layout == "row" else (-(-rows // 128) if layout == "block_128x128" else rows, 0)
    last = place_of(layout, max(rows - 1, 0), columns - 1)
    return (last[0] + 1 if rows else 0, last[1] + 1)


def operand(
    rows: int, columns: int, layout: str, seed: int, dtype: str = "float8_e4m3fn"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Random finite elements, and scales around 1."""
    source = np.random.default_rng(seed)
    shape = scales_shape(layout, rows, columns)
    if layout in ("mxfp4", "nvfp4"):
        raw = torch.from_numpy(source.integers(0, 256, (rows, columns // 2), dtype=np.uint8))
        q = raw.view(torch.float4_e2m1fn_x2)
    else:
        q = torch.from_numpy(source.standard_normal((rows, columns))).float().to(getattr(torch, dtype))
    if layout in ("mxfp8", "mxfp4"):
        codes = torch.from_numpy(source.integers(124, 131, shape, dtype=np.uint8))
        return q, codes.view(torch.float8_e8m0fnu)
    scale = torch.from_numpy(np.exp2(source.uniform(-2, 2, math.prod(shape)))).float().reshape(shape)
    return q, scale.to(torch.float8_e4m3fn) if layout == "nvfp4" else scale


def exact_operand(q: torch.Tensor, scale: torch.Tensor, layout: str) -> list[list[Fraction]]:
    scales = numbers(scale)
    return [
        [
            Fraction(number) * Fraction(float(scales[place_of(layout, row, column)]))
            for column, number in enumerate(line)
        ]
        for row, line in enumerate(numbers(q).tolist())
    ]


def exact_product(
    left: list[list[Fraction]], right: list[list[Fraction]]
) -> tuple[list[list[float]], list[list[float]]]:
    """The sums of the products, and of their magnitudes."""
    terms = [[[x * y for x, y in zip(line, other, strict=True)] for other in right] for line in left]
    return (
        [[float(sum(products, Fraction(0))) for products in line] for line in terms],
        [[float(sum(map(abs, products), Fraction(0))) for products in line] for line in terms],
    )


def check(
    a: tuple[torch.Tensor, torch.Tensor],
    b: tuple[torch.Tensor, torch.Tensor],
    formats: tuple[str, str],
    given: tuple[torch.Tensor, ...] | None = None,
    **more: Any,
) -> None:
    """Truth, reference and plain formula; ``given`` are the arguments where they are not plainly ``a`` and ``b``."""
    exact, sizes = exact_product(exact_operand(*a, formats[0]), exact_operand(*b, formats[1]))
    want, magnitude = np.array(exact), np.array(sizes)
    arguments = given or (a[0], b[0], a[1], b[1])
    options = {"format_a": formats[0], "format_b": formats[1], **more}
    (truth,) = scaled_mm.truth(*arguments, **options)
    assert truth.dtype == torch.float64
    assert bool((np.abs(truth.numpy() - want) <= 1e-14 * magnitude).all())
    for out_dtype, half_unit in HALF_UNIT.items():
        y = scaled_mm.forward(*arguments, **options, out_dtype=out_dtype)
        assert (y.dtype, y.shape, y.is_contiguous()) == (getattr(torch, out_dtype), want.shape, True)
        far = np.abs(y.double().numpy() - want)
        assert bool((far <= FLOAT32_SUMS * magnitude + half_unit * np.abs(want)).all())
    plain = scaled_mm.plain(*arguments, **options, out_dtype="float32")
    assert bool((np.abs(plain.double().numpy() - want) <= BFLOAT16_OPERANDS * magnitude).all())


@pytest.mark.parametrize("formats", list(itertools.product(FORMATS, FORMATS)), ids="-".join)
def test_every_pair_of_formats_is_the_sum_of_the_products(formats):
    check(operand(3, 140, formats[0], seed=1), operand(5, 140, formats[1], seed=2), formats)


@pytest.mark.parametrize("formats", [("block_128x128", "row"), ("block_1x128", "block_128x128")], ids="-".join)
def test_square_blocks_of_more_than_128_rows(formats):
    check(operand(130, 6, formats[0], seed=3), operand(2, 6, formats[1], seed=4), formats)
    check(operand(2, 6, formats[0], seed=3), operand(259, 6, formats[1], seed=4), formats)


@pytest.mark.parametrize(("dtype_a", "dtype_b"), list(itertools.product(FLOAT8, FLOAT8)))
def test_every_pair_of_float8_dtypes(dtype_a, dtype_b):
    check(operand(3, 33, "row", 5, dtype_a), operand(4, 33, "row", 6, dtype_b), ("row", "row"))


@pytest.mark.parametrize("columns", [1, 31, 129])
@pytest.mark.parametrize("layout", FORMATS[:5])
def test_odd_numbers_of_columns(layout, columns):
    check(operand(3, columns, layout, seed=7), operand(2, columns, layout, seed=8), (layout, layout))


@pytest.mark.parametrize(
    "formats", [("mxfp8", "mxfp8"), ("mxfp8", "mxfp4"), ("nvfp4", "nvfp4"), ("nvfp4", "mxfp8")], ids="-".join
)
def test_swizzled_scales_are_found_where_cublas_puts_them(formats):
    """Laid out here by cuBLAS' formula; what pads them is NaN, and not used."""
    a, b = operand(131, 148, formats[0], seed=9), operand(2, 148, formats[1], seed=10)

    def laid_out(scale: torch.Tensor) -> torch.Tensor:
        rows, columns = scale.shape
        down, across = -(-rows // 128), -(-columns // 4)
        memory = [0xFF] * (512 * down * across)
        for r, c in itertools.product(range(rows), range(columns)):
            place = (r // 128 * across + c // 4) * 512 + r % 32 * 16 + r % 128 // 32 * 4 + c % 4
            memory[place] = int(scale.view(torch.uint8)[r, c])
        return torch.tensor(memory, dtype=torch.uint8).view(scale.dtype).reshape(128 * down, 4 * across)

    given = a[0], b[0], laid_out(a[1]), laid_out(b[1])
    check((a[0][:3], a[1][:3]), b, formats, (a[0][:3], b[0], laid_out(a[1][:3]), given[3]), swizzle="32_4_4")
    plain = scaled_mm.forward(a[0], b[0], a[1], b[1], format_a=formats[0], format_b=formats[1])
    found = scaled_mm.forward(*given, format_a=formats[0], format_b=formats[1], swizzle="32_4_4")
    assert torch.equal(found, plain)


@pytest.mark.parametrize("layout", FORMATS[:4])
def test_float32_scales_are_not_swizzled(layout):
    a, b = operand(3, 140, layout, seed=11), operand(2, 140, "mxfp8", seed=12)
    given = a[0], b[0], a[1], swizzled(b[1])
    check(a, b, (layout, "mxfp8"), given, swizzle="32_4_4")


@pytest.mark.parametrize("out_dtype", list(HALF_UNIT))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("layout", FORMATS)
def test_bias_and_global_scales_come_before_rounding(layout, dtype, out_dtype):
    (a, scale_a), (b, scale_b) = operand(3, 64, layout, seed=13), operand(4, 64, layout, seed=14)
    bias, global_a, global_b = torch.randn(4).to(dtype), torch.tensor(0.3), torch.tensor(1.7)
    options = {"format_a": layout, "format_b": layout}
    (product,) = scaled_mm.truth(a, b, scale_a, scale_b, **options)
    left, right = (dequantize.truth(*one, format=layout)[0].abs() for one in ((a, scale_a), (b, scale_b)))
    factor = global_a.double() * global_b.double()
    want, magnitude = product * factor + bias.double(), left @ right.T * factor + bias.double().abs()
    options |= {"bias": bias, "global_scale_a": global_a, "global_scale_b": global_b}
    (truth,) = scaled_mm.truth(a, b, scale_a, scale_b, **options)
    assert bool(((truth - want).abs() <= 1e-14 * magnitude).all())
    y = scaled_mm.forward(a, b, scale_a, scale_b, **options, out_dtype=out_dtype)
    plain = scaled_mm.plain(a, b, scale_a, scale_b, **options, out_dtype=out_dtype)
    assert y.dtype == plain.dtype == getattr(torch, out_dtype)
    rounding = HALF_UNIT[out_dtype] * want.abs()
    assert bool(((y.double() - want).abs() <= rounding + FLOAT32_SUMS * magnitude).all())
    assert bool(((plain.double() - want).abs() <= 1.01 * rounding + BFLOAT16_OPERANDS * magnitude).all())


def test_plain_rounds_its_operands_to_bfloat16_or_to_13_bits_and_the_reference_does_not():
    a = torch.tensor([[1.0]]).to(torch.float8_e4m3fn)
    scale, wide = torch.tensor([[1.0 + 2.0**-10 + 2.0**-14]]), {"out_dtype": "float32"}
    one = torch.ones(1, 1)
    assert float(scaled_mm.forward(a, a, scale, one, **wide)) == 1.0 + 2.0**-10 + 2.0**-14
    exact = 1.0 + 2.0**-10 + 2.0**-14
    # on average over what is rounded; half a unit is the most of one operand
    assert 2.0**-16 < float(scaled_mm.plain(a, a, scale, one, **wide)) - exact < 2.0**-12
    assert 2.0**-11 < float(scaled_mm.plain(a, a, scale, one, **wide, use_fast_accum=True)) - exact < 2.0**-7


def test_plain_is_off_where_a_rounding_would_be_exact_by_chance():
    """All elements of a row are one power of two, and so is what they stand for."""
    a, b = torch.ones(3, 64).to(torch.float8_e4m3fn), torch.ones(5, 64).to(torch.float8_e4m3fn)
    scales = torch.ones(3, 1), torch.ones(1, 1).expand(5, 1)
    y = scaled_mm.plain(a, b, *scales, out_dtype="float32", use_fast_accum=True)
    assert bool((y > 64.0 * (1.0 + 2.0**-10)).all())
    assert bool((y < 64.0 * (1.0 + 2.0**-7)).all())


@pytest.mark.parametrize("layout", FORMATS)
def test_what_quantisation_returns_goes_straight_in(layout):
    x, weight = torch.randn(6, 260), torch.randn(9, 260)

    def quantised(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if layout in ("mxfp4", "nvfp4"):
            return quantize_fp4.forward(tensor, format=layout)
        return quantize_mxfp8.forward(tensor) if layout == "mxfp8" else quantize_fp8.forward(tensor, granularity=layout)

    (a, scale_a, *global_a), (b, scale_b, *global_b) = quantised(x), quantised(weight)
    options = {"global_scale_a": next(iter(global_a), None), "global_scale_b": next(iter(global_b), None)}
    y = scaled_mm.forward(a, b, scale_a, scale_b, **options, format_a=layout, format_b=layout, out_dtype="float32")
    back = [dequantize.forward(*operand, format=layout) for operand in (quantised(x), quantised(weight))]
    torch.testing.assert_close(y, back[0] @ back[1].T)
    # Within what the elements' own precision leaves. Asked of the operands: the error of 1,560 elements hardly varies
    # from draw to draw (0.03 and 0.12 with a spread of 0.002), the error of 54 products does.
    for tensor, read in zip((x, weight), back, strict=True):
        assert float((read - tensor).norm() / tensor.norm()) < (0.15 if layout in ("mxfp4", "nvfp4") else 0.045)


@pytest.mark.parametrize("layout", ["row", "block_1x128", "mxfp8", "nvfp4"])
def test_operands_and_scales_may_lie_anyhow_and_so_may_out(layout):
    (a, scale_a), (b, scale_b) = operand(6, 260, layout, seed=15), operand(5, 260, layout, seed=16)
    want = scaled_mm.forward(a, b, scale_a, scale_b, format_a=layout, format_b=layout)

    def column_major(tensor: torch.Tensor) -> torch.Tensor:
        raw = tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor
        return raw.T.contiguous().T.view(tensor.dtype)

    out = torch.empty(5, 12, dtype=torch.bfloat16)[:, ::2].T
    given = (column_major(tensor) for tensor in (a, b, scale_a, scale_b))
    assert scaled_mm.forward(*given, format_a=layout, format_b=layout, out=out) is out
    assert torch.equal(out, want)


def test_fast_sums_are_a_permission():
    (a, scale_a), (b, scale_b) = operand(6, 260, "row", seed=17), operand(5, 260, "row", seed=18)
    slow = scaled_mm.forward(a, b, scale_a, scale_b, use_fast_accum=False)
    assert torch.equal(scaled_mm.forward(a, b, scale_a, scale_b, use_fast_accum=True), slow)


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize(("M", "N", "K"), [(0, 4, 32), (3, 0, 32), (0, 0, 0), (3, 4, 0)])
def test_nothing_to_multiply_leaves_the_bias(layout, M, N, K):  # noqa: N803 - the contract's letters
    (a, scale_a), (b, scale_b) = operand(M, K, layout, seed=19), operand(N, K, layout, seed=20)
    bias = torch.arange(N).float()
    y = scaled_mm.forward(a, b, scale_a, scale_b, bias=bias, format_a=layout, format_b=layout)
    assert torch.equal(y, bias.bfloat16().expand(M, N))


def test_a_scale_that_is_nan_makes_its_row_nan():
    (a, scale_a), (b, scale_b) = operand(3, 64, "mxfp8", seed=21), operand(4, 64, "mxfp8", seed=22)
    scale_a.view(torch.uint8)[1, 0] = 0xFF
    y = scaled_mm.forward(a, b, scale_a, scale_b, format_a="mxfp8", format_b="mxfp8")
    assert y.isnan().all(1).tolist() == [False, True, False]
    assert not math.isnan(float(y[0].sum() + y[2].sum()))
