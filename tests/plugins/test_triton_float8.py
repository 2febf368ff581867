"""The conversions that the quantising Triton kernels share are exact: integer arithmetic, in Triton's interpreter."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

import torch
import triton
import triton.language as tl
from torch import Tensor

from portakernel.references.scale_formats import float8
from portakernel.triton_launch.interpreter import interpreting
from portakernel.triton_launch.launch import launch
from portakernel_plugins.triton.quantize import float8 as shared

FLOAT8 = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
SIZE = 1 << 15


@triton.jit
def _narrow(x, q, count, block: tl.constexpr, dtype: tl.constexpr):
    place = tl.arange(0, block)
    inside = place < count
    numbers = tl.load(x + place, mask=inside, other=0.0)
    tl.store(q + place, shared.narrowed(numbers, dtype, "bits"), mask=inside)


@triton.jit
def _widen(q, x, dtype: tl.constexpr):
    place = tl.arange(0, 256)
    tl.store(x + place, shared.widened(tl.load(q + place), dtype, "bits"))


@triton.jit
def _divide(x, divisor, q, block: tl.constexpr):
    place = tl.arange(0, block)
    by = tl.load(divisor + place)
    tl.store(q + place, shared.divided(tl.load(x + place), by, tl.div_rn(1.0, by), True))


def narrowed(x: Tensor, dtype: str) -> Tensor:
    codes = torch.empty(len(x), dtype=torch.uint8)
    with interpreting():
        launch(_narrow, (1, 1), x, codes, len(x), block=SIZE, dtype=dtype)
    return codes.view(getattr(torch, dtype))


def every_code(dtype: str) -> Tensor:
    return torch.arange(256).to(torch.uint8).view(getattr(torch, dtype))


def around_every_tie(dtype: str) -> Tensor:
    """All finite numbers of ``dtype``, the points halfway between neighbours, and what lies just beside them."""
    finite = every_code(dtype).double()
    finite = finite[finite.isfinite()].unique()
    points = torch.cat([finite, (finite[1:] + finite[:-1]) / 2]).float()
    up, down = (torch.nextafter(points, torch.tensor(end)) for end in (float("inf"), float("-inf")))
    return torch.cat([points, up, down])


@pytest.mark.parametrize("dtype", FLOAT8)
def test_rounding_is_to_nearest_ties_to_even_around_every_tie(dtype):
    x = around_every_tie(dtype)
    assert torch.equal(narrowed(x, dtype).float(), float8(x, dtype).float())


@pytest.mark.parametrize("dtype", FLOAT8)
def test_rounding_of_random_bits_is_that_of_torch(dtype):
    bits = torch.randint(-(1 << 31), 1 << 31, (SIZE,), generator=torch.Generator().manual_seed(0))
    x = bits.to(torch.int32).view(torch.float32)
    x = torch.where(x.isinf(), 1.0, x)
    torch.testing.assert_close(narrowed(x, dtype).float(), float8(x, dtype).float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", FLOAT8)
def test_what_is_too_large_becomes_the_largest_and_nan_stays_nan(dtype):
    found = narrowed(
        torch.tensor([3e38, -3e38, float("inf"), -float("inf"), float("nan"), -0.0, -1e-30]), dtype
    ).float()
    largest = torch.finfo(getattr(torch, dtype)).max
    assert found[:4].tolist() == [largest, -largest, largest, -largest]
    assert found[4].isnan()
    assert found[5:].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("dtype", FLOAT8)
def test_every_code_is_widened_exactly(dtype):
    codes, found = every_code(dtype), torch.empty(256)
    with interpreting():
        launch(_widen, (1, 1), codes.view(torch.uint8), found, dtype=dtype)
    torch.testing.assert_close(found, codes.float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.skipif(
    tuple(map(int, triton.__version__.split(".")[:2])) < (3, 9), reason="fma rounds twice in older interpreters"
)
def test_a_corrected_product_with_the_reciprocal_is_the_quotient_of_ieee_754():
    draw = torch.Generator().manual_seed(0)
    x, divisor, found = torch.randn(SIZE, generator=draw), torch.rand(SIZE, generator=draw) + 0.5, torch.empty(SIZE)
    divisor[: SIZE // 2] = 2 - torch.arange(SIZE // 2) * 2.0**-23  # reciprocals that are hardest to round
    with interpreting():
        launch(_divide, (1, 1), x, divisor, found, block=SIZE)
    assert torch.equal(found, x / divisor)
    assert not torch.equal(x * (1 / divisor), x / divisor)


@pytest.mark.parametrize(
    ("arch", "dtype", "cast"),
    [
        ("sm_80", "float8_e4m3fn", "bits"),
        ("sm_86", "float8_e5m2", "bits"),
        ("sm_89", "float8_e4m3fn", "saturating"),
        ("sm_90", "float8_e5m2", "saturating"),
        ("sm_120", "float8_e4m3fn", "saturating"),
        ("sm_90", "float8_e4m3fnuz", "bits"),
        ("gfx942", "float8_e4m3fnuz", "plain"),
        ("gfx942", "float8_e4m3fn", "bits"),
        ("gfx950", "float8_e4m3fn", "plain"),
        ("gfx950", "float8_e5m2fnuz", "bits"),
        ("gfx90a", "float8_e4m3fnuz", "bits"),
        ("interpreter", "float8_e4m3fn", "bits"),
        ("sm_90", "float4_e2m1fn_x2", "bits"),
    ],
)
def test_the_hardware_converts_where_it_has_an_instruction(arch, dtype, cast):
    assert shared.conversion_on(dtype, arch)["CAST"] == cast
